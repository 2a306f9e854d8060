"""Findings and skipped checks: the results of rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from profkit.model.location import Location

Severity = Literal["note", "warning", "error"]
Confidence = Literal["low", "medium", "high"]
Basis = Literal["measured", "upper-bound", "estimate"]
EvidenceValue = str | int | float | bool | Sequence[int | str] | None

SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")


@dataclass(frozen=True)
class Cost:
    """The time or memory that a fix can save.

    Attributes:
        ns: Nanoseconds over the whole window, or None.
        bytes: Bytes over the whole window, or None; for a leak found by monitoring, its size at
            the last sample.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps.
        per_step_bytes: ``bytes`` divided by the number of steps, or None without steps; for a leak
            found by monitoring, its growth per step.
        basis: ``measured``: the time is in the recording and disappears with the fix;
            ``upper-bound``: at most this; ``estimate``: computed from a model.
    """

    ns: int | None = None
    bytes: int | None = None
    per_step_ns: int | None = None
    per_step_bytes: int | None = None
    basis: Basis = "measured"


@dataclass(frozen=True)
class Finding:
    """A problem that a rule reports.

    Attributes:
        rule: The rule's id, such as ``SYN001``.
        name: The rule's name, which names the bad pattern.
        severity: How much it matters; a note never fails a build.
        confidence: How certain the rule is, independent of severity.
        title: A few words, the same for every finding of the rule.
        message: One or two sentences with names and figures of the program.
        fix: The code or setting to use instead, with names of the program.
        locations: Where it occurs, highest cost first.
        n: Number of occurrences in the window.
        cost: What a fix can save.
        holders: Reference chains to a live object.
        evidence: Figures and event ids that the finding is based on.
        claims: Parts of the window, as (start, end) in nanoseconds, that ``cost.ns`` is the sum of.
            They keep several findings from counting the same time twice, and are not part of the
            JSON report.
    """

    rule: str
    name: str
    severity: Severity
    confidence: Confidence
    title: str
    message: str
    fix: str
    locations: tuple[Location, ...] = ()
    n: int = 1
    cost: Cost = field(default_factory=Cost)
    holders: tuple[tuple[str, ...], ...] = ()
    evidence: Mapping[str, EvidenceValue] = field(default_factory=dict)
    claims: tuple[tuple[int, int], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Unchecked:
    """A skipped check: a rule that could not run because data is missing.

    Attributes:
        rule: The rule's id.
        reason: What is missing, in one sentence.
        remedy: How to record it.
    """

    rule: str
    reason: str
    remedy: str
