"""When the host launched each piece of device work.

A launch is done when its call returns. A call can also begin long before: the first launch of a
kernel loads its code, and a copy can wait for earlier work of its stream.
"""

from typing import Final

import numpy as np

from profkit.index.device.streams import stream_numbers
from profkit.index.launches import Launches
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int64s

LAUNCH_NS: Final = 5_000
"""From the moment that a launching call submits a kernel to the kernel's start, if nothing else
runs: the least that NVIDIA and others measure is 2 to 5 µs."""


def launched_ns(events: EventTable, launches: Launches) -> Int64s:
    """The moment of the launch that each piece of device work follows. Shape of ``launches.work``.

    It is the end of the call. If the work began during the call, it is :data:`LAUNCH_NS` before
    the work, or the start of the call where that is later, or where the call is a copy that waited
    for earlier work of its stream. :data:`MISSING` without a launch.
    """
    rows, launch = launches.work, launches.launch
    start = events.ts_ns[rows]
    stream = stream_numbers(events, rows)
    order = np.lexsort((start, stream))
    ready = np.full(len(rows), MISSING, dtype=np.int64)
    before = order[:-1]
    same = stream[order[1:]] == stream[before]
    ready[order[1:][same]] = events.end_ns[rows[before[same]]]
    began, ended = events.ts_ns[launch], events.end_ns[launch]
    waited = (events.category[rows] == Category.MEMCPY) & (ready > began)
    during = np.where(waited, began, np.maximum(began, start - LAUNCH_NS))
    launched = np.where(ended <= start, ended, during)
    return np.where(launch == NO_ROW, MISSING, launched)
