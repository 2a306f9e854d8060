"""Calls of ``torch.nn.DataParallel``, and what it does itself in them."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.index.device.streams import device_of
from profkit.index.host.nesting import CallTree
from profkit.index.intervals import Intervals, covered_by, inside, subtract, union, unite
from profkit.index.launches import Launches
from profkit.index.runtime_calls import names_matching, rows_named
from profkit.model.events import NO_ROW, Category, EventTable, Int64s, Mask, Rows
from profkit.model.torch_names import DATA_PARALLEL_FORWARD, DATA_PARALLEL_FUNCTIONS

_FRAME: Final = re.compile(
    r"(^|[/\\])torch[/\\]nn[/\\]parallel[/\\]data_parallel\.py\(\d+\): (forward|data_parallel)$"
)
_SCATTER: Final = re.compile(r"^Scatter$")
_TO_DEVICE: Final = re.compile(r"HtoD|(Pageable|Pinned|Host) -> Device")
_NEVER: Final = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class DataParallelOverhead:
    """What ``DataParallel`` does besides calling the module that it wraps.

    Attributes:
        calls: Its calls, ascending. Rows.
        n_devices: Devices that it runs the module on; where launches are not recorded, all.
        on_host: Time in which it goes through parameters, takes inputs apart, copies parameters
            and puts outputs and gradients together. Copies of inputs from the host are not in it:
            they are needed without it too.
        work: Rows of the device work that it launches for that, ascending.
    """

    calls: Rows
    n_devices: int
    on_host: Intervals
    work: Rows


def data_parallel_calls(events: EventTable, tree: CallTree) -> Rows:
    """Calls of ``DataParallel``, ascending; of one within another the outermost.

    Source: ``torch/nn/parallel/data_parallel.py``: ``forward`` names itself
    ``DataParallel.forward``. The function ``data_parallel`` and old versions of torch do not, so
    that only stacks tell of them.
    """
    wanted = rows_named(events, DATA_PARALLEL_FORWARD, Category.ANNOTATION, Category.OP)
    wanted |= rows_named(events, _FRAME, Category.PYTHON)
    if not wanted.any():
        return np.flatnonzero(wanted)
    return np.flatnonzero(wanted & (tree.enclosing(wanted) == NO_ROW))


def data_parallel_overhead(
    events: EventTable, tree: CallTree, launches: Launches, calls: Rows
) -> DataParallelOverhead:
    """What ``DataParallel`` does itself.

    On one device that is all until the module's first operator. On several the replicas run on
    threads of their own, one each, and the rest of a call is its own; so is what autograd runs of
    it in the backward pass.

    Args:
        launches: Device work and its launches.

    Source: ``torch/nn/parallel/parallel_apply.py`` for the threads;
    ``torch/nn/parallel/_functions.py`` for the functions ``Scatter``, ``Broadcast``, ``Gather`` and
    ``ReduceAddCoalesced``, which autograd records by their names, as their backward ones.
    """
    known = launches.launch != NO_ROW
    launch, work = launches.launch[known], launches.work[known]
    called = union(events.ts_ns[calls], events.end_ns[calls])
    during = inside(called, events.ts_ns[launch])
    reached = work[during] if during.any() else launches.work
    elsewhere = during & ~np.isin(events.lane[launch], events.lane[calls])
    mine = during & ~elsewhere
    if elsewhere.any():
        spread = rows_named(events, DATA_PARALLEL_FUNCTIONS, Category.OP)
        own = subtract(called, _of_replicas(events, launch[elsewhere], calls))
        mine = (mine & inside(own, events.ts_ns[launch])) | (tree.nearest(spread)[launch] != NO_ROW)
        own = unite(own, covered_by(events, np.flatnonzero(spread)))
    else:
        own = _before_the_module(events, tree, calls)
        mine &= inside(own, events.ts_ns[launch])
    of_inputs = (events.category[work] == Category.MEMCPY) & names_matching(
        events.names, _TO_DEVICE
    )[events.name[work]]
    own = subtract(own, covered_by(events, np.unique(launch[mine & of_inputs])))
    n_devices = len(np.unique(device_of(events, reached)))
    return DataParallelOverhead(calls, n_devices, own, np.sort(work[mine & ~of_inputs]))


def _of_replicas(events: EventTable, launch: Rows, calls: Rows) -> Intervals:
    """Of each call the time from the first launch by a replica's thread to the end of the last.

    Args:
        launch: Launches by other threads than that of the calls, while one of these runs.
    """
    order = np.argsort(events.ts_ns[calls], kind="stable")
    place = np.searchsorted(events.ts_ns[calls][order], events.ts_ns[launch], side="right") - 1
    first = _least(events.ts_ns[launch], place, len(calls))
    last = -_least(-events.end_ns[launch], place, len(calls))
    return union(first, np.where(first == _NEVER, first, last))


def _before_the_module(events: EventTable, tree: CallTree, calls: Rows) -> Intervals:
    """Of each call the time until it has taken its inputs apart, or else its first operator."""
    is_op = events.category == Category.OP
    is_call = np.zeros(len(events), dtype=np.bool_)
    is_call[calls] = True
    around = tree.nearest(is_call)
    top: Mask = is_op & (around != NO_ROW) & ~is_call & (tree.enclosing(is_op & ~is_call) == NO_ROW)
    is_scatter = names_matching(events.names, _SCATTER)[events.name]
    others, scatters = np.flatnonzero(top & ~is_scatter), np.flatnonzero(top & is_scatter)
    begins = _least(events.ts_ns[others], np.searchsorted(calls, around[others]), len(calls))
    place = np.searchsorted(calls, around[scatters])
    early = events.ts_ns[scatters] < begins[place]
    apart = -_least(-events.end_ns[scatters[early]], place[early], len(calls))
    until = np.where(apart == -_NEVER, begins, apart)
    return union(events.ts_ns[calls], np.where(until == _NEVER, events.ts_ns[calls], until))


def _least(values: Int64s, place: Rows, n: int) -> Int64s:
    """The least of the values at each of ``n`` places; where there is none, more than any."""
    found = np.full(n, _NEVER, dtype=np.int64)
    np.minimum.at(found, place, values)
    return found
