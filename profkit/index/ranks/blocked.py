"""The collectives that ranks of a job are blocked in, by their FlightRecorder dumps.

A collective ends on no rank before all ranks of its group have called it, with the same kind, type
and size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final, Literal, NamedTuple

from profkit.dataclass import dataclass
from profkit.index.host.frames import Ownership
from profkit.index.ranks.collectives import collective_kind
from profkit.index.ranks.flight import PackedRecord, peers_of
from profkit.model.flight_record import FlightRecord, RecordedCall
from profkit.model.location import Frame
from profkit.model.process_group import ProcessGroup

_OWNERSHIP: Final = Ownership(paths={}, libraries=(), known=False)
_SIZED_BY: Final = {
    "all-reduce": "n_in",
    "broadcast": "n_in",
    "reduce": "n_in",
    "reduce-scatter": "n_in",
    "all-gather": "n_out",
}
"""The size that is the same on all ranks."""
_FROM_OUTSIDE: Final = ("SIGTERM", "KeyboardInterrupt")
"""What stops all ranks, wherever they are."""
MIN_WAIT_NS: Final = 1_000_000_000
"""Ranks call a collective at different times; by so much only where one waits or is blocked."""


def user_frame(call: RecordedCall) -> Frame | None:
    """The line of the program that called a collective, or None where it was not recorded."""
    return next((frame for frame in call.frames if _OWNERSHIP.is_user(frame.file)), None)


Reason = Literal["absent", "different", "stuck", "waiting"]


@dataclass(frozen=True)
class BlockedCollective:
    """A collective that ranks have called differently, or that has timed out.

    Attributes:
        reason: ``absent``: some ranks have not called it. ``different``: kind, type or size differ.
            ``stuck``: all have called it alike, and torch has given up waiting for it.
            ``waiting``: the ranks with a dump wait for it, and others of the group have none.
        group: Its process group.
        called: The call of each rank that made it, by rank.
        absent: The ranks that did not.
        last: The last call of each of those in the group before; ranks without one are not in it.
        waited_ns: How long the others had waited at least when they wrote their dumps, or None
            where that is not known.
    """

    reason: Reason
    group: ProcessGroup
    called: Mapping[int, RecordedCall]
    absent: tuple[int, ...] = ()
    last: Mapping[int, RecordedCall] = field(default_factory=dict)
    waited_ns: int | None = None

    @property
    def first_call(self) -> RecordedCall:
        """The call of the lowest rank."""
        return self.called[min(self.called)]

    @property
    def created_ns(self) -> int:
        """When it was first called, in nanoseconds since 1970; 0 where that was not recorded."""
        return min(call.created_ns or 0 for call in self.called.values())


class _Alike(NamedTuple):
    """What the calls of a collective by several ranks have in common.

    Attributes:
        size: What is the same on all ranks, or None for kinds without such a size.
        differ: Whether kinds, types or sizes differ.
        has_timed_out: Whether one of them has.
        has_completed: Whether one of them has.
    """

    kind: str
    element_type: str
    size: int | None
    differ: bool
    has_timed_out: bool
    has_completed: bool

    @classmethod
    def of(cls, call: RecordedCall) -> "_Alike":
        kind = collective_kind(call.name)
        size = getattr(call, _SIZED_BY[kind]) if kind in _SIZED_BY else None
        return cls(
            kind, call.element_type, size, differ=False,
            has_timed_out=call.has_timed_out, has_completed=call.progress == "completed",
        )  # fmt: skip

    def joined(self, other: "_Alike") -> "_Alike":
        """With the calls of another rank."""
        # The types of a call without tensors are not known.
        types = {self.element_type, other.element_type} - {""}
        differ = self.size is not None and (self.size != other.size or len(types) > 1)
        return _Alike(
            self.kind,
            self.element_type or other.element_type,
            self.size,
            self.differ or self.kind != other.kind or differ,
            self.has_timed_out or other.has_timed_out,
            self.has_completed or other.has_completed,
        )


@dataclass(frozen=True)
class _GroupCalls:
    """The collectives of a process group, as little of them as tells where ranks disagree.

    Attributes:
        first: The lowest number that each rank has.
        last: The highest.
        by_number: What the ranks called under each number.
    """

    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    by_number: dict[int, _Alike] = field(default_factory=dict)


@dataclass(frozen=True)
class _Point:
    """The number in a process group at which its ranks disagree, and what they do there.

    Attributes:
        absent: The ranks whose calls end before.
        called: The call of each rank.
        last: The last call of each of the absent ranks.
        next_call: The first call of each rank with this or a later number.
        incomplete: Ranks of which such a call has not completed.
    """

    reason: Reason
    number: int
    absent: tuple[int, ...] = ()
    called: dict[int, RecordedCall] = field(default_factory=dict)
    last: dict[int, RecordedCall] = field(default_factory=dict)
    next_call: dict[int, RecordedCall] = field(default_factory=dict)
    incomplete: set[int] = field(default_factory=set)

    def add(self, rank: int, calls: Mapping[int, RecordedCall], stacks: "_Stacks") -> None:
        """Add the calls of a rank by number."""
        if rank in self.absent:
            self.last[rank] = stacks.shared(calls[max(calls)])
        if self.number in calls:
            self.called[rank] = stacks.shared(calls[self.number])
            # The root of a broadcast may have completed it, and wait in a later call.
            later = [call for number, call in calls.items() if number >= self.number]
            self.next_call[rank] = stacks.shared(later[0])
            if any(call.progress != "completed" for call in later):
                self.incomplete.add(rank)


def find_blocked(records: Iterable[PackedRecord]) -> list[BlockedCollective]:
    """The first collective of each process group on which the ranks disagree, by time.

    Dumps that were written beside traces, while the program went on, show only differences of kind,
    type and size: ranks are never at the same point.

    The calls of one rank at a time are in memory: where ranks disagree is found first, then what
    they call there.

    Args:
        records: The dumps of ranks, at most one for each.
    """
    packed = {each.about.rank: each for each in records if each.about.rank is not None}
    by_rank = {rank: each.about for rank, each in packed.items()}
    scan = _Scan()
    for rank, each in packed.items():
        scan.add(rank, each.value)
    complete = {group: scan.complete(group) for group in scan.groups}
    points = {
        group: point
        for group, calls in scan.groups.items()
        if (point := _disagreement(complete[group], calls, by_rank)) is not None
    }
    for rank, each in packed.items() if points else ():
        for group, own in _collectives(each.value):
            if group in points:
                points[group].add(rank, own, scan.stacks)
    found = [_blocked(complete[group], point, by_rank) for group, point in points.items()]
    known = [each for each in found if each is not None] + _unanswered(scan, by_rank)
    return sorted(known, key=lambda each: each.created_ns)


def _collectives(
    record: FlightRecord,
) -> Iterator[tuple[ProcessGroup, dict[int, RecordedCall]]]:
    """Each process group of a rank with its collectives by number, in the order of the calls."""
    found: dict[tuple[str, str], dict[int, RecordedCall]] = {}
    for call in record.calls:
        if not call.is_p2p and call.seq is not None and "coalesced" not in call.name:
            found.setdefault((call.group, call.description), {}).setdefault(call.seq, call)
    for calls in found.values():
        yield record.group_of(next(iter(calls.values()))), calls


class _Stacks:
    """The stacks of the calls that are kept: most ranks have the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}

    def shared(self, call: RecordedCall) -> RecordedCall:
        """A call with the stack of another one that has the same."""
        return replace(call, frames=self._known.setdefault(call.frames, call.frames))


