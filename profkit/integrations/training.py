"""The common part of callbacks for trainers: record steps, monitor memory, report.

A callback has a :class:`Training`. An error in one of its hooks becomes one warning, and the
training goes on without profkit.
"""

import atexit
import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import profkit
from profkit.arguments import FLAG, NAME, Arguments
from profkit.capture.memory.cuda.oom import OomMonitor
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import StepBoundaries
from profkit.capture.process import console, environment, files, program_profilers
from profkit.capture.recording import current, reporting
from profkit.capture.recording.region import Region
from profkit.capture.recording.schedule import DEFAULT_ACTIVE, DEFAULT_WAIT, DEFAULT_WARMUP
from profkit.capture.recording.trace import OPTIONS, TraceCapture
from profkit.capture.run import job_end
from profkit.capture.run.job import RankOfJob, RankState
from profkit.capture.run.rank_failure import failure_of_exception
from profkit.model.finding import SEVERITIES
from profkit.model.report import Report
from profkit.model.torch_names import DATA_WAIT
from profkit.present.main_figures import main_figures

_STEPS: Final = "trainer"
"""What a step is, in the recording."""
_OWN_ARGUMENTS: Final = {"name": NAME, "leaks": FLAG}
"""The arguments of callbacks that :func:`profkit.trace` does not have."""
_TURNED_OFF: Final = "the callback failed; the training goes on without it."

LogFigures = Callable[[dict[str, float]], None]
"""Passes the figures of a report to the loggers of a trainer."""


