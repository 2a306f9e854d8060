"""The collectives that ranks of a job are blocked in, by their FlightRecorder dumps.

A collective ends on no rank before all ranks of its group have called it, with the same kind, type
and size.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.index.host.frames import Ownership
from profkit.index.ranks.collectives import collective_kind
from profkit.index.ranks.flight import peers_of
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

    reason: Literal["absent", "different", "stuck", "waiting"]
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


def find_blocked(records: Sequence[FlightRecord]) -> list[BlockedCollective]:
    """The first collective of each process group on which the ranks disagree, by time.

    Dumps that were written beside traces, while the program went on, show only differences of kind,
    type and size: ranks are never at the same point.

    Args:
        records: The dumps of ranks, at most one for each.
    """
    by_rank = {each.rank: each for each in records if each.rank is not None}
    calls: dict[ProcessGroup, dict[int, dict[int, RecordedCall]]] = defaultdict(dict)
    # What some ranks do not know of a group, others may.
    names = {name: group for each in by_rank.values() for name, group in each.groups.items()}
    for rank, record in by_rank.items():
        for call in record.calls:
            if call.is_p2p or call.seq is None or "coalesced" in call.name:
                continue
            group = record.group_of(call)
            ranks = group.ranks or names.get(call.group, group).ranks
            calls[replace(group, ranks=ranks)].setdefault(rank, {}).setdefault(call.seq, call)
    found = []
    for group, of_rank in calls.items():
        own = _in_group(group, of_rank, by_rank)
        found += [] if own is None else [own]
    found += _unanswered(by_rank)
    return sorted(found, key=lambda each: each.created_ns)


def _in_group(
    group: ProcessGroup,
    of_rank: Mapping[int, Mapping[int, RecordedCall]],
    by_rank: Mapping[int, FlightRecord],
) -> BlockedCollective | None:
    """The first blocked collective of a process group."""
    members = _members(group, of_rank, by_rank)
    # Earlier calls may have been overwritten on some ranks.
    begin = max(min(calls) for calls in of_rank.values())
    ends = {rank: max(of_rank.get(rank, {0: None})) for rank in members}
    went_on = any(by_rank[rank].is_of_window for rank in members)
    for seq in sorted({seq for calls in of_rank.values() for seq in calls if seq >= begin}):
        called = {rank: calls[seq] for rank, calls in of_rank.items() if seq in calls}
        if _differ(called):
            return BlockedCollective("different", group, called)
        if went_on:
            continue
        absent = tuple(sorted(rank for rank in members if ends[rank] < seq))
        if absent:
            # The root of a broadcast may have completed it, and wait in a later call.
            later = {
                rank: [call for other, call in of_rank[rank].items() if other >= seq]
                for rank in called
            }
            if not _is_blocked(later, absent, by_rank):
                return None
            last = {rank: of_rank[rank][ends[rank]] for rank in absent if rank in of_rank}
            waited_ns = _waited_ns(called, called, by_rank)
            return BlockedCollective("absent", group, called, absent, last, waited_ns)
        if any(call.has_timed_out for call in called.values()):
            return BlockedCollective("stuck", group, called)
        # Of the ranks without a dump nobody knows.
        if group.size != len(members) and all(
            call.progress != "completed" for call in called.values()
        ):
            return BlockedCollective("waiting", group, called)
    return None


def _members(
    group: ProcessGroup,
    of_rank: Mapping[int, Mapping[int, RecordedCall]],
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


def _differ(called: Mapping[int, RecordedCall]) -> bool:
    kinds = {collective_kind(call.name) for call in called.values()}
    if len(kinds) > 1:
        return True
    size = _SIZED_BY.get(next(iter(kinds), ""))
    if size is None:
        return False
    # The types of a call without tensors are not known.
    types = {call.element_type for call in called.values() if call.element_type}
    return len(types) > 1 or len({getattr(call, size) for call in called.values()}) > 1


def _is_blocked(
    called: Mapping[int, Sequence[RecordedCall]],
    absent: Sequence[int],
    by_rank: Mapping[int, FlightRecord],
) -> bool:
    """Whether ranks wait for others, and these are not merely later.

    Gloo does not record whether a call failed. A rank that an error has ended is blocked in it.

    Args:
        called: The calls of each rank that the others have not made.
    """
    waits = any(
        by_rank[rank].stopped_by or any(call.progress != "completed" for call in calls)
        for rank, calls in called.items()
    )
    for rank in absent:
        record = by_rank[rank]
        has_ended = record.is_end and record.stopped_by not in _FROM_OUTSIDE
        first = {each: calls[0] for each, calls in called.items()}
        waited_ns = _waited_ns(first, (rank,), by_rank)
        if has_ended or waited_ns is None or waited_ns >= MIN_WAIT_NS:
            return waits
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


def _unanswered(by_rank: Mapping[int, FlightRecord]) -> list[BlockedCollective]:
    """The first send or receive of each pair of ranks that the other has not called."""
    if any(record.is_of_window for record in by_rank.values()):
        return []
    pending: dict[tuple[ProcessGroup, tuple[int, int]], dict[int, RecordedCall]] = {}
    for rank, record in by_rank.items():
        for call in record.calls:
            group = record.group_of(call)
            peers = peers_of(call, group) if call.is_p2p else None
            if peers is not None and rank in peers and call.progress != "completed":
                pending.setdefault((group, peers), {}).setdefault(rank, call)
    found = []
    for (group, peers), called in pending.items():
        absent = tuple(rank for rank in peers if rank not in called and rank in by_rank)
        waiting = {rank: [call] for rank, call in called.items()}
        if absent and _is_blocked(waiting, absent, by_rank):
            last = {rank: by_rank[rank].calls[-1] for rank in absent if by_rank[rank].calls}
            waited_ns = _waited_ns(called, called, by_rank)
            found.append(BlockedCollective("absent", group, called, absent, last, waited_ns))
    return found
