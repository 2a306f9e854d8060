"""A comparison of two recordings: figures of both, and what is new, fixed, worse or better.

Times are integer nanoseconds, sizes integer bytes. Unknown figures are None.
"""

from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.model.finding import Severity
from profkit.model.location import Frame, Location
from profkit.model.renderable import Renderable
from profkit.model.report import Source

SCHEMA: Final = "profkit.difference/2"

ChangeStatus = Literal["new", "fixed", "worse", "better"]
Unit = Literal["ns", "bytes", "count"]
ChangeKind = Literal["memory", "finding", "kernel", "operator"]


@dataclass(frozen=True)
class Figure:
    """One figure of both recordings.

    Attributes:
        name: Such as ``step_ns`` (the mean step time) or ``reserved_bytes``, as in the JSON report.
            The suffix ``_per_step`` marks a mean over the steps.
        device: Such as ``cuda:0``, or None.
        unit: Unit of ``before`` and ``after``.
        before: Value in the first recording, or None where it is not known.
        after: Value in the second recording, or None where it is not known.
    """

    name: str
    device: str | None
    unit: Unit
    before: int | None
    after: int | None

    @property
    def delta(self) -> int | None:
        """Return ``after`` minus ``before``, or None where one of them is not known."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class Change:
    """A difference in memory, a finding, a kernel or an operator.

    Attributes:
        status: ``new`` or ``fixed``: only in the second or only in the first recording. ``worse``
            or ``better``: in both, with a higher or lower cost.
        kind: ``memory``: live blocks of a snapshot with the same allocation stack. ``finding``: the
            findings of a rule at one location. ``kernel``, ``operator``: all calls of one name.
        name: A rule's id and name, or the name of a kernel or operator; empty for memory.
        location: The source line in the second recording; of something fixed, in the first.
        before_line: Line number in the first recording, where the same code has moved since.
        device: The device whose memory it is, or None.
        unit: Unit of ``before`` and ``after``; None for a finding of unknown cost.
        before: Bytes or nanoseconds in the first recording; 0 where it is absent.
        after: Bytes or nanoseconds in the second recording; 0 where it is absent.
        per_step: Whether ``before`` and ``after`` are means over the steps.
        n_before: Number of blocks, calls or locations in the first recording.
        n_after: Number of blocks, calls or locations in the second recording.
        severity: A finding's severity in the second recording; of a fixed one, in the first. None
            for other kinds.
        stack: Python frames of the allocation stack, innermost first.
    """

    status: ChangeStatus
    kind: ChangeKind
    name: str
    location: Location | None
    before_line: int | None
    device: str | None
    unit: Unit | None
    before: int | None
    after: int | None
    per_step: bool
    n_before: int
    n_after: int
    severity: Severity | None = None
    stack: tuple[Frame, ...] = ()

    @property
    def delta(self) -> int:
        """Return ``after`` minus ``before``; 0 where they are not known."""
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True)
class FixResult:
    """The predicted savings of the findings that are fixed, and the measured change.

    Attributes:
        n: Number of fixed findings with a cost in time per step.
        low_ns: Lower end of the time per step that they were predicted to save: the sum of their
            costs, which is 0 for an upper bound.
        high_ns: Its upper end. Where several claim the same time, together they save less.
        saved_ns: By how much the mean step time is shorter; below 0 if it is longer.
    """

    n: int
    low_ns: int
    high_ns: int
    saved_ns: int


@dataclass(frozen=True)
class NotCompared:
    """A rule that was skipped on one side, so that its findings cannot be compared.

    Attributes:
        rule: The rule's id.
        side: The side on which it was skipped.
        reason: Why it was skipped.
    """

    rule: str
    side: Literal["before", "after"]
    reason: str


@dataclass(frozen=True)
class Difference(Renderable):
    """A comparison of two recordings.

    Attributes:
        profkit: profkit's version.
        before: The first recording.
        after: The second recording.
        figures: Figures known of at least one recording, most important first.
        changes: Changes of memory, findings, kernels and operators, each largest first.
        not_compared: Rules whose findings cannot be compared.
        notes: Sentences on what limits the comparison.
        fixes: The predicted savings of the fixed findings, and the change of step time. None if no
            finding with a cost per step is fixed, or if the devices differ.
        schema: Name and version of this schema.
    """

    profkit: str
    before: Source
    after: Source
    figures: tuple[Figure, ...] = ()
    changes: tuple[Change, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    notes: tuple[str, ...] = ()
    fixes: FixResult | None = None
    schema: str = SCHEMA

    def of_kind(self, kind: ChangeKind) -> tuple[Change, ...]:
        """Return the changes of one kind, largest first."""
        return tuple(change for change in self.changes if change.kind == kind)
