"""The recording of a notebook's cell: its steps are found, and its memory is monitored over them.

A step of a cell ends with an optimizer's step, as in ``profkit run``, or where the cell itself says
so, by ``profkit.steps`` or ``step()`` of a ``profkit.trace``. A few are recorded. A cell without
steps is one step, recorded from its beginning to its end.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, Self

import profkit
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import (
    LeadingOptimizer,
    StepBoundaries,
    StepSource,
)
from profkit.capture.process import files, optimizer_steps, program_profilers
from profkit.capture.process.compiling import unless_paused
from profkit.capture.recording import current, reporting
from profkit.capture.recording.harmless_kinds import find_stacks_obstacle
from profkit.capture.recording.schedule import DEFAULT_ACTIVE, DEFAULT_WARMUP
from profkit.capture.recording.trace import Idle, TraceCapture
from profkit.model.capture_info import StepKind
from profkit.model.report import Report

_SCHEDULE: Final[dict[str, Any]] = {"wait": 0, "warmup": DEFAULT_WARMUP, "active": DEFAULT_ACTIVE}
"""The cell begins with the step that has stacks: if it has no others, that one is the cell."""


def new_recording(name: str, folder: str | None) -> "CellRecording | Idle":
    """Return the recording of a cell, not yet begun; idle if recording is off.

    Args:
        name: A name for the folder and the report.
        folder: The folder for files, or None for the usual one.
    """
    has_stacks = not (find_stacks_obstacle() or program_profilers.find_python_profiler())
    schedule = _SCHEDULE if has_stacks else {}
    # Through the package, which gives captures the function that makes their report.
    block = profkit.trace(name, limit=sys.maxsize, dir=folder, quiet=True, **schedule)
    return CellRecording(name, folder, block) if isinstance(block, TraceCapture) else block


class CellRecording:
    """One run of a cell.

    Args:
        block: Records the cell.

    Attributes:
        memory: The file of the monitored memory, once the cell has ended; None if it has too few
            steps to tell whether memory grows.
    """

    def __init__(self, name: str, folder: str | None, block: TraceCapture) -> None:
        self.memory: str | None = None
        self._name = name
        self._folder = folder
        self._block = block
        self._steps = _CellSteps(block, self._leak_monitor)
        self._report: Report | None = None

    def __repr__(self) -> str:
        return repr(self._block)

    _repr_html_ = reporting.as_html

    def __enter__(self) -> Self:
        self._block.__enter__()
        self._steps.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        self._steps.end(has_failed=kind is not None)
        self._block.__exit__(kind, error, traceback)
        self._write_memory()

    @property
    def path(self) -> str | None:
        """Return the trace file, once the cell has ended; None if nothing was recorded."""
        return self._block.path

    @property
    def files(self) -> list[str]:
        """Return the files that were written."""
        return [file for file in (self.path, self.memory) if file is not None]

    @property
    def report(self) -> Report | None:
        """Return the report, created on first access; None without files.

        Raises:
            LoadError: If a file cannot be read any more.
        """
        if self._report is None and self.files:
            self._report = reporting.report_of(*self.files)
        return self._report

    def _leak_monitor(self, source: StepSource) -> LeakMonitor:
        block = self._block
        return LeakMonitor(
            self._name,
            source,
            may_sample_sites=lambda: block.is_done,
            is_tracing=lambda: not block.is_done,
        )

    def _write_memory(self) -> None:
        """Write the monitored memory next to the trace, if it says whether memory grows."""
        monitor = self._steps.monitor
        if monitor is None or not monitor.is_own_process:
            return
        live = monitor.finish()
        if live.n_evaluated_steps:
            trace = self.path or files.trace_file(files.trace_folder(self._folder, self._name))
            self.memory = files.write_memory(live, trace, "the monitored memory")


class _CellSteps:
    """Finds the steps of a cell and ends the steps of its recording.

    Args:
        block: Records the cell.
        make_monitor: Makes what monitors memory, once it is known what ends a step.
    """

    def __init__(
        self, block: TraceCapture, make_monitor: Callable[[StepSource], LeakMonitor]
    ) -> None:
        self._block = block
        self._boundaries = StepBoundaries(make_monitor)
        self._leader = LeadingOptimizer()
        self._place = (os.getpid(), threading.get_ident())
        self._undo: list[Callable[[], None]] = []
        self._is_marked = False
        self._n_ended = 0

    @property
    def monitor(self) -> LeakMonitor | None:
        """Return what monitors the memory, or None without steps."""
        return self._boundaries.monitor

    def begin(self) -> None:
        """Listen for the ends of steps."""
        self._place = (os.getpid(), threading.get_ident())
        current.step_listeners.append(self._on_marked_step)
        self._undo.append(optimizer_steps.listen(unless_paused(self._on_optimizer)))

    def end(self, *, has_failed: bool) -> None:
        """Stop listening, and end the only step of a cell without marked steps.

        Args:
            has_failed: Whether an exception has ended the cell.
        """
        if self._on_marked_step in current.step_listeners:
            current.step_listeners.remove(self._on_marked_step)
        while self._undo:
            self._undo.pop()()

        if not (self._n_ended or has_failed):
            self._block.end_step()

        # A cell with so few steps has the one with stacks, with what the cell does before it.
        is_whole = self._n_ended <= DEFAULT_WARMUP
        if self._n_ended == DEFAULT_WARMUP:
            self._block.pause()  # the recorded step that has just begun is empty
        kind: StepKind = "user" if self._is_marked else "optimizer"
        self._block.set_step_kind("entry" if is_whole else kind)

    def _on_marked_step(self) -> None:
        """End a step that the cell itself marks, from now on instead of optimizers."""
        if not self._is_here():
            return
        self._is_marked = True
        self._boundaries.step_ended("user", recorded=self._block.is_recording)
        self._end_step()

    def _on_optimizer(self, optimizer: Any) -> None:  # noqa: ANN401
        """End a step if the optimizer that has stepped, and has returned to the cell, ends one."""
        if not self._is_marked and self._is_here() and self._leader.ends_step(optimizer):
            self._boundaries.step_ended("optimizer", recorded=self._block.is_recording)
            self._end_step()

    def _end_step(self) -> None:
        self._n_ended += 1
        self._block.end_step()

    def _is_here(self) -> bool:
        """Return whether this is the thread and process of the cell."""
        return self._place == (os.getpid(), threading.get_ident())
