"""SIGTERM while a capture is open, and deadlines on the main thread.

On SIGTERM captures are written first; then the signal takes the effect that it has in the program.
Python allows only the main thread to set handlers: captures on other threads do without. A program
that ignores SIGTERM continues to ignore it.
"""

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

_TERM: Final = signal.SIGTERM

Finish = Callable[[str], bool]
"""Receives the signal's name; False means that it cannot finish at this moment."""

_previous: Any = None
_finishers: Final[list[Finish]] = []
_is_pending = False
_n_deferring = 0


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer SIGTERM to the end of the block, which must not be interrupted halfway."""
    global _n_deferring  # noqa: PLW0603
    _n_deferring += 1
    try:
        yield
    finally:
        _n_deferring -= 1
        if not _n_deferring:
            resend_pending()


def on_sigterm(finish: Finish) -> None:
    """Call ``finish`` on SIGTERM, before the program's own handler.

    Args:
        finish: If it returns False, :func:`resend_pending` sends the signal again.
    """
    global _previous  # noqa: PLW0603
    if threading.current_thread() is not threading.main_thread() or finish in _finishers:
        return
    if not _finishers:
        found = signal.getsignal(_TERM)
        # None is a handler that was not set by Python, so that Python cannot restore it.
        if found is None or found is signal.SIG_IGN:
            return
        _previous = found
        signal.signal(_TERM, _handle)
    _finishers.append(finish)


def remove(finish: Finish) -> None:
    """Undo :func:`on_sigterm`; after the last one, restore the program's own handler."""
    if finish not in _finishers or threading.current_thread() is not threading.main_thread():
        return
    _finishers.remove(finish)
    if not _finishers:
        _restore()
        resend_pending()


def _restore() -> None:
    global _previous  # noqa: PLW0603
    if signal.getsignal(_TERM) is _handle:
        signal.signal(_TERM, _previous)
    _previous = None


def resend_pending() -> None:
    """Send the signal again if it arrived while a capture could not finish."""
    global _is_pending  # noqa: PLW0603
    if _is_pending:
        _is_pending = False
        os.kill(os.getpid(), _TERM)


def _handle(signum: int, frame: FrameType | None) -> None:
    global _is_pending  # noqa: PLW0603
    previous = _previous
    if _n_deferring or not all(finish("SIGTERM") for finish in reversed(list(_finishers))):
        _is_pending = True
        return
    _finishers.clear()
    _restore()
    if callable(previous):
        previous(signum, frame)
    else:
        # The process then ends with the signal as its wait status, as without a handler.
        os.kill(os.getpid(), signum)


class Deadline:
    """Calls a function on the main thread after a time. Without a spare signal it does nothing.

    A profiler must be stopped by the thread that started it, so a timer lets Python run a signal
    handler between two instructions of the main thread, without a signal of the operating system.

    Args:
        seconds: The delay.
        act: The function.

    Source: ``_thread.interrupt_main(signum)``, from Python 3.10 on.
    """

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._act = act
        self._previous: Any = None
        self._timer: threading.Timer | None = None
        self._signal = _spare_signal()
        if self._signal is None:
            return
        self._previous = signal.signal(self._signal, self._on_time)
        self._timer = threading.Timer(seconds, _thread.interrupt_main, [self._signal])
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Cancel the call and restore the signal's handler."""
        if self._timer is None or self._signal is None:
            return
        self._timer.cancel()
        self._timer = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(self._signal, self._previous)

    def _on_time(self, _number: int, _frame: object) -> None:
        if self._timer is not None:
            self.cancel()
            self._act()


def _spare_signal() -> signal.Signals | None:
    """The last real-time signal, if it has no handler."""
    number = getattr(signal, "SIGRTMAX", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return None
    return number if signal.getsignal(number) is signal.SIG_DFL else None
