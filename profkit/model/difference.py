"""What changed between two recordings: figures on both sides, and what appeared, went, grew.

Times are integer nanoseconds, sizes integer bytes; a figure that is not known is None.
"""

from dataclasses import dataclass
from typing import Any, Literal

from profkit.model.finding import Severity
from profkit.model.location import Frame, Location
from profkit.model.report import Source

SCHEMA = "profkit.difference/2"

ChangeStatus = Literal["new", "fixed", "worse", "better"]
Unit = Literal["ns", "bytes", "count"]
ChangeKind = Literal["memory", "finding", "kernel", "operator"]


@dataclass(frozen=True)
class Figure:
    """One figure on both sides.

    Attributes:
        name: Such as ``step_ns`` (the median step) or ``reserved_bytes``; the fields of the JSON
            report of the same name say what each is. With ``_per_step`` at its end it is a mean
            over the steps.
        device: The device that it is of, such as ``cuda:0``, or None.
        unit: What it counts.
        before: Its value before, or None where that recording does not tell.
        after: Its value after, likewise.
    """

    name: str
    device: str | None
    unit: Unit
    before: int | None
    after: int | None

    @property
    def delta(self) -> int | None:
        """``after`` minus ``before``, or None where one of them is not known."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class Change:
    """One thing that is there on one side alone, or that is larger on one of them.

    Attributes:
        status: ``new`` or ``fixed``: present only after or only before. ``worse`` or ``better``:
            present on both sides, with a higher or lower cost.
        kind: ``memory``: blocks of one stack that stand in a snapshot. ``finding``: what a rule
            found at one place. ``kernel``, ``operator``: all calls of one name.
        name: A rule's id and name, or the name of a kernel or operator; empty for memory.
        location: The user's line, as it is after; of what went as it was before.
        before_line: The line's number before, where the same code stands on another line now.
        device: The device whose memory it is, or None.
        unit: What ``before`` and ``after`` count; None for a finding whose cost is not known.
        before: Bytes or nanoseconds before; 0 where it was not there.
        after: The same after.
        per_step: Whether they are a mean over the steps.
        n_before: How many blocks, calls or places that is.
        n_after: The same after.
        severity: A finding's severity after; of what went, before. None for all else.
        stack: The Python frames of the stack that allocated it, innermost first.
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
        """``after`` minus ``before``; 0 where they are not known."""
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True)
class NotCompared:
    """A rule that could look on one side alone, so that its findings tell of no change.

    Attributes:
        rule: The rule's id.
        side: The side on which it could not look.
        reason: Why.
    """

    rule: str
    side: Literal["before", "after"]
    reason: str


@dataclass(frozen=True)
class Difference:
    """What changed from one recording to another.

    Attributes:
        profkit: profkit's version.
        before: What was recorded first.
        after: What was recorded then.
        figures: Figures that at least one of them tells, the most telling first.
        changes: What changed: memory, findings, kernels, operators, each the largest change first.
        not_compared: Rules whose findings cannot be compared.
        notes: What makes the two hard to compare, in sentences.
        schema: Name and version of this layout.
    """

    profkit: str
    before: Source
    after: Source
    figures: tuple[Figure, ...] = ()
    changes: tuple[Change, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA

    def of_kind(self, kind: ChangeKind) -> tuple[Change, ...]:
        """The changes of one kind, the largest first."""
        return tuple(each for each in self.changes if each.kind == kind)

    def __str__(self) -> str:
        """The difference as text, as ``profkit diff`` prints it."""
        return _rendered(self, "text")

    def _repr_html_(self) -> str:
        """The difference as notebooks show it: small HTML that runs and fetches nothing.

        Source: "Rich output" in IPython's documentation.
        """
        return _rendered(self, "fragment")

    def _repr_markdown_(self) -> str:
        """The difference for what shows Markdown and no HTML."""
        return _rendered(self, "md")

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:  # noqa: ANN401, FBT001  (IPython's)
        """The difference as text, at IPython's prompt and where a notebook keeps its plain form.

        Args:
            printer: What IPython writes with.
            _cycle: Whether it holds itself, which it never does.
        """
        printer.text(str(self))


def _rendered(difference: Difference, name: str) -> str:
    # By the package's own door: what shows it stands floors above what it is.
    import profkit

    rendered: bytes = profkit.render(difference, name)
    return rendered.decode().rstrip("\n")
