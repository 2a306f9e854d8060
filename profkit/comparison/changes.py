"""What appeared, went, grew or shrank between two reports, and between two snapshots."""

import posixpath
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from profkit.engine.figures.top import MAX_ENTRIES
from profkit.index.pairing import paired
from profkit.index.snapshot.stack_changes import StackChange, stack_changes
from profkit.model.difference import Change, ChangeKind, ChangeStatus, Unit
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.model.snapshot import MemorySnapshot

_NOISE_SHARE: Final = 0.1
"""Two runs of one program differ by as much now and then."""
_WORTH_SAYING_SHARE: Final = 0.01
"""A kernel that changed by less than this share of a step, or of the recording, is no news."""

Thing = TypeVar("Thing")


def memory_changes(before: MemorySnapshot, after: MemorySnapshot) -> list[Change]:
    """What stands in one snapshot and not in the other, or more or less of it, by stack.

    Args:
        before: The first snapshot.
        after: The second one.
    """
    return [_of_stack(change) for change in stack_changes(before, after)]


def _of_stack(change: StackChange) -> Change:
    old, new, stack = change.before, change.after, change.present
    grew = (new.n_bytes, new.n) > (old.n_bytes, old.n) if old and new else False
    return Change(
        status=_status(old, new, grew=grew),
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


def _status(old: Thing | None, new: Thing | None, *, grew: bool) -> ChangeStatus:
    if old is None:
        return "new"
    if new is None:
        return "fixed"
    return "worse" if grew else "better"


def _line_before(before: Location, after: Location) -> int | None:
    return before.line if before.line != after.line else None


def finding_changes(old: Report, new: Report, passed_over: set[str]) -> list[Change]:
    """Findings that are there on one side alone, or cost clearly more or less.

    Args:
        old: The first report.
        new: The second one.
        passed_over: Rules that could look on one side alone.
    """
    left = [each for each in old.findings if each.rule not in passed_over]
    right = [each for each in new.findings if each.rule not in passed_over]
    keys = (_same_line, _same_function, _same_name)
    pairs, went, appeared = paired(left, right, keys, _lines_apart)
    changes = [change for one, other in pairs if (change := _of_both(one, other)) is not None]
    changes += [_of_one(each, is_new=False) for each in went]
    changes += [_of_one(each, is_new=True) for each in appeared]
    return sorted(changes, key=_rank)


def _place(finding: Finding) -> Location:
    return finding.locations[0] if finding.locations else Location()


def _same_line(finding: Finding) -> Hashable:
    where = _place(finding)
    return finding.rule, where.file, where.line, where.function, where.op


def _same_function(finding: Finding) -> Hashable:
    where = _place(finding)
    return finding.rule, where.file, where.function, where.op if where.file is None else None


def _same_name(finding: Finding) -> Hashable | None:
    """The same program in another folder."""
    where = _place(finding)
    if where.file is None:
        return None
    return finding.rule, posixpath.basename(where.file.replace("\\", "/")), where.function


def _lines_apart(one: Finding, other: Finding) -> int:
    return abs((_place(one).line or 0) - (_place(other).line or 0))


@dataclass(frozen=True)
class _Amount:
    """A cost: what it counts, how much, and whether in a step."""

    unit: Unit
    n: int
    per_step: bool


def _amounts(cost: Cost) -> Mapping[tuple[Unit, bool], _Amount]:
    """All that is known of a cost, time before memory, a step's before the whole's."""
    every: tuple[tuple[Unit, bool, int | None], ...] = (
        ("ns", True, cost.per_step_ns),
        ("ns", False, cost.ns),
        ("bytes", True, cost.per_step_bytes),
        ("bytes", False, cost.bytes),
    )
    return {(unit, each): _Amount(unit, n, each) for unit, each, n in every if n is not None}


def _of_both(one: Finding, other: Finding) -> Change | None:
    """What became of a finding that is there on both sides; None if nothing to speak of."""
    left, right = _amounts(one.cost), _amounts(other.cost)
    known = next((key for key in left if key in right), None)
    if known is None:
        return None
    before, after = left[known], right[known]
    if not _is_news(before.n, after.n):
        return None
    status = _status(one, other, grew=after.n > before.n)
    return _of_finding(other, status, before, after, (one.n, other.n), _place(one))


def _of_one(finding: Finding, *, is_new: bool) -> Change:
    amount = next(iter(_amounts(finding.cost).values()), None)
    nothing = None if amount is None else _Amount(amount.unit, 0, amount.per_step)
    if is_new:
        return _of_finding(finding, "new", nothing, amount, (0, finding.n), _place(finding))
    return _of_finding(finding, "fixed", amount, nothing, (finding.n, 0), _place(finding))


def _of_finding(
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


@dataclass(frozen=True)
class _Calls:
    """All calls of one name: how many, their nanoseconds together, and the heaviest one's line."""

    n: int
    ns: int
    location: Location | None


def call_changes(old: Report, new: Report) -> list[Change]:
    """Kernels that changed, or operators by their own time where no device worked on either side.

    Args:
        old: The first report.
        new: The second one.
    """
    left, right = _kernels(old), _kernels(new)
    if left or right:
        return _changed("kernel", _Timed(old, left), _Timed(new, right))
    return _changed("operator", _Timed(old, _operators(old)), _Timed(new, _operators(new)))


def _kernels(report: Report) -> dict[str, _Calls]:
    return {
        each.name: _Calls(each.n_calls, each.total_ns, each.location)
        for each in report.summary.top_kernels
    }


def _operators(report: Report) -> dict[str, _Calls]:
    return {
        each.name: _Calls(each.n_calls, each.self_ns, each.location)
        for each in report.summary.top_ops
    }


@dataclass(frozen=True)
class _Timed:
    """The calls of a report."""

    report: Report
    calls: dict[str, _Calls]

    @property
    def n_steps(self) -> int:
        return len(self.report.summary.steps)

    @property
    def whole_ns(self) -> int:
        steps = self.report.summary.steps
        return sum(each.dur_ns for each in steps) if steps else self.report.summary.window_ns

    @property
    def is_cut(self) -> bool:
        """Whether calls that are not there may have been: a report names the heaviest alone."""
        return len(self.calls) >= MAX_ENTRIES


def _changed(kind: ChangeKind, left: _Timed, right: _Timed) -> list[Change]:
    per_step = bool(left.n_steps and right.n_steps)
    n_left, n_right = (left.n_steps, right.n_steps) if per_step else (1, 1)
    least_ns = _WORTH_SAYING_SHARE * min(left.whole_ns / n_left, right.whole_ns / n_right)
    changes = []
    for name in {**right.calls, **left.calls}:
        one, other = left.calls.get(name), right.calls.get(name)
        present = other or one
        if present is None or (one is None and left.is_cut) or (other is None and right.is_cut):
            continue
        before = round(one.ns / n_left) if one else 0
        after = round(other.ns / n_right) if other else 0
        if not _is_news(before, after, least_ns):
            continue
        changes.append(
            Change(
                status=_status(one, other, grew=after > before),
                kind=kind,
                name=name,
                location=present.location,
                before_line=None,
                device=None,
                unit="ns",
                before=before,
                after=after,
                per_step=per_step,
                n_before=one.n if one else 0,
                n_after=other.n if other else 0,
            )
        )
    return sorted(changes, key=_rank)


def _is_news(before: int, after: int, least: float = 0) -> bool:
    return abs(after - before) > max(_NOISE_SHARE * max(before, after), least)


def _rank(change: Change) -> tuple[int, str, str, int]:
    where = change.location or Location()
    return -abs(change.delta), change.name, where.file or "", where.line or 0
