"""Exchanges between ranks: who runs them, who started them, and when somebody waits for one.

A collective runs on a device, as a kernel, or on the host, on threads of its own (gloo, MPI).
"""

import re
from typing import Final

import numpy as np

from profkit.index.device.streams import DeviceActivity
from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import data_waits
from profkit.index.intervals import (
    Intervals,
    complement,
    covered_by,
    covered_within,
    subtract,
    union,
    unite,
)
from profkit.index.launches import Launches
from profkit.index.runtime_calls import names_matching, rows_named
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import COLLECTIVE, DEVICE_COLLECTIVE, FRAMING, HOST_COLLECTIVE

_LETTERS: Final = re.compile(r"[^a-z]")


def collective_rows(events: EventTable) -> Mask:
    """Host rows that start, run or await an exchange between ranks. Shape ``(n,)``.

    Source: ``torch/csrc/distributed/c10d/Ops.cpp`` and ``Functional.cpp`` for the operators,
    ``Work.cpp`` and the process groups of the backends for the annotations, which are named
    ``gloo:all_reduce`` and so on; ``ParamCommsUtils.hpp`` for ``record_param_comms``.
    """
    return rows_named(events, COLLECTIVE, Category.OP, Category.ANNOTATION)


def host_collectives(events: EventTable) -> Rows:
    """Exchanges that threads of the host run, by their start.

    Source: ``ProcessGroupGloo.cpp`` and ``ProcessGroupMPI.cpp``: a work's annotation lasts until
    it is done, where those of NCCL and its likes end when the kernel is launched.
    """
    rows = np.flatnonzero(
        collective_rows(events) & names_matching(events.names, HOST_COLLECTIVE)[events.name]
    )
    return rows[np.argsort(events.ts_ns[rows], kind="stable")]


def device_collectives(events: EventTable) -> Rows:
    """Annotations of exchanges that a device runs, whether its work was recorded or not."""
    named = names_matching(events.names, DEVICE_COLLECTIVE)
    return np.flatnonzero(collective_rows(events) & named[events.name])


def host_work_time(events: EventTable, tree: CallTree) -> Intervals:
    """Time in which an operator computes on any thread of the host, or a batch is fetched.

    An operator that calls others computes nothing itself, and may be where a thread waits. What an
    exchange calls is part of it.
    """
    framing = names_matching(events.names, FRAMING)[events.name]
    is_op = (events.category == Category.OP) & ~framing
    calls_others = np.zeros(len(events), dtype=np.bool_)
    above = tree.enclosing(is_op)[is_op]
    calls_others[above[above != NO_ROW]] = True
    in_exchange = tree.nearest(collective_rows(events)) != NO_ROW
    computing = np.flatnonzero(is_op & ~calls_others & ~in_exchange)
    return unite(covered_by(events, computing), covered_by(events, data_waits(events)))


def exposed_waits(
    events: EventTable, rows: Rows, working: Intervals, start_ns: int, end_ns: int
) -> Intervals:
    """Time in which nobody works and an exchange runs that ends before work goes on.

    What goes on while an exchange still runs has not waited for it.

    Args:
        rows: The exchanges.
        working: Time in which somebody works.
        start_ns: From here on it is known whether somebody works.
        end_ns: Up to here.
    """
    rests = complement(working, start_ns, end_ns)
    if not len(rests) or not len(rows):
        return union(events.ts_ns[:0], events.ts_ns[:0])
    ends = events.end_ns[rows]
    place = np.searchsorted(rests.starts_ns, ends, side="left") - 1
    within = (place >= 0) & (ends <= rests.ends_ns[np.maximum(place, 0)])
    begins = np.maximum(events.ts_ns[rows[within]], rests.starts_ns[place[within]])
    return union(begins, ends[within])


def late_launch_time(
    events: EventTable,
    launches: Launches,
    device: DeviceActivity,
    communication: Mask,
    held: Intervals,
) -> Intervals:
    """Time in which a device computes nothing because the host has not launched what comes next.

    Args:
        launches: Device work and its launches.
        communication: Rows of communication kernels. Shape ``(n,)``.
        held: Time in which the host waits for a device: then it is not the host that is late.
    """
    rests = complement(device.compute, device.start_ns, device.end_ns)
    is_kernel = events.category[device.rows] == Category.KERNEL
    kernels = device.rows[is_kernel & ~communication[device.rows]]
    if not len(kernels):
        return union(events.ts_ns[:0], events.ts_ns[:0])
    kernels = kernels[np.argsort(events.ts_ns[kernels], kind="stable")]
    place = np.searchsorted(events.ts_ns[kernels], rests.ends_ns)
    ending = kernels[np.minimum(place, len(kernels) - 1)]
    launch = launches.launch[np.searchsorted(launches.work, ending)]
    known = (place < len(kernels)) & (launch != NO_ROW)
    until = np.where(known, events.ts_ns[launch], rests.starts_ns)
    return subtract(union(rests.starts_ns, np.minimum(until, rests.ends_ns)), held)


