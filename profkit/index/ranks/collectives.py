"""Collectives: which kernels and threads run them, what launched them, and who waits for them.

A collective runs on a device, as a kernel, or on threads of the host (gloo, MPI).
"""

import re
from typing import Final

import numpy as np

from profkit.index.device.streams import DeviceActivity
from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import data_waits, program_ops
from profkit.index.intervals import (
    EMPTY,
    Intervals,
    complement,
    covered_by,
    covered_within,
    of_pairs,
    subtract,
    union,
    unite,
)
from profkit.index.launches import Launches
from profkit.index.runtime_calls import map_names, names_matching, rows_named
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import COLLECTIVE, DEVICE_COLLECTIVE, HOST_COLLECTIVE
from profkit.patterns import regex

_TORCHS_OWN: Final = regex(r"aten::")
_LETTERS: Final = regex(r"[^a-z]")
_MAX_LATE_END_NS: Final = 20_000_000
"""How long a thread that other processes keep from a core may need to end its annotation."""
_LATE_END_PART: Final = 4
"""The part of the wait before it that this may be: most pauses that have another reason end long
before the collective."""


def collective_rows(events: EventTable) -> Mask:
    """Return the host rows that start, run or await a collective. Shape ``(n,)``.

    Source: ``torch/csrc/distributed/c10d/Ops.cpp`` and ``Functional.cpp`` for the operators,
    ``Work.cpp`` and the process groups of the backends for annotations such as
    ``gloo:all_reduce``; ``ParamCommsUtils.hpp`` for ``record_param_comms``.
    """
    return rows_named(events, COLLECTIVE, Category.OP, Category.ANNOTATION)


def host_collectives(events: EventTable) -> Rows:
    """Return the collectives that run on threads of the host, by start.

    Source: ``ProcessGroupGloo.cpp`` and ``ProcessGroupMPI.cpp``: the annotation lasts until the
    work is done. Annotations of NCCL and similar backends end when the kernel is launched.
    """
    rows = np.flatnonzero(
        collective_rows(events) & names_matching(events, HOST_COLLECTIVE)[events.name]
    )
    return events.sort_by_start(rows)


def device_collectives(events: EventTable) -> Rows:
    """Return the annotations of collectives on a device, whether its work was recorded or not."""
    named = names_matching(events, DEVICE_COLLECTIVE)
    return np.flatnonzero(collective_rows(events) & named[events.name])


def host_work_time(events: EventTable, tree: CallTree) -> Intervals:
    """Return the time in which any host thread computes in an operator or loads a batch."""
    return unite(host_compute_time(events, tree), covered_by(events, data_waits(events)))


def host_compute_time(events: EventTable, tree: CallTree) -> Intervals:
    """Return the time in which any host thread computes in an operator.

    An operator that calls others may be waiting in between, such as a function of autograd for a
    hook, so only innermost operators count. PyTorch's own count whole: a matrix product computes
    after its last call of another operator. Operators called by a collective are part of it.
    """
    is_op = program_ops(events)
    calls_others = np.zeros(len(events), dtype=np.bool_)
    above = tree.enclosing(is_op)[is_op]
    calls_others[above[above != NO_ROW]] = True
    in_collective = tree.nearest(collective_rows(events)) != NO_ROW
    is_torchs = names_matching(events, _TORCHS_OWN)[events.name]
    computes = is_op & (is_torchs | ~calls_others) & ~in_collective
    return covered_by(events, np.flatnonzero(computes))