class Training:
    """The recording of a training, for the callback of a trainer.

    Each training of a process is recorded anew, up to the limit of its name.

    Args:
        name: As for :class:`RecordsTraining`, like all other arguments.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        leaks: bool,
        quiet: bool,
    ) -> None:
        self.path: str | None = None
        self._name = name
        self._options = {
            "wait": DEFAULT_WAIT,
            "warmup": DEFAULT_WARMUP,
            "active": DEFAULT_ACTIVE,
            **options,
        }
        folder = options.get("dir")
        self._dir = None if folder is None else os.fspath(folder)
        self._leaks = leaks
        self._quiet = quiet
        self._open: _OpenTraining | None = None
        self._files: list[str] = []
        self._report: Report | None = None
        self._n = 0
        self._is_part = False

        # Through the package, which gives captures the function that makes their report.
        profkit.trace(name, **self._options)

    @property
    def report(self) -> Report | None:
        """Return the report, as :class:`RecordsTraining` does."""
        if self._report is None and self._files:
            self._report = reporting.report_of(*self._files)
        return self._report

    def begin(self) -> None:
        """Begin a training. One that was left by an exception has ended."""
        self.end(None)
        # torch has one profiler: a recording that has begun keeps it, and contains the training.
        self._is_part = current.state.session is not None
        if self._is_part:
            console.note(f"“{self._name}” is part of another recording.", quiet=self._quiet)
            return

        block = profkit.trace(self._name, **{**self._options, "quiet": True})
        if isinstance(block, TraceCapture):
            self._n += 1
            self._open = _OpenTraining(
                self._name,
                self._n,
                block,
                self._dir,
                leaks=self._leaks,
            )
            atexit.register(self._end_at_exit)

    def step(self) -> None:
        """End a step; the next one begins with the wait for its data."""
        if self._open is not None:
            self._open.step()
        elif self._is_part:
            # What records, such as `profkit run`, takes the trainer's word for what a step is.
            current.step_ended()

    def pause(self) -> None:
        """Pause while the trainer does something else than steps, such as a validation."""
        if self._open is not None:
            self._open.block.pause()

    def resume(self) -> None:
        """Resume when the trainer goes on with its steps."""
        if self._open is not None:
            self._open.block.resume()

    def wait_begins(self) -> None:
        """Mark the begin of a wait for data that torch does not annotate."""
        if self._open is not None and self._open.block.is_recording:
            self._open.wait = Region(DATA_WAIT)
            self._open.wait.__enter__()

    def wait_ends(self) -> None:
        """Mark the end of a wait for data."""
        if self._open is not None:
            self._open.wait_ends()

    def end(self, error: BaseException | None, log: LogFigures | None = None) -> None:
        """End the training: write the files, and on rank 0 print the report.

        Args:
            error: The exception that ended it, or None.
            log: Called with the figures of the report, if this is rank 0.
        """
        opened, self._open = self._open, None
        if opened is None or not opened.is_own_process:
            return

        atexit.unregister(self._end_at_exit)
        self._report, self._files = None, opened.end(error)
        self.path = opened.block.path

        # Only one rank of a job reports, on the files of all.
        states = opened.end_job()
        if states is not None:
            if not states:
                return
            self._report = _report_on_job(states)

        report = self.report
        if report is None:
            console.note(f"nothing of “{self._name}” was recorded.", quiet=self._quiet)
            return

        if not self._quiet:
            _print_report(report)
        if log is not None:
            log(figures(report))

    def drop(self) -> None:
        """End without a report: the callback has failed."""
        opened, self._open = self._open, None
        if opened is not None and opened.is_own_process:
            atexit.unregister(self._end_at_exit)
            opened.end(None)
            opened.leave_job()

    def _end_at_exit(self) -> None:
        """End with the program; Python has stored the exception that ends it."""
        try:
            self.end(getattr(sys, "last_value", None))
        except Exception as error:  # noqa: BLE001  (the program's own end is what counts)
            console.warn("there is no report.", error)


class _OpenTraining:
    """A training in progress.

    Args:
        name: Of the recording.
        number: How many trainings the callback has seen, this one included.
        folder: The folder for files as it was given, or None.
        leaks: Whether memory is monitored.
    """

    def __init__(
        self,
        name: str,
        number: int,
        block: TraceCapture,
        folder: str | None,
        *,
        leaks: bool,
    ) -> None:
        self.block = block
        self.wait: Any = None
        self._pid = os.getpid()
        self._folder = Path.cwd() / files.trace_folder(folder, name)
        self._program_profiler = ""
        self._rank = _rank_of_job(self._folder, number)
        self._recorded: list[str] = []
        self._closing = contextlib.ExitStack()
        self._boundaries: StepBoundaries[LeakMonitor] | None = None
        self._oom: OomMonitor | None = None
        program_profilers.subscribe(self._on_program_profiler)
        self._closing.callback(program_profilers.unsubscribe, self._on_program_profiler)

        if leaks:
            self._oom = OomMonitor(str(self._folder.parent), name, quiet=True)
            self._closing.enter_context(self._oom)
            self._boundaries = StepBoundaries(
                lambda _source: LeakMonitor(
                    name,
                    _STEPS,
                    may_sample_sites=lambda: block.is_done,
                    is_tracing=lambda: not block.is_done,
                )
            )

        block.set_step_kind(_STEPS)
        block.__enter__()

    @property
    def is_own_process(self) -> bool:
        """Return whether this is the process in which it began, and not a forked child."""
        return self._pid == os.getpid()

    def wait_ends(self) -> None:
        """Mark the end of a wait for data, if there was one."""
        wait, self.wait = self.wait, None
        if wait is not None:
            wait.__exit__(None, None, None)

    def step(self) -> None:
        """End a step."""
        if self._boundaries is not None:
            self._boundaries.step_ended("user", recorded=self.block.is_recording)
        self.block.step()

    def end(self, error: BaseException | None) -> list[str]:
        """End the training, and return the files that were written."""
        self.wait_ends()
        failure = failure_of_exception(error, time.time_ns())
        if self._rank is not None and failure is not None:
            self._rank.fail(failure)
        with self._closing:
            self.block.__exit__(None if error is None else type(error), error, None)
            memory = self._write_memory()
            snapshot = None if self._oom is None else self._oom.path

        # The recorder of NCCL's collectives matters to the report on a job alone.
        written = [file for file in (self.block.path, memory, snapshot) if file is not None]
        flight = self.block.flight
        self._recorded = written if flight is None else [*written, flight]
        return written

    def end_job(self) -> list[RankState] | None:
        """End this rank of a job, and wait for the others if it may have to report on them.

        Returns:
            The states of the ranks, with their files, if this one reports; empty if another one
            does; None if this process is not a rank.
        """
        if self._rank is None:
            return None
        return job_end.end_rank(
            self._rank,
            self._recorded,
            "Nothing was recorded.",
            max_wait_s=job_end.MAX_WAIT_LONG_S,
        )

    def leave_job(self) -> None:
        """End this rank of a job without a report."""
        if self._rank is not None:
            job_end.drop_rank(self._rank)

    def _write_memory(self) -> str | None:
        """Write the monitored memory into the folder of the trace."""
        monitor = None if self._boundaries is None else self._boundaries.monitor
        if monitor is None:
            return None

        live = monitor.finish()
        if self._program_profiler:
            why = f"The program uses a profiler itself ({self._program_profiler})."
            live = replace(live, not_measured=(*live.not_measured, why))
        trace = self.block.path or files.trace_file(self._folder)
        return files.write_memory(live, trace, "the monitored memory")

    def _on_program_profiler(self, name: str) -> None:
        self._program_profiler = self._program_profiler or name


def _rank_of_job(folder: Path, number: int) -> RankOfJob | None:
    """Return this process as a rank of a job of several, or None.

    Args:
        folder: The folder of the recordings.
        number: How many trainings there were in this process, as in all ranks.
    """
    rank, world_size = environment.ranks()
    if rank is None or world_size is None or world_size == 1:
        return None
    return RankOfJob(folder, f"{files.job_name()}-{number}", rank, world_size)


def _report_on_job(states: list[RankState]) -> Report | None:
    """Return the report on all ranks, or None if fewer than two have recorded the same steps."""
    from profkit.api import report_on_ranks

    recorded = job_end.files_of(states)
    return report_on_ranks(recorded) if recorded else None


def _print_report(report: Report) -> None:
    """Print a report on stderr, as ``profkit run`` does."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or not of this charset
        sys.stderr.write(f"\n{report}\n")
    console.note(f"next: profkit view {report.source.path}")