def wait_by_collective(events: EventTable, rows: Rows, waited: Intervals) -> Int64s:
    """Waited time of each exchange; where several run, the one that began first has it.

    Args:
        rows: Exchanges that together cover the waited time, by their start. Shape ``(k,)``.
        waited: The waited time.

    Returns:
        Nanoseconds that add up to all of it. Shape ``(k,)``.
    """
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    ends = np.maximum.accumulate(events.end_ns[rows])
    earlier = np.concatenate((events.ts_ns[rows[:1]], ends[:-1]))
    begins = np.maximum(events.ts_ns[rows], earlier)
    return covered_within(waited, begins, np.maximum(begins, ends))


def launching_ops(events: EventTable, tree: CallTree, rows: Rows) -> Int32s:
    """The operator that started each exchange that the host runs, or :data:`NO_ROW`.

    No id joins the two. Each backend's threads take what was started first, so where as many
    operators of a kind are recorded as exchanges, they belong together in their order. Where not,
    it is the last one of its kind that began before the exchange.

    Args:
        rows: The exchanges, by their start. Shape ``(k,)``.

    Returns:
        Shape ``(k,)``.
    """
    wanted = collective_rows(events)
    outermost = tree.outermost(wanted & (events.category == Category.OP))
    ops = np.unique(outermost[outermost != NO_ROW])
    ops = ops[np.argsort(events.ts_ns[ops], kind="stable")]
    kinds, op_kinds = collective_kinds(events, rows), collective_kinds(events, ops)
    found = np.full(len(rows), NO_ROW, dtype=np.int32)
    for kind in set(kinds):
        here = np.flatnonzero([each == kind for each in kinds])
        of_kind = ops[[each == kind for each in op_kinds]]
        found[here] = _by_order(events, rows[here], of_kind)
    return found


def _by_order(events: EventTable, rows: Rows, ops: Int32s) -> Int32s:
    """The operator for each of the exchanges of one kind, both by their start."""
    if len(ops) == len(rows) and (events.ts_ns[ops] <= events.ts_ns[rows]).all():
        return ops
    place = np.searchsorted(events.ts_ns[ops], events.ts_ns[rows], side="right") - 1
    return np.array([ops[i] if i >= 0 else NO_ROW for i in place.tolist()], dtype=np.int32)


KINDS: Final = {
    "allreduce": "all-reduce",
    "devicereduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "sendrecv": "send and receive",
    "send": "send",
    "recv": "receive",
    "scatter": "scatter",
    "gather": "gather",
    "reduce": "reduce",
}
"""What a name may contain, the most telling first, and what that is called."""
UNKNOWN_COLLECTIVE: Final = "collective"


def collective_kind(name: str) -> str:
    """What an exchange is, by any name that has been given to it: ``all-reduce``.

    Args:
        name: Such as ``gloo:all_reduce``, ``c10d::_allgather_base_`` or
            ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``.
    """
    plain = _LETTERS.sub("", name.lower())
    return next((kind for text, kind in KINDS.items() if text in plain), UNKNOWN_COLLECTIVE)


def collective_kinds(events: EventTable, rows: Rows | Int32s) -> list[str]:
    """What each of some exchanges is. As long as ``rows``."""
    numbers = events.name[rows]
    kinds = {
        number: collective_kind(events.names[number]) for number in np.unique(numbers).tolist()
    }
    return [kinds[number] for number in numbers.tolist()]


_COMMUNICATION: Final = re.compile(
    r"nccl|rccl|oneccl|hccl|msccl|nvshmem|cross_device_reduce|multimem_"
    r"|one_shot_all_reduce|two_shot_all_reduce"
    r"|all_reduce_kernel|all_gather_kernel|reduce_scatter_kernel"
    r"|ep::internode|ep::intranode",
    re.IGNORECASE,
)
"""Names of communication kernels.

Source: NCCL, RCCL, oneCCL and HCCL name their kernels after themselves; ``multimem_*``,
``one_shot_*`` and ``two_shot_*`` are PyTorch's symmetric-memory kernels
(``torch/csrc/distributed/c10d/CUDASymmetricMemoryOps.cu``); ``cross_device_reduce`` is vLLM's;
``ep::`` is DeepEP's.
"""


def communication_kernels(events: EventTable) -> Mask:
    """Rows of communication kernels: by name, or because a collective is written on them."""
    named = names_matching(events.names, _COMMUNICATION)
    mask = (events.category == Category.KERNEL) & named[events.name]
    with_collective = events.collective.rows
    kernels = with_collective[events.category[with_collective] == Category.KERNEL]
    mask = mask.copy()
    mask[kernels] = True
    return np.asarray(mask)
