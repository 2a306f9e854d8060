"""The changes between two reports, and between two snapshots: new, fixed, worse or better."""

import posixpath
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from profkit.dataclass import dataclass
from profkit.engine.figures.top import MAX_ENTRIES
from profkit.index.pairing import match_items
from profkit.index.snapshot.stack_changes import StackChange, find_stack_changes
from profkit.model.difference import Change, ChangeKind, ChangeStatus, FixResult, Unit
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.model.report import KernelSummary, OpSummary, Report
from profkit.model.snapshot import MemorySnapshot

_NOISE_SHARE: Final = 0.1
"""Two runs of one program can differ by this much."""
_MIN_CHANGE_SHARE: Final = 0.01
"""A smaller change of a kernel's or a finding's time, as a share of the step time or recording, is
not reported."""

T = TypeVar("T")


def memory_changes(before: MemorySnapshot, after: MemorySnapshot) -> list[Change]:
    """Live memory that differs between two snapshots, by stack."""
    return [_stack_change(change) for change in find_stack_changes(before, after)]


def _stack_change(change: StackChange) -> Change:
    old, new, stack = change.before, change.after, change.present
    grew = (new.n_bytes, new.n) > (old.n_bytes, old.n) if old and new else False
    return Change(
        status=_status(old, new, is_worse=grew),
        kind="memory",
        name="",
        location=stack.location if stack.frames else None,
        before_line=_line_before(old.location, new.location) if old and new else None,
        device=f"cuda:{stack.device}",
        unit="bytes",
        before=old.n_bytes if old else 0,
        after=new.n_bytes if new else 0,
        per_step=False,
        n_before=old.n if old else 0,
        n_after=new.n if new else 0,
        stack=stack.frames,
    )


def _status(old: T | None, new: T | None, *, is_worse: bool) -> ChangeStatus:
    if old is None:
        return "new"
    if new is None:
        return "fixed"
    return "worse" if is_worse else "better"


def _line_before(before: Location, after: Location) -> int | None:
    return before.line if before.line != after.line else None


@dataclass(frozen=True)
class MatchedFindings:
    """The findings of two reports.

    Attributes:
        pairs: Those that both have.
        fixed: Those that only the first has.
        added: Those that only the second has.
    """

    pairs: Sequence[tuple[Finding, Finding]]
    fixed: Sequence[Finding]
    added: Sequence[Finding]


def match_findings(old: Report, new: Report, one_sided: set[str]) -> MatchedFindings:
    """Find the same findings in two reports, also where their lines have moved.

    Args:
        one_sided: Rules that were skipped on one side, which are left out.
    """
    left = [each for each in old.findings if each.rule not in one_sided]
    right = [each for each in new.findings if each.rule not in one_sided]
    keys = (_by_line, _by_function, _by_file_name)
    return MatchedFindings(*match_items(left, right, keys, _lines_apart))


def finding_changes(old: Report, new: Report, found: MatchedFindings) -> list[Change]:
    """Findings on one side only, and those whose cost differs by more than noise."""
    whole_ns = min(_total_ns(old), _total_ns(new))
    step_ns = min(_total_ns(each) / max(len(each.summary.steps), 1) for each in (old, new))
    changes = [
        change
        for one, other in found.pairs
        if (change := _cost_change(one, other, whole_ns, step_ns)) is not None
    ]
    changes += [_one_sided_change(each, is_new=False) for each in found.fixed]
    changes += [_one_sided_change(each, is_new=True) for each in found.added]
    return sorted(changes, key=_rank)


def fix_result(old: Report, new: Report, fixed: Iterable[Finding]) -> FixResult | None:
    """What the fixed findings were predicted to save, and the change of step time."""
    before, after = old.summary.steps, new.summary.steps
    if not (before and after) or old.source.devices != new.source.devices:
        return None
    costs = [each.cost for each in fixed if each.cost.per_step_ns or each.cost.high_ns]
    low = (0 if cost.basis == "upper-bound" else cost.low_ns or cost.ns or 0 for cost in costs)
    high = (max(cost.high_ns or 0, cost.ns or 0) for cost in costs)
    if not costs:
        return None
    means = [sum(step.time_ns for step in steps) / len(steps) for steps in (before, after)]
    return FixResult(
        n=len(costs),
        low_ns=round(sum(low) / len(before)),
        high_ns=round(sum(high) / len(before)),
        saved_ns=round(means[0] - means[1]),
    )


def _place(finding: Finding) -> Location:
    return finding.locations[0] if finding.locations else Location()


def _by_line(finding: Finding) -> Hashable:
    where = _place(finding)
    return finding.rule, where.file, where.line, where.function, where.op


def _by_function(finding: Finding) -> Hashable:
    where = _place(finding)
    return finding.rule, where.file, where.function, where.op if where.file is None else None


def _by_file_name(finding: Finding) -> Hashable | None:
    """Matches the same program in another folder."""
    where = _place(finding)
    if where.file is None:
        return None
    return finding.rule, posixpath.basename(where.file.replace("\\", "/")), where.function


def _lines_apart(one: Finding, other: Finding) -> int:
    return abs((_place(one).line or 0) - (_place(other).line or 0))


@dataclass(frozen=True)
class _Amount:
    """A cost in one unit, per step or in total."""

    unit: Unit
    n: int
    per_step: bool


def _amounts(cost: Cost) -> Mapping[tuple[Unit, bool], _Amount]:
    """The known figures of a cost: time before memory, per step before total."""
    every: tuple[tuple[Unit, bool, int | None], ...] = (
        ("ns", True, cost.per_step_ns),
        ("ns", False, cost.ns),
        ("bytes", True, cost.per_step_bytes),
        ("bytes", False, cost.bytes),
    )
    return {(unit, each): _Amount(unit, n, each) for unit, each, n in every if n is not None}


