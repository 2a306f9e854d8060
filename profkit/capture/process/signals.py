"""SIGTERM while a capture is open, and deadlines on the main thread.

On SIGTERM captures are written first; then the signal takes the effect that it has in the program.
Python allows only the main thread to set handlers: captures on other threads do without. A program
that ignores SIGTERM continues to ignore it.
"""

import _thread
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

_TERM: Final = signal.SIGTERM
DEADLINE_THREAD: Final = "profkit deadline"
"""The name of the threads that wait for a deadline."""
COMPILING_SECONDS: Final = 0.05
"""How long to wait where a recording cannot end, since the program is compiled or traced."""
_POLL_S: Final = 0.05
_QUICK_POLL_S: Final = 0.02
_POLL_PAUSE: Final = 50
"""A pause between two polls is this many times as much time as a poll takes of its thread."""
_GRACE_S: Final = 0.2
"""How long the main thread may be in one operator before a deadline interrupts it."""
_COLLECTION_S: Final = 0.01
"""How long a signal waits that arrives in a garbage collection."""

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


def is_pending() -> bool:
    """Whether SIGTERM has arrived and was deferred."""
    return _is_pending


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
    if _is_collecting():
        threading.Timer(_COLLECTION_S, os.kill, (os.getpid(), _TERM)).start()
        return
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


class _Pauses:
    """Has the program's ``signal.pause()`` go on after signals of :class:`Interrupt`.

    It returns at any signal with a handler, and a program may wait in it for the one that ends it.
    Python names the signals that arrive meanwhile in a file.

    Source: ``signal.set_wakeup_fd``.
    """

    def __init__(self) -> None:
        self._original: Callable[[], None] | None = getattr(signal, "pause", None)
        self._owners: set[Interrupt] = set()

    def watch(self, owner: "Interrupt") -> None:
        """Go on after the signals of this one too."""
        self._owners.add(owner)
        if self._original is not None and signal.pause is self._original:
            signal.pause = self._pause

    def leave(self, owner: "Interrupt") -> None:
        """Undo that."""
        self._owners.discard(owner)
        if not self._owners and self._original is not None and signal.pause == self._pause:
            signal.pause = self._original

    def _pause(self) -> None:
        pause = self._original
        assert pause is not None  # noqa: S101  (for the type checker)
        if threading.get_ident() != _ident_of_main():
            return pause()
        try:
            read, write = os.pipe()
        except OSError:  # too many files are open
            return pause()
        before = -1
        try:
            for end in (read, write):
                os.set_blocking(end, False)
            before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            own: set[int] = set()
            while True:
                own |= self._numbers()
                pause()
                own |= self._numbers()
                if not own.issuperset(os.read(read, 1024)):
                    return None
        except BlockingIOError:  # a handler of the program has set another file
            return None
        finally:
            signal.set_wakeup_fd(before)
            os.close(read)
            os.close(write)

    def _numbers(self) -> set[int]:
        return {int(each.number) for each in tuple(self._owners) if each.number is not None}


_pauses: Final = _Pauses()


class Interrupt:
    """Has a function called on the main thread, when another thread requests it.

    A profiler must be stopped by the thread that started it. A request lets Python run a signal
    handler between two instructions of the main thread. Made on any other thread, or without a
    spare signal, it does nothing.

    Args:
        act: The function.

    Source: ``_thread.interrupt_main(signum)``, from Python 3.10 on.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._is_active = True
        self._signal = _spare_signal()
        if self._signal is not None:
            self._previous: Any = signal.signal(self._signal, self._on_signal)
            _pauses.watch(self)

    @property
    def has_signal(self) -> bool:
        """Whether there is a spare signal."""
        return self._signal is not None

    @property
    def number(self) -> int | None:
        """The number of the spare signal, or None."""
        return self._signal

    def request(self, *, wakes: bool = False) -> None:
        """Have the function called. Does nothing after :meth:`cancel`.

        Args:
            wakes: Interrupt a blocking call too, as any signal does.
        """
        number = self._signal
        if number is None or not self._is_active or not self._is_installed():
            return
        if wakes:
            signal.pthread_kill(_ident_of_main(), number)
        else:
            _thread.interrupt_main(number)  # type: ignore[arg-type]  # (any number)

    def cancel(self) -> None:
        """Call the function no more. The main thread also restores the signal's handler."""
        self._is_active = False
        _pauses.leave(self)
        is_main = threading.get_ident() == _ident_of_main()
        if self._signal is not None and is_main and self._is_installed():
            signal.signal(self._signal, self._previous)

    def _is_installed(self) -> bool:
        return self._signal is not None and signal.getsignal(self._signal) == self._on_signal

    def _on_signal(self, _number: int, _frame: object) -> None:
        if not self._is_active:
            return
        if _is_collecting():
            threading.Timer(_COLLECTION_S, self.request).start()
        else:
            self._act()


