"""The limits, the baseline and the figures of all tests of a run, and what is shown of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from profkit.analysis.config import read_config
from profkit.analysis.options import DEFAULT_OPTIONS, AnalysisOptions
from profkit.budgets.baseline import Baseline, SuiteBaseline, baseline_text, read_suite
from profkit.budgets.figures import FIGURES, FINDINGS, BudgetFigure, Measured
from profkit.budgets.limits import BudgetLimit, budgets_of
from profkit.comparison.messages import amount
from profkit.dataclass import dataclass
from profkit.engine.wording import counted
from profkit.errors import ProfkitError, UsageError
from profkit.integrations.pytest.recorder import TestResult
from profkit.units import format_share

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_MARK: Final = "@pytest.mark.profkit"
_SORTED_BY: Final = "step_ms"
_ALWAYS: Final = ("step_ms", "peak")
"""Figures that have a column even if they are 0 in all tests."""


@dataclass
class Suite:
    """The tests of one run.

    Attributes:
        limits: The limits of ``--profkit-fail``, for all recorded tests.
        baseline: The figures of an earlier run, by test.
        save: The file for the figures of this run, or None.
        top: Number of tests in the summary.
        options: Rules, thresholds and peaks, with which the tests are analyzed.
    """

    limits: tuple[BudgetLimit, ...] = ()
    baseline: Mapping[str, Baseline] = field(default_factory=dict)
    save: Path | None = None
    top: int = 10
    options: AnalysisOptions = DEFAULT_OPTIONS

    def limits_of(self, item: pytest.Item) -> tuple[BudgetLimit, ...]:
        """Return the limits of a test: from its marks, then for all tests."""
        return (*_read_limits(item), *self.limits)

    def before(self, nodeid: str) -> Baseline | None:
        """Return a test's figures in the baseline, or None."""
        return self.baseline.get(nodeid)

    def summarize(self, values: Mapping[str, Any], reporter: "TerminalReporter") -> None:
        """Save the figures of all tests and show the slowest tests.

        Args:
            values: By the test's id its result, as values that JSON has.
        """
        results = {test: msgspec.convert(result, TestResult) for test, result in values.items()}
        figures = {test: result.figures for test, result in results.items() if result.figures}
        slowest = sorted(figures, key=lambda test: _time_ns(figures[test]), reverse=True)
        slowest = slowest[: self.top]

        reporter.section("profkit")
        for line in self._build_table({test: results[test] for test in slowest}):
            reporter.line(line)
        if len(slowest) < len(figures):
            reporter.line(f"The {len(slowest)} slowest of {len(figures)} recorded tests.")
        for line in self._write_notes(results):
            reporter.line(line)
        if self.save is not None:
            reporter.line(self._save(figures))

    def _build_table(self, results: Mapping[str, TestResult]) -> Iterable[str]:
        if not results:
            return

        # A figure that is 0 in all tests, now and before, has no column.
        compared = [result.figures for result in results.values() if result.figures is not None]
        compared += [before for before in map(self.before, results) if before is not None]
        columns = [
            figure
            for figure in FIGURES
            if figure.name in _ALWAYS or any(_value(baseline, figure) for baseline in compared)
        ]

        rows: list[list[str]] = [["test", *(figure.name for figure in columns), FINDINGS]]
        for nodeid, result in results.items():
            if result.figures is not None:
                cells = [self._text(nodeid, result.figures, figure) for figure in columns]
                rows.append([nodeid, *cells, str(_n_findings(result.figures))])

        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        causes = ["", *(result.cause for result in results.values())]
        for row, cause in zip(rows, causes, strict=True):
            cells = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
            yield "  ".join([row[0].ljust(widths[0]), *cells[1:]])
            if cause:
                yield f"    {cause}"

    def _text(self, nodeid: str, figures: Baseline, figure: BudgetFigure) -> str:
        """Return a figure, and by how much it differs from the baseline's."""
        now = figures.of(figure)
        if now is None:
            return "-"
        before = self.before(nodeid)
        was = None if before is None else before.of(figure)
        text = amount(now.value, figure.unit)
        # Times of another device are not comparable; counts are.
        if was is None or (figure.is_time and before and before.devices != figures.devices):
            return text
        return f"{text} ({_change(now, was)})"

    def _write_notes(self, results: Mapping[str, TestResult]) -> Iterable[str]:
        for nodeid, result in results.items():
            if result.problem:
                yield f"Not recorded: {nodeid}: {result.problem}."

        # A run that saves the baseline is the one that the note would ask for.
        n_open = sum(result.not_compared for result in results.values())
        if n_open and self.save is None:
            n_tests = sum(result.not_compared > 0 for result in results.values())
            yield (
                f"{counted(n_open, 'limit')} of {counted(n_tests, 'test')} not compared: they are "
                "not in the baseline. Write a baseline with --profkit-save FILE, and give it with "
                "--profkit-compare FILE."
            )

        for nodeid, result in results.items():
            for file in result.files:
                yield f"Trace of {nodeid}: {file}"

    def _save(self, figures: Mapping[str, Baseline]) -> str:
        """Write the figures of these tests, and again the figures of the file's other tests."""
        if self.save is None:
            return ""
        try:
            earlier = read_suite(str(self.save)).tests if self.save.exists() else {}
            tests = {**earlier, **figures}
            self.save.write_bytes(
                baseline_text(SuiteBaseline({name: tests[name] for name in sorted(tests)}))
            )
        except (OSError, ProfkitError) as error:
            return f"{self.save} was not written: {error}"
        return f"Figures of {counted(len(figures), 'test')} saved to {self.save}."