class _Scan:
    """What is kept of the dumps of all ranks: linear in the ranks and in the numbers of calls."""

    def __init__(self) -> None:
        self.groups: dict[ProcessGroup, _GroupCalls] = {}
        self.pending: dict[tuple[ProcessGroup, tuple[int, int]], dict[int, RecordedCall]] = {}
        self.last: dict[int, RecordedCall] = {}
        self.stacks = _Stacks()
        self._known: dict[str, ProcessGroup] = {}
        self._shared: dict[_Alike, _Alike] = {}

    def add(self, rank: int, record: FlightRecord) -> None:
        """Add the dump of a rank."""
        self._known |= record.groups
        if record.calls:
            self.last[rank] = self.stacks.shared(record.calls[-1])
        for group, calls in _collectives(record):
            own = self.groups.setdefault(group, _GroupCalls())
            own.first[rank], own.last[rank] = min(calls), max(calls)
            for number, call in calls.items():
                alike, before = _Alike.of(call), own.by_number.get(number)
                if before != alike:
                    alike = alike if before is None else before.joined(alike)
                    own.by_number[number] = self._shared.setdefault(alike, alike)
        for call in record.calls:
            if call.is_p2p and call.progress != "completed":
                group = record.group_of(call)
                peers = peers_of(call, group)
                if peers is not None and rank in peers:
                    called = self.pending.setdefault((group, peers), {})
                    called.setdefault(rank, self.stacks.shared(call))

    def complete(self, group: ProcessGroup) -> ProcessGroup:
        """A group with its ranks: what some ranks do not know of it, others may."""
        return replace(group, ranks=group.ranks or self._known.get(group.name, group).ranks)


