"""Ranks findings, and measures the time that all of them together can save."""

from collections.abc import Iterable

from profkit.index.intervals import of_pairs
from profkit.model.finding import Finding


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by cost, the costliest first; notes after everything else.

    Time counts before memory: a slow step costs now, memory only when it runs out. Equal costs are
    ordered by rule and line, so that two reports of one file are identical.
    """
    return tuple(sorted(findings, key=_rank))


def _rank(finding: Finding) -> tuple[bool, int, int, str, str, int]:
    first = finding.locations[0] if finding.locations else None
    return (
        finding.severity == "note",
        -(finding.cost.ns or 0),
        -(finding.cost.bytes or 0),
        finding.rule,
        (first.file or first.op or "") if first else "",
        (first.line or 0) if first else 0,
    )


def recoverable_ns(findings: Iterable[Finding]) -> int:
    """Time that at least one finding claims; time that several claim is counted once."""
    return of_pairs(tuple(pair for f in findings for pair in f.claims)).total_ns
