"""The collectives that one rank ran, with all that tells which ones of other ranks they belong to.

Recordings of different versions of torch have different parts of it: torch 2.3 writes the arguments
of a collective to the operator ``record_param_comms`` around its launch, 2.4 to its kernel too, and
2.12 its number in the group and an id. Collectives that run on threads of the host have no
arguments.

Source: ``torch/csrc/distributed/c10d/ParamCommsUtils.hpp``, ``torch/csrc/profiler/util.cpp``.
"""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.columns import build_empty
from profkit.index.compute.inputs import parse_inputs
from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import NO_STEP, Steps, data_waits
from profkit.index.intervals import covered_by, covered_within
from profkit.index.launches import Launches
from profkit.index.ranks.collectives import (
    collective_kind,
    collective_kinds,
    communication_kernels,
    find_launching_ops,
    host_collectives,
)
from profkit.model.events import (
    MISSING,
    NO_ROW,
    Category,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    Rows,
    SparseColumn,
)
from profkit.model.process_group import ProcessGroup, ranks_of
from profkit.model.trace import Trace

POINT_TO_POINT: Final = ("send", "receive")
"""Kinds between two ranks, of which each numbers its own calls."""
_PAIR: Final = 2
_CALLS_WITH_PEER: Final = ("c10d::send", "c10d::recv_")
_PEER_INPUT: Final = 2


@dataclass(frozen=True)
class CollectiveCalls:
    """The collectives of one rank, by start. Times are nanoseconds since 1970 on its own clock.

    Attributes:
        rows: The kernel, or the work on a thread of the host. Shape ``(k,)``.
        kind: Such as ``all-reduce``; ``k`` of them.
        group: Number of its process group in ``groups``. Shape ``(k,)``.
        element_type: Such as ``BFloat16``, or empty; ``k`` of them.
        comms_id: An id that all ranks of the collective have, or empty; ``k`` of them.
        n_in: Number of elements of its input, or :data:`MISSING`. Shape ``(k,)``.
        n_out: Number of elements of its output, or :data:`MISSING`. Shape ``(k,)``.
        seq: Its number in its group, or :data:`MISSING`. Shape ``(k,)``.
        source: The rank that this one receives from, or :data:`MISSING`. Shape ``(k,)``.
        target: The rank that this one sends to, or :data:`MISSING`. Shape ``(k,)``.
        issued_ns: When the host called it, or :data:`MISSING`. Shape ``(k,)``.
        returned_ns: When that call returned, or :data:`MISSING`. Shape ``(k,)``.
        launched_ns: When the host had launched it, or :data:`MISSING`; on the host when it was
            called. Shape ``(k,)``.
        start_ns: When it started to run or, on the host, to wait for its turn. Shape ``(k,)``.
        end_ns: Shape ``(k,)``.
        idle_ns: From the end of the computation before it on any device to its start, 0 if one ran
            then; :data:`MISSING` without any. Shape ``(k,)``.
        data_wait_ns: How long the host waited for data since the collective before was called.
            Shape ``(k,)``.
        step: The number of its step as recorded (``ProfilerStep#7``), or :data:`NO_STEP`. Shape
            ``(k,)``.
        on_device: Whether it runs on a device. Shape ``(k,)``.
        groups: The process groups.
    """

    rows: Rows
    kind: tuple[str, ...]
    group: Int32s
    element_type: tuple[str, ...]
    comms_id: tuple[str, ...]
    n_in: Int64s
    n_out: Int64s
    seq: Int64s
    source: Int64s
    target: Int64s
    issued_ns: Int64s
    returned_ns: Int64s
    launched_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    idle_ns: Int64s
    data_wait_ns: Int64s
    step: Int64s
    on_device: Mask
    groups: tuple[ProcessGroup, ...]

    def __len__(self) -> int:
        return len(self.rows)


NO_CALLS: Final = build_empty(CollectiveCalls)
"""The collectives of a rank without a trace."""


