"""``profkit.memory``: a block, or a function's calls, whose memory is watched from step to step."""

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from profkit.capture import console, current, environment, files, reporting, wrappers
from profkit.capture.memory.cuda import history, oom
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import StepBoundaries, Turn
from profkit.capture.syncs import sync_monitor
from profkit.capture.syncs.sync import SyncCounter
from profkit.errors import CaptureError, UsageError
from profkit.model.live_memory import Leak, LiveMemory, MemorySample, SyncSite
from profkit.model.report import Report

if TYPE_CHECKING:
    from typing_extensions import Self

Function = TypeVar("Function", bound=Callable[..., Any])

_DEFAULT_NAME: Final = "memory"


class IdleMemory:
    """A ``profkit.memory`` that watches nothing; all share one object."""

    __slots__ = ()

    path: None = None
    snapshot: None = None
    report: None = None
    timeline: tuple[MemorySample, ...] = ()
    leaks: tuple[Leak, ...] = ()
    sync_sites: tuple[SyncSite, ...] = ()

    def __repr__(self) -> str:
        return reporting.as_text("profkit.memory", None, "nothing is watched")

    def _repr_html_(self) -> str:
        """What a notebook shows: why there is no report."""
        return reporting.as_html(self)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        return None

    def __call__(self, function: Function) -> Function:
        """Leave a function as it is."""
        return function

    def step(self) -> None:
        """Do nothing."""


IDLE: Final = IdleMemory()
_n_written: Final[dict[str, int]] = {}
"""How often each name was watched."""


class Memory:
    """One use of ``profkit.memory``, as a context manager or a decorator.

    Args:
        name: The name of the file's folder, or None: then a decorated function's own.
        limit: How often the name is watched in this process.
        folder: The folder for files, or None for ``$PROFKIT_DIR``, else ``traces``.
        quiet: Say nothing but warnings.
        lines_of_python: Whether Python notes the lines that make its objects.

    Attributes:
        path: The file, once the block has ended; None when nothing was watched.
        snapshot: The snapshot of CUDA's memory with its history, where there is one.
    """

    def __init__(
        self,
        name: str | None,
        limit: int,
        folder: str | None,
        *,
        quiet: bool,
        lines_of_python: bool = False,
    ) -> None:
        self.path: str | None = None
        self.snapshot: str | None = None
        self._name = name
        self._limit = limit
        self._folder = folder
        self._quiet = quiet
        self._lines_of_python = lines_of_python
        self._steps: FoundSteps | None = None
        self._live: LiveMemory | None = None
        self._report: Report | None = None
        self._waits = SyncCounter()
        self._device = contextlib.ExitStack()

    def __repr__(self) -> str:
        file = self.path or self.snapshot
        state = "nothing watched yet" if file is None else f"watched in {file}"
        state = "open" if self._steps is not None else state
        return reporting.as_text("profkit.memory", self._name, state)

    def _repr_html_(self) -> str:
        """What a notebook shows: the report, or why there is none."""
        return reporting.as_html(self)

    def __enter__(self) -> "Self":
        name = self._name or _DEFAULT_NAME
        if current.is_on and _n_written.get(name, 0) < self._limit and self._steps is None:
            _n_written[name] = _n_written.get(name, 0) + 1
            self._device.enter_context(oom.watch(self._folder, name, quiet=self._quiet))
            self._device.enter_context(history.recording())
            sync_monitor.subscribe(self._waits.count)
            self._steps = FoundSteps(
                lambda turn: LeakMonitor(name, turn, lines_of_python=self._lines_of_python)
            )
            self._steps.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        steps, self._steps = self._steps, None
        if steps is None:
            return
        sync_monitor.unsubscribe(self._waits.count)
        self._live = steps.end()
        if self._live is not None and sync_monitor.is_supported():
            self._live = replace(self._live, sync_sites=self._waits.sites())
        self._report = None
        with self._device:
            if self._live is not None:
                self._write(self._live)
            elif steps.saw_none:
                self._without_steps(failed=kind is not None)

    def __call__(self, function: Function) -> Function:
        """Watch every call of a function, as long as the limit lasts.

        Args:
            function: The function to decorate.

        Raises:
            UsageError: If it is no function.
        """
        wrappers.require_function(function, "profkit.memory")
        name = self._name or str(getattr(function, "__qualname__", _DEFAULT_NAME))
        short = name.rsplit("<locals>.", 1)[-1]
        return cast("Function", wrappers.wrap(function, partial(self._again, short)))

    def _again(self, name: str) -> "Memory":
        return Memory(
            name,
            self._limit,
            self._folder,
            quiet=self._quiet,
            lines_of_python=self._lines_of_python,
        )

    def step(self) -> None:
        """Say that a step has ended. Does nothing outside the block."""
        if self._steps is not None:
            self._steps.told()

    @property
    def timeline(self) -> tuple[MemorySample, ...]:
        """The figures at the steps' ends, once the block has ended."""
        return () if self._live is None else self._live.samples

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """What grows, the most bytes a step first, once the block has ended."""
        return () if self._live is None else self._live.leaks

    @property
    def sync_sites(self) -> tuple[SyncSite, ...]:
        """The lines that waited for a CUDA device, the most calls first."""
        return self._waits.sites()

    @property
    def report(self) -> Report | None:
        """The report, made when it is first asked for; None when nothing was watched.

        Raises:
            LoadError: If the file cannot be read any more.
        """
        found = [file for file in (self.path, self.snapshot) if file is not None]
        if self._report is None and found:
            self._report = reporting.report_of(*found)
        return self._report

    def _write(self, live: LiveMemory) -> None:
        folder = files.trace_folder(self._folder, live.name)
        trace = files.trace_file(folder, environment.ranks()[0])
        target = files.memory_file(trace)
        try:
            files.write_memory(live, target)
        except OSError as error:
            console.warn("what was seen of memory could not be written.", error)
            return
        self.path = str(target)
        self._write_snapshot(trace)
        console.note(f"watched “{live.name}”; next: profkit analyze {target}", quiet=self._quiet)

    def _without_steps(self, *, failed: bool) -> None:
        """Write what CUDA's allocator did, which needs no steps, and say that growth does."""
        name = self._name or _DEFAULT_NAME
        folder = files.trace_folder(self._folder, name)
        self._write_snapshot(files.trace_file(folder, environment.ranks()[0]))
        if failed or _n_written.get(name) != 1:  # the first one has said so
            return
        told = f" next: profkit analyze {self.snapshot}" if self.snapshot else ""
        console.warn(
            f"profkit.memory saw no step end in “{name}”, so what grows is not known. Steps end "
            f"with its step(), or with an optimizer's.{told}"
        )

    def _write_snapshot(self, trace: Path) -> None:
        """Write down CUDA's memory too, where the program has used any."""
        if not history.is_kept():
            return
        with contextlib.suppress(CaptureError):  # nothing was allocated: there is nothing to tell
            try:
                self.snapshot = str(history.dump(history.snapshot_beside(trace)))
            except OSError as error:
                console.warn("the snapshot of CUDA's memory could not be written.", error)


