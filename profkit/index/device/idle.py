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

from profkit.index.device.streams import DeviceActivity
from profkit.index.device.syncs import blocking_calls
from profkit.index.host.steps import data_waits
from profkit.index.intervals import (
    EMPTY,
    Intervals,
    covered_by,
    covered_within,
    intersect,
    subtract,
    take_from_start,
    union,
    unite,
)
from profkit.index.launches import Launches
from profkit.index.runtime_calls import ALLOCATOR
from profkit.model.device_summary import IdleCause
from profkit.model.events import NO_ROW, Category, EventTable, Int64s

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


def short_launch_gaps(device: DeviceActivity, causes: IdleByCause, max_gap_ns: int) -> Intervals:
    """Idle time for want of a launch, in the gaps that are no longer than some length.

    Args:
        causes: Why it was idle: only ``host`` and ``launch`` count.
        max_gap_ns: The longest gap that counts, in nanoseconds.
    """
    gaps = device.idle
    short = gaps.ends_ns - gaps.starts_ns <= max_gap_ns
    kept = Intervals(gaps.starts_ns[short], gaps.ends_ns[short])
    return intersect(unite(causes.host, causes.launch), kept)


@dataclass(frozen=True)
class BlockingCost:
    """What some waits cost over the windows (steps) in which they happen.

    Attributes:
        blocked_ns: Time that the host was in the waiting calls.
        idle_ns: Time that the device had nothing to do in the windows with such a call.
        saving_ns: The smaller of the two in each window, added up: the most that can be saved.
        n_windows: Windows with such a call.
        claims: The idle stretches that ``saving_ns`` is taken from, as (start, end) in ns.
    """

    blocked_ns: int
    idle_ns: int
    saving_ns: int
    n_windows: int
    claims: tuple[tuple[int, int], ...]


def blocking_cost(
    blocked: Intervals, idle: Intervals, starts_ns: Int64s, ends_ns: Int64s
) -> BlockingCost:
    """Work out what waits cost.

    Args:
        blocked: When the host was in the waiting calls.
        idle: When the device had nothing to do.
        starts_ns: Starts of the windows, ascending; the windows don't overlap. Shape ``(n,)``.
        ends_ns: Their ends. Shape ``(n,)``.
    """
    blocked_in = covered_within(blocked, starts_ns, ends_ns)
    touched = blocked_in > 0
    idle_in = np.where(touched, covered_within(idle, starts_ns, ends_ns), 0)
    saving_in = np.minimum(blocked_in, idle_in)
    return BlockingCost(
        blocked_ns=int(blocked_in.sum()),
        idle_ns=int(idle_in.sum()),
        saving_ns=int(saving_in.sum()),
        n_windows=int(touched.sum()),
        claims=take_from_start(idle, starts_ns, ends_ns, saving_in),
    )
