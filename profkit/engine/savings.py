"""What a change of the program saves, and the finding that reports it."""

from collections.abc import Mapping

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import event_ids, reaches_share
from profkit.model.change import ProgramChange
from profkit.model.events import Int32s, Rows
from profkit.model.finding import Basis, Confidence, Cost, EvidenceValue, Finding, Severity
from profkit.model.location import Location


@dataclass(frozen=True)
class MeasuredSaving:
    """What the steps take less with a change.

    Attributes:
        ctx: The recording.
        change: What a fix removes or shortens.
        cost: The time that it saves.
    """

    ctx: Context
    change: ProgramChange
    cost: Cost

    def reaches(self, share: float) -> bool:
        """Return whether it is at least a share of the windows, and not nothing."""
        return bool(self.cost.ns) and reaches_share(self.ctx, self.cost.ns, share)

    def severity(self, warning_share: float) -> Severity:
        """Return ``warning`` from a share of the windows on, else ``note``."""
        is_warning = reaches_share(self.ctx, self.cost.ns, warning_share)
        return "warning" if is_warning else "note"

    def finding(  # noqa: PLR0913  (the fields of a Finding that the rule provides)
        self,
        info: RuleInfo,
        *,
        severity: Severity | None = None,
        confidence: Confidence,
        message: str,
        fix: str,
        locations: tuple[Location, ...],
        rows: Rows | Int32s,
        n: int | None = None,
        evidence: Mapping[str, EvidenceValue] | None = None,
        spans: tuple[tuple[int, int], ...] = (),
    ) -> Finding:
        """Build the finding of a rule on what the change concerns.

        Args:
            severity: By default the rule's.
            rows: The events to list in the evidence.
            n: How often the pattern occurs; by default the number of ``rows``.
            evidence: Evidence in addition to the events.
        """
        return info.finding(
            severity=severity,
            confidence=confidence,
            message=message,
            fix=fix,
            locations=locations,
            n=len(rows) if n is None else n,
            cost=self.cost,
            evidence={**(evidence or {}), "events": event_ids(self.ctx, rows)},
            spans=spans,
            change=self.change,
        )


def measure_saving(ctx: Context, change: ProgramChange, basis: Basis = "replay") -> MeasuredSaving:
    """Replay the recording with a change, and return what it saves.

    Args:
        basis: ``upper-bound`` or ``estimate`` where the change itself is one.
    """
    return MeasuredSaving(ctx, change, ctx.time_cost(change, basis))