class Deadline:
    """Calls a function on the main thread after a time. Without a spare signal it does nothing.

    A main thread that does not come is interrupted: it may wait for other threads or requests.
    Python continues such a wait after the call.

    Args:
        seconds: The delay.
        act: The function.
        cpu_s: The delay goes on until the process has used this much CPU time.
        at_most_s: How long it may then be in all; no less than the delay.
        is_early: Asked every few hundredths of a second, on another thread; ends the delay.
    """

    def __init__(
        self,
        seconds: float,
        act: Callable[[], None],
        *,
        cpu_s: float = 0.0,
        at_most_s: float = 0.0,
        is_early: Callable[[], bool] | None = None,
    ) -> None:
        self._act = act
        self._is_early = is_early
        self._interrupt = Interrupt(self._on_time)
        self._cpu_until_s = time.process_time() + cpu_s
        self._until_s = time.monotonic() + max(seconds, at_most_s)
        self._has_come = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._wait, args=(seconds,), name=DEADLINE_THREAD, daemon=True
        )
        self._thread.start()

    @property
    def has_signal(self) -> bool:
        """Whether there is a spare signal, without which nothing is called."""
        return self._interrupt.has_signal

    def come(self) -> None:
        """Have the function called at once. Any thread may do so."""
        self._has_come.set()
        self._interrupt.request()

    def cancel(self) -> None:
        """Cancel the call and restore the signal's handler."""
        self._is_over.set()
        self._has_come.set()
        self._interrupt.cancel()

    def _wait(self, seconds: float) -> None:
        self._wait_or_early(time.monotonic() + seconds)
        if not self._is_over.is_set():
            self._interrupt.request()
            if not self._is_over.wait(_GRACE_S):
                self._interrupt.request(wakes=True)

    def _wait_or_early(self, ends_s: float) -> None:
        """Wait until that time, and then for CPU time; or until it is early."""
        while True:
            began_s = time.thread_time()
            if self._is_early is not None and self._is_early():
                return
            poll_s, now_s = time.thread_time() - began_s, time.monotonic()
            is_extended = now_s >= ends_s
            left_s = (self._until_s if is_extended else ends_s) - now_s
            if left_s <= 0 or (is_extended and time.process_time() >= self._cpu_until_s):
                return
            if self._is_early is not None:
                left_s = min(left_s, max(_QUICK_POLL_S, _POLL_PAUSE * poll_s))
            elif is_extended:
                left_s = min(left_s, _POLL_S)
            if self._has_come.wait(left_s):
                return

    def _on_time(self) -> None:
        self.cancel()
        self._act()


def _ident_of_main() -> int:
    return threading.main_thread().ident or 0


def _is_collecting() -> bool:
    """Whether this interrupts a garbage collection in which no recording may be stopped.

    Until Python 3.11 an allocation may collect, also the one of the frame that a profile function
    is about to be called with. The collection runs weak references' callbacks and finalizers, and
    those the handlers of signals. One that stops torch's recording frees what its profile function
    is then called with.

    Source: ``call_trace`` in CPython 3.11's ``Python/ceval.c``, which holds no reference to
    ``c_profileobj``; collections are left to the eval loop since 3.12 (gh-97922).
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return False
    n_before = _n_young_collections()
    gc.collect(0)  # does nothing inside another one
    return _n_young_collections() == n_before


def _n_young_collections() -> int:
    return gc.get_stats()[0]["collections"]


def _spare_signal() -> int | None:
    """The last real-time signal without a handler."""
    if threading.current_thread() is not threading.main_thread():
        return None
    last, first = getattr(signal, "SIGRTMAX", None), getattr(signal, "SIGRTMIN", None)
    if last is None or first is None:
        return None
    numbers = range(last, first, -1)
    return next((each for each in numbers if signal.getsignal(each) is signal.SIG_DFL), None)
