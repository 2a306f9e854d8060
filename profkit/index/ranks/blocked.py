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

_OWNERSHIP: Final = Ownership(paths={}, libraries=(), is_known=False)
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
    """Return the line of the program that called a collective, or None without a record."""
    return next((frame for frame in call.frames if _OWNERSHIP.is_user(frame.file)), None)


Reason = Literal["absent", "different", "stuck", "waiting"]


@dataclass(frozen=True)
class BlockedCollective:
    """A collective that ranks have called differently, or that has timed out.

    Attributes:
        reason: ``absent``: some ranks have not called it. ``different``: kind, type or size differ.
            ``stuck``: all ranks have called it alike, and torch has given up waiting for it.
            ``waiting``: the ranks with a dump wait for it, and other ranks of the group have none.
        group: Its process group.
        called: The call of each rank that made it, by rank.
        absent: The ranks that did not call it.
        last: The last call in the group of each absent rank that made one.
        waited_ns: How long the calling ranks had waited at least when they wrote their dumps, or
            None where that is not known.
    """

    reason: Reason
    group: ProcessGroup
    called: Mapping[int, RecordedCall]
    absent: tuple[int, ...] = ()
    last: Mapping[int, RecordedCall] = field(default_factory=dict)
    waited_ns: int | None = None

    @property
    def first_call(self) -> RecordedCall:
        """Return the call of the lowest rank."""
        return self.called[min(self.called)]

    @property
    def created_ns(self) -> int:
        """Return when it was first called, in nanoseconds since 1970; 0 without a record."""
        return min(call.created_ns or 0 for call in self.called.values())


class _Alike(NamedTuple):
    """What the calls of a collective by several ranks have in common.

    Attributes:
        size: The size that is the same on all ranks, or None for kinds without such a size.
        differ: Whether kinds, types or sizes differ.
        has_timed_out: Whether any call has timed out.
        has_completed: Whether any call has completed.
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
            kind,
            call.element_type,
            size,
            differ=False,
            has_timed_out=call.has_timed_out,
            has_completed=call.progress == "completed",
        )

    def join(self, alike: "_Alike") -> "_Alike":
        """Add the calls of another rank."""
        # The types of a call without tensors are not known.
        types = {self.element_type, alike.element_type} - {""}
        differ = self.size is not None and (self.size != alike.size or len(types) > 1)
        return _Alike(
            self.kind,
            self.element_type or alike.element_type,
            self.size,
            self.differ or self.kind != alike.kind or differ,
            self.has_timed_out or alike.has_timed_out,
            self.has_completed or alike.has_completed,
        )


@dataclass(frozen=True)
class _GroupCalls:
    """The collectives of a process group.

    Attributes:
        first: The lowest number that each rank has.
        last: The highest number that each rank has.
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
            self.last[rank] = stacks.intern(calls[max(calls)])
        if self.number in calls:
            self.called[rank] = stacks.intern(calls[self.number])

            # The root of a broadcast may have completed it, and wait in a later call.
            later = [call for number, call in calls.items() if number >= self.number]
            self.next_call[rank] = stacks.intern(later[0])
            if any(call.progress != "completed" for call in later):
                self.incomplete.add(rank)


def find_blocked(records: Iterable[PackedRecord]) -> list[BlockedCollective]:
    """Find the first collective of each process group on which the ranks disagree, by time.

    Dumps that were written during traces, while the program went on, show only differences of kind,
    type and size: ranks are never at the same point.

    The calls of one rank at a time are in memory: where ranks disagree is found first, then what
    they call there.

    Args:
        records: The dumps of ranks, at most one for each.
    """
    packed = {dump.about.rank: dump for dump in records if dump.about.rank is not None}
    by_rank = {rank: dump.about for rank, dump in packed.items()}
    scan = _Scan()
    for rank, dump in packed.items():
        scan.add(rank, dump.value)

    complete = {group: scan.complete(group) for group in scan.groups}
    points = {
        group: point
        for group, calls in scan.groups.items()
        if (point := _find_disagreement(complete[group], calls, by_rank)) is not None
    }
    for rank, dump in packed.items() if points else ():
        for group, calls_by_number in _iterate_collectives(dump.value):
            if group in points:
                points[group].add(rank, calls_by_number, scan.stacks)

    disagreements = [_judge(complete[group], point, by_rank) for group, point in points.items()]
    blocked = [collective for collective in disagreements if collective is not None]
    blocked += _find_unanswered(scan, by_rank)
    return sorted(blocked, key=lambda collective: collective.created_ns)


