"""``profkit.memory``: monitors the memory of a block or a function from step to step."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar, overload

from profkit.arguments import FLAG, NAME, PATH, Arguments, optional, whole
from profkit.capture.memory.cuda import history, oom
from profkit.capture.memory.monitor.budget import Budget
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import BlockSteps
from profkit.capture.process import console, files, wrappers
from profkit.capture.recording import current, reporting
from profkit.capture.syncs import sync_monitor
from profkit.capture.syncs.sync_monitor import SyncCounter
from profkit.dataclass import dataclass
from profkit.errors import CaptureError
from profkit.model.live_memory import Leak, LiveMemory, MemorySample, SyncSite
from profkit.model.report import Report

Function = TypeVar("Function", bound=Callable[..., Any])

_DEFAULT_NAME: Final = "memory"
_ARGUMENTS: Final = Arguments(
    "profkit.memory", name=optional(NAME), limit=whole(), dir=optional(PATH), quiet=FLAG,
    tracemalloc=FLAG,
)  # fmt: skip


class IdleMemory(wrappers.IdleContext):
    """A ``profkit.memory`` that monitors nothing; all uses share one object."""

    __slots__ = ()

    _function = "profkit.memory"

    path: None = None
    snapshot: None = None
    report: None = None
    n_steps: int = 0
    timeline: tuple[MemorySample, ...] = ()
    leaks: tuple[Leak, ...] = ()
    sync_sites: tuple[SyncSite, ...] = ()

    def __repr__(self) -> str:
        return reporting.as_text("profkit.memory", None, "not monitored")

    _repr_html_ = reporting.as_html

    def step(self) -> None:
        """Do nothing."""


IDLE: Final = IdleMemory()
_n_monitored: Final[dict[str, int]] = {}
"""How many blocks of each name were monitored."""


@dataclass(frozen=True)
class MemoryOptions:
    """The arguments of :func:`memory`, with the folder as text."""

    name: str | None
    limit: int
    folder: str | None
    quiet: bool = False
    tracemalloc: bool = False


class Memory(wrappers.CaptureBlock):
    """One use of ``profkit.memory``, as a context manager or a decorator.

    Attributes:
        path: The file, once the block has ended; None if nothing was monitored.
        snapshot: The CUDA memory snapshot with its history, or None.
    """

    _function = "profkit.memory"

    def __init__(self, options: MemoryOptions) -> None:
        self.path: str | None = None
        self.snapshot: str | None = None
        self._options = options
        self._budget: Budget | None = None
        self._steps: BlockSteps | None = None
        self._live: LiveMemory | None = None
        self._report: Report | None = None
        self._syncs = SyncCounter()
        self._cuda = contextlib.ExitStack()
        self._oom: oom.OomMonitor | None = None

    def __repr__(self) -> str:
        file = self.path or self.snapshot
        state = "not started" if file is None else f"written to {file}"
        state = "open" if self._steps is not None else state
        return reporting.as_text("profkit.memory", self._options.name, state)

    _repr_html_ = reporting.as_html

    def __enter__(self) -> Self:
        options = self._options
        name = options.name or _DEFAULT_NAME
        if (
            current.state.is_on
            and _n_monitored.get(name, 0) < options.limit
            and self._steps is None
        ):
            _n_monitored[name] = _n_monitored.get(name, 0) + 1

            self._oom = oom.OomMonitor(options.folder, name, quiet=options.quiet)
            self._cuda.enter_context(self._oom)
            self._cuda.enter_context(history.HistoryRecording())
            sync_monitor.subscribe(self._syncs.count)

            self._steps = BlockSteps(
                lambda source: LeakMonitor(
                    name, source, self._budget, tracemalloc=options.tracemalloc
                )
            )
            self._steps.begin()

        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: object
    ) -> None:
        steps, self._steps = self._steps, None
        if steps is None:
            return

        sync_monitor.unsubscribe(self._syncs.count)
        self._live = steps.end()
        if self._live is not None and sync_monitor.is_supported():
            self._live = replace(self._live, sync_sites=self._syncs.sites())

        self._report = None

        # The history is still on here: a snapshot without it has no allocation sites.
        with self._cuda:
            if kind is not None and self._oom is not None:
                # What ended the block, most probably; what is allocated now is what was then.
                self.snapshot = self._oom.path
            if self._live is not None:
                self._write(self._live)
            elif steps.is_without_steps:
                self._write_without_steps(failed=wrappers.is_early_end(kind))

    def _wrap(self, function: Function) -> Function:
        name = self._options.name or wrappers.name_of(function)
        options = replace(self._options, name=name)
        return wrappers.wrap(function, lambda: Memory(options))

    def step(self) -> None:
        """End a step. Does nothing outside the block."""
        if self._steps is not None:
            self._steps.user_stepped()

    def set_budget(self, budget: Budget) -> None:
        """Limit the time that monitoring takes otherwise than by default, before the block."""
        self._budget = budget

    @property
    def n_steps(self) -> int:
        """Return how many steps have ended so far."""
        if self._steps is not None:
            return self._steps.n_steps
        return 0 if self._live is None else self._live.n_steps

    @property
    def timeline(self) -> tuple[MemorySample, ...]:
        """Return the samples taken at step boundaries, once the block has ended."""
        return () if self._live is None else self._live.samples

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """Return the leaks, the most bytes per step first, once the block has ended."""
        return () if self._live is None else self._live.leaks

    @property
    def sync_sites(self) -> tuple[SyncSite, ...]:
        """Return the source lines that waited for a CUDA device, the most calls first."""
        return self._syncs.sites()

    @property
    def report(self) -> Report | None:
        """Return the report, computed at the first access; None if nothing was monitored.

        Raises:
            LoadError: If the file cannot be read any more.
        """
        written = [file for file in (self.path, self.snapshot) if file is not None]
        if self._report is None and written:
            self._report = reporting.report_of(*written)
        return self._report

    def _write(self, live: LiveMemory) -> None:
        trace = files.trace_file(files.trace_folder(self._options.folder, live.name))
        written = files.write_memory(live, trace, "the memory samples")
        if written is None:
            return

        self.path = written
        self._write_snapshot(trace)

        hint = f"next: profkit analyze {written}"
        console.note(f"monitored “{live.name}”; {hint}", quiet=self._options.quiet)

    def _write_without_steps(self, *, failed: bool) -> None:
        """Write the CUDA snapshot, which needs no steps, and warn that leaks need them."""
        name = self._options.name or _DEFAULT_NAME
        self._write_snapshot(files.trace_file(files.trace_folder(self._options.folder, name)))
        if failed or _n_monitored.get(name) != 1:  # warn once only
            return

        hint = f" next: profkit analyze {self.snapshot}" if self.snapshot else ""
        console.warn(
            f"profkit.memory found no steps in “{name}”, so leaks cannot be detected. Call its "
            f"step() at the end of each step, or use an optimizer.{hint}"
        )

    def _write_snapshot(self, trace: Path) -> None:
        """Write the CUDA snapshot, if the program has allocated CUDA memory and none is written."""
        if self.snapshot is not None or not history.is_recording():
            return
        with contextlib.suppress(CaptureError):  # no CUDA memory was allocated
            try:
                self.snapshot = str(history.dump(files.beside(trace, history.SUFFIX)))
            except OSError as error:
                console.warn("the CUDA memory snapshot could not be written.", error)


@overload
def memory(name: Function, /) -> Function: ...


@overload
def memory(
    name: str | None = None,
    /,
    *,
    limit: int = 3,
    dir: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    tracemalloc: bool = False,
) -> Memory | IdleMemory: ...


def memory(
    name: Any = None,
    /,
    *,
    limit: int = 3,
    dir: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    tracemalloc: bool = False,
) -> Any:
    """Monitor the memory of a block, or of a function's calls, from step to step.

    ::

        with profkit.memory("epoch") as m:
            for batch in loader:
                train_step(batch)
                m.step()
        print(m.report)

    Leaks are reported with their allocation site and their holder. A step ends with ``m.step()``,
    or with ``step()`` of a ``profkit.trace`` inside the block, or else with an optimizer step.
    Without steps leaks cannot be detected, and a warning says so. On CUDA the allocator's history
    is recorded and written as a snapshot, and the source lines that wait for the device are
    counted, which takes some 15 µs per wait.

    Args:
        name: A name for the folder and the report (default: a decorated function's own).
        limit: How many blocks of this name are monitored in this process.
        dir: Folder for files (default ``$PROFKIT_DIR``, else ``traces``).
        quiet: Print no line on stderr about where the file is.
        tracemalloc: Also attribute Python objects, such as strings and dicts, to source lines,
            which makes a pure-Python program 1.3 to 2 times slower.

    Returns:
        A context manager and decorator with ``step()``, and with ``path``, ``report``,
        ``timeline``, ``leaks`` and ``sync_sites`` once the block has ended. A bare
        ``@profkit.memory`` returns the decorated function.

    Raises:
        UsageError: If an argument is invalid.
    """
    is_function = callable(name) or isinstance(name, classmethod)
    function = name if is_function else None
    name = None if function is not None else name
    _ARGUMENTS.check(name=name, limit=limit, dir=dir, quiet=quiet, tracemalloc=tracemalloc)
    if not current.state.is_on:
        return IDLE if function is None else function
    folder = None if dir is None else os.fspath(dir)
    block = Memory(MemoryOptions(name, limit, folder, quiet, tracemalloc))
    return block if function is None else block(function)
