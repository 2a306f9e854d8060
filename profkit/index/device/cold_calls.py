"""Calls of a device's runtime that first set up a context or a library, or load kernels."""

from typing import Final

import numpy as np

from profkit.index.device.syncs import outermost_calls
from profkit.index.distinct import are_among, united
from profkit.index.host.nesting import CallTree
from profkit.index.intervals import Intervals, covered_within
from profkit.index.runtime_calls import ALLOCATOR, CallKind
from profkit.model.events import EventTable, Rows
from profkit.patterns import regex

COLD_CALL_NS: Final = 10_000_000
"""A launch takes microseconds, but 10 ms to seconds if it first loads code or libraries (measured:
44 ms to 4.2 s in recordings of V100, A100 and MI300X)."""
_COLD_ALLOCATION_NS: Final = 100_000_000
"""Allocating and freeing device memory takes up to some 10 ms. Libraries initialize with
``cudaFree`` too, which takes 150 ms to 0.8 s in recordings of V100."""
_OTHER_WAIT: Final = CallKind(
    regex(r"Host(Alloc|Malloc|Free|Register|Unregister)|FreeHost|Profiler|Mem(cpy|set|Prefetch)")
)
"""Page-locks memory, copies it, or controls the profiler: takes long each time."""


def find_cold_calls(events: EventTable, tree: CallTree, syncs: Rows, busy: Intervals) -> Rows:
    """Find calls during which no device worked for longer than a call takes, in time order.

    A launch also takes long while the queue of launches is full: then the device works.

    Args:
        syncs: Calls that block until a device has finished.
        busy: Time in which any device was busy.
    """
    rows = events.host_calls
    rows = rows[events.dur_ns[rows] >= COLD_CALL_NS]
    if not len(rows):
        return rows

    # A call that waits for a busy device is slow, not cold.
    idle_ns = events.dur_ns[rows] - covered_within(busy, events.ts_ns[rows], events.end_ns[rows])
    allocates = are_among(rows, ALLOCATOR.rows(events))
    is_cold = idle_ns >= np.where(allocates, _COLD_ALLOCATION_NS, COLD_CALL_NS)
    is_cold &= ~are_among(rows, united(syncs, _OTHER_WAIT.rows(events)))

    rows = outermost_calls(events, tree, rows[is_cold])
    return events.sort_by_start(rows)
