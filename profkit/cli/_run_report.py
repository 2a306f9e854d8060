"""The report of ``profkit run``: printed to stderr when the program has ended, and as JSON."""

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from profkit.analysis.options import AnalysisOptions
from profkit.cli._exit_codes import echo, print_bug, print_error
from profkit.dataclass import dataclass
from profkit.folders import working_folder

if TYPE_CHECKING:
    from profkit.capture.run.job import RankOfJob, RankState
    from profkit.capture.run.run import RunResult
    from profkit.model.report import Report


@dataclass(frozen=True)
class RunReporter:
    """Prints the report on a run to stderr, and writes it as JSON if requested.

    Attributes:
        options: Rules, thresholds and peaks.
        json_file: The file for the JSON, or None.
        rank: This process as a rank of a job, of which one reports on all, or None.
    """

    options: AnalysisOptions
    json_file: str | None
    rank: "RankOfJob | None"

    def report(
        self, outcome: "RunResult", workers: "Sequence[tuple[str, ...]]", *, is_killed: bool
    ) -> None:
        """Report on the program. An error does not change how the program ends.

        Args:
            workers: The files of each worker that the program has spawned.
            is_killed: Whether the process is about to end by a signal.
        """
        try:
            if self.rank is not None:
                self._report_on_job(outcome, self.rank, is_killed=is_killed)
            elif outcome.files or workers:
                from profkit.readers.process_memory import garbage_collection_paused

                with garbage_collection_paused():  # the program's objects are hundreds of thousands
                    self._print_report(outcome, workers=workers)
            else:
                echo(f"profkit: {outcome.no_recording_reason}")
        except KeyboardInterrupt:
            echo("profkit: The report was interrupted.")
        except Exception as error:  # noqa: BLE001  (the exit code is the program's)
            _print_failure(error)

    def _report_on_job(self, outcome: "RunResult", rank: "RankOfJob", *, is_killed: bool) -> None:
        """Print the report on all ranks, if this rank reports for the job."""
        from profkit.capture.run.job_end import end_rank

        recorded = (*outcome.files, *outcome.flights)
        states = end_rank(rank, recorded, outcome.no_recording_reason, is_killed=is_killed)
        if any(state.files for state in states):
            self._print_report(outcome, states)

    def _print_report(
        self,
        outcome: "RunResult",
        states: "Sequence[RankState]" = (),
        workers: "Sequence[tuple[str, ...]]" = (),
    ) -> None:
        """Print the report on a program, or on the ranks of a job.

        Args:
            states: The ranks with their files.
            workers: The files of each worker that the program has spawned.
        """
        # The imports below are part of the report's cost.
        began_ns = time.process_time_ns()
        from profkit.cli._next_command import after_run
        from profkit.cli._output import stream_layout
        from profkit.present.renderer import options_of, renderer

        files = tuple(outcome.files)
        report = _report_job(states, self.options) if states else None
        if report is None and workers:
            files, report = _report_training(files, workers, self.options)
        if report is None and files:
            report = _report_process(files, self.options)
        if report is None:
            return

        # A worker's report has no cost: it would be a share of another process.
        if files == tuple(outcome.files):
            report = _add_cost(report, outcome, began_ns)

        # Its traceback follows, and is what the reader needs first.
        has_failed = isinstance(outcome.error, Exception) and not states
        if sys.stderr is not None:
            module = renderer("text")
            text = module.render(
                report, options_of(module, {**stream_layout(sys.stderr), "brief": has_failed})
            )
            click.echo(text.decode(), err=True, nl=False)
        if self.json_file is not None:
            module = renderer("json")
            _write_json(module.render(report, module.Options()), self.json_file)
        _say_others(report, files, [tuple(outcome.files), *workers])
        after_run(report, files, is_brief=has_failed)


def _print_failure(error: Exception) -> None:
    """Print the reason for a missing report."""
    from profkit.errors import ProfkitError

    if isinstance(error, ProfkitError):
        print_error(error)
    elif isinstance(error, OSError):
        echo(f"profkit: there is no report: {error}.")
    else:
        print_bug(error)


def _report_process(files: "Sequence[str]", options: AnalysisOptions) -> "Report":
    """Make the report on one process."""
    from profkit.cli._inputs import run_study
    from profkit.cli._progress import progress

    with progress() as shown:
        shown.reading(files[0])
        return run_study(files, options, shown).report


def _report_job(states: "Sequence[RankState]", options: AnalysisOptions) -> "Report | None":
    """Make the report on all ranks; None if fewer than two have recorded at the same time."""
    from profkit.analysis.run_figures import keep_figures
    from profkit.api import report_on_ranks
    from profkit.capture.run.job_end import files_of

    files = files_of(states)
    report = report_on_ranks(files, options) if files else None
    if report is not None:
        keep_figures(report, [path for rank in files for path in rank], options)
    return report


def _report_training(
    files: tuple[str, ...], workers: "Sequence[tuple[str, ...]]", options: AnalysisOptions
) -> "tuple[tuple[str, ...], Report]":
    """Make the report on the training processes: all workers if they are ranks, or one process.

    That is the program if it has steps, else its first worker.

    Args:
        files: The files of the program that has spawned the workers.

    Returns:
        The files of the process that is reported on, or of the first rank; the report.
    """
    from dataclasses import replace

    from profkit.readers.recordings import Recording, may_be_ranks

    if all(may_be_ranks([Recording(worker, is_member=True) for worker in workers])):
        from profkit.api import report_on_ranks

        job = report_on_ranks(workers, options)
        if job is not None:
            return workers[0], job

    report = _report_process(files, options) if files else None
    if report is None or not report.summary.steps:
        return workers[0], _report_process(workers[0], options)
    cpu = report.source.cpu
    if cpu is not None:  # its child processes are recorded
        source = replace(report.source, cpu=replace(cpu, children_ns=None))
        report = replace(report, source=source)
    return files, report


def _say_others(
    report: "Report", files: "Sequence[str]", recorded: "Sequence[tuple[str, ...]]"
) -> None:
    """Say which processes were recorded in addition to the reported one."""
    from profkit.names import short_path

    first_files = [group[0] for group in recorded if group and group != tuple(files)]
    if first_files and not report.ranks:
        paths = shlex.join(short_path(path, str(working_folder())) for path in first_files)
        echo(f"profkit: other processes were recorded as well: profkit analyze {paths}")


def _write_json(product: bytes, json_file: str) -> None:
    """Write the report.

    Raises:
        OutputError: It cannot be written.
    """
    from profkit.errors import OutputError

    try:
        Path(json_file).write_bytes(product)
    except OSError as error:
        raise OutputError(f"{json_file} cannot be written: {error.strerror}.") from error


def _add_cost(report: "Report", outcome: "RunResult", began_ns: int) -> "Report":
    """Add the cost of recording, and of the report itself, to the report.

    Args:
        began_ns: Processor time of this process when it began with the report.
    """
    from dataclasses import replace

    from profkit.model.report import RunCost

    run_ns = time.process_time_ns()
    cost = RunCost(outcome.recording_ns, run_ns - began_ns, run_ns)
    return replace(report, source=replace(report.source, run_cost=cost))
