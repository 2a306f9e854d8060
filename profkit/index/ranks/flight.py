"""What FlightRecorder dumps add to the collectives of traces.

A dump has what traces of gloo have not: process groups, numbers in them, sizes and types. Its times
are those at which the host called, by the clock of the trace: exactly one call of the dump lies
within the operator that called the collective.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.ranks.calls import CollectiveCalls
from profkit.index.ranks.collectives import collective_kind
from profkit.model.events import MISSING, Int32s
from profkit.model.flight_record import FlightRecord, RecordedCall
from profkit.model.process_group import ProcessGroup
from profkit.packed import Packed

NO_CALL: Final = -1
_MAX_WORLD: Final = 1 << 20


@dataclass(frozen=True)
class PackedRecord:
    """A dump that waits for those of other ranks.

    Attributes:
        about: The dump without its groups and calls.
        packed: All of it.
    """

    about: FlightRecord
    packed: Packed[FlightRecord]

    @classmethod
    def of(cls, record: FlightRecord) -> "PackedRecord":
        """Pack a dump."""
        return cls(replace(record, groups={}, calls=()), Packed(record))

    @property
    def value(self) -> FlightRecord:
        """The dump, a new one each time."""
        return self.packed.value


def recorded_calls(calls: CollectiveCalls, record: FlightRecord) -> Int32s:
    """The call of a dump that each collective of a trace is, or :data:`NO_CALL`. Shape ``(k,)``."""
    timed = [i for i, call in enumerate(record.calls) if call.created_ns is not None]
    created = np.array([record.calls[i].created_ns or 0 for i in timed], dtype=np.int64)
    order = np.argsort(created, kind="stable")
    created, number = created[order], np.append(np.array(timed, dtype=np.int32)[order], NO_CALL)
    first = np.searchsorted(created, calls.issued_ns)
    n = np.searchsorted(created, calls.returned_ns, side="right") - first
    is_one = (n == 1) & (calls.issued_ns != MISSING)
    found = np.where(is_one, number[np.where(is_one, first, -1)], NO_CALL).astype(np.int32)
    kinds = [collective_kind(call.name) for call in record.calls]
    agrees = [
        place != NO_CALL and kinds[place] == kind
        for place, kind in zip(found.tolist(), calls.kind, strict=True)
    ]
    return np.where(agrees, found, NO_CALL).astype(np.int32)


def records_by_rank(records: Iterable[PackedRecord]) -> dict[int, list[PackedRecord]]:
    """All dumps of each rank that is known."""
    by_rank: dict[int, list[PackedRecord]] = defaultdict(list)
    for each in records:
        if each.about.rank is not None:
            by_rank[each.about.rank].append(each)
    return by_rank


def _joined(own: Iterable[PackedRecord]) -> FlightRecord:
    """All dumps of a rank as one: later ones have overwritten calls."""
    records = [each.value for each in own]
    calls = {
        (call.created_ns, call.name, call.seq): call for each in records for call in each.calls
    }
    return replace(records[0], calls=tuple(calls.values()))


def with_records(
    every: Sequence[Packed[CollectiveCalls]],
    records: Sequence[Sequence[PackedRecord]],
    world_size: int | None,
) -> list[Packed[CollectiveCalls]]:
    """The collectives of some ranks, completed by the ranks' dumps, one rank at a time.

    What only some ranks have would make collectives of the same call differ: without dumps of all,
    nothing changes.

    Args:
        records: The dumps of each rank.
        world_size: Number of ranks of the job: the default group has all of them.
    """
    if not all(records):
        return list(every)
    joined = []
    for packed, own in zip(every, records, strict=True):
        calls = packed.value
        if not len(calls):
            joined.append(packed)
            continue
        record = _joined(own)
        found = recorded_calls(calls, record)
        if (found == NO_CALL).all():
            return list(every)
        joined.append(Packed(_completed(calls, found, record, world_size)))
    return joined


def _completed(
    calls: CollectiveCalls, found: Int32s, record: FlightRecord, world_size: int | None
) -> CollectiveCalls:
    """The calls with what their records have and they themselves have not."""
    own = [None if i == NO_CALL else record.calls[i] for i in found.tolist()]
    groups = list(calls.groups)
    number = {group: i for i, group in enumerate(groups)}
    group = calls.group.copy()
    seq, n_in, n_out = calls.seq.copy(), calls.n_in.copy(), calls.n_out.copy()
    source, target = calls.source.copy(), calls.target.copy()
    types = list(calls.element_type)
    named: dict[tuple[str, str], ProcessGroup] = {}
    for i, call in enumerate(own):
        if call is None:
            continue
        if not groups[group[i]].name:
            name = call.group, call.description
            # Making and hashing a group takes as long as it has ranks.
            if name not in named:
                named[name] = _group_of(record, call, world_size)
            known = named[name]
            group[i] = number.setdefault(known, len(number))
            groups += [known] if group[i] == len(groups) else []
        if n_in[i] == MISSING:
            n_in[i], n_out[i] = call.n_in, call.n_out
        types[i] = types[i] or call.element_type
        if call.is_p2p:
            peers = peers_of(call, groups[group[i]])
            if peers is not None and source[i] == MISSING and target[i] == MISSING:
                source[i], target[i] = peers
        elif seq[i] == MISSING and call.seq is not None:
            seq[i] = call.seq
    return replace(
        calls, group=group, groups=tuple(groups), seq=seq, n_in=n_in, n_out=n_out,
        element_type=tuple(types), source=source, target=target,
    )  # fmt: skip


def _group_of(record: FlightRecord, call: RecordedCall, world_size: int | None) -> ProcessGroup:
    group = record.group_of(call)
    is_all = group.description == "default_pg" and world_size and world_size <= _MAX_WORLD
    if group.ranks is None and is_all and world_size:
        return replace(group, ranks=tuple(range(world_size)), size=world_size)
    return group


def peers_of(call: RecordedCall, group: ProcessGroup) -> tuple[int, int] | None:
    """The sending and the receiving rank of a send or receive, or None if they are not known.

    Source: ``torch/distributed/flight_recorder/components/types.py`` (``Op``): the name ends with
    ``0->1`` or ``1<-0``, by the ranks in the group.
    """
    text = call.name.rpartition(" ")[2]
    for arrow in ("->", "<-"):
        one, found, other = text.partition(arrow)
        if found and one.isascii() and one.isdigit() and other.isascii() and other.isdigit():
            pair = (int(one), int(other)) if arrow == "->" else (int(other), int(one))
            if group.ranks is None:
                return pair if max(pair) < _MAX_WORLD else None
            return tuple(group.ranks[i] for i in pair) if max(pair) < len(group.ranks) else None  # type: ignore[return-value]
    return None
