"""Calls of ``torch.nn.DataParallel``, and its own work in them."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.device.streams import device_of
from profkit.index.device.syncs import TO_DEVICE, copies_named
from profkit.index.distinct import distinct, marked
from profkit.index.host.nesting import CallTree
from profkit.index.intervals import Intervals, covered_by, inside, subtract, union, unite
from profkit.index.launches import Launches
from profkit.index.runtime_calls import names_matching, rows_named
from profkit.model.events import NO_ROW, Category, EventTable, Int64s, Mask, Rows
from profkit.model.torch_names import DATA_PARALLEL_FORWARD, DATA_PARALLEL_FUNCTIONS
from profkit.patterns import regex

_FRAME: Final = regex(
    r"(^|[/\\])torch[/\\]nn[/\\]parallel[/\\]data_parallel\.py\(\d+\): (forward|data_parallel)$"
)
_SCATTER: Final = regex(r"^Scatter$")
_NEVER: Final = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class DataParallelOverhead:
    """Work of ``DataParallel`` besides calling the wrapped module.

    Attributes:
        calls: Its calls, ascending. Rows.
        n_devices: Number of devices that it runs the module on; all devices where launches were not
            recorded.
        on_host: Time in which it traverses and copies parameters, scatters inputs, and gathers
            outputs and gradients. Host-to-device copies of inputs are excluded: they are needed
            without it too.
        work: Rows of the device work that it launches for that, ascending.
    """

    calls: Rows
    n_devices: int
    on_host: Intervals
    work: Rows


def data_parallel_calls(events: EventTable, tree: CallTree) -> Rows:
    """Find the outermost calls of ``DataParallel``, ascending.

    Source: ``torch/nn/parallel/data_parallel.py``: ``forward`` is annotated as
    ``DataParallel.forward``. The function ``data_parallel`` and old versions of torch are not, and
    appear only in stacks.
    """
    is_call = rows_named(events, DATA_PARALLEL_FORWARD, Category.ANNOTATION, Category.OP)
    is_call |= rows_named(events, _FRAME, Category.PYTHON)

    if not is_call.any():
        return np.flatnonzero(is_call)
    return np.flatnonzero(is_call & (tree.enclosing(is_call) == NO_ROW))


def measure_data_parallel(
    events: EventTable, tree: CallTree, launches: Launches, calls: Rows
) -> DataParallelOverhead:
    """Determine the work of ``DataParallel`` itself.

    On one device everything until the module's first operator is overhead. On several devices, each
    replica runs on its own thread, and the remainder of a call is overhead, as are its functions in
    the backward pass.

    Source: ``torch/nn/parallel/parallel_apply.py`` for the threads;
    ``torch/nn/parallel/_functions.py`` for the functions ``Scatter``, ``Broadcast``, ``Gather`` and
    ``ReduceAddCoalesced``, which autograd records by name, as their backward functions.
    """
    has_launch = launches.launch != NO_ROW
    launch, work = launches.launch[has_launch], launches.work[has_launch]

    called = union(events.ts_ns[calls], events.end_ns[calls])
    during = inside(called, events.ts_ns[launch])
    launched = work[during] if during.any() else launches.work
    elsewhere = during & ~np.isin(events.lane[launch], events.lane[calls])
    is_overhead = during & ~elsewhere

    if elsewhere.any():
        is_function = rows_named(events, DATA_PARALLEL_FUNCTIONS, Category.OP)
        own_time = subtract(called, _find_replica_time(events, launch[elsewhere], calls))
        is_overhead = (is_overhead & inside(own_time, events.ts_ns[launch])) | (
            tree.nearest(is_function)[launch] != NO_ROW
        )
        own_time = unite(own_time, covered_by(events, np.flatnonzero(is_function)))
    else:
        own_time = _find_time_before_module(events, tree, calls)
        is_overhead &= inside(own_time, events.ts_ns[launch])

    # Inputs have to reach the device without DataParallel too.
    of_inputs = copies_named(events, launches, TO_DEVICE)[has_launch]
    own_time = subtract(own_time, covered_by(events, distinct(launch[is_overhead & of_inputs])))

    n_devices = len(distinct(device_of(events, launched)))
    return DataParallelOverhead(calls, n_devices, own_time, np.sort(work[is_overhead & ~of_inputs]))


def _find_replica_time(events: EventTable, launch: Rows, calls: Rows) -> Intervals:
    """Find the time of each call from the first to the last launch of its replicas.

    Args:
        launch: Launches by other threads during the calls.
    """
    order = np.argsort(events.ts_ns[calls], kind="stable")
    place = np.searchsorted(events.ts_ns[calls][order], events.ts_ns[launch], side="right") - 1
    first = _minima(events.ts_ns[launch], place, len(calls))
    last = -_minima(-events.end_ns[launch], place, len(calls))
    return union(first, np.where(first == _NEVER, first, last))


def _find_time_before_module(events: EventTable, tree: CallTree, calls: Rows) -> Intervals:
    """Find the time of each call until its inputs are scattered, or else its first operator."""
    is_op = events.category == Category.OP
    is_call = marked(calls, len(events))[:-1]

    around = tree.nearest(is_call)
    top: Mask = is_op & (around != NO_ROW) & ~is_call & (tree.enclosing(is_op & ~is_call) == NO_ROW)

    is_scatter = names_matching(events, _SCATTER)[events.name]
    ops, scatters = np.flatnonzero(top & ~is_scatter), np.flatnonzero(top & is_scatter)
    begins = _minima(events.ts_ns[ops], np.searchsorted(calls, around[ops]), len(calls))

    place = np.searchsorted(calls, around[scatters])
    early = events.ts_ns[scatters] < begins[place]
    scattered = -_minima(-events.end_ns[scatters[early]], place[early], len(calls))
    until = np.where(scattered == -_NEVER, begins, scattered)
    return union(events.ts_ns[calls], np.where(until == _NEVER, events.ts_ns[calls], until))


def _minima(values: Int64s, place: Rows, n: int) -> Int64s:
    """Return the minimum of the values at each of ``n`` places, or :data:`_NEVER`."""
    minima = np.full(n, _NEVER, dtype=np.int64)
    np.minimum.at(minima, place, values)
    return minima
