"""Why a device was idle: its idle time, split by what the host did meanwhile.

Every nanosecond of a gap has exactly one cause, so the causes add up to the idle time. A gap ends
with a kernel, copy or fill. Until its launch began the host was late, and the cause is the host's
activity: a sync, a wait for data, a call of the driver's allocator, profiler overhead, or Python
and operators. From the launch to the start of the work the cause is launch latency or, if the
launch began before the gap, other work on the device.

Blocking the host costs nothing while the device has work queued. It costs time when the device
runs out of work because the host was blocked. So within a step a fix saves at most the time that
the host was blocked, and at most the time that the device was idle.
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
from profkit.model.events import NO_ROW, Category, EventTable, Int64s, Mask

HOST_CAUSES: Final = ("sync", "data", "allocator", "overhead")
"""Causes on the host's side, in order of precedence."""


@dataclass(frozen=True)
class IdleByCause:
    """A device's idle time by cause: disjoint sets of time that cover all of it."""

    sync: Intervals
    data: Intervals
    allocator: Intervals
    overhead: Intervals
    host: Intervals
    launch: Intervals
    device: Intervals
    unknown: Intervals

    def items(self) -> Iterator[tuple[IdleCause, Intervals]]:
        """Pairs of cause and time."""
        for cause in get_args(IdleCause):
            yield cause, getattr(self, cause)


def host_activity(events: EventTable, launches: Launches) -> dict[str, Intervals]:
    """Time on the host by possible cause of idle time."""
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
    """Split the idle time of a device by cause.

    Args:
        host: Result of :func:`host_activity`.
    """
    gaps = activity.idle
    order = np.argsort(events.ts_ns[activity.rows], kind="stable")
    rows = activity.rows[order]
    # The work that ends a gap starts exactly at its end.
    ending = rows[np.searchsorted(events.ts_ns[rows], gaps.ends_ns)]
    launch = launches.launch[np.searchsorted(launches.work, ending)]
    known = launch != NO_ROW
    began_ns = np.where(known, events.ts_ns[launch], 0)
    late = known & (began_ns > gaps.starts_ns)
    launch_ns = np.clip(began_ns, gaps.starts_ns, gaps.ends_ns)
    causes = {
        "unknown": _where(gaps, ~known),
        "device": _where(gaps, known & ~late),
        "launch": union(launch_ns[late], gaps.ends_ns[late]),
    }
    rest = union(gaps.starts_ns[late], launch_ns[late])
    for cause in HOST_CAUSES:
        causes[cause] = intersect(rest, host.get(cause, EMPTY))
        rest = subtract(rest, causes[cause])
    return IdleByCause(host=rest, **causes)


def _where(intervals: Intervals, mask: Mask) -> Intervals:
    return Intervals(intervals.starts_ns[mask], intervals.ends_ns[mask])


def short_launch_gaps(device: DeviceActivity, causes: IdleByCause, max_gap_ns: int) -> Intervals:
    """Idle time caused by late launches or launch latency, in short gaps only.

    Args:
        max_gap_ns: Longest gap that counts, in nanoseconds.
    """
    gaps = device.idle
    short = gaps.ends_ns - gaps.starts_ns <= max_gap_ns
    return intersect(unite(causes.host, causes.launch), _where(gaps, short))


@dataclass(frozen=True)
class BlockingCost:
    """Cost of blocking the host, over the windows (steps) in which it happens.

    Attributes:
        blocked_ns: Time that the host was blocked.
        idle_ns: Idle time of the device in windows with such a call.
        saving_ns: Sum over windows of the smaller of the two: the most that can be saved.
        n_windows: Number of windows with such a call.
        claims: Idle time that ``saving_ns`` is the sum of, as (start, end) in nanoseconds.
    """

    blocked_ns: int
    idle_ns: int
    saving_ns: int
    n_windows: int
    claims: tuple[tuple[int, int], ...]


def blocking_cost(
    blocked: Intervals, idle: Intervals, starts_ns: Int64s, ends_ns: Int64s
) -> BlockingCost:
    """Compute the cost of blocking the host.

    Args:
        blocked: Time in which the host was blocked.
        idle: Time in which the device was idle.
        starts_ns: Starts of disjoint windows, ascending. Shape ``(n,)``.
        ends_ns: Shape ``(n,)``.
    """
    blocked_in = covered_within(blocked, starts_ns, ends_ns)
    is_blocked = blocked_in > 0
    idle_in = np.where(is_blocked, covered_within(idle, starts_ns, ends_ns), 0)
    saving_in = np.minimum(blocked_in, idle_in)
    return BlockingCost(
        blocked_ns=int(blocked_in.sum()),
        idle_ns=int(idle_in.sum()),
        saving_ns=int(saving_in.sum()),
        n_windows=int(is_blocked.sum()),
        claims=take_from_start(idle, starts_ns, ends_ns, saving_in),
    )
