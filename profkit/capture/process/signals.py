"""SIGTERM while profkit has something to write, and the program's handlers while profkit works.

A program without a handler for SIGTERM dies of it at once, and what was recorded would be lost. So
profkit has a handler then, which only notes the signal. Another thread, the signal thread, has the
files and the report written, restores the default action, and sends the signal again: the process
dies of SIGTERM, as it would without profkit, and at most :data:`LIMIT_S` later whatever happens.

The main thread goes no further meanwhile: it waits in the handler. Only where a recording is open
it has to go on, as torch's profiler is stopped at a safe point alone: the next one ends the
recording, writes and reports in its place. A main thread that is in C code does not run its handler
in time. The signal wakes the signal thread all the same, which then does without it.

A handler of the program for SIGTERM is left alone: such a program decides itself how it ends.

Source: ``signal.set_wakeup_fd``, and "Execution of Python signal handlers" in Python's
documentation: the handler runs on the main thread, between two instructions.
"""

import _signal  # type: ignore[import-not-found]  # what `signal` calls, without names of numbers
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from profkit.capture.process import own_threads
from profkit.dataclass import dataclass

LIMIT_S: Final = 5.0
"""How long the process lives on after a signal that ends it, for the files and the report."""
LIMIT_OF_RANK_S: Final = 2.0
"""The same for a rank of a job, whose other ranks wait for its end."""
_HANDLER_S: Final = 0.5
"""How long the main thread may take until it runs its handler; after that it is in C code."""
_SAFE_POINT_SHARE: Final = 0.4
"""Share of the limit for which a recording waits for a safe point; the rest is for the report."""
_DRAIN_S: Final = 0.05
"""A pause after other signals, which may come a thousand times per second."""
_POLL_S: Final = 0.01
_TERM: Final = signal.SIGTERM
_NUMBERS: Final = tuple(map(int, signal.valid_signals()))


@dataclass(frozen=True)
class Finisher:
    """Ends something that the process has open.

    Attributes:
        finish: Writes it; called once, with the signal's name, on the signal thread or the main
            one.
        needs_safe_point: Returns whether that must wait for a safe point of the main thread.
    """

    finish: Callable[[str], object]
    needs_safe_point: Callable[[], bool] = bool


_finishers: Final[list[Finisher]] = []


class _ProcessState:
    """How this process stands to SIGTERM.

    Attributes:
        thread: The signal thread, or None while nothing is to be finished.
        n_deferring: The blocks of :func:`deferred` that are open, within each other.
        is_held: Whether a block of :func:`held` is open.
        limit_s: How long the process may live on after the signal.
    """

    thread: "_SignalThread | None" = None
    n_deferring: int = 0
    is_held: bool = False
    limit_s: float = LIMIT_S


_state: Final = _ProcessState()


def on_sigterm(finisher: Finisher) -> None:
    """Have something finished on SIGTERM, before what was added earlier.

    Does nothing outside the main thread, where no handler can be set, in a program that handles or
    ignores the signal, and on systems without signals.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if os.name != "posix" or not is_main or finisher in _finishers:
        return
    if not _finishers:
        if signal.getsignal(_TERM) is not signal.SIG_DFL:
            return
        with contextlib.suppress(OSError, RuntimeError):  # no more files, or no more threads
            _state.thread = _SignalThread()
            signal.signal(_TERM, _handle)
    _finishers.append(finisher)


def remove(finisher: Finisher) -> None:
    """Undo :func:`on_sigterm`; after the last one, the signal has its default action again."""
    if finisher in _finishers and threading.current_thread() is threading.main_thread():
        _finishers.remove(finisher)
        _stop_if_unused()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let SIGTERM end the process only after the block, in which it writes and reports.

    It does so at the latest after the limit. What is removed in the block still counts there.
    """
    _state.n_deferring += 1
    try:
        yield
    finally:
        _state.n_deferring -= 1
        _stop_if_unused()
        _wait_if_pending()


