"""Findings and skipped checks: the results of rules."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from profkit.dataclass import dataclass
from profkit.model.change import ProgramChange
from profkit.model.growth import Growth
from profkit.model.location import Location

Severity = Literal["note", "warning", "error"]
Confidence = Literal["low", "medium", "high"]
Basis = Literal["measured", "replay", "upper-bound", "estimate"]
EvidenceValue = str | int | float | bool | Sequence[int | str] | None

SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")


@dataclass(frozen=True)
class Cost:
    """The time or memory that a fix can save.

    Attributes:
        ns: Nanoseconds over the whole window, or None.
        low_ns: The lower end of what a replay gives, or None without one: every latency stays as
            recorded.
        high_ns: Its upper end: latencies are hidden behind other work where they can be. ``ns`` is
            the lower end, or of an upper bound the upper end.
        bytes: Bytes over the whole window, or None; for a leak found by monitoring, its size at
            the last sample.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps. Without ``ns`` it
            is of steps that were not recorded.
        per_step_bytes: ``bytes`` divided by the number of steps, or None without steps; for a leak
            found by monitoring, its growth per step.
        basis: ``measured``: in the recording, and gone with the fix; ``replay``: the difference
            between the recording and its replay without the cause; ``upper-bound``: at most this;
            ``estimate``: computed from a model.
    """

    ns: int | None = None
    bytes: int | None = None
    per_step_ns: int | None = None
    per_step_bytes: int | None = None
    basis: Basis = "measured"
    low_ns: int | None = None
    high_ns: int | None = None

    @property
    def ranked_ns(self) -> int:
        """Return the time by which costs are compared: per step, or over a recording without any.

        Costs of steps that were not recorded are known per step alone.
        """
        return (self.ns if self.per_step_ns is None else self.per_step_ns) or 0

    @property
    def ns_and_bytes(self) -> tuple[int, int]:
        """Return the time and the bytes by which costs are compared, 0 where one is not known."""
        return self.ranked_ns, self.bytes or 0


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
        cost: The time or memory that a fix can save.
        holders: Reference chains to a live object.
        evidence: Figures and event ids that the finding is based on.
        growth: For growing memory, its size over the steps, if it was measured.
        ranks: The ranks on which it was found, in a report over several; all other fields are then
            of the rank on which it costs most.
        spans: Parts of the window that the finding is about, as (start, end) in nanoseconds, for
            timelines. Not part of the JSON report.
        change: The changes that a fix makes. A replay with the changes of several findings gives
            the time that they save together. Not part of the JSON report.
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
    growth: Growth | None = None
    ranks: tuple[int, ...] = ()
    spans: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    change: ProgramChange | None = field(default=None, repr=False, compare=False)


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