def _iterate_collectives(
    record: FlightRecord,
) -> Iterator[tuple[ProcessGroup, dict[int, RecordedCall]]]:
    """Iterate over the process groups of a rank with their first calls by number."""
    calls_of_group: dict[tuple[str, str], dict[int, RecordedCall]] = {}
    for call in record.calls:
        if not call.is_p2p and call.seq is not None and "coalesced" not in call.name:
            calls_of_group.setdefault((call.group, call.description), {}).setdefault(call.seq, call)

    for calls in calls_of_group.values():
        yield record.group_of(next(iter(calls.values()))), calls


class _Stacks:
    """Interned stacks of the calls that are kept, as most ranks have the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}

    def intern(self, call: RecordedCall) -> RecordedCall:
        """Return the call with an equal stack that is kept already, if there is one."""
        return replace(call, frames=self._known.setdefault(call.frames, call.frames))


class _Scan:
    """The part of all dumps that is kept, linear in the ranks and in the numbers of calls."""

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
            self.last[rank] = self.stacks.intern(record.calls[-1])

        for group, calls in _iterate_collectives(record):
            group_calls = self.groups.setdefault(group, _GroupCalls())
            group_calls.first[rank], group_calls.last[rank] = min(calls), max(calls)
            for number, call in calls.items():
                alike, before = _Alike.of(call), group_calls.by_number.get(number)
                if before != alike:
                    alike = alike if before is None else before.join(alike)
                    group_calls.by_number[number] = self._shared.setdefault(alike, alike)

        for call in record.calls:
            if call.is_p2p and call.progress != "completed":
                group = record.group_of(call)
                peers = peers_of(call, group)
                if peers is not None and rank in peers:
                    called = self.pending.setdefault((group, peers), {})
                    called.setdefault(rank, self.stacks.intern(call))

    def complete(self, group: ProcessGroup) -> ProcessGroup:
        """Return a group with its ranks, which another rank may know."""
        return replace(group, ranks=group.ranks or self._known.get(group.name, group).ranks)


def _find_disagreement(
    group: ProcessGroup, calls: _GroupCalls, by_rank: Mapping[int, FlightRecord]
) -> _Point | None:
    """Find where the ranks of a process group disagree first, or seem to."""
    members = _select_members(group, calls.last, by_rank)
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
        # Nothing is known about ranks without a dump.
        if group.size != len(members) and not alike.has_completed:
            return _Point("waiting", number)
    return None


def _judge(
    group: ProcessGroup, point: _Point, by_rank: Mapping[int, FlightRecord]
) -> BlockedCollective | None:
    """Return what the ranks are blocked in, or None if the absent ranks are merely later."""
    if point.reason != "absent":
        return BlockedCollective(point.reason, group, point.called)

    waits = any(rank in point.incomplete or by_rank[rank].stopped_by for rank in point.called)
    if not waits or not _has_waited(point.next_call, point.absent, by_rank):
        return None

    waited_ns = _measure_wait(point.called, point.called, by_rank)
    return BlockedCollective("absent", group, point.called, point.absent, point.last, waited_ns)


def _select_members(
    group: ProcessGroup,
    of_rank: Mapping[int, int],
    by_rank: Mapping[int, FlightRecord],
) -> set[int]:
    """Select the ranks of a group whose dumps tell what they have called in it."""
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
    """Return whether any absent rank is more than merely later.

    Gloo does not record whether a call failed. A rank that an error has ended is blocked in it.

    Args:
        called: The first call of each rank that the others have not made.
    """
    for rank in absent:
        record = by_rank[rank]
        has_ended = record.is_end and record.stopped_by not in _FROM_OUTSIDE
        waited_ns = _measure_wait(called, (rank,), by_rank)
        if has_ended or waited_ns is None or waited_ns >= MIN_WAIT_NS:
            return True
    return False


def _measure_wait(
    called: Mapping[int, RecordedCall],
    ranks: Iterable[int],
    by_rank: Mapping[int, FlightRecord],
) -> int | None:
    """Return the time from the first call to the first dump of some ranks, or None."""
    created = [call.created_ns for call in called.values() if call.created_ns is not None]
    written = [by_rank[rank].written_ns for rank in ranks]
    recorded = [ns for ns in written if ns is not None]
    if not created or not recorded or len(recorded) < len(written):
        return None
    return max(0, min(recorded) - min(created))


def _find_unanswered(scan: _Scan, by_rank: Mapping[int, FlightRecord]) -> list[BlockedCollective]:
    """Find the first send or receive of each pair of ranks that the peer has not called."""
    if any(record.is_of_window for record in by_rank.values()):
        return []

    unanswered = []
    for (group, peers), called in scan.pending.items():
        absent = tuple(rank for rank in peers if rank not in called and rank in by_rank)
        if absent and _has_waited(called, absent, by_rank):
            last = {rank: scan.last[rank] for rank in absent if rank in scan.last}
            waited_ns = _measure_wait(called, called, by_rank)
            unanswered.append(BlockedCollective("absent", group, called, absent, last, waited_ns))

    return unanswered
