"""When the host launched each piece of device work.

A launch is done when its call returns. A call can also begin long before: the first launch of a
kernel loads its code, and a copy can wait for earlier work of its stream.
"""

from typing import Final

import numpy as np

from profkit.index.device.streams import sort_by_stream
from profkit.index.launches import Launches
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Int64s, Rows

LAUNCH_NS: Final = 5_000
"""From the moment that a launching call submits a kernel to the kernel's start, if nothing else
runs: the least that NVIDIA and others measure is 2 to 5 µs."""


def launched_ns(events: EventTable, launches: Launches) -> Int64s:
    """Return the launch moment that each piece of device work follows. Shape of ``launches.work``.

    It is the end of the call. If the work began during the call, it is :data:`LAUNCH_NS` before
    the work, or the start of the call where that is later, or where the call is a copy that waited
    for earlier work of its stream. :data:`MISSING` without a launch.
    """
    stream, order = sort_by_stream(events, launches.work)
    moments_ns = np.empty(len(order), dtype=np.int64)
    moments_ns[order] = find_launched_in_order(
        events, launches.work[order], launches.launch[order], stream[order]
    )
    return moments_ns


def find_launched_in_order(
    events: EventTable, rows: Rows, launch: Int32s, stream: Int32s
) -> Int64s:
    """Return the launch moments of device work that is sorted by stream, then start.

    See :func:`launched_ns`. Shape of ``rows``.
    """
    starts_ns, ends_ns = events.ts_ns[rows], events.end_ns[rows]
    ready_ns = np.full(len(rows), MISSING, dtype=np.int64)
    ready_ns[1:] = np.where(stream[1:] == stream[:-1], ends_ns[:-1], MISSING)

    began_ns, ended_ns = events.ts_ns[launch], events.end_ns[launch]
    waited = (events.category[rows] == Category.MEMCPY) & (ready_ns > began_ns)
    during = np.where(waited, began_ns, np.maximum(began_ns, starts_ns - LAUNCH_NS))
    launched = np.where(ended_ns <= starts_ns, ended_ns, during)

    return np.where(launch == NO_ROW, MISSING, launched)
