"""Retains the last steps of this process, its threads' stacks and its memory in a file.

The file is what a program leaves behind that is killed or crashes, where no handler of Python can
run: see :mod:`profkit.capture.live.last_steps_file`. At a normal end it is removed. An exception,
and SIGTERM, are written into it.

The end of a step writes one record. A thread of its own samples stacks and memory a few times per
second; torch's profiler, which would take longer than the steps, is not used.
"""

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from profkit.capture.live.last_steps_file import LastStepsFile
from profkit.capture.live.step_clock import StepClock
from profkit.capture.live.step_ends import StepEnds
from profkit.capture.memory.monitor.loader_workers import resident_bytes
from profkit.capture.process import console, devices, environment, files, signals
from profkit.capture.process.stack_sampler import StackSample, StackSampler
from profkit.capture.process.torch_import import TorchImport
from profkit.model.last_steps import ProgramState
from profkit.readers.last_steps.layout import SUFFIX
from profkit.readers.last_steps.read import Error, Header

INTERVAL_S: Final = 0.1
"""Mean time between samples of stacks: what a thread did last is known to this."""
_MEMORY_NS: Final = 200_000_000
"""Time between two samples of memory."""
_MAX_MESSAGE: Final = 4000
_MAX_FRAMES: Final = 100
_UNKNOWN: Final = -1


class _StepDetection:
    """Detects the ends of steps, once the program has imported torch.

    Args:
        on_step: Called at the end of each step, with their number so far.

    Attributes:
        clock: Counts the steps, and how long the program has waited for data.
    """

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self.clock = StepClock()
        self.clock.on_step = on_step
        self._ends = StepEnds(self.clock)
        self._torch_import = TorchImport(self._on_torch_import)

    def begin(self) -> None:
        """Begin with the import of torch, or at once if the program has imported it."""
        self._torch_import.watch()

    def user_stepped(self) -> None:
        """End a step that the program itself reports."""
        self._ends.user_stepped()

    def end(self) -> None:
        """Detect no more steps."""
        self._torch_import.stop()
        self.remove_hooks()

    def remove_hooks(self) -> None:
        """Report no more steps, and leave torch as it was."""
        self.clock.on_step = None
        self._ends.end()

    def _on_torch_import(self) -> None:
        try:
            self._ends.begin()
        except (ImportError, AttributeError) as error:
            console.warn("steps cannot be detected with this version of torch.", error)


