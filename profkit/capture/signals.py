"""SIGTERM while a capture is open: write first, then die of it as the program would have.

Python's handlers can be set by the main thread alone; captures on other threads go without. A
program that ignores SIGTERM keeps ignoring it.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_TERM: Final = signal.SIGTERM

_previous: Any = None
_finish: Callable[[str], bool] | None = None
_waiting = False


def watch(finish: Callable[[str], bool]) -> None:
    """Call ``finish`` when SIGTERM comes, before the program's own handler.

    Args:
        finish: Takes the signal's name; False means that it could not finish at this moment, and
            the signal is sent again by :func:`send_again`.
    """
    global _previous, _finish
    if threading.current_thread() is not threading.main_thread() or _finish is not None:
        return
    found = signal.getsignal(_TERM)
    # None is a handler that Python did not set and so cannot put back.
    if found is None or found is signal.SIG_IGN:
        return
    _previous, _finish = found, finish
    signal.signal(_TERM, _on_term)


def unwatch() -> None:
    """Put the program's own handler back, and send a signal again that had to wait."""
    global _previous, _finish  # noqa: PLW0603
    if _finish is None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(_TERM) is _on_term:
        signal.signal(_TERM, _previous)
    _previous = _finish = None
    send_again()


def send_again() -> None:
    """Send a signal again that came while the capture was at work itself."""
    global _waiting  # noqa: PLW0603
    if _waiting:
        _waiting = False
        os.kill(os.getpid(), _TERM)


def _on_term(signum: int, frame: FrameType | None) -> None:
    global _waiting  # noqa: PLW0603
    previous, finish = _previous, _finish
    if finish is not None and not finish("SIGTERM"):
        _waiting = True
        return
    unwatch()
    if callable(previous):
        previous(signum, frame)
    else:
        # As if nobody had ever caught it: the process ends with the signal as its wait status.
        os.kill(os.getpid(), signum)
