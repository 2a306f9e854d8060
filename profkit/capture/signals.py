"""SIGTERM while a capture is open: write first, then die of it as the program would have.

Python's handlers can be set by the main thread alone; captures on other threads go without. A
program that ignores SIGTERM keeps ignoring it.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

_TERM: Final = signal.SIGTERM

Finish = Callable[[str], bool]
"""Takes the signal's name; False means that it could not finish at this moment."""

_previous: Any = None
_finishers: Final[list[Finish]] = []
_waiting = False
_n_held = 0


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let the signal wait while this is open: what is being written down would be half done."""
    global _n_held  # noqa: PLW0603
    _n_held += 1
    try:
        yield
    finally:
        _n_held -= 1
        if not _n_held:
            send_again()


def watch(finish: Finish) -> None:
    """Call ``finish`` when SIGTERM comes, before the program's own handler.

    Args:
        finish: Where it returns False the signal is sent again by :func:`send_again`.
    """
    global _previous  # noqa: PLW0603
    if threading.current_thread() is not threading.main_thread() or finish in _finishers:
        return
    if not _finishers:
        found = signal.getsignal(_TERM)
        # None is a handler that Python did not set and so cannot put back.
        if found is None or found is signal.SIG_IGN:
            return
        _previous = found
        signal.signal(_TERM, _on_term)
    _finishers.append(finish)


def unwatch(finish: Finish) -> None:
    """Call it no longer; after the last one, put the program's own handler back.

    Args:
        finish: What :func:`watch` was given.
    """
    if finish not in _finishers or threading.current_thread() is not threading.main_thread():
        return
    _finishers.remove(finish)
    if not _finishers:
        _put_back()
        send_again()


def _put_back() -> None:
    global _previous  # noqa: PLW0603
    if signal.getsignal(_TERM) is _on_term:
        signal.signal(_TERM, _previous)
    _previous = None


def send_again() -> None:
    """Send a signal again that came while the capture was at work itself."""
    global _waiting  # noqa: PLW0603
    if _waiting:
        _waiting = False
        os.kill(os.getpid(), _TERM)


def _on_term(signum: int, frame: FrameType | None) -> None:
    global _waiting  # noqa: PLW0603
    previous = _previous
    if _n_held or not all(finish("SIGTERM") for finish in reversed(list(_finishers))):
        _waiting = True
        return
    _finishers.clear()
    _put_back()
    if callable(previous):
        previous(signum, frame)
    else:
        # As if nobody had ever caught it: the process ends with the signal as its wait status.
        os.kill(os.getpid(), signum)