def find_collective_calls(
    trace: Trace, tree: CallTree, launches: Launches, steps: Steps
) -> CollectiveCalls:
    """Find the collectives of a rank."""
    events = trace.events
    kernels = np.flatnonzero(communication_kernels(events))

    on_host = host_collectives(events)
    rows = np.concatenate((kernels, on_host))

    # The events that have the arguments, and the host's call.
    ops, launch = _find_ops(events, tree, launches, kernels)
    host_ops = find_launching_ops(events, tree, on_host)
    described = np.where(events.collective.at(kernels) == MISSING, ops, kernels)
    described = np.concatenate((described, host_ops)).astype(np.int32)
    called = np.concatenate((np.where(ops == NO_ROW, launch, ops), host_ops)).astype(np.int32)

    launched = _select_times(events.end_ns, launch)
    issued, returned = _select_times(events.ts_ns, called), _select_times(events.end_ns, called)

    # A collective of the host waits for its turn from its call on.
    starts_ns = events.ts_ns[rows].copy()
    called_ns = issued[len(kernels) :]
    starts_ns[len(kernels) :] = np.where(called_ns == MISSING, starts_ns[len(kernels) :], called_ns)
    launched = np.concatenate((launched, called_ns))

    order = np.argsort(starts_ns, kind="stable")
    rows, described, starts_ns = rows[order], described[order], starts_ns[order]
    issued, returned, launched = issued[order], returned[order], launched[order]

    groups, group = _build_groups(trace, described)
    kind = _kinds(events, rows, described)
    source, target = _find_peers(trace, described, kind)
    at_ns = np.where(issued == MISSING, starts_ns, issued)
    return CollectiveCalls(
        rows=rows,
        kind=kind,
        group=group,
        element_type=_texts(events, events.element_type, described),
        comms_id=_texts(events, events.comms_id, described),
        n_in=_values(events.n_in, described),
        n_out=_values(events.n_out, described),
        seq=_values(events.collective_seq, described),
        source=source,
        target=target,
        issued_ns=_absolute(trace, issued),
        returned_ns=_absolute(trace, returned),
        launched_ns=_absolute(trace, launched),
        start_ns=starts_ns + trace.base_ns,
        end_ns=events.end_ns[rows] + trace.base_ns,
        idle_ns=_idle_before(events, starts_ns),
        data_wait_ns=_data_waits_before(events, at_ns),
        step=_step_numbers(steps)[steps.of(at_ns)],
        on_device=events.category[rows] == Category.KERNEL,
        groups=groups,
    )


def _find_ops(
    events: EventTable, tree: CallTree, launches: Launches, kernels: Rows
) -> tuple[Int32s, Int32s]:
    """Find the operator with the arguments around each kernel's launch, and the launch."""
    launch = launches.of(kernels)
    has_arguments = np.zeros(len(events), dtype=np.bool_)
    rows = events.collective.rows
    has_arguments[rows[events.category[rows] == Category.OP]] = True
    if not has_arguments.any():
        return np.full(len(kernels), NO_ROW, dtype=np.int32), launch
    nearest = np.append(tree.nearest(has_arguments), np.int32(NO_ROW))
    return nearest[launch], launch


def _idle_before(events: EventTable, starts_ns: Int64s) -> Int64s:
    """Return ``idle_ns`` of :class:`CollectiveCalls`."""
    is_computing = events.category == Category.KERNEL
    is_computing[communication_kernels(events)] = False
    # Collectives do not count: waiting for them is what is explained.
    busy = covered_by(events, np.flatnonzero(is_computing))
    place = np.searchsorted(busy.starts_ns, starts_ns, side="right") - 1
    ended = np.append(busy.ends_ns, 0)[place]
    return np.where(place < 0, MISSING, np.maximum(0, starts_ns - ended))


def _data_waits_before(events: EventTable, called_ns: Int64s) -> Int64s:
    """Return ``data_wait_ns`` of :class:`CollectiveCalls`."""
    order = np.argsort(called_ns, kind="stable")
    ends = called_ns[order]
    begins = np.concatenate((np.minimum(ends[:1], 0), ends[:-1]))
    waits_ns = np.empty(len(order), dtype=np.int64)
    waits_ns[order] = covered_within(covered_by(events, data_waits(events)), begins, ends)
    return waits_ns


def _select_times(times_ns: Int64s, rows: Int32s) -> Int64s:
    """Return the times of some rows, :data:`MISSING` for :data:`NO_ROW`."""
    return np.where(rows == NO_ROW, MISSING, np.append(times_ns, MISSING)[rows])


