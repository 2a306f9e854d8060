"""``profkit run``: profiles a program without changing it."""

import os
import signal
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from profkit.cli._exit_codes import echo, flush
from profkit.cli._options import read_options
from profkit.folders import working_folder

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions
    from profkit.capture.run.job import RankOfJob
    from profkit.capture.run.plan import Plan
    from profkit.capture.run.run import ProgramTarget, RunResult
    from profkit.capture.run.spawned import SpawnedWorkers


@click.command(
    short_help="Profile a program without changing it.",
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples: profkit run train.py --lr 0.1\n          profkit run -m package.train",
)
@click.option("-m", "kind", flag_value="module", help="PROGRAM is a module, as in python -m.")
@click.option("-c", "kind", flag_value="code", help="PROGRAM is source code, as in python -c.")
@click.option(
    "--wait",
    metavar="N",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Steps to skip first.",
)
@click.option(
    "--warmup",
    metavar="N",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Warm-up steps; one is recorded with stacks for source lines.",
)
@click.option(
    "--active",
    metavar="N",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Steps to record.",
)
@click.option(
    "--dir", "folder", metavar="DIR", help="Folder for traces; $PROFKIT_DIR, else traces."
)
@click.option("--json", "json_file", metavar="FILE", help="Write the report as JSON as well.")
@click.option("--no-trace", is_flag=True, help="Do not record a trace.")
@click.option("--no-leaks", is_flag=True, help="Do not monitor memory.")
@click.option(
    "--tracemalloc",
    "lines_of_python",
    is_flag=True,
    help="Find allocation sites of plain Python objects as well; slow.",
)
@click.argument("program", metavar="PROGRAM")
@click.argument("args", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(  # noqa: PLR0913  (one argument per option)
    *,
    kind: Literal["module", "code"] | None,
    wait: int,
    warmup: int,
    active: int,
    folder: str | None,
    json_file: str | None,
    no_trace: bool,
    no_leaks: bool,
    lines_of_python: bool,
    program: str,
    args: tuple[str, ...],
) -> int:
    """Run PROGRAM with ARGS as python does, record some of its steps, and report.

    Steps are optimizer steps, else DataLoader iterations, else calls of the first module. Memory is
    monitored over all steps. The report is written to stderr, and the exit code is the program's
    own. If PROGRAM uses a torch profiler itself, recording ends before that begins.

    With torchrun, as torchrun -m profkit run train.py or profkit run torchrun train.py, all ranks
    record the same steps, and one rank reports on all of them. So do workers that PROGRAM spawns.
    """
    from profkit.capture.process.program import CannotStartError
    from profkit.capture.recording.options import Options
    from profkit.capture.recording.schedule import Schedule
    from profkit.capture.run.plan import Plan
    from profkit.capture.run.run import ProgramTarget

    if json_file is not None:
        json_file = _resolve_json(json_file)
    analysis_options = read_options()
    target = ProgramTarget(program, args, kind or "script")
    flags = {"--no-trace": no_trace, "--no-leaks": no_leaks, "--tracemalloc": lines_of_python}
    option_words = _option_words(wait, warmup, active, folder, json_file)
    option_words += [name for name, is_set in flags.items() if is_set]
    _run_if_torchrun(target, option_words, folder)

    plan = Plan(
        target.title,
        Options(folder=folder, quiet=True),
        Schedule(wait, warmup, active),
        record_trace=not no_trace,
        monitor_memory=not no_leaks,
        lines_of_python=lines_of_python,
    )
    recorded = _RecordedRun(plan, analysis_options, json_file)
    try:
        end = recorded.run(target)
    except CannotStartError as error:
        echo(str(error))
        recorded.drop_rank(error.exit_code)
        return error.exit_code
    raise _exit_as(end)


class _RecordedRun:
    """Runs a program as a plan records it, and reports on it.

    Args:
        plan: What to record.
        analysis_options: Rules, thresholds and peaks of the report.
        json_file: The file for the report in JSON, or None.
    """

    def __init__(
        self, plan: "Plan", analysis_options: "AnalysisOptions", json_file: str | None
    ) -> None:
        self._plan = plan
        self._analysis_options = analysis_options
        self._json_file = json_file
        self._records = plan.record_trace or plan.monitor_memory
        self._rank = _find_rank(plan) if self._records else None
        self._workers = _Workers(plan)
        self._endings: list[BaseException | None] = []

    def run(self, target: "ProgramTarget") -> BaseException | None:
        """Run the program, report on it, and return the exception that ends it.

        Raises:
            CannotStartError: There is no such program.
        """
        from profkit.capture.run.run import RunResult, run

        with ExitStack() as held:
            try:
                outcome = run(
                    target,
                    self._plan,
                    killed=partial(self._report, is_killed=True),
                    ended=partial(self._defer_signals, held),
                    began=self._workers.watch,
                )
            except KeyboardInterrupt:
                if not self._endings:
                    raise
                # Ctrl-C while the report is made does not change how the program ended.
                outcome = RunResult(self._endings[0], None, "The report was interrupted.")
            # What the reader needs first is the traceback, so it stays last. A job reports when its
            # ranks have ended, which may take a while; Ctrl-C and sys.exit are no Exception.
            is_reported = self._records and not outcome.is_of_child
            is_reported_first = isinstance(outcome.error, Exception) and self._rank is None
            try:
                if is_reported and is_reported_first:
                    flush(sys.stdout)
                    self._report(outcome, is_killed=False)
            finally:
                end = _show_error(outcome.error)

            if is_reported and not is_reported_first:
                self._report(outcome, is_killed=False)
        return end

    def drop_rank(self, exit_code: int) -> None:
        """Tell the other ranks that this one could not start."""
        if self._rank is not None:
            from profkit.capture.run.job_end import drop_rank
            from profkit.capture.run.rank_failure import Failure

            drop_rank(self._rank, Failure(time.time_ns(), exit_code=exit_code))

    def _report(self, outcome: "RunResult", *, is_killed: bool) -> None:
        try:
            # The program does not wait for the module that reports on it.
            from profkit.cli._run_report import RunReporter

            reporter = RunReporter(self._analysis_options, self._json_file, self._rank)
            reporter.report(outcome, self._workers.end(), is_killed=is_killed)
        except Exception as error:  # noqa: BLE001  (the program may have left no file to open)
            echo(f"profkit: there is no report: {error}.")

    def _defer_signals(self, held: ExitStack, error: BaseException | None) -> None:
        """Defer signals until this process has reported, now that the program has ended.

        Args:
            held: Ends the deferral, after the report.
            error: The exception that the program raised, or None.
        """
        self._endings.append(error)
        if "torch" not in sys.modules:
            return
        from profkit.capture.process import signals

        held.enter_context(signals.deferred())
        if isinstance(error, KeyboardInterrupt):
            held.enter_context(signals.dies_within(signal.SIGINT))
        if self._rank is not None:
            from profkit.capture.run.job_end import note_failure

            note_failure(self._rank, error)


def _run_if_torchrun(target: "ProgramTarget", options: list[str], folder: str | None) -> None:
    """Let torchrun start ``profkit run`` on every rank, if the program is torchrun.

    Its modules are not imported for other programs, which would wait for them.

    Args:
        options: The options of this command.
        folder: The folder for traces, or None.

    Raises:
        BaseException: The end of torchrun.
    """
    if "torch" not in target.name:
        return
    from profkit.capture.run.torchrun import is_torchrun, run_on_every_rank

    if is_torchrun(target.name, target.kind):
        error = run_on_every_rank(target.args, options, folder)
        raise _exit_as(_show_error(error))


def _find_rank(plan: "Plan") -> "RankOfJob | None":
    """Find this process's rank in a job, or None; imports nothing without a launcher of ranks."""
    if "RANK" not in os.environ:
        return None
    from profkit.capture.process import files
    from profkit.capture.process.launch import launched_rank
    from profkit.capture.recording.options import IS_ON
    from profkit.capture.run.job import RankOfJob

    launched = launched_rank()
    if launched is None or launched[1] == 1 or not IS_ON:
        return None

    folder = Path.cwd() / files.trace_folder(plan.options.folder, plan.name)
    return RankOfJob(folder, files.job_name(), *launched)


def _option_words(
    wait: int, warmup: int, active: int, folder: str | None, json_file: str | None
) -> list[str]:
    """Return the options of this command as words, for the command on every rank."""
    words = ["--wait", str(wait), "--warmup", str(warmup), "--active", str(active)]
    words += ["--dir", folder] if folder is not None else []
    return [*words, "--json", json_file] if json_file is not None else words


def _resolve_json(json_file: str) -> str:
    """Resolve the file's path before the program runs, which may change its directory.

    Raises:
        OutputError: Its folder does not exist.
    """
    from profkit.errors import OutputError

    path = working_folder() / json_file
    if not path.parent.is_dir():
        raise OutputError(f"There is no folder for {json_file}.", "Create it first.")
    return str(path)


class _Workers:
    """Records the workers that the program spawns, unless it is a rank of a job.

    Args:
        plan: The plan of each worker's recording.
    """

    def __init__(self, plan: "Plan") -> None:
        self._plan = plan
        self._folder = working_folder()
        self._spawned: SpawnedWorkers | None = None

    def watch(self) -> None:
        """Record them from now on: the program has imported torch."""
        if "RANK" not in os.environ and (self._plan.record_trace or self._plan.monitor_memory):
            from profkit.capture.run.spawned import SpawnedWorkers

            self._spawned = SpawnedWorkers(self._plan, self._folder)
            self._spawned.watch()

    def end(self) -> list[tuple[str, ...]]:
        """Return the files of each worker with a recording; say how many are missing."""
        if self._spawned is None:
            return []
        self._spawned.stop()
        files, n_unknown = self._spawned.end()
        if files and n_unknown:
            workers = "1 spawned worker" if n_unknown == 1 else f"{n_unknown} spawned workers"
            echo(f"profkit: {workers} did not end before the report, and left no recording.")
        return files


def _show_error(error: BaseException | None) -> BaseException | None:
    """Print the program's traceback as python does; return the exception that ends the program.

    This is another exception if the program's own ``sys.excepthook`` exits.
    """
    if error is None or isinstance(error, SystemExit):
        return error

    flush(sys.stdout)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as exit_:
        return exit_
    except BaseException as second:  # noqa: BLE001  (of the program's hook)
        # CPython prints the hook's own error, without the frame that called the hook.
        second.__context__ = None
        trace = None if second.__traceback__ is None else second.__traceback__.tb_next
        echo("Error in sys.excepthook:")
        sys.__excepthook__(type(second), second.with_traceback(trace), trace)
        echo("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return error


class _InterruptedError(BaseException):
    """Ends this process, nothing else."""


def _exit_as(error: BaseException | None) -> BaseException:
    """Return the exception that ends this process like the program.

    Raised, it lets Python flush the output, and say if that fails.

    Args:
        error: The exception that it raised, or None.
    """
    if isinstance(error, SystemExit):
        return error
    if isinstance(error, KeyboardInterrupt):
        _end_by_interrupt()
        return _InterruptedError()
    return SystemExit(0 if error is None else 1)


def _end_by_interrupt() -> None:
    """Let Python end by SIGINT, since shells check the wait status to stop a script on Ctrl-C.

    It does so at the end of its finalization, after threads, ``atexit`` and ``__del__``, if code
    that was run at the top level has raised KeyboardInterrupt.

    Source: ``run_eval_code_obj`` and ``Py_RunMain`` in CPython, the same in 3.11 to 3.14.
    """
    import ctypes

    sys.excepthook = lambda *_: None  # the traceback was printed
    ctypes.pythonapi.PyRun_SimpleString(b"raise KeyboardInterrupt")