class FoundSteps:
    """The steps of a block: those that it tells, else those of its optimizers.

    Args:
        watch: Makes the watcher, once it is known what a step is.
    """

    def __init__(self, watch: Callable[[Turn], LeakMonitor]) -> None:
        self._boundaries = StepBoundaries(watch)
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._unhook: Callable[[], None] | None = None

    @property
    def watcher(self) -> LeakMonitor | None:
        """The watcher, or None before the first step."""
        return self._boundaries.watcher

    @property
    def saw_none(self) -> bool:
        """Whether no step has ended, as far as the process that began can tell."""
        return self.watcher is None and self._process == os.getpid()

    def begin(self) -> None:
        """Listen for steps."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        current.step_listeners.append(self.told)
        self._unhook = register_optimizer_step_post_hook(self._on_optimizer).remove

    def end(self) -> LiveMemory | None:
        """Listen no longer; what was seen, or None without steps or in a forked child."""
        with contextlib.suppress(ValueError):
            current.step_listeners.remove(self.told)
        if self._unhook is not None:
            self._unhook()
        watcher = self._boundaries.watcher
        return None if watcher is None or not watcher.is_home else watcher.finish()

    def told(self) -> None:
        """The program says that a step has ended."""
        if self._thread == threading.get_ident():
            self._boundaries.told()

    def _on_optimizer(self, optimizer: object, _args: object, _kwargs: object) -> None:
        if self._thread == threading.get_ident():
            self._boundaries.optimizer_stepped(optimizer, recorded=is_recorded())


def is_recorded() -> bool:
    """Whether a capture records at this moment, and must not be disturbed."""
    return current.session is not None and current.session.is_recording


@overload
def memory(name: Function, /) -> Function: ...


@overload
def memory(
    name: str | None = None,
    /,
    *,
    limit: int = 3,
    dir: str | None = None,
    quiet: bool = False,
    tracemalloc: bool = False,
) -> Memory | IdleMemory: ...


def memory(
    name: Any = None,
    /,
    *,
    limit: int = 3,
    dir: str | None = None,
    quiet: bool = False,
    tracemalloc: bool = False,
) -> Any:
    """Watch the memory of a block, or of a function's calls, from step to step.

    ::

        with profkit.memory("epoch") as m:
            for batch in loader:
                train_step(batch)
                m.step()
        print(m.report)

    What grows with every step is told with the line that makes it and who holds it. Steps end with
    ``m.step()``, or with ``step()`` of a ``profkit.trace`` within; without either they are those of
    the optimizer. Without any step growth is not judged, and a warning says so. On CUDA the
    allocator's history is kept meanwhile and written as a snapshot, and the lines that wait for
    the device are counted, which takes some 15 µs a wait.

    Args:
        name: A name for the folder and the report. A decorated function's own if left out.
        limit: How many blocks of this name are watched in this process.
        dir: Folder for files (default ``$PROFKIT_DIR``, else ``traces``).
        quiet: No line on stderr about where the file is.
        tracemalloc: Name the lines that make Python's own objects too, texts and dicts, which
            makes a program that works in Python 1.3 to 2 times slower meanwhile.

    Returns:
        A context manager and decorator with ``step()``, and with ``path``, ``report``,
        ``timeline``, ``leaks`` and ``sync_sites`` once the block has ended. A bare
        ``@profkit.memory`` returns the decorated function.

    Raises:
        UsageError: If an argument makes no sense.
    """
    bare = callable(name)
    if not current.is_on:
        return name if bare else IDLE
    if bare:
        return Memory(None, limit, dir, quiet=quiet)(name)
    if name is not None and not isinstance(name, str):
        raise UsageError(f"The name of a watched block is a text, and {name!r} is none.")
    return Memory(name, limit, dir, quiet=quiet, lines_of_python=tracemalloc)
