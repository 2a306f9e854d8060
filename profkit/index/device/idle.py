"""Why a device had nothing to do: its idle time, split by what the host did meanwhile.

Every nanosecond of a gap gets one cause, so the causes add up to the idle time exactly. A gap ends
with a piece of work. Until that work's launch began the host was late, and what it did then is the
cause: it waited for the device, fetched data, asked the driver for memory, was held by the
profiler, or ran Python and operators. From the launch to the work's start it was the launch itself,
or, where the launch had begun before the gap did, other work on the device.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np

from profkit.index.device.blocked_time import blocking_calls, covered_by, data_waits
from profkit.index.device.streams import DeviceActivity
from profkit.index.intervals import (
    EMPTY,
    Intervals,
    intersect,
    subtract,
    union,
)
from profkit.index.launches import Launches
from profkit.index.runtime_calls import ALLOCATOR
from profkit.model.device_summary import IdleCause
from profkit.model.events import NO_ROW, Category, EventTable

HOST_CAUSES: Final = ("sync", "data", "allocator", "overhead")
"""What the host may have done while it was late, the most telling first."""


@dataclass(frozen=True)
class IdleByCause:
    """A device's idle time by cause: disjoint sets of time that together are all of it."""

    sync: Intervals
    data: Intervals
    allocator: Intervals
    overhead: Intervals
    host: Intervals
    launch: Intervals
    device: Intervals
    unknown: Intervals

    def items(self) -> Iterator[tuple[IdleCause, Intervals]]:
        """Cause and time."""
        for cause in get_args(IdleCause):
            yield cause, getattr(self, cause)


def host_activity(events: EventTable, launches: Launches) -> dict[str, Intervals]:
    """Time on the host by what may make a device idle."""
    return {
        "sync": covered_by(events, blocking_calls(events, launches)),
        "data": covered_by(events, data_waits(events)),
        "allocator": covered_by(events, ALLOCATOR.rows(events)),
        "overhead": covered_by(events, events.rows_of(Category.OVERHEAD)),
    }


def idle_by_cause(
    events: EventTable,
    launches: Launches,
    activity: DeviceActivity,
    host: dict[str, Intervals],
) -> IdleByCause:
    """Split the idle time of a device.

    Args:
        launches: All device work and its launches.
        activity: The device.
        host: What :func:`host_activity` found.
    """
    gaps = activity.idle
    order = np.argsort(events.ts_ns[activity.rows], kind="stable")
    rows = activity.rows[order]
    # The work that ends a gap begins at the gap's very end; of several the first in order.
    ending = rows[np.searchsorted(events.ts_ns[rows], gaps.ends_ns)]
    launch = launches.launch[np.searchsorted(launches.work, ending)]
    known = launch != NO_ROW
    launched_ns = np.where(known, events.ts_ns[launch], 0)
    late = known & (launched_ns > gaps.starts_ns)
    turn_ns = np.clip(launched_ns, gaps.starts_ns, gaps.ends_ns)
    causes = {
        "unknown": _some(gaps, ~known),
        "device": _some(gaps, known & ~late),
        "launch": union(turn_ns[late], gaps.ends_ns[late]),
    }
    rest = union(gaps.starts_ns[late], turn_ns[late])
    for cause in HOST_CAUSES:
        causes[cause] = intersect(rest, host.get(cause, EMPTY))
        rest = subtract(rest, causes[cause])
    return IdleByCause(host=rest, **causes)


def _some(intervals: Intervals, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Intervals:
    return Intervals(intervals.starts_ns[mask], intervals.ends_ns[mask])
