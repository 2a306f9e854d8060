"""What FlightRecorder dumps add to the collectives of traces.

Unlike a trace of gloo, a dump has process groups, numbers in them, sizes and types. Its times
are the host's calls by the clock of the trace: exactly one call of the dump lies
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
    """A dump that waits for the dumps of other ranks.

    Attributes:
        about: The dump without its groups, calls and steps.
        packed: All of it.
    """

    about: FlightRecord
    packed: Packed[FlightRecord]

    @classmethod
    def of(cls, record: FlightRecord) -> "PackedRecord":
        """Pack a dump."""
        return cls(replace(record, groups={}, calls=(), steps=None), Packed(record))

    @property
    def value(self) -> FlightRecord:
        """Unpack the dump, into a new object each time."""
        return self.packed.value


def find_recorded_calls(calls: CollectiveCalls, record: FlightRecord) -> Int32s:
    """Find the call of a dump for each collective of a trace, or :data:`NO_CALL`.

    Shape ``(k,)``.
    """
    timed = [i for i, call in enumerate(record.calls) if call.created_ns is not None]
    created = np.array([record.calls[i].created_ns or 0 for i in timed], dtype=np.int64)
    order = np.argsort(created, kind="stable")
    created, number = created[order], np.append(np.array(timed, dtype=np.int32)[order], NO_CALL)

    first = np.searchsorted(created, calls.issued_ns)
    n_within = np.searchsorted(created, calls.returned_ns, side="right") - first
    is_unique = (n_within == 1) & (calls.issued_ns != MISSING)
    number_of_call = np.where(is_unique, number[np.where(is_unique, first, -1)], NO_CALL).astype(
        np.int32
    )

    # Times alone could match a call of another kind by chance.
    kinds = [collective_kind(call.name) for call in record.calls]
    agrees = [
        place != NO_CALL and kinds[place] == kind
        for place, kind in zip(number_of_call.tolist(), calls.kind, strict=True)
    ]

    return np.where(agrees, number_of_call, NO_CALL).astype(np.int32)


def records_by_rank(records: Iterable[PackedRecord]) -> dict[int, list[PackedRecord]]:
    """Group the dumps of known ranks by rank."""
    by_rank: dict[int, list[PackedRecord]] = defaultdict(list)
    for record in records:
        if record.about.rank is not None:
            by_rank[record.about.rank].append(record)
    return by_rank


def _merge(packed: Iterable[PackedRecord]) -> FlightRecord:
    """Merge all dumps of a rank, as calls in earlier dumps may have been overwritten later."""
    records = [record.value for record in packed]
    calls = {
        (call.created_ns, call.name, call.seq): call for record in records for call in record.calls
    }
    return replace(records[0], calls=tuple(calls.values()))


def with_records(
    ranks: Sequence[Packed[CollectiveCalls]],
    records: Sequence[Sequence[PackedRecord]],
    world_size: int | None,
) -> list[Packed[CollectiveCalls]]:
    """Complete the collectives of some ranks by the ranks' dumps, one rank at a time.

    Facts that only some ranks have would make calls of the same collective differ, so without dumps
    of all ranks nothing changes.

    Args:
        records: The dumps of each rank, as long as ``ranks``.
        world_size: Number of ranks of the job: the default group has all of them.
    """
    if not all(records):
        return list(ranks)

    completed = []
    for packed, dumps in zip(ranks, records, strict=True):
        calls = packed.value
        if not len(calls):
            completed.append(packed)
            continue

        record = _merge(dumps)
        number_of_call = find_recorded_calls(calls, record)
        if (number_of_call == NO_CALL).all():
            return list(ranks)
        completed.append(Packed(_complete(calls, number_of_call, record, world_size)))
    return completed


def _complete(
    calls: CollectiveCalls, number_of_call: Int32s, record: FlightRecord, world_size: int | None
) -> CollectiveCalls:
    """Fill the gaps of a rank's calls from its dump."""
    recorded = [None if i == NO_CALL else record.calls[i] for i in number_of_call.tolist()]

    groups = list(calls.groups)
    number = {group: i for i, group in enumerate(groups)}
    group = calls.group.copy()
    seq, n_in, n_out = calls.seq.copy(), calls.n_in.copy(), calls.n_out.copy()
    source, target = calls.source.copy(), calls.target.copy()
    types = list(calls.element_type)
    named: dict[tuple[str, str], ProcessGroup] = {}

    for i, call in enumerate(recorded):
        if call is None:
            continue

        if not groups[group[i]].name:
            name = call.group, call.description
            # Making and hashing a group takes as long as it has ranks.
            if name not in named:
                named[name] = _group_of(record, call, world_size)
            group[i] = number.setdefault(named[name], len(number))
            groups += [named[name]] if group[i] == len(groups) else []
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
        calls,
        group=group,
        groups=tuple(groups),
        seq=seq,
        n_in=n_in,
        n_out=n_out,
        element_type=tuple(types),
        source=source,
        target=target,
    )


def _group_of(record: FlightRecord, call: RecordedCall, world_size: int | None) -> ProcessGroup:
    group = record.group_of(call)
    is_all = group.description == "default_pg" and world_size and world_size <= _MAX_WORLD
    if group.ranks is None and is_all and world_size:
        return replace(group, ranks=tuple(range(world_size)), size=world_size)
    return group


def peers_of(call: RecordedCall, group: ProcessGroup) -> tuple[int, int] | None:
    """Return the sending and the receiving rank of a send or receive, or None if unknown.

    Source: ``torch/distributed/flight_recorder/components/types.py`` (``Op``): the name ends with
    ``0->1`` or ``1<-0``, by the ranks in the group.
    """
    text = call.name.rpartition(" ")[2]
    for arrow in ("->", "<-"):
        left, has_arrow, right = text.partition(arrow)
        if has_arrow and left.isascii() and left.isdigit() and right.isascii() and right.isdigit():
            pair = (int(left), int(right)) if arrow == "->" else (int(right), int(left))
            if group.ranks is None:
                return pair if max(pair) < _MAX_WORLD else None
            return tuple(group.ranks[i] for i in pair) if max(pair) < len(group.ranks) else None  # type: ignore[return-value]
    return None
