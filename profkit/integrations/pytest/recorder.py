"""Records one test, compares its figures with its limits, and removes what it wrote."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pytest

import profkit
from profkit.analysis.options import AnalysisOptions
from profkit.api import study
from profkit.budgets.baseline import Baseline, build_baseline
from profkit.budgets.check import check
from profkit.budgets.figures import GROWTH
from profkit.budgets.limits import BudgetLimit
from profkit.capture.memory.guard import CERTAIN
from profkit.capture.memory.scope import IdleMemory, Memory
from profkit.capture.recording.session import OTHER_PROFILER
from profkit.capture.recording.steps import StepLoop
from profkit.capture.recording.trace import Idle, TraceCapture
from profkit.dataclass import dataclass
from profkit.engine.wording import at
from profkit.folders import working_folder
from profkit.model.check import BudgetResult
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.check_document import cause_texts, outcome_text

Batch = TypeVar("Batch")

_WITHOUT_LIMIT: Final = 1 << 30
_OTHER_PROFILER: Final = "it uses a profiler itself"
_MEASURED_STEPS: Final = 5
"""While a trace is recorded, allocation sites of what grows cannot be."""
_NOTHING: Final = "nothing was recorded"
_MIN_STEPS: Final = 12
"""Fewer steps of a test cannot tell whether memory grows: its calls are the steps then."""
_MAX_CALLS: Final = 30
"""Calls of a test whose memory is monitored from call to call."""
_TOO_FEW_STEPS: Final = (
    f"Fewer than {_MIN_STEPS} steps ended; loop over `profkit_trace.steps(range(50))`."
)


@dataclass(frozen=True)
class TestResult:
    """The result of one test.

    Attributes:
        figures: Its figures; None if it failed, or nothing was recorded.
        cause: The rule and line of the finding with the highest cost; empty without findings.
        problem: Why there are no figures of a test that passed; empty if there are.
        files: The traces that remain.
        not_compared: Number of limits that are relative to a baseline which does not have them.
    """

    figures: Baseline | None
    cause: str
    problem: str
    files: tuple[str, ...]
    not_compared: int


class Recorder:
    """The fixture ``profkit_trace``: records blocks and loops of a test.

    Args:
        nodeid: The test's id.
        folder: The folder for traces.
        options: Rules, thresholds and peaks.
    """

    def __init__(self, nodeid: str, folder: Path, options: AnalysisOptions) -> None:
        self._nodeid = nodeid
        self._options = options
        self._capture_options: dict[str, Any] = {
            "dir": folder,
            "quiet": True,
            "limit": _WITHOUT_LIMIT,
        }
        self._recorded: list[TraceCapture | Idle | StepLoop[Any]] = []
        self._monitored: list[Memory | IdleMemory] = []
        self._reports: list[Report] = []
        self._problem = ""
        self._no_growth_reason = _TOO_FEW_STEPS
        self._not_compared = 0

    def __call__(self, **options: Any) -> TraceCapture | Idle:  # noqa: ANN401  (typed by trace)
        """Record a block, as ``with profkit_trace() as t``.

        Args:
            **options: As for :func:`profkit.trace`: ``wait``, ``warmup``, ``active`` select the
                steps that end with ``t.step()``.

        Raises:
            UsageError: An argument is invalid.
        """
        block = profkit.trace(self._nodeid, **{**self._capture_options, **options})
        self._recorded.append(block)
        return block

    def steps(self, batches: Iterable[Batch], **options: Any) -> StepLoop[Batch]:  # noqa: ANN401
        """Record a loop, each iteration of which is a step.

        Args:
            batches: What to loop over.
            **options: As for :func:`profkit.steps`, except that by default all steps after the
                warm-up are recorded, or a few if growth is limited.

        Raises:
            UsageError: An argument is invalid.
        """
        active = _MEASURED_STEPS if self._monitored else None
        defaults = {**self._capture_options, "wait": 0, "active": active}
        loop = profkit.steps(batches, self._nodeid, **{**defaults, **options})
        self._recorded.append(loop)
        return loop

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that were written and not removed."""
        recordings = (*self._recorded, *self._monitored)
        return tuple(path for recording in recordings for path in _find_files(recording))

    def remove_files(self) -> None:
        """Remove the files that were written."""
        for file in self.files:
            with contextlib.suppress(OSError):
                Path(file).unlink()
            with contextlib.suppress(OSError):  # the test's own folder, if nothing else is in it
                Path(file).parent.rmdir()

    @property
    def next_command(self) -> str:
        """Return the command that shows the recording."""
        return f"profkit analyze {' '.join(map(_short, self.files))}"

    @contextlib.contextmanager
    def recording(
        self, limits: Sequence[BudgetLimit], run_again: Callable[[], object] | None
    ) -> Iterator[None]:
        """Record a test, and monitor its memory, as its limits need it.

        A test of which only growth is limited is only monitored. With other limits it is recorded
        first and then called again to be monitored: while a trace is recorded, other growth cannot
        be separated from the trace's own.

        Args:
            run_again: Calls the whole test once more; None if it records blocks or loops itself.
        """
        is_growth = [limit.figure.name == GROWTH for limit in limits]

        if run_again is None:
            with self._monitoring() if any(is_growth) else contextlib.nullcontext():
                yield
        elif is_growth and all(is_growth):
            with self._monitoring() as monitored:
                yield
                self._monitor_calls(monitored, run_again, is_called=True)
        else:
            with self():
                yield
            if any(is_growth):
                with self._monitoring() as monitored:
                    self._monitor_calls(monitored, run_again, is_called=False)

    def _monitoring(self) -> Memory | IdleMemory:
        monitored = profkit.memory(self._nodeid, **self._capture_options)
        if isinstance(monitored, Memory):
            monitored.set_budget(CERTAIN)
        self._monitored.append(monitored)
        return monitored

    def _monitor_calls(
        self, monitored: Memory | IdleMemory, run_again: Callable[[], object], *, is_called: bool
    ) -> None:
        """Call a test until memory was monitored over enough of its steps, or of its calls.

        Args:
            is_called: Whether it was called once while its memory was monitored.
        """
        if isinstance(monitored, IdleMemory):
            return
        try:
            if not is_called:
                run_again()
            if monitored.n_steps >= _MIN_STEPS:
                return

            # From here on each call is a step, whatever steps a call has.
            monitored.step()
            for _ in range(_MAX_CALLS - 1):
                run_again()
                monitored.step()
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001
            # The test has passed: that it cannot be called twice is not a failure.
            self._no_growth_reason = (
                "The test was called again to monitor its memory, and raised "
                f"{type(error).__name__}: make it repeatable, or loop over "
                "`profkit_trace.steps(range(50))` in it."
            )

    def evaluate(self, limits: Sequence[BudgetLimit], baseline: Baseline | None) -> str:
        """Analyze what the test has recorded, and compare it with its limits.

        Args:
            baseline: The test's figures in an earlier run; limits that are relative to figures
                that it does not have are not compared.

        Returns:
            Why the test fails; empty if it does not.
        """
        if limits and not (self._recorded or self._monitored):
            return (
                "The test has limits, but records nothing: use profkit_trace() or "
                "profkit_trace.steps(), or drop the fixture."
            )

        try:
            self._analyze()
        except Exception as error:  # noqa: BLE001  (the test is what passes or fails)
            self._problem = f"{type(error).__name__}: {error}"
        if not self._reports:
            self._problem = self._problem or _NOTHING
            return ""

        comparable = [limit for limit in limits if not limit.is_relative or _has(baseline, limit)]
        self._not_compared = len(limits) - len(comparable)
        base = str(working_folder())
        lines: list[str] = []
        for result in map(self._with_reason, check(self._reports, comparable, baseline).failed):
            lines += [outcome_text(result), *(f"  {text}" for text in cause_texts(result, base))]
        return "\n".join(lines)

    def _with_reason(self, result: BudgetResult) -> BudgetResult:
        """Add to an unknown growth what the test can do about it."""
        if result.name != GROWTH or result.outcome != "unknown":
            return result
        return replace(result, reason=self._no_growth_reason)

    def _analyze(self) -> None:
        """Make a report of each trace; none if a profiler of the test ended one of them.

        The test's memory belongs to its first trace, which may have the lines of what grows.
        """
        memory = [path for monitored in self._monitored for path in _find_files(monitored)]
        traces = [path for recorded in self._recorded for path in _find_files(recorded)]
        reports = []
        for files in ([*traces[:1], *memory], *([path] for path in traces[1:])):
            if not files:
                continue
            studied = study(files, self._options)
            trace = studied.recording.context.trace
            if trace.capture is not None and trace.capture.stopped_by == OTHER_PROFILER:
                self._problem = _OTHER_PROFILER
                return
            reports.append(studied.report)
        self._reports = reports

    def result(self, *, is_kept: bool) -> dict[str, Any]:
        """Return the result as values that JSON has; remove the files if they are not kept."""
        if not is_kept:
            self.remove_files()

        findings = (finding for report in self._reports for finding in report.findings)
        first = next(findings, None)
        cause = "" if first is None else f"{first.rule} {first.name}{_at(first)}"
        figures = build_baseline(self._reports) if self._reports else None
        result = TestResult(
            figures, cause, self._problem, tuple(map(_short, self.files)), self._not_compared
        )
        values: dict[str, Any] = msgspec.to_builtins(result)
        return values


def _find_files(recording: Any) -> list[str]:  # noqa: ANN401  (any of the above)
    """Return the existing files of a recording: its trace or samples, and its snapshot."""
    paths = (recording.path, getattr(recording, "snapshot", None))
    return [path for path in paths if path is not None and Path(path).exists()]


def _short(file: str) -> str:
    return short_path(file, str(working_folder()))


def _has(baseline: Baseline | None, limit: BudgetLimit) -> bool:
    return baseline is not None and baseline.of(limit.figure) is not None


def _at(finding: Finding) -> str:
    return "".join(at(location) for location in finding.locations[:1])
