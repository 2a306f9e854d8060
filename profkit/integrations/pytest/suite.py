"""The limits, the baseline and the figures of all tests of a run, and what is shown of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from profkit.analysis.config import read_config
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
        limits: Those of ``--profkit-fail``, for all recorded tests.
        baseline: The figures of an earlier run, by test.
        save: The file for the figures of this run, or None.
        top: Number of tests in the summary.
        chosen: Arguments of :func:`profkit.api.study` that choose rules, thresholds and peaks.
    """

    limits: tuple[BudgetLimit, ...] = ()
    baseline: Mapping[str, Baseline] = field(default_factory=dict)
    save: Path | None = None
    top: int = 10
    chosen: Mapping[str, Any] = field(default_factory=dict)

    def limits_of(self, item: pytest.Item) -> tuple[BudgetLimit, ...]:
        """The limits of a test: those of its marks, and those for all tests."""
        return (*_limits(item), *self.limits)

    def before(self, nodeid: str) -> Baseline | None:
        """A test's figures in the baseline, or None."""
        return self.baseline.get(nodeid)

    def summarize(self, found: Mapping[str, Any], reporter: "TerminalReporter") -> None:
        """Save the figures of all tests and show those of the slowest.

        Args:
            found: By the test's id its result, as values that JSON has.
        """
        results = {nodeid: msgspec.convert(each, TestResult) for nodeid, each in found.items()}
        known = {nodeid: each.figures for nodeid, each in results.items() if each.figures}
        reporter.section("profkit")
        shown = sorted(known, key=lambda nodeid: _time_ns(known[nodeid]), reverse=True)[: self.top]
        for line in self._table({nodeid: results[nodeid] for nodeid in shown}):
            reporter.line(line)
        if len(shown) < len(known):
            reporter.line(f"The {len(shown)} slowest of {len(known)} recorded tests.")
        for line in self._notes(results):
            reporter.line(line)
        if self.save is not None:
            reporter.line(self._saved(known))

    def _table(self, results: Mapping[str, TestResult]) -> Iterable[str]:
        every = [each.figures for each in results.values() if each.figures is not None]
        every += [before for before in map(self.before, results) if before is not None]
        if not results:
            return
        columns = [
            figure
            for figure in FIGURES
            if figure.name in _ALWAYS or any(_value(each, figure) for each in every)
        ]
        rows: list[list[str]] = [["test", *(figure.name for figure in columns), FINDINGS]]
        for nodeid, each in results.items():
            if each.figures is not None:
                cells = [self._text(nodeid, each.figures, figure) for figure in columns]
                rows.append([nodeid, *cells, str(_n_findings(each.figures))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        causes = ["", *(each.cause for each in results.values())]
        for row, cause in zip(rows, causes, strict=True):
            cells = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
            yield "  ".join([row[0].ljust(widths[0]), *cells[1:]])
            if cause:
                yield f"    {cause}"

    def _text(self, nodeid: str, figures: Baseline, figure: BudgetFigure) -> str:
        """A figure, and by how much it differs from the baseline's."""
        now = figures.of(figure)
        if now is None:
            return "-"
        before = self.before(nodeid)
        was = None if before is None else before.of(figure)
        text = amount(now.value, figure.unit)
        if was is None or (figure.is_time and before and before.devices != figures.devices):
            return text
        return f"{text} ({_change(now, was)})"

    def _notes(self, results: Mapping[str, TestResult]) -> Iterable[str]:
        for nodeid, each in results.items():
            if each.problem:
                yield f"Not recorded: {nodeid}: {each.problem}."
        n_open = sum(each.not_compared for each in results.values())
        if n_open and self.save is None:
            n_tests = sum(each.not_compared > 0 for each in results.values())
            yield (
                f"{counted(n_open, 'limit')} of {counted(n_tests, 'test')} not compared: the "
                "baseline does not have them. Write one with --profkit-save FILE, and give it with "
                "--profkit-compare FILE."
            )
        for nodeid, each in results.items():
            for file in each.files:
                yield f"Trace of {nodeid}: {file}"

    def _saved(self, known: Mapping[str, Baseline]) -> str:
        """Write the figures of these tests, and those of the file's other tests again."""
        if self.save is None:
            return ""
        try:
            earlier = read_suite(str(self.save)).tests if self.save.exists() else {}
            tests = {**earlier, **known}
            self.save.write_bytes(
                baseline_text(SuiteBaseline({name: tests[name] for name in sorted(tests)}))
            )
        except (OSError, ProfkitError) as error:
            return f"{self.save} was not written: {error}"
        return f"Figures of {counted(len(known), 'test')} saved to {self.save}."


def suite_of(
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
        is_new = baseline is not None and baseline == save and not baseline.exists()
        tests = read_suite(str(baseline)).tests if baseline is not None and not is_new else {}
        chosen = read_config(rootdir).chosen()
        return Suite(_relative(limits), tests, save, _whole(top), chosen)
    except ProfkitError as error:
        raise pytest.UsageError(f"profkit: {error}") from error


def invalid_marks(items: Iterable[pytest.Item]) -> str:
    """One line for each test whose mark has invalid limits; empty if there is none."""
    return "\n".join(filter(None, map(_error_of, items)))


def _error_of(item: pytest.Item) -> str:
    try:
        _limits(item)
    except UsageError as error:
        return str(error)
    return ""


def _limits(item: pytest.Item) -> tuple[BudgetLimit, ...]:
    """The limits of a test's marks; those of the test's own come before those of its class.

    Raises:
        UsageError: One is not valid.
    """
    where = f"{item.nodeid}: {_MARK}"
    table: dict[str, Any] = {}
    for mark in item.iter_markers("profkit"):
        if mark.args:
            hint = "Write its limits by name, such as syncs=0."
            raise UsageError(f"{where} has no name for {mark.args[0]!r}.", hint)
        table = {**mark.kwargs, **table}
    return budgets_of(table, where)


def _relative(limits: Iterable[str]) -> tuple[BudgetLimit, ...]:
    """Read limits such as ``gpu_ms:5%``: by how much a figure may exceed the baseline's."""
    found: list[BudgetLimit] = []
    for text in limits:
        name, colon, more = text.strip().rpartition(":")
        if not colon:
            hint = "Write a figure and by how much it may exceed the baseline's: gpu_ms:5%."
            raise UsageError(f"--profkit-fail={text} is not valid.", hint)
        value: object = f"+{more.strip().removeprefix('+')}"
        family, _, word = name.partition(".")
        table = {family: {word: value}} if word else {name: value}
        found += budgets_of(table, f"--profkit-fail={text}")
    return tuple(found)


def _whole(top: int | str) -> int:
    if isinstance(top, str) and not top.isdecimal():
        raise UsageError(f"profkit_top must be a number, not {top!r}.")
    return int(top)


def _value(figures: Baseline, figure: BudgetFigure) -> int:
    found = figures.of(figure)
    return 0 if found is None else found.value


def _time_ns(figures: Baseline) -> int:
    found = figures.figures.get(_SORTED_BY)
    return 0 if found is None else found.value


def _n_findings(figures: Baseline) -> int:
    return sum(n for rules in figures.findings.values() for n in rules.values())


def _change(now: Measured, was: Measured) -> str:
    """``+5%``, or the difference where the earlier figure is 0."""
    if now.value == was.value:
        return "="
    if not was.value:
        return f"was {was.value}"
    sign = "+" if now.value > was.value else "-"
    return f"{sign}{format_share(abs(now.value - was.value) / was.value)}"
