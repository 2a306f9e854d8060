"""Writes recordings to files, each with the source lines of its operators."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from profkit.capture.process import compiles, console, environment, files, flight_recorder
from profkit.capture.process.cpu_time import UsedTime
from profkit.capture.recording import worker_samples
from profkit.capture.recording.op_lines import Lines, lines_of
from profkit.capture.recording.options import Options
from profkit.capture.recording.overhead import StepTimes, estimate
from profkit.capture.recording.profiler import ProfilerRecording
from profkit.capture.recording.step_delays import add_kept, find_disturbed_steps
from profkit.capture.recording.step_samples import Span
from profkit.capture.recording.unused_gradients import find_unused_gradients
from profkit.errors import CaptureError
from profkit.folders import working_folder
from profkit.model.capture_info import (
    CaptureCost,
    SampledTime,
    StepKind,
    UnusedGradients,
)

_known_lines: dict[str, Lines] = {}
"""Source lines from the first recording of each name, reused for later ones."""


def forget_lines() -> None:
    """Drop the source lines of earlier recordings."""
    _known_lines.clear()


class RecordingWriter:
    """Writes the recordings of one session.

    Attributes:
        path: The last trace file, or None.
        flight: The dump of the FlightRecorder beside it, or None.
        needs_lines: Whether a step has to be recorded with stacks, as source lines are wanted and
            unknown.
        steps: What a step is.
        sampled: What was sampled of a run, once it is written; or None.
        sampled_spans: When its steps were sampled.
        no_stacks_reason: Why no stacks could be recorded, in a clause, or empty.
    """

    def __init__(self, name: str, options: Options, steps: StepKind) -> None:
        self.path: str | None = None
        self.flight: str | None = None
        self.needs_lines = options.stacks and options.ops and name not in _known_lines
        self.sampled: Callable[[], SampledTime | None] | None = None
        self.sampled_spans: Callable[[], list[Span]] = list
        self.no_stacks_reason = ""
        self._name = name
        self._options = options
        self.steps: StepKind = steps
        self._cwd = working_folder()
        self._unused_gradients: list[UnusedGradients] = []

    def write(
        self,
        main: ProfilerRecording,
        for_lines: ProfilerRecording | None,
        *,
        stopped_by: str,
        is_early: bool,
        open_step: str,
        step_times: StepTimes,
        used: Mapping[str, UsedTime],
    ) -> None:
        """Write a stopped recording.

        Args:
            for_lines: Another step of the loop, recorded with stacks.
            stopped_by: What ended it, or empty.
            is_early: Whether that ended the block too.
            open_step: The name of the step that has not ended, or empty.
            step_times: The durations of the steps so far; the overhead is estimated if they are
                too few.
            used: The processor time of each recorded step.
        """
        began_ns = time.perf_counter_ns()
        info = environment.describe(self._name, self.steps)
        target = files.trace_file(self._folder())
        self.flight = flight_recorder.write(target, is_end=is_early, stopped_by=stopped_by)

        with tempfile.TemporaryDirectory(prefix="profkit-") as scratch:
            exported = Path(scratch) / "trace.json"
            main.export(exported)
            n_events = files.count_events(exported)
            lines = self._find_lines(main, for_lines)

            overhead = step_times.compare_steps(main.cpu)
            if overhead is None and not stopped_by:  # a program that is about to end does not wait
                n_calls = lines.n_calls if lines is not None else 0
                overhead = self._estimate_overhead(main, n_calls, max(n_events - n_calls, 0))
            ratio, basis = overhead or (None, "")
            left_out = [] if info.threads is None else find_disturbed_steps(used, info.threads)

            info = replace(
                info,
                cost=CaptureCost(
                    start_ns=main.cost.start_ns,
                    stop_ns=main.cost.stop_ns,
                    write_ns=time.perf_counter_ns() - began_ns,
                    n_events=n_events,
                    overhead_ratio=ratio,
                    overhead_basis=basis,
                ),
                cpu=add_kept(used, left_out).describe() if left_out else main.cpu,
                left_out_steps=left_out,
                stopped_by=stopped_by,
                open_step=open_step,
                compiles=compiles.read(),
                sampled=None if self.sampled is None else self.sampled(),
                loader_workers=worker_samples.read(self.sampled_spans()),
                unused_gradients=self._unused_gradients,
                no_stacks_reason=self.no_stacks_reason,
            )
            if lines is not None:
                info = replace(info, lines=lines.ops, paths=lines.paths, libraries=lines.libraries)
            files.write_trace(exported, target, info)

        self.path = str(target)
        console.note(
            f"recorded “{self._name}”; next: profkit analyze {target}", quiet=self._options.quiet
        )

    def _estimate_overhead(
        self, main: ProfilerRecording, n_calls: int, n_others: int
    ) -> tuple[float, str] | None:
        """Estimate by how much recording slowed down the program; None after an error."""
        # The recording is worth more than its overhead: an error loses that alone.
        with contextlib.suppress(CaptureError, RuntimeError):
            return estimate(self._options, main.window_ns, n_calls, n_others)
        return None

    def _find_lines(
        self, main: ProfilerRecording, for_lines: ProfilerRecording | None
    ) -> Lines | None:
        """Find the source lines of a window, of another step, or of an earlier recording."""
        if main.stacks:
            lines = lines_of(main, self._name)
            _known_lines.setdefault(self._name, lines.for_other_window())
            self._find_unused_gradients(lines)
            return lines

        # Other steps of a loop run the same lines, and so do later recordings of the name.
        if for_lines is not None:
            lines = lines_of(for_lines, self._name)
            _known_lines[self._name] = lines.for_other_window()
            self.needs_lines = False
            self._find_unused_gradients(lines)
        return _known_lines.get(self._name) if self._options.stacks else None

    def _find_unused_gradients(self, lines: Lines) -> None:
        """Find modules that were called and have gradients that no optimizer uses."""
        # Objects of the program may be of any kind, and the recording is worth more.
        with contextlib.suppress(Exception):
            self._unused_gradients = find_unused_gradients(lines.modules)

    def _folder(self) -> Path:
        """Return the folder relative to the working directory in which the block began."""
        folder = files.trace_folder(self._options.folder, self._name)
        return folder if self._cwd == working_folder() else self._cwd / folder
