"""Baselines: the figures of a program at one commit, in a small file that can be committed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeVar

import msgspec

from profkit.budgets.figures import FIGURES, BudgetFigure, Measured, Unknown, measure, rule_ids
from profkit.budgets.limits import BudgetLimit, budgets_of
from profkit.dataclass import dataclass
from profkit.errors import DamagedFileError, MissingFileError
from profkit.model.report import Report
from profkit.readers.plain_json import UNREADABLE, decode_plain
from profkit.readers.report import read_report
from profkit.readers.stream import place_of, read_whole

SCHEMA: Final = "profkit.baseline/1"
SUITE_SCHEMA: Final = "profkit.suite/1"
_MAX_BYTES: Final = 1 << 24

_USUAL_BUDGETS: Final[Mapping[str, Any]] = {
    "step_ms": "+10%",
    "peak": "+10%",
    "growth": "+10%",
    "syncs": "+0",
    "recompiles": "+0",
    "findings": {"error": "+0"},
}
"""Budgets of a program that states none: what its baseline has, with a margin where runs differ."""


@dataclass(frozen=True)
class Baseline:
    """Figures that budgets are relative to.

    Attributes:
        devices: As in :class:`~profkit.model.check.Check`.
        torch: PyTorch's version, or None.
        revision: The program's git commit, or None.
        figures: Recorded figures by name.
        findings: The number of findings by severity, and by rule id.
        schema: Name and version of this layout.
    """

    devices: tuple[str, ...]
    torch: str | None
    revision: str | None
    figures: Mapping[str, Measured] = field(default_factory=dict)
    findings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    schema: str = SCHEMA

    def of(self, figure: BudgetFigure) -> Measured | None:
        """Return a figure, or None if it is not known."""
        if not figure.severities:
            return self.figures.get(figure.name)

        ids = rule_ids(figure.causes)
        numbers = [
            n
            for severity in figure.severities
            for rule, n in self.findings.get(severity, {}).items()
            if rule in ids
        ]

        return Measured(sum(numbers), 0, 1)


@dataclass(frozen=True)
class SuiteBaseline:
    """The figures of the tests of a program.

    Attributes:
        tests: By the test's id, as pytest names it.
        schema: Name and version of this layout.
    """

    tests: Mapping[str, Baseline]
    schema: str = SUITE_SCHEMA


Kept = TypeVar("Kept", Baseline, SuiteBaseline)


def build_baseline(reports: Sequence[Report]) -> Baseline:
    """Build a baseline from the reports on recordings of one program."""
    figures = {figure.name: measure(figure, reports) for figure in FIGURES}

    # Of several recordings the one with the most findings counts, as in measure().
    most: dict[str, Counter[str]] = {}
    for report in reports:
        counts_of_report: dict[str, Counter[str]] = {}
        for finding in report.findings:
            counts_of_report.setdefault(finding.severity, Counter())[finding.rule] += 1
        for severity, counts in counts_of_report.items():
            most[severity] = most.get(severity, Counter()) | counts

    return Baseline(
        devices=devices_of(reports),
        torch=first(report.source.torch for report in reports),
        revision=first(report.source.revision for report in reports),
        figures={name: value for name, value in figures.items() if not isinstance(value, Unknown)},
        findings={severity: dict(sorted(most[severity].items())) for severity in sorted(most)},
    )


def devices_of(reports: Sequence[Report]) -> tuple[str, ...]:
    """Return the devices of some recordings: GPUs, or else the processor; each once."""
    gpus = dict.fromkeys(name for report in reports for name in report.source.devices if name)
    processors = dict.fromkeys(report.source.processor for report in reports)
    return tuple(gpus) or tuple(name for name in processors if name)


def first(values: Iterable[str | None]) -> str | None:
    """Return the first value that is known, or None."""
    return next((value for value in values if value), None)


def build_usual_budgets(baseline: Baseline) -> tuple[BudgetLimit, ...]:
    """Build the budgets of a program that states none, for the figures that its baseline has."""
    limits = budgets_of(_USUAL_BUDGETS, "the usual budgets")
    return tuple(limit for limit in limits if baseline.of(limit.figure) is not None)


def read_baseline(path: str) -> Baseline:
    """Read a baseline of ``--update-baseline``, or a report that was saved as JSON.

    Raises:
        DamagedFileError: It is neither, or incomplete.
        LoadError: It cannot be read.
    """
    try:
        report = read_report(place_of(path))
    except MissingFileError as error:
        error.hint = error.hint or "Add --update-baseline to write it."
        raise
    # A saved report has all figures of a baseline.
    if report is not None:
        return build_baseline([report])
    return _read(path, Baseline, SCHEMA, "baseline or report", "profkit check --update-baseline")


def read_suite(path: str) -> SuiteBaseline:
    """Read a baseline of tests, which ``pytest --profkit-save`` wrote.

    Raises:
        DamagedFileError: It is something else, or incomplete.
        LoadError: It cannot be read.
    """
    return _read(path, SuiteBaseline, SUITE_SCHEMA, "baseline of tests", "pytest --profkit-save")


def _read(path: str, kind: type[Kept], schema: str, what: str, writer: str) -> Kept:
    hint = f"Write it anew with `{writer}`."
    try:
        baseline = msgspec.convert(decode_plain(read_whole(place_of(path), _MAX_BYTES)), kind)
    except UNREADABLE as error:
        raise DamagedFileError(f"{path} is not a {what}: {error}.", hint) from error
    if baseline.schema != schema:
        message = f"{path} has the layout {baseline.schema}, not {schema}."
        raise DamagedFileError(message, hint)
    return baseline


def baseline_text(baseline: Baseline | SuiteBaseline) -> bytes:
    """Write a baseline as JSON, one figure a line, so that changes are readable in a commit."""
    return msgspec.json.format(msgspec.json.encode(baseline), indent=1) + b"\n"