def _stop_if_unused() -> None:
    """Give SIGTERM its default action again, once nothing is to be finished before it."""
    is_main = threading.current_thread() is threading.main_thread()
    if _finishers or _state.n_deferring or _state.thread is None or not is_main:
        return
    thread, _state.thread = _state.thread, None
    if signal.getsignal(_TERM) is _handle:
        signal.signal(_TERM, signal.SIG_DFL)
    thread.stop()
    if thread.was_requested.is_set():
        os.kill(os.getpid(), _TERM)


def is_pending() -> bool:
    """Return whether SIGTERM has arrived, so that the process is about to end."""
    return _state.thread is not None and _state.thread.was_requested.is_set()


def act_if_pending() -> None:
    """End the process here if SIGTERM has arrived; called on the main thread, at a safe point."""
    thread = _state.thread
    if (
        thread is not None
        and thread.was_requested.is_set()
        and not _state.n_deferring
        and threading.current_thread() is threading.main_thread()
    ):
        thread.finish()


def set_limit(limit_s: float) -> None:
    """Set how long the process may live on after SIGTERM."""
    _state.limit_s = limit_s


@contextlib.contextmanager
def dies_within(number: int, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Let a process that a signal has ended write and report in this block, or die if that hangs.

    Args:
        number: The signal, which would have ended the process by now.
    """
    is_over = threading.Event()

    def watch() -> None:
        if not is_over.wait(limit_s):
            _die(number)

    own_threads.start(watch)
    try:
        yield
    finally:
        is_over.set()


def python_handlers() -> dict[int, Callable[..., object]]:
    """Return the functions of Python that signals call, by number."""
    handlers = ((number, _signal.getsignal(number)) for number in _NUMBERS)
    return {number: handler for number, handler in handlers if callable(handler)}


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold back the program's signal handlers during the block, and run them at its end.

    A handler may raise an exception, as Ctrl-C and timeouts by SIGALRM do. In the middle of a start
    or stop of torch's profiler it would leave that half done, and it is the program's: it belongs
    to no warning of profkit's.
    """
    if _state.is_held or threading.current_thread() is not threading.main_thread():
        yield
        return

    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    _state.is_held = True
    try:
        for number, handler in python_handlers().items():
            if handler is not _handle:
                handlers[number] = handler
                _signal.signal(number, lambda number, _frame: arrived.append(number))
        yield
    finally:
        try:
            _restore(handlers)
        finally:
            _state.is_held = False
            _wait_if_pending()
            _raise_each([*dict.fromkeys(arrived)])


def _restore(handlers: dict[int, Any]) -> None:
    """Set the program's handlers again. What the first of them raises here leaves none behind."""
    try:
        while handlers:
            number = next(iter(handlers))
            _signal.signal(number, handlers[number])
            del handlers[number]
    finally:
        if handlers:
            _restore(handlers)


def _raise_each(numbers: list[int]) -> None:
    """Send this process the signals that have arrived, the others too if one's handler raises."""
    try:
        while numbers:
            signal.raise_signal(numbers.pop(0))
    finally:
        if numbers:
            _raise_each(numbers)


def _handle(_number: int, _frame: FrameType | None) -> None:
    """Note SIGTERM; the main thread waits here for the end, unless it has to reach a safe point."""
    thread = _state.thread
    if thread is None or thread.pid != os.getpid():
        _die(_TERM)
        return
    thread.request()
    _wait_if_pending()


def _wait_if_pending() -> None:
    """Go no further on the main thread if the signal thread ends the process now."""
    thread = _state.thread
    if thread is None or not thread.was_requested.is_set() or _state.is_held or _state.n_deferring:
        return
    is_main = threading.current_thread() is threading.main_thread()
    is_here = thread.finishing_thread == threading.get_ident()
    if is_main and not is_here and not thread.needs_safe_point():
        with held():
            _state.is_held = False  # what it waits for is not this block
            while True:
                time.sleep(LIMIT_S)


def _die(number: int) -> None:
    """End the process by a signal; any thread may call it."""
    # `signal.signal()` works on the main thread alone.
    ctypes.CDLL(None).signal(int(number), 0)
    os.kill(os.getpid(), number)


class _SignalThread:
    """The thread that ends the process after SIGTERM.

    Attributes:
        pid: The process that it watches.
        was_requested: Set once the main thread has noted the signal.
        finishing_thread: The thread that writes and reports, once there is one.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.was_requested = threading.Event()
        self.finishing_thread = 0
        self._is_stopped = False
        self._is_finishing = threading.Lock()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        # Whatever the program has set is left; the handler then wakes this thread by itself.
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        if not own_threads.start(self._watch):
            self.stop()
            raise RuntimeError("no thread can be started")

    def request(self) -> None:
        """Note the signal, and wake the thread."""
        self.was_requested.set()
        with contextlib.suppress(OSError):
            os.write(self._write, bytes([_TERM]))

    def stop(self) -> None:
        """End the thread; called on the main thread."""
        self._is_stopped = True
        with contextlib.suppress(OSError, ValueError):
            if (current := signal.set_wakeup_fd(-1)) != self._write:
                signal.set_wakeup_fd(current)
        with contextlib.suppress(OSError):
            os.close(self._write)

    def needs_safe_point(self) -> bool:
        """Return whether something can only be finished at a safe point of the main thread."""
        return any(finisher.needs_safe_point() for finisher in _finishers)

    def finish(self) -> None:
        """Write what is open and die. Whoever comes second waits for the end."""
        with self._is_finishing:
            self.finishing_thread = threading.get_ident()
            for finisher in reversed(tuple(_finishers)):
                with contextlib.suppress(Exception):  # the process dies, whatever happens to us
                    finisher.finish("SIGTERM")
            _die(_TERM)
            time.sleep(LIMIT_S)

    def _watch(self) -> None:
        while True:
            try:
                numbers = os.read(self._read, 4096)
            except OSError:
                numbers = b""
            if self._is_stopped or not numbers:
                break
            if _TERM in numbers:
                self._attend()
            time.sleep(_DRAIN_S)
        with contextlib.suppress(OSError):
            os.close(self._read)

    def _attend(self) -> None:
        """End the process, if it is this one that has got the signal."""
        ends_s = time.monotonic() + _state.limit_s
        position = _position_of_main()
        if not self.was_requested.wait(_HANDLER_S) and _position_of_main() != position:
            # The main thread goes on without its handler: a child got the signal, before it had
            # replaced this program by its own, and shares the pipe.
            return

        own_threads.start(lambda: _die_at(ends_s))
        gives_up_s = ends_s - _state.limit_s * (1 - _SAFE_POINT_SHARE)
        while not self._is_stopped:
            is_writing = _state.n_deferring or _state.is_held
            if not is_writing and (not self.needs_safe_point() or time.monotonic() > gives_up_s):
                self.finish()
            time.sleep(_POLL_S)


def _die_at(ends_s: float) -> None:
    time.sleep(max(0.0, ends_s - time.monotonic()))
    _die(_TERM)


def _position_of_main() -> tuple[int, int]:
    """Return where the main thread is; the same again if it has run no Python code since."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    return (0, 0) if frame is None else (id(frame), frame.f_lasti)


_masks: Final[list[set[int | signal.Signals]]] = []
"""The signals that were blocked before the fork that is under way."""


def _before_fork() -> None:
    """Block SIGTERM while this thread forks.

    Python forgets signals that reach the child before its handlers are replaced: the child would
    survive the one that ends it.
    """
    if _state.thread is not None:
        _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, {_TERM}))


def _after_fork() -> None:
    while _masks:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _forget_in_child() -> None:
    """Give SIGTERM its default action in a forked child, which has no signal thread."""
    _finishers.clear()
    thread, _state.thread = _state.thread, None
    _state.n_deferring, _state.is_held = 0, False
    if thread is not None and signal.getsignal(_TERM) is _handle:
        signal.signal(_TERM, signal.SIG_DFL)
    if thread is not None:
        thread.stop()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget_in_child
    )
