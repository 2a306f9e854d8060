"""Which finding comes first, and what all of them together can give back."""

from collections.abc import Iterable

from profkit.index.intervals import of_pairs
from profkit.model.finding import Finding


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by what they cost, the costliest first; notes after everything else.

    Time counts before memory: a step that is slow is slow now. What costs the same stays in the
    order of rule and line, so that two reports of one file are alike.
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
    """Time that at least one finding claims; what several claim is counted once."""
    return of_pairs(tuple(pair for f in findings for pair in f.claims)).total_ns