def figures(report: Report) -> dict[str, float]:
    """Return the figures of a report for a logger.

    Returns:
        ``profkit/step_ms``: mean step time in milliseconds; ``profkit/busy_share``: share of it
        in which a device was busy, from 0 to 1; ``profkit/saving_ms``: milliseconds per step
        that the fixes of all findings save; ``profkit/findings_error`` and so on: the number of
        findings of each severity. What was not recorded is left out.
    """
    main = main_figures(report)
    values: dict[str, float] = {}
    if main.step_ns is not None:
        values["step_ms"] = main.step_ns / 1e6
        values["saving_ms"] = main.saving_ns / 1e6
        if main.busy_share is not None:
            values["busy_share"] = main.busy_share

    for severity in SEVERITIES:
        n = sum(finding.severity == severity for finding in report.findings)
        values[f"findings_{severity}"] = n
    return {f"profkit/{name}": value for name, value in values.items()}


class RecordsTraining:
    """A callback of a trainer.

    Args:
        name: A name for the folder and the report.
        leaks: Whether memory is monitored over all steps.
        quiet: Whether the report is not printed.
        **options: As for :func:`profkit.trace`; by default 3 steps are recorded after 4 others.

    Raises:
        UsageError: If an argument is invalid.
    """

    def __init__(
        self,
        name: str = "train",
        *,
        leaks: bool = True,
        quiet: bool = False,
        **options: Any,  # noqa: ANN401  (each is typed by profkit.trace)
    ) -> None:
        takes = Arguments(type(self).__name__, **_OWN_ARGUMENTS, **OPTIONS)
        takes.check(name=name, leaks=leaks, quiet=quiet, **options)
        self.training = Training(name, options, leaks=leaks, quiet=quiet)

    @property
    def report(self) -> Report | None:
        """Return the report, once the training has ended; on rank 0 the one on all ranks.

        Raises:
            LoadError: If the files cannot be read any more.
        """
        return self.training.report

    @property
    def path(self) -> str | None:
        """Return the trace file, once the training has ended."""
        return self.training.path


Callback = TypeVar("Callback", bound=RecordsTraining)
Given = ParamSpec("Given")


def harmless(
    hook: Callable[Concatenate[Callback, Given], None],
) -> Callable[Concatenate[Callback, Given], None]:
    """Wrap a hook of a callback: its error becomes a warning and turns the callback off."""

    @functools.wraps(hook)
    def wrapper(self: Callback, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        try:
            hook(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  (no error of ours may end the user's training)
            console.warn(_TURNED_OFF, error)
            with contextlib.suppress(Exception):
                self.training.drop()

    return wrapper
