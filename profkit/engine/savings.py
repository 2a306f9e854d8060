"""What a change of the program saves, and the findings that report it."""

from collections.abc import Mapping, Sequence

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import event_ids, reaches_share, time_with_share, windows, windows_ns
from profkit.index.intervals import (
    Intervals,
    covered_by,
    covered_within,
    intersect,
    union,
    unite,
)
from profkit.model.change import ProgramChange
from profkit.model.events import Int32s, Rows
from profkit.model.finding import Basis, Confidence, Cost, EvidenceValue, Finding, Severity
from profkit.model.location import Location
from profkit.units import format_share


@dataclass(frozen=True)
class MeasuredSaving:
    """What the steps take less with a change.

    Attributes:
        ctx: The recording.
        change: What a fix removes or shortens.
        cost: The time that it saves; unknown where it was not replayed.
    """

    ctx: Context
    change: ProgramChange
    cost: Cost

    def reaches(self, share: float) -> bool:
        """Return whether it is at least a share of the windows, and not nothing."""
        return bool(self.cost.ns) and reaches_share(self.ctx, self.cost.ns, share)

    def severity(self, warning_share: float) -> Severity:
        """Return ``warning`` if the likely saving is a share of the windows, else ``note``.

        Of an upper bound the lower end of the replay is likely: it keeps the recorded latencies.
        """
        likely_ns = self.cost.ns if self.cost.low_ns is None else self.cost.low_ns
        is_warning = reaches_share(self.ctx, likely_ns, warning_share)
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
            locations: The source lines, the costliest first.
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
    return measure_savings(ctx, (change,), basis)[0]


def measure_savings(
    ctx: Context, changes: Sequence[ProgramChange], basis: Basis = "replay"
) -> list[MeasuredSaving]:
    """Replay the recording with each of some changes, at less cost than one after the other."""
    costs = ctx.time_costs(changes, basis) if changes else []
    return [MeasuredSaving(ctx, *pair) for pair in zip(changes, costs, strict=True)]


@dataclass(frozen=True)
class CostlyWait:
    """Calls that block the host for longer than a rule's threshold, and what a fix saves.

    Attributes:
        saving: What a fix saves; unknown if the recording has no device work.
        severity: ``warning`` if the saving reaches the rule's threshold.
        confidence: ``high`` if the calls occur in more than one step.
        blocked: Time in which they block the host.
        busy_ns: How much of it a device works.
    """

    saving: MeasuredSaving
    severity: Severity
    confidence: Confidence
    blocked: Intervals
    busy_ns: int

    @property
    def text(self) -> str:
        """``blocks the host for 206 µs per step (12%). The GPU works during 98% of it.``.

        The second sentence is left out if no device work was recorded.
        """
        ctx = self.saving.ctx
        text = f"blocks the host for {time_with_share(ctx, self.blocked.total_ns)}."
        if not ctx.has_device_work:
            return text
        works = format_share(self.busy_ns / self.blocked.total_ns)
        return f"{text} The GPU works during {works} of it."

    def finding(
        self,
        info: RuleInfo,
        *,
        confidence: Confidence | None = None,
        message: str,
        fix: str,
        locations: tuple[Location, ...],
        rows: Rows | Int32s,
        n: int | None = None,
        evidence: Mapping[str, EvidenceValue] | None = None,
    ) -> Finding:
        """Build the finding of a rule on blocking calls, as :meth:`MeasuredSaving.finding` does.

        Args:
            confidence: Replaces :attr:`confidence`, where the rule knows better.
            evidence: Evidence in addition to the events and the times.
        """
        times = {"blocked_ns": self.blocked.total_ns, "device_busy_ns": self.busy_ns}
        return self.saving.finding(
            info,
            severity=self.severity,
            confidence=confidence or self.confidence,
            message=message,
            fix=fix,
            locations=locations,
            rows=rows,
            n=n,
            evidence={**(evidence or {}), **times},
            spans=self.blocked.pairs(),
        )


@dataclass(frozen=True)
class WaitThresholds:
    """When calls that block the host are a finding.

    Attributes:
        min_wait_share: Minimum share of the steps that the host is blocked. Below a thousandth no
            step gets measurably shorter, and recordings differ more than that between runs.
        warning_share: Share of the steps that a fix can save from which it is a warning: from one
            percent on, a change is worth the edit.
    """

    min_wait_share: float = 0.001
    warning_share: float = 0.01


def find_costly_wait(ctx: Context, calls: Rows, thresholds: WaitThresholds) -> CostlyWait | None:
    """Return the cost of blocking calls; None if they block the host for too short a time."""
    return find_costly_waits(ctx, [ProgramChange(calls=calls)], thresholds)[0]


def find_costly_waits(
    ctx: Context, changes: Sequence[ProgramChange], thresholds: WaitThresholds
) -> list[CostlyWait | None]:
    """Return the costs of blocking calls; None if they block the host for too short a time.

    Args:
        changes: For each source line the calls, and the operators that a fix removes with them.
    """
    starts, ends = windows(ctx)
    window = union(starts, ends)

    blocked = [intersect(covered_by(ctx.events, change.calls), window) for change in changes]
    least_ns = max(1, thresholds.min_wait_share * windows_ns(ctx))

    # Each replay is a pass over the graph: only waits that are long enough are replayed.
    long_enough = [i for i, time in enumerate(blocked) if time.total_ns >= least_ns]
    costly = [changes[i] for i in long_enough]
    savings = (
        measure_savings(ctx, costly)
        if ctx.has_device_work
        else [MeasuredSaving(ctx, change, Cost()) for change in costly]
    )

    waits: list[CostlyWait | None] = [None] * len(changes)
    for i, saving in zip(long_enough, savings, strict=True):
        n_windows = np.count_nonzero(covered_within(blocked[i], starts, ends))
        waits[i] = CostlyWait(
            saving=saving,
            severity=saving.severity(thresholds.warning_share),
            confidence="high" if n_windows > 1 else "medium",
            blocked=blocked[i],
            busy_ns=intersect(blocked[i], unite(ctx.busy, ctx.unrecorded)).total_ns,
        )

    return waits
