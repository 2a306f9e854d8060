"""What a rule says."""

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
    """What a finding costs.

    Attributes:
        ns: Nanoseconds over the whole window that the cure can give back, or None.
        bytes: Bytes over the whole window, or None; of what grows in a watched program, all that
            there was of it at the last look.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps.
        per_step_bytes: ``bytes`` divided by the number of steps, or None without steps; of what
            grows in a watched program, by how much a step it grew.
        basis: ``measured``: the time is in the recording and goes away with the cure;
            ``upper-bound``: at most this; ``estimate``: worked out from a model.
    """

    ns: int | None = None
    bytes: int | None = None
    per_step_ns: int | None = None
    per_step_bytes: int | None = None
    basis: Basis = "measured"


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        rule: The rule's id, such as ``SYN001``.
        name: The rule's name: the bad pattern.
        severity: How much it matters: a note is worth knowing and never fails a build.
        confidence: How sure the rule is that this is so. An axis of its own.
        title: A few words, the same for every finding of the rule.
        message: One or two sentences with the user's own names and figures.
        fix: What to write instead, with the user's own names.
        locations: Where, the costliest first.
        n: How often it happens in the window.
        cost: What it costs.
        holders: For a live object, the chains of who holds it.
        evidence: The figures and event ids that the finding rests on.
        claims: The stretches of the window, as (start, end) in nanoseconds, that ``cost.ns`` is
            taken from. Not part of the JSON report: only there so that findings that claim the
            same nanoseconds are not added up twice.
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
    """A rule that could not look, so that "clean" and "not looked at" never look alike.

    Attributes:
        rule: The rule's id.
        reason: What is missing, in one sentence.
        remedy: How to record it.
    """

    rule: str
    reason: str
    remedy: str