def build_suite(
    baseline: Path | None, save: Path | None, limits: Sequence[str], top: int | str, rootdir: Path
) -> Suite:
    """Read the options, and ``[tool.profkit]`` as ``profkit analyze`` does.

    Args:
        rootdir: Where the search for ``pyproject.toml`` starts.

    Raises:
        pytest.UsageError: One is not valid, or a file cannot be read.
    """
    try:
        if limits and baseline is None and save is None:
            hint = "Give it with --profkit-compare FILE."
            raise UsageError("--profkit-fail needs the figures of an earlier run.", hint)
        if save is not None and not save.parent.is_dir():
            raise UsageError(f"There is no folder {save.parent}.", "Create it first.")

        # A first run may compare with the file that it is about to save.
        is_new = baseline is not None and baseline == save and not baseline.exists()
        tests = read_suite(str(baseline)).tests if baseline is not None and not is_new else {}
        options = read_config(rootdir).options
        return Suite(_parse_relative(limits), tests, save, _parse_whole(top), options)
    except ProfkitError as error:
        raise pytest.UsageError(f"profkit: {error}") from error


def find_invalid_marks(items: Iterable[pytest.Item]) -> str:
    """Return a line for each test whose mark has invalid limits; empty without any."""
    return "\n".join(filter(None, map(_find_error, items)))


def _find_error(item: pytest.Item) -> str:
    try:
        _read_limits(item)
    except UsageError as error:
        return str(error)
    return ""


def _read_limits(item: pytest.Item) -> tuple[BudgetLimit, ...]:
    """Return the limits of a test's marks; its own marks override the marks of its class.

    Raises:
        UsageError: One is not valid.
    """
    where = f"{item.nodeid}: {_MARK}"
    table: dict[str, Any] = {}
    for mark in item.iter_markers("profkit"):
        if mark.args:
            hint = "Write for example syncs=0."
            raise UsageError(f"{where} takes limits by name, not {mark.args[0]!r}.", hint)
        table = {**mark.kwargs, **table}
    return budgets_of(table, where)


def _parse_relative(limits: Iterable[str]) -> tuple[BudgetLimit, ...]:
    """Read limits such as ``gpu_ms:5%``: by how much a figure may exceed the baseline's."""
    parsed: list[BudgetLimit] = []
    for text in limits:
        name, colon, more = text.strip().rpartition(":")
        if not colon:
            hint = "Write FIGURE:MORE, such as gpu_ms:5%."
            raise UsageError(f"--profkit-fail={text} is not valid.", hint)

        value: object = f"+{more.strip().removeprefix('+')}"
        family, _, word = name.partition(".")
        table = {family: {word: value}} if word else {name: value}
        parsed += budgets_of(table, f"--profkit-fail={text}")
    return tuple(parsed)


def _parse_whole(top: int | str) -> int:
    if isinstance(top, str) and not top.isdecimal():
        raise UsageError(f"profkit_top must be a number, not {top!r}.")
    return int(top)


def _value(figures: Baseline, figure: BudgetFigure) -> int:
    measured = figures.of(figure)
    return 0 if measured is None else measured.value


def _time_ns(figures: Baseline) -> int:
    measured = figures.figures.get(_SORTED_BY)
    return 0 if measured is None else measured.value


def _n_findings(figures: Baseline) -> int:
    return sum(n for rules in figures.findings.values() for n in rules.values())


def _change(now: Measured, was: Measured) -> str:
    """Return ``+5%``, or the earlier figure if it was 0."""
    if now.value == was.value:
        return "="
    if not was.value:
        return f"was {was.value}"
    sign = "+" if now.value > was.value else "-"
    return f"{sign}{format_share(abs(now.value - was.value) / was.value)}"