class LastStepsRecorder:
    """The last steps of this process.

    Args:
        name: The name of the run.
        folder: Its folder, absolute.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        self._file = LastStepsFile(files.beside(files.trace_file(folder), SUFFIX), _header(name))
        self._pid = os.getpid()
        self._is_open = True
        self._has_failed = False
        self._next_memory_ns = 0

        self._steps = _StepDetection(self._step_ended)
        self._sampler = StackSampler(INTERVAL_S, self._sampled, has_short_turns=False)
        self._hooks = _ErrorHooks(self)
        self._finisher = signals.Finisher(self._on_sigterm)

        self._steps.begin()
        self._sampler.start()
        self._hooks.install()
        signals.on_sigterm(self._finisher)
        atexit.register(self.end)
        _open.add(self)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def step(self) -> None:
        """End a step, in a program that has neither an optimizer nor a DataLoader."""
        self._steps.user_stepped()

    def note(self, error: BaseException, state: ProgramState = "exception") -> None:
        """Write an exception that ends this thread."""
        calls = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
        self._note(
            Error(
                state=state,
                type=type(error).__qualname__,
                message=_text_of(error),
                thread=threading.current_thread().name,
                time_ns=time.time_ns(),
                calls=[(each.filename, each.lineno, each.name) for each in calls],
            )
        )
        self._has_failed |= threading.current_thread() is threading.main_thread()

    def end(self, error: BaseException | None = None) -> None:
        """End with the program: the file is removed if it ends normally.

        Args:
            error: The exception that ended it, or None.
        """
        if not self._is_open or self._pid != os.getpid():
            return

        self._is_open = False
        _open.discard(self)
        atexit.unregister(self.end)
        signals.remove(self._finisher)
        self._hooks.remove()
        self._steps.end()
        self._sampler.stop()

        if error is not None:
            self.note(error)
        self._file.close(remove=not self._has_failed)
        if not self._has_failed:
            with contextlib.suppress(OSError):  # there is something else in it
                for folder in self._new_folders:
                    folder.rmdir()

    @property
    def is_left(self) -> bool:
        """Whether the file stays, because an exception ended the program."""
        return not self._is_open and self._has_failed

    def forget_in_child(self) -> None:
        """Leave it to the parent, in a forked child."""
        self._is_open = False
        self._hooks.remove()
        self._steps.remove_hooks()

    def _step_ended(self, n_steps: int) -> None:
        if n_steps == 1:
            self._file.restart_steps()
        self._file.step(self._epoch_ns + time.perf_counter_ns(), self._steps.clock.waited_ns)

    def _sampled(self, samples: list[StackSample]) -> None:
        """Write the stacks of all threads at one time; called in the sampling thread."""
        if not self._is_open:
            return
        for sample in samples:
            self._file.stack(sample.thread, sample.name, sample.calls, sample.time_ns)
        self._file.threads_are([sample.thread for sample in samples])
        now_ns = self._epoch_ns + time.perf_counter_ns()
        if now_ns >= self._next_memory_ns:
            self._next_memory_ns = now_ns + _MEMORY_NS
            self._file.memory(now_ns, *_memory_now())

    def _on_sigterm(self, name: str) -> None:
        self._note(Error("signal", name, "", threading.main_thread().name, time.time_ns()))

    def _note(self, error: Error) -> None:
        if self._pid == os.getpid():
            with contextlib.suppress(Exception):  # nothing of ours comes before how it ends
                self._file.error(error)


class _ErrorHooks:
    """Has uncaught exceptions of all threads written, before the program's own hooks."""

    def __init__(self, steps: LastStepsRecorder) -> None:
        self._steps = steps
        self._main: Any = None
        self._thread: Any = None

    def install(self) -> None:
        self._main, self._thread = sys.excepthook, threading.excepthook
        sys.excepthook = self._own_main = self._on_error
        threading.excepthook = self._own_thread = self._on_error_of_thread

    def remove(self) -> None:
        """Restore the program's, unless it has set others since."""
        if self._main is not None and sys.excepthook is self._own_main:
            sys.excepthook = self._main
        if self._thread is not None and threading.excepthook is self._own_thread:
            threading.excepthook = self._thread

    def _on_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._note(error)
        self._main(kind, error, trace)

    def _on_error_of_thread(self, about: Any) -> None:  # noqa: ANN401  (threading.ExceptHookArgs)
        if about.exc_value is not None and not isinstance(about.exc_value, SystemExit):
            self._note(about.exc_value)
        self._thread(about)

    def _note(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):
            self._steps.note(error)


def begin(name: str, folder: Path) -> LastStepsRecorder | None:
    """Retain the last steps from now on; an error becomes a warning.

    Args:
        folder: The folder of the run, absolute.
    """
    try:
        return LastStepsRecorder(name, folder)
    except (OSError, ValueError, AttributeError) as error:
        console.warn(f"the last steps cannot be retained in {folder}.", error)
        return None


def _header(name: str) -> Header:
    rank, world_size = environment.ranks()
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    return Header(
        name=name,
        host=socket.gethostname(),
        pid=os.getpid(),
        rank=rank,
        world_size=world_size,
        argv=list(map(str, sys.argv)),
        torch=None if version is None else str(version),
        began_ns=time.time_ns(),
    )


def _text_of(error: BaseException) -> str:
    """The message of an exception; asking for it runs code of the program, which may fail."""
    try:
        return str(error)[:_MAX_MESSAGE]
    except Exception:  # noqa: BLE001  (any)
        return ""


def _memory_now() -> tuple[int, int, int]:
    """Resident bytes, and allocated and reserved bytes of all devices together; -1 if unknown."""
    host = resident_bytes(os.getpid())
    allocated = reserved = _UNKNOWN
    for module in devices.modules_in_use():
        with contextlib.suppress(Exception):
            ordinals = range(module.device_count())
            allocated = sum(module.memory_allocated(each) for each in ordinals)
            reserved = sum(module.memory_reserved(each) for each in ordinals)
    return _UNKNOWN if host is None else host, int(allocated), int(reserved)


_open: Final[set[LastStepsRecorder]] = set()


def _forget_in_child() -> None:
    for each in tuple(_open):
        each.forget_in_child()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