def _disagreement(
    group: ProcessGroup, calls: _GroupCalls, by_rank: Mapping[int, FlightRecord]
) -> _Point | None:
    """Where the ranks of a process group disagree first, or seem to."""
    members = _members(group, calls.last, by_rank)
    # Earlier calls may have been overwritten on some ranks.
    begin = max(calls.first.values())
    ends = {rank: calls.last.get(rank, 0) for rank in members}
    common_end = min(ends.values(), default=max(calls.by_number))
    went_on = any(by_rank[rank].is_of_window for rank in members)
    for number in sorted(number for number in calls.by_number if number >= begin):
        alike = calls.by_number[number]
        if alike.differ:
            return _Point("different", number)
        if went_on:
            continue
        if number > common_end:
            absent = (rank for rank in members if ends[rank] < number)
            return _Point("absent", number, tuple(sorted(absent)))
        if alike.has_timed_out:
            return _Point("stuck", number)
        # Of the ranks without a dump nobody knows.
        if group.size != len(members) and not alike.has_completed:
            return _Point("waiting", number)
    return None


def _blocked(
    group: ProcessGroup, point: _Point, by_rank: Mapping[int, FlightRecord]
) -> BlockedCollective | None:
    """What the ranks are blocked in; None if those that have not called it are merely later."""
    if point.reason != "absent":
        return BlockedCollective(point.reason, group, point.called)
    waits = any(rank in point.incomplete or by_rank[rank].stopped_by for rank in point.called)
    if not waits or not _has_waited(point.next_call, point.absent, by_rank):
        return None
    waited_ns = _waited_ns(point.called, point.called, by_rank)
    return BlockedCollective("absent", group, point.called, point.absent, point.last, waited_ns)


def _members(
    group: ProcessGroup,
    of_rank: Mapping[int, int],
    by_rank: Mapping[int, FlightRecord],
) -> set[int]:
    """The ranks of a group whose dumps tell what they have called in it."""
    if group.ranks is not None:
        members = by_rank.keys() & set(group.ranks)
    elif group.description == "default_pg":
        members = set(by_rank)
    else:
        return set(of_rank)
    return {rank for rank in members if rank in of_rank or by_rank[rank].has_all}


def _has_waited(
    called: Mapping[int, RecordedCall],
    absent: Sequence[int],
    by_rank: Mapping[int, FlightRecord],
) -> bool:
    """Whether a rank that others wait for is not merely later.

    Gloo does not record whether a call failed. A rank that an error has ended is blocked in it.

    Args:
        called: The first call of each rank that the others have not made.
    """
    for rank in absent:
        record = by_rank[rank]
        has_ended = record.is_end and record.stopped_by not in _FROM_OUTSIDE
        waited_ns = _waited_ns(called, (rank,), by_rank)
        if has_ended or waited_ns is None or waited_ns >= MIN_WAIT_NS:
            return True
    return False


def _waited_ns(
    called: Mapping[int, RecordedCall],
    ranks: Iterable[int],
    by_rank: Mapping[int, FlightRecord],
) -> int | None:
    """From the first call to when the first dump of some ranks was written, or None."""
    created = [call.created_ns for call in called.values() if call.created_ns is not None]
    written = [by_rank[rank].written_ns for rank in ranks]
    known = [ns for ns in written if ns is not None]
    if not created or not known or len(known) < len(written):
        return None
    return max(0, min(known) - min(created))


def _unanswered(scan: _Scan, by_rank: Mapping[int, FlightRecord]) -> list[BlockedCollective]:
    """The first send or receive of each pair of ranks that the other has not called."""
    if any(record.is_of_window for record in by_rank.values()):
        return []
    found = []
    for (group, peers), called in scan.pending.items():
        absent = tuple(rank for rank in peers if rank not in called and rank in by_rank)
        if absent and _has_waited(called, absent, by_rank):
            last = {rank: scan.last[rank] for rank in absent if rank in scan.last}
            waited_ns = _waited_ns(called, called, by_rank)
            found.append(BlockedCollective("absent", group, called, absent, last, waited_ns))
    return found