def _absolute(trace: Trace, times_ns: Int64s) -> Int64s:
    return np.where(times_ns == MISSING, MISSING, times_ns + trace.base_ns)


def _values(column: SparseColumn, rows: Int32s) -> Int64s:
    return np.where(rows == NO_ROW, MISSING, column.at(rows))


def _texts(events: EventTable, column: SparseColumn, rows: Int32s) -> tuple[str, ...]:
    names = events.names
    return tuple("" if n == MISSING else names[n] for n in _values(column, rows).tolist())


def _kinds(events: EventTable, rows: Rows, described: Int32s) -> tuple[str, ...]:
    """Return the kind of each collective by its arguments, or else by its own name."""
    names, fallbacks = _texts(events, events.collective, described), collective_kinds(events, rows)
    kinds = {name: collective_kind(name) for name in set(names) if name}
    return tuple(kinds.get(name, kind) for name, kind in zip(names, fallbacks, strict=True))


def _find_peers(trace: Trace, rows: Int32s, kinds: tuple[str, ...]) -> tuple[Int64s, Int64s]:
    """Find the rank that each call receives from, and the rank that it sends to. Shape of ``rows``.

    Operators of gloo have no such arguments. The rank in the group is their third input, which is
    recorded with ``record_shapes``; a job of two ranks needs none.

    Source: ``torch/csrc/distributed/c10d/Ops.cpp``: ``send(Tensor[] tensors, ProcessGroup
    process_group, int dst, int tag)``, and ``recv_`` alike.
    """
    source = _values(trace.events.source_rank, rows)
    target = _values(trace.events.target_rank, rows)
    if trace.rank is None:
        return source, target

    own_groups = {ranks for ranks in trace.groups.values() if trace.rank in ranks}
    for kind, peers in zip(POINT_TO_POINT, (target, source), strict=True):
        for i in np.flatnonzero((peers == MISSING) & (np.array(kinds, dtype=np.str_) == kind)):
            if trace.world_size == _PAIR and trace.rank < _PAIR:
                peers[i] = 1 - trace.rank
            elif len(own_groups) == 1:
                # In several groups the same number is several ranks.
                peers[i] = _called_peer(trace.events, int(rows[i]), next(iter(own_groups)))
    return source, target


def _called_peer(events: EventTable, row: int, ranks: tuple[int, ...]) -> int:
    if row == NO_ROW or events.name_of(row) not in _CALLS_WITH_PEER:
        return MISSING
    (written,) = events.concrete_inputs.at(np.array([row])).tolist()
    inputs = None if written == MISSING else parse_inputs("[]", "", events.names[written])
    peer = None if inputs is None else inputs.value(_PEER_INPUT)
    return ranks[peer] if type(peer) is int and 0 <= peer < len(ranks) else MISSING


def _build_groups(trace: Trace, rows: Int32s) -> tuple[tuple[ProcessGroup, ...], Int32s]:
    """Build the process groups of some events, and return the number of each event's group.

    Shape of ``rows``.
    """
    events = trace.events
    columns = (
        events.group_name,
        events.group_ranks,
        events.group_size,
        events.group_description,
    )
    keys = np.stack([_values(column, rows) for column in columns], axis=1)
    distinct_keys, number = np.unique(keys, axis=0, return_inverse=True)

    groups = []
    for name, ranks, size, description in distinct_keys.tolist():
        group_name = "" if name == MISSING else events.names[name]
        members = None if ranks == MISSING else ranks_of(events.names[ranks])
        members = members or trace.groups.get(group_name)
        groups.append(
            ProcessGroup(
                name=group_name,
                ranks=members,
                size=len(members) if members else (None if size == MISSING else size),
                description="" if description == MISSING else events.names[description],
            )
        )
    return tuple(groups), number.reshape(-1).astype(np.int32)


def _step_numbers(steps: Steps) -> Int64s:
    """Return the recorded number of each step, else its place, and last :data:`NO_STEP`."""
    written = [name.rpartition("#")[2] for name in steps.names]
    is_numbered = all(number.isascii() and number.isdigit() for number in written)
    numbers = [int(number) for number in written] if is_numbered else range(len(written))
    return np.array([*numbers, NO_STEP], dtype=np.int64)