def _cost_change(one: Finding, other: Finding, whole_ns: float, step_ns: float) -> Change | None:
    """The change of a finding that both sides have, or None if it is within noise.

    Args:
        whole_ns: Length of the recordings: of the shorter one.
        step_ns: Length of a step: of the shorter mean.
    """
    left, right = _amounts(one.cost), _amounts(other.cost)
    known = next((key for key in left if key in right), None)
    if known is None:
        return None
    before, after = left[known], right[known]
    # Recordings of few steps lose a share of each cost at their ends.
    length_ns = step_ns if before.per_step else whole_ns
    min_change = _MIN_CHANGE_SHARE * length_ns if before.unit == "ns" else 0
    if not _is_significant(before.n, after.n, min_change):
        return None
    status = _status(one, other, is_worse=after.n > before.n)
    return _finding_change(other, status, before, after, (one.n, other.n), _place(one))


def _one_sided_change(finding: Finding, *, is_new: bool) -> Change:
    amount = next(iter(_amounts(finding.cost).values()), None)
    nothing = None if amount is None else _Amount(amount.unit, 0, amount.per_step)
    if is_new:
        return _finding_change(finding, "new", nothing, amount, (0, finding.n), _place(finding))
    return _finding_change(finding, "fixed", amount, nothing, (finding.n, 0), _place(finding))


def _finding_change(
    finding: Finding,
    status: ChangeStatus,
    before: _Amount | None,
    after: _Amount | None,
    n: tuple[int, int],
    old_place: Location,
) -> Change:
    return Change(
        status=status,
        kind="finding",
        name=f"{finding.rule} {finding.name}",
        location=finding.locations[0] if finding.locations else None,
        before_line=_line_before(old_place, _place(finding)),
        device=None,
        unit=after.unit if after else None,
        before=before.n if before else None,
        after=after.n if after else None,
        per_step=after.per_step if after else False,
        n_before=n[0],
        n_after=n[1],
        severity=finding.severity,
    )


def call_changes(old: Report, new: Report) -> list[Change]:
    """Kernels that changed, or operators by self time if neither side has kernels.

    Their times are those per step, of what begins in the time of the steps, or without steps on a
    side those of the whole recordings.
    """
    if old.summary.top_kernels or new.summary.top_kernels:
        kernels = [
            _Calls({each.name: each for each in report.summary.top_kernels}, "total_ns",
                   "per_step_ns", len(report.summary.steps))
            for report in (old, new)
        ]  # fmt: skip
        return _changed_calls("kernel", old, new, *kernels)
    operators = [
        _Calls({each.name: each for each in report.summary.top_ops}, "self_ns",
               "self_per_step_ns", len(report.summary.steps))
        for report in (old, new)
    ]  # fmt: skip
    return _changed_calls("operator", old, new, *operators)


@dataclass(frozen=True)
class _Calls:
    """Kernels or operators by name, and where their times are."""

    found: Mapping[str, KernelSummary | OpSummary]
    total: str
    mean: str
    n_steps: int

    @property
    def has_means(self) -> bool:
        """Whether all have a time per step: those of an older report have none."""
        return all(getattr(each, self.mean) is not None for each in self.found.values())

    def time_ns(self, name: str, *, per_step: bool, has_means: bool) -> int:
        """0 for a name that is not there."""
        call = self.found.get(name)
        if call is None:
            return 0
        if per_step and has_means:
            return int(getattr(call, self.mean))
        total_ns: int = getattr(call, self.total)
        return round(total_ns / self.n_steps) if per_step else total_ns


def _changed_calls(
    kind: ChangeKind, old: Report, new: Report, left: _Calls, right: _Calls
) -> list[Change]:
    per_step = bool(left.n_steps and right.n_steps)
    has_means = left.has_means and right.has_means
    n_left, n_right = (left.n_steps, right.n_steps) if per_step else (1, 1)
    min_ns = _MIN_CHANGE_SHARE * min(_total_ns(old) / n_left, _total_ns(new) / n_right)
    changes = []
    for name in {**right.found, **left.found}:
        one, other = left.found.get(name), right.found.get(name)
        present = other or one
        # A report lists only the costliest: a name may be missing on one side.
        is_cut = (one is None and len(left.found) >= MAX_ENTRIES) or (
            other is None and len(right.found) >= MAX_ENTRIES
        )
        before, after = (
            side.time_ns(name, per_step=per_step, has_means=has_means) for side in (left, right)
        )
        if present is None or is_cut or not _is_significant(before, after, min_ns):
            continue
        changes.append(
            Change(
                status=_status(one, other, is_worse=after > before),
                kind=kind,
                name=name,
                location=present.location,
                before_line=None,
                device=None,
                unit="ns",
                before=before,
                after=after,
                per_step=per_step,
                n_before=one.n_calls if one else 0,
                n_after=other.n_calls if other else 0,
            )
        )
    return sorted(changes, key=_rank)


def _total_ns(report: Report) -> int:
    steps = report.summary.steps
    return sum(each.time_ns for each in steps) if steps else report.summary.window_ns


def _is_significant(before: int, after: int, min_change: float = 0) -> bool:
    return abs(after - before) > max(_NOISE_SHARE * max(before, after), min_change)


def _rank(change: Change) -> tuple[int, str, str, int]:
    where = change.location or Location()
    return -abs(change.delta), change.name, where.file or "", where.line or 0