def find_exposed_waits(
    events: EventTable, rows: Rows, work: Intervals, start_ns: int, end_ns: int
) -> Intervals:
    """Find the time in which no work runs until one of the collectives ends.

    Work that starts while a collective still runs has not waited for it, unless it starts shortly
    before the end that is recorded: a thread of gloo first completes the future on which the
    program waits, and only then ends its annotation, when it gets a core again.

    Source: ``ProcessGroupGloo::AsyncWork::finishWorkGloo`` in
    ``torch/csrc/distributed/c10d/ProcessGroupGloo.cpp``.

    Args:
        start_ns: Start of the time for which ``work``, the time in which work runs, is known.
        end_ns: Its end.
    """
    gaps = complement(work, start_ns, end_ns)
    if not len(gaps) or not len(rows):
        return EMPTY

    starts, ends = events.ts_ns[rows], events.end_ns[rows]
    # An end may be late, so a gap counts if it ends only shortly before.
    first = np.searchsorted(gaps.ends_ns, ends - late_end_ns(ends - starts)).tolist()
    last = np.searchsorted(gaps.starts_ns, ends).tolist()
    waits = []
    for i, (begin, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        nearby = slice(first[i], last[i])
        until = np.minimum(gaps.ends_ns[nearby], end)
        waited = until - np.maximum(gaps.starts_ns[nearby], begin)
        waited[end - until > late_end_ns(waited)] = 0
        if len(waited) and waited.max() > 0:
            place = int(waited.argmax())
            waits.append((int(until[place] - waited[place]), int(until[place])))

    return of_pairs(tuple(waits))


def late_end_ns(waited_ns: Int64s) -> Int64s:
    """Return how far a host collective may seem to last into the work that waited for it."""
    return np.asarray(np.minimum(_MAX_LATE_END_NS, waited_ns // _LATE_END_PART))


def find_late_launch_time(
    events: EventTable,
    launches: Launches,
    device: DeviceActivity,
    communication: Mask,
    blocked: Intervals,
) -> Intervals:
    """Find the time in which a device computes nothing because its next kernel is not launched yet.

    Args:
        communication: Rows of collective kernels. Shape ``(n,)``.
        blocked: Time in which the host is blocked by a device, so that it is not the cause.
    """
    gaps = complement(device.compute, device.start_ns, device.end_ns)
    is_kernel = events.category[device.rows] == Category.KERNEL
    kernels = device.rows[is_kernel & ~communication[device.rows]]
    if not len(kernels):
        return EMPTY

    kernels = events.sort_by_start(kernels)
    place = np.searchsorted(events.ts_ns[kernels], gaps.ends_ns)
    ending = kernels[np.minimum(place, len(kernels) - 1)]
    launch = launches.of(ending)

    # Without a known launch there is nothing to blame, so the gap counts as a wait.
    has_launch = (place < len(kernels)) & (launch != NO_ROW)
    until = np.where(has_launch, events.ts_ns[launch], gaps.starts_ns)
    return subtract(union(gaps.starts_ns, np.minimum(until, gaps.ends_ns)), blocked)


def wait_by_collective(events: EventTable, rows: Rows, waited: Intervals) -> Int64s:
    """Return the waiting time by collective; the earliest of several running ones counts.

    Args:
        rows: Collectives that together cover the waiting time, by start. Shape ``(k,)``.

    Returns:
        Nanoseconds that add up to all of ``waited``. Shape ``(k,)``.
    """
    if not len(rows):
        return np.zeros(0, dtype=np.int64)

    ends = np.maximum.accumulate(events.end_ns[rows])
    earlier = np.concatenate((events.ts_ns[rows[:1]], ends[:-1]))
    begins = np.maximum(events.ts_ns[rows], earlier)
    return covered_within(waited, begins, np.maximum(begins, ends))


def find_launching_ops(events: EventTable, tree: CallTree, rows: Rows) -> Int32s:
    """Find the operator that started each collective of the host, or :data:`NO_ROW`.

    No id joins the two. Each backend's threads process collectives in order, so equally many
    operators and collectives of a kind are matched in order. Otherwise it is the last operator of
    that kind that began before the collective. Gloo runs a reduce-scatter as an all-reduce.

    Source: ``ProcessGroupGloo::reduce_scatter_tensor_coalesced`` in
    ``torch/csrc/distributed/c10d/ProcessGroupGloo.cpp``.

    Args:
        rows: The collectives, by start. Shape ``(k,)``, as the result.
    """
    ops = _find_outermost_calls(events, tree)

    kinds, op_kinds = collective_kinds(events, rows), collective_kinds(events, ops)
    starters = np.full(len(rows), NO_ROW, dtype=np.int32)
    for kind in set(kinds):
        places = np.flatnonzero([rows_kind == kind for rows_kind in kinds])
        as_all_reduce = kind == _ALL_REDUCE and _REDUCE_SCATTER not in kinds
        callers = (kind, _REDUCE_SCATTER) if as_all_reduce else (kind,)
        of_kind = ops[[op_kind in callers for op_kind in op_kinds]]
        starters[places] = _match_in_order(events, rows[places], of_kind)
    return starters


def _find_outermost_calls(events: EventTable, tree: CallTree) -> Int32s:
    """Find the operators of collectives that no other one has called, by start.

    The annotation of a send lasts until somebody waits for it, so that the operator of the next
    receive nests in it, and so in the operator that began the send, which has long returned.
    """
    is_call = collective_rows(events) & (events.category == Category.OP)
    rows = np.flatnonzero(is_call).astype(np.int32)
    above = tree.enclosing(is_call)[rows]
    has_returned = (above == NO_ROW) | (events.end_ns[above] <= events.ts_ns[rows])
    return events.sort_by_start(rows[has_returned])


def _match_in_order(events: EventTable, rows: Rows, ops: Int32s) -> Int32s:
    """Find the operator of each collective of one kind, both ordered by start."""
    if len(ops) == len(rows) and (events.ts_ns[ops] <= events.ts_ns[rows]).all():
        return ops
    place = np.searchsorted(events.ts_ns[ops], events.ts_ns[rows], side="right") - 1
    return np.array([ops[i] if i >= 0 else NO_ROW for i in place.tolist()], dtype=np.int32)


_ALL_REDUCE: Final = "all-reduce"
_REDUCE_SCATTER: Final = "reduce-scatter"
COLLECTIVE_KINDS: Final = {
    "allreduce": _ALL_REDUCE,
    "devicereduce": _ALL_REDUCE,
    "allgather": "all-gather",
    "reducescatter": _REDUCE_SCATTER,
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
"""Kind by part of a name, most specific first."""
UNKNOWN_COLLECTIVE: Final = "collective"


def collective_kind(name: str) -> str:
    """Return the kind of a collective, such as ``all-reduce``, from an operator or kernel name.

    Args:
        name: Such as ``gloo:all_reduce``, ``c10d::_allgather_base_`` or
            ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``.
    """
    plain = _LETTERS.sub("", name.lower())
    return next(
        (kind for text, kind in COLLECTIVE_KINDS.items() if text in plain), UNKNOWN_COLLECTIVE
    )


def collective_kinds(events: EventTable, rows: Rows | Int32s) -> list[str]:
    """Return the kind of each collective, as long as ``rows``."""
    kinds: list[str] = map_names(events, rows, collective_kind, np.object_).tolist()
    return kinds


_COMMUNICATION: Final = regex(
    r"nccl|rccl|oneccl|hccl|msccl|nvshmem|cross_device_reduce|multimem_|userbuffers_"
    r"|(?:one|two)_?shot_?all_?reduce|all_?reduce_(?:one|two)_shot|allreduce_fusion_kernel"
    r"|all_reduce_kernel|all_gather_kernel|reduce_scatter_kernel"
    r"|ep::internode|ep::intranode",
    re.IGNORECASE,
)
"""Names of collective kernels.

Source: NCCL, RCCL, oneCCL and HCCL put their own names into their kernels' names; ``multimem_*``,
``one_shot_*`` and ``two_shot_*`` are PyTorch's symmetric-memory kernels
(``torch/csrc/distributed/c10d/CUDASymmetricMemoryOps.cu``); ``cross_device_reduce`` is vLLM's;
``all_reduce_one_shot_*`` and ``all_reduce_two_shot_*`` are SGLang's; ``allreduce_fusion_kernel_*``,
``oneshotAllreduceFusionKernel`` and ``twoshotAllreduceKernel`` are TensorRT-LLM's, which FlashInfer
has too (``trtllm_allreduce_fusion.cuh``, ``trtllm_mnnvl_allreduce.cuh``); ``userbuffers_*`` are
Transformer Engine's (``userbuffers.cu``); ``ep::`` is DeepEP's.
"""


def communication_kernels(events: EventTable) -> Mask:
    """Return the kernels of collectives, by name or by the event's arguments. Shape ``(n,)``."""
    mask = rows_named(events, _COMMUNICATION, Category.KERNEL)
    rows = events.collective.rows
    mask[rows[events.category[rows] == Category.KERNEL]] = True
    return mask
