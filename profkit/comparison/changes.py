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
from profkit.model.report import Report
from profkit.model.snapshot import MemorySnapshot
from profkit.model.work_summary import KernelSummary, OpSummary

_NOISE_SHARE: Final = 0.1
"""Two runs of one program can differ by this much."""
_MIN_CHANGE_SHARE: Final = 0.01
"""A smaller change of a kernel's or a finding's time, as a share of the step time or recording, is
not reported."""

T = TypeVar("T")


def compare_memory(before: MemorySnapshot, after: MemorySnapshot) -> list[Change]:
    """Compare the live memory of two snapshots by stack."""
    return [_build_stack_change(change) for change in find_stack_changes(before, after)]


def _build_stack_change(change: StackChange) -> Change:
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
        pairs: Findings of both.
        fixed: Findings of the first only.
        added: Findings of the second only.
    """

    pairs: Sequence[tuple[Finding, Finding]]
    fixed: Sequence[Finding]
    added: Sequence[Finding]


def match_findings(old: Report, new: Report, one_sided: set[str]) -> MatchedFindings:
    """Find the same findings in two reports, also where their lines have moved.

    Args:
        one_sided: Rules that were skipped on one side, which are left out.
    """
    left = [finding for finding in old.findings if finding.rule not in one_sided]
    right = [finding for finding in new.findings if finding.rule not in one_sided]

    # The most specific key first: findings that it matches are settled.
    keys = (_by_line, _by_function, _by_file_name)
    return MatchedFindings(*match_items(left, right, keys, _lines_apart))


def compare_findings(old: Report, new: Report, matched: MatchedFindings) -> list[Change]:
    """Compare costs: list findings on one side, and those whose cost differs by more than noise."""
    whole_ns = min(_total_ns(old), _total_ns(new))
    step_ns = min(_total_ns(report) / max(len(report.summary.steps), 1) for report in (old, new))

    changes = [
        change
        for before, after in matched.pairs
        if (change := _compare_costs(before, after, whole_ns, step_ns)) is not None
    ]
    changes += [_build_one_sided_change(finding, is_new=False) for finding in matched.fixed]
    changes += [_build_one_sided_change(finding, is_new=True) for finding in matched.added]
    return sorted(changes, key=_rank)


def judge_fixes(old: Report, new: Report, fixed: Iterable[Finding]) -> FixResult | None:
    """Compare the predicted saving of the fixed findings with the change of step time."""
    before, after = old.summary.steps, new.summary.steps
    if not (before and after) or old.source.devices != new.source.devices:
        return None
    # A cost of steps that were not recorded predicts nothing of the recorded ones.
    known = (finding.cost for finding in fixed if finding.cost.ns is not None)
    costs = [cost for cost in known if cost.per_step_ns or cost.high_ns]
    if not costs:
        return None

    # An upper bound may save nothing at all.
    low = (0 if cost.basis == "upper-bound" else cost.low_ns or cost.ns or 0 for cost in costs)
    high = (max(cost.high_ns or 0, cost.ns or 0) for cost in costs)
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
    place = _place(finding)
    return finding.rule, place.file, place.line, place.function, place.op


def _by_function(finding: Finding) -> Hashable:
    place = _place(finding)
    return finding.rule, place.file, place.function, place.op if place.file is None else None


def _by_file_name(finding: Finding) -> Hashable | None:
    """Identify a finding by the name of its file: the program may be in another folder."""
    place = _place(finding)
    if place.file is None:
        return None
    return finding.rule, posixpath.basename(place.file.replace("\\", "/")), place.function


def _lines_apart(old: Finding, new: Finding) -> int:
    return abs((_place(old).line or 0) - (_place(new).line or 0))


@dataclass(frozen=True)
class _Amount:
    """A cost in one unit, per step or in total."""

    unit: Unit
    n: int
    per_step: bool


def _amounts(cost: Cost) -> Mapping[tuple[Unit, bool], _Amount]:
    """Return the known figures of a cost: time before memory, per step before total."""
    amounts: tuple[tuple[Unit, bool, int | None], ...] = (
        ("ns", True, cost.per_step_ns),
        ("ns", False, cost.ns),
        ("bytes", True, cost.per_step_bytes),
        ("bytes", False, cost.bytes),
    )
    return {
        (unit, per_step): _Amount(unit, n, per_step)
        for unit, per_step, n in amounts
        if n is not None
    }


def _compare_costs(old: Finding, new: Finding, whole_ns: float, step_ns: float) -> Change | None:
    """Compare a finding that both sides have; None if its change is within noise.

    Args:
        whole_ns: Length of the shorter recording.
        step_ns: Mean length of a step, the shorter of both.
    """
    left, right = _amounts(old.cost), _amounts(new.cost)
    # Reports of different versions may state costs in different units.
    common = next((key for key in left if key in right), None)
    if common is None:
        return None
    before, after = left[common], right[common]

    # Recordings of few steps lose a share of each cost at their ends.
    length_ns = step_ns if before.per_step else whole_ns
    min_change = _MIN_CHANGE_SHARE * length_ns if before.unit == "ns" else 0

    if not _is_significant(before.n, after.n, min_change):
        return None

    status = _status(old, new, is_worse=after.n > before.n)
    return _build_finding_change(new, status, before, after, (old.n, new.n), _place(old))


def _build_one_sided_change(finding: Finding, *, is_new: bool) -> Change:
    amount = next(iter(_amounts(finding.cost).values()), None)
    zero = None if amount is None else _Amount(amount.unit, 0, amount.per_step)
    if is_new:
        return _build_finding_change(finding, "new", zero, amount, (0, finding.n), _place(finding))
    return _build_finding_change(finding, "fixed", amount, zero, (finding.n, 0), _place(finding))


def _build_finding_change(
    finding: Finding,
    status: ChangeStatus,
    before: _Amount | None,
    after: _Amount | None,
    n: tuple[int, int],
    old_place: Location,
) -> Change:
    """Describe a finding before and after; an amount that is not known is None."""
    n_before, n_after = n

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
        n_before=n_before,
        n_after=n_after,
        severity=finding.severity,
    )


def compare_calls(old: Report, new: Report) -> list[Change]:
    """Compare kernels, or operators by self time if neither side has kernels.

    Times are per step, of work that begins in the time of the steps. If a side has no steps, they
    are of the whole recordings.
    """
    has_kernels = bool(old.summary.top_kernels or new.summary.top_kernels)
    left, right = (
        _Calls({kernel.name: kernel for kernel in summary.top_kernels}, "total_ns", "per_step_ns")
        if has_kernels
        else _Calls({op.name: op for op in summary.top_ops}, "self_ns", "self_per_step_ns")
        for summary in (old.summary, new.summary)
    )
    return _compare_named_calls("kernel" if has_kernels else "operator", old, new, left, right)


@dataclass(frozen=True)
class _Calls:
    """Kernels or operators by name, and the names of their fields with times."""

    by_name: Mapping[str, KernelSummary | OpSummary]
    total: str
    mean: str

    def time_ns(self, name: str, *, per_step: bool) -> int:
        """Return the time of a call; 0 for a name that is not there."""
        call = self.by_name.get(name)
        time_ns: int | None = getattr(call, self.mean if per_step else self.total, 0)
        return time_ns or 0


def _compare_named_calls(
    kind: ChangeKind, old: Report, new: Report, left: _Calls, right: _Calls
) -> list[Change]:
    n_old, n_new = len(old.summary.steps), len(new.summary.steps)
    per_step = bool(n_old and n_new)
    n_old, n_new = (n_old, n_new) if per_step else (1, 1)
    min_ns = _MIN_CHANGE_SHARE * min(_total_ns(old) / n_old, _total_ns(new) / n_new)

    changes = []
    for name in {**right.by_name, **left.by_name}:
        old_call, new_call = left.by_name.get(name), right.by_name.get(name)
        present = new_call or old_call

        # A report lists only the costliest: a name may be missing on one side.
        is_cut = (old_call is None and len(left.by_name) >= MAX_ENTRIES) or (
            new_call is None and len(right.by_name) >= MAX_ENTRIES
        )

        before, after = (side.time_ns(name, per_step=per_step) for side in (left, right))
        if present is None or is_cut or not _is_significant(before, after, min_ns):
            continue

        changes.append(
            Change(
                status=_status(old_call, new_call, is_worse=after > before),
                kind=kind,
                name=name,
                location=present.location,
                before_line=None,
                device=None,
                unit="ns",
                before=before,
                after=after,
                per_step=per_step,
                n_before=old_call.n_calls if old_call else 0,
                n_after=new_call.n_calls if new_call else 0,
            )
        )

    return sorted(changes, key=_rank)


def _total_ns(report: Report) -> int:
    steps = report.summary.steps
    return sum(step.time_ns for step in steps) if steps else report.summary.window_ns


def _is_significant(before: int, after: int, min_change: float = 0) -> bool:
    # A change has to exceed the noise and be large enough to matter.
    return abs(after - before) > max(_NOISE_SHARE * max(before, after), min_change)


def _rank(change: Change) -> tuple[int, str, str, int]:
    location = change.location or Location()
    return -abs(change.delta), change.name, location.file or "", location.line or 0
