"""Findings, faults of the recording and skipped checks as one table, for programs."""

from collections.abc import Iterator
from typing import Final

from profkit.dataclass import dataclass
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.present.tables.columns import PLACE
from profkit.present.tables.definition import Column, Table

_COLUMNS: Final = (
    Column("id", "number"),
    Column("text", "rule"),
    Column("text", "name"),
    Column("text", "severity"),
    Column("text", "confidence"),
    Column("text", "title"),
    Column("text", "message"),
    Column("text", "fix"),
    *PLACE,
    Column("text", "step", value="location.step"),
    Column("count", "n"),
    Column("ns", "cost_ns", value="cost.ns"),
    Column("ns", "cost_per_step_ns", value="cost.per_step_ns"),
    Column("bytes", "cost_bytes", value="cost.bytes"),
    Column("bytes", "cost_per_step_bytes", value="cost.per_step_bytes"),
    Column("text", "cost_basis"),
    Column("text", "held_by"),
    Column("file", "recording"),
)


@dataclass(frozen=True)
class _Row:
    """A finding, a fault of the recording, or a skipped check, of which little is known."""

    rule: str
    severity: str
    message: str
    fix: str
    recording: str
    number: int | None = None
    name: str | None = None
    confidence: str | None = None
    title: str | None = None
    location: Location | None = None
    n: int | None = None
    cost: Cost | None = None
    held_by: str | None = None

    @property
    def cost_basis(self) -> str | None:
        """Return the basis of a cost that is known."""
        cost = self.cost
        is_known = cost is not None and (cost.ns is not None or cost.bytes is not None)
        return cost.basis if cost is not None and is_known else None


def define_findings(report: Report) -> Table:
    """Define the table of findings, then faults of the recording, then skipped checks."""
    return Table("findings", "Findings", _COLUMNS, tuple(_list_rows(report)))


def _list_rows(report: Report) -> Iterator[_Row]:
    path = report.source.path
    for number, finding in enumerate((*report.findings, *report.health), start=1):
        yield _Row(
            finding.rule,
            finding.severity,
            finding.message,
            finding.fix,
            path,
            number,
            finding.name,
            finding.confidence,
            finding.title,
            # The first location is the main one.
            finding.locations[0] if finding.locations else None,
            finding.n,
            finding.cost,
            _list_holders(finding),
        )

    for check in report.unchecked:
        yield _Row(check.rule, "unchecked", check.reason, check.remedy, path)


def _list_holders(finding: Finding) -> str | None:
    return " and ".join("".join(chain) for chain in finding.holders) or None
