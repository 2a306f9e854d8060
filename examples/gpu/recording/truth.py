"""Compares reports on programs with their known problem and with measured savings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from examples.gpu.recording.rows import CURED, PROGRAMS, Rows, Run
from profkit.model.finding import Finding
from profkit.model.report import Report
from traces.recordings import fault_line

WITHIN: Final = 0.15
"""How far a prediction may be off."""
_NS_A_MS: Final = 1e6


@dataclass(frozen=True)
class Said:
    """The result of one report.

    Attributes:
        health: The names of rules about the recording itself.
        claimed_ms: Milliseconds per step of all findings together, overlaps counted once; None
            without steps.
        step_ms: The window's length divided by its steps, in milliseconds; None without steps.
    """

    findings: tuple[Finding, ...]
    health: tuple[str, ...]
    claimed_ms: float | None
    step_ms: float | None

    def others(self, allowed: frozenset[str]) -> list[str]:
        """Return the rules with findings that are not among some names."""
        return sorted({finding.name for finding in self.findings} - allowed)


@dataclass(frozen=True)
class Truth:
    """One program, its problem and its fix.

    Attributes:
        facts: The program's entry in ``expected.json``.
        line: The line of the problem.
        faulty: The run with the problem, or None.
        cured: The fixed run, or None.
        said: The report on the problem, or None without a recording.
        said_cured: The report on the fixed run.
    """

    name: str
    facts: Mapping[str, Any]
    line: int | None
    faulty: Run | None
    cured: Run | None
    said: Said | None
    said_cured: Said | None

    @property
    def finding(self) -> Finding | None:
        """Return the finding of the expected rule, the one at its line first."""
        of_rule = [finding for finding in self._findings if finding.name == self.facts["rule"]]
        return next(
            (finding for finding in of_rule if self.is_placed(finding)), next(iter(of_rule), None)
        )

    @property
    def _findings(self) -> tuple[Finding, ...]:
        return self.said.findings if self.said else ()

    def is_placed(self, finding: Finding) -> bool:
        """Return whether a finding's first location is the line of the problem."""
        first = next(iter(finding.locations), None)
        if first is None or first.file is None:
            return False
        return (Path(first.file).name, first.line) == (f"{self.name}.py", self.line)

    @property
    def others(self) -> list[str]:
        """Rules that report something else on the run with the problem."""
        rule = self.facts["rule"]
        allowed = frozenset([*self.facts["same_rules"], *([rule] if rule else [])])
        return self.said.others(allowed) if self.said else []

    @property
    def false_alarms(self) -> list[str]:
        """Rules that report something on the fixed run."""
        allowed = frozenset(self.facts["same_rules"])
        return self.said_cured.others(allowed) if self.said_cured else []

    @property
    def saved_ms(self) -> float | None:
        """Milliseconds per step that the fix saved, unprofiled; None if it need not save any."""
        faulty = self.faulty.best_ms if self.faulty else None
        cured = self.cured.best_ms if self.cured else None
        if not self.facts["saves"] or faulty is None or cured is None:
            return None
        return faulty - cured

    @property
    def predicted_ms(self) -> float | None:
        """Return the finding's cost in milliseconds per step."""
        finding = self.finding
        if finding is None or finding.cost.per_step_ns is None:
            return None
        return finding.cost.per_step_ns / _NS_A_MS

    @property
    def ratio(self) -> float | None:
        """Predicted by measured saving; None if one is unknown or nothing was saved."""
        if self.saved_ms is None or self.predicted_ms is None or self.saved_ms <= 0:
            return None
        return self.predicted_ms / self.saved_ms

    @property
    def is_within(self) -> bool | None:
        """Return whether the prediction is within the aim; None if it makes no such claim."""
        finding = self.finding
        if finding is None or finding.cost.basis != "measured" or self.predicted_ms is None:
            return None
        if self.saved_ms is None:
            return None
        return self.ratio is not None and abs(self.ratio - 1) <= WITHIN


def truths(
    rows: Rows, expected: Mapping[str, Any], reports: Mapping[str, Report]
) -> Iterator[Truth]:
    """Every program of the table, recorded or not.

    Args:
        expected: The content of ``expected.json``.
        reports: The reports on the recordings, by the name of the run.
    """
    for name, facts in expected.items():
        program = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
        yield Truth(
            name,
            facts,
            fault_line(program),
            rows.runs.get(name),
            rows.runs.get(name + CURED),
            _said(reports.get(name)),
            _said(reports.get(name + CURED)),
        )


def _said(report: Report | None) -> Said | None:
    if report is None:
        return None
    health = tuple(sorted({finding.name for finding in report.health}))
    n_steps = len(report.summary.steps)
    if not n_steps:
        return Said(report.findings, health, None, None)
    return Said(
        report.findings,
        health,
        report.summary.recoverable_ns / n_steps / _NS_A_MS,
        report.summary.window_ns / n_steps / _NS_A_MS,
    )
