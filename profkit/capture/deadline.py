"""Calls a function on the main thread after some time, without a signal of the system.

A profiler must be stopped by the thread that started it. So a timer asks Python to run a handler
between two instructions of the main thread, as it does when a signal has come.

Source: ``_thread.interrupt_main(signum)``, from Python 3.10 on.
"""

import _thread
import signal
import threading
from collections.abc import Callable
from typing import Any


class Deadline:
    """One call in the future, which can be called off. Does nothing where there is no spare signal.

    Args:
        seconds: When.
        act: What to call on the main thread.
    """

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._act = act
        self._previous: Any = None
        self._timer: threading.Timer | None = None
        self._number = self._spare_signal()
        if self._number is None:
            return
        self._previous = signal.signal(self._number, self._on_time)
        self._timer = threading.Timer(seconds, _thread.interrupt_main, [self._number])
        self._timer.daemon = True
        self._timer.start()

    def call_off(self) -> None:
        """Forget it."""
        if self._timer is None or self._number is None:
            return
        self._timer.cancel()
        self._timer = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(self._number, self._previous)

    def _on_time(self, _number: int, _frame: object) -> None:
        if self._timer is not None:
            self.call_off()
            self._act()

    @staticmethod
    def _spare_signal() -> signal.Signals | None:
        """The last real-time signal, if nobody uses it."""
        number = getattr(signal, "SIGRTMAX", None)
        if number is None or threading.current_thread() is not threading.main_thread():
            return None
        return number if signal.getsignal(number) is signal.SIG_DFL else None
