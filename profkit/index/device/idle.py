"""Why a device was idle: its idle time, split by what the host did meanwhile.

Every nanosecond of a gap has exactly one cause, so the causes add up to the idle time. A gap ends
with a kernel, copy or fill. Until its launch began the host was late, and the cause is the host's
activity: a sync, a wait for data, a call of the driver's allocator, profiler overhead, or Python
and operators. From the launch to the start of the work the cause is launch latency or, if the
launch was done before the gap, other work on the device. A launching call that runs longer than a
launch takes does something else first, such as to load the kernel's code: that is the host's time.
"""

from collections.abc import Iterator
from typing import Final, get_args

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.device.launch_moments import LAUNCH_NS, launched_ns
from profkit.index.device.streams import DeviceActivity
from profkit.index.device.syncs import blocking_calls
from profkit.index.distinct import distinct
from profkit.index.host.steps import data_waits
from profkit.index.intervals import (
    EMPTY,
    Intervals,
    covered_by,
    intersect,
    subtract,
    union,
    unite,
)
from profkit.index.launches import Launches
from profkit.index.runtime_calls import ALLOCATOR
from profkit.model.device_summary import IdleCause
from profkit.model.events import NO_ROW, Category, EventTable, Rows

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
        """Iterate over pairs of cause and time."""
        for cause in get_args(IdleCause):
            yield cause, getattr(self, cause)


def host_activity(events: EventTable, launches: Launches) -> dict[str, Intervals]:
    """Return the time on the host by possible cause of idle time."""
    return {
        "sync": covered_by(events, blocking_calls(events, launches)),
        "data": covered_by(events, data_waits(events)),
        "allocator": covered_by(events, ALLOCATOR.rows(events)),
        "overhead": covered_by(events, events.rows_of(Category.OVERHEAD)),
    }


def split_idle(
    events: EventTable,
    launches: Launches,
    activity: DeviceActivity,
    host: dict[str, Intervals],
    unrecorded: Intervals = EMPTY,
) -> IdleByCause:
    """Split the idle time of a device by cause.

    Args:
        host: Result of :func:`host_activity`.
        unrecorded: Time of unrecorded work on the device, which is not idle.
    """
    gaps = subtract(activity.idle, unrecorded)
    place = np.searchsorted(launches.work, _find_ending_work(events, activity, gaps))
    launch, done_ns = launches.launch[place], launched_ns(events, launches)[place]
    has_launch = launch != NO_ROW
    is_late = has_launch & (done_ns > gaps.starts_ns)

    # A call that takes long submits its work only at its end.
    ends_ns = np.minimum(events.end_ns[launch], gaps.ends_ns)
    began_ns = np.maximum(events.ts_ns[launch], ends_ns - LAUNCH_NS)
    launch_ns = np.clip(began_ns, gaps.starts_ns, gaps.ends_ns)

    causes = {
        "unknown": gaps[~has_launch],
        "device": gaps[has_launch & ~is_late],
        "launch": union(launch_ns[is_late], gaps.ends_ns[is_late]),
    }

    # The host's time is split by precedence.
    late_time = union(gaps.starts_ns[is_late], launch_ns[is_late])
    for cause in HOST_CAUSES:
        causes[cause] = intersect(late_time, host.get(cause, EMPTY))
        late_time = subtract(late_time, causes[cause])
    return IdleByCause(host=late_time, **causes)


def _find_ending_work(events: EventTable, device: DeviceActivity, gaps: Intervals) -> Rows:
    """Find the work that ends each gap: the first that starts at its end. Shape of ``gaps``."""
    rows = device.rows[np.argsort(events.ts_ns[device.rows], kind="stable")]
    return rows[np.searchsorted(events.ts_ns[rows], gaps.ends_ns)]


def find_waits_for_launches(
    events: EventTable,
    launches: Launches,
    device: DeviceActivity,
    causes: IdleByCause,
    max_launch_ns: int,
) -> Intervals:
    """Find idle time caused by late launches or launch latency, where the host was launching.

    Args:
        causes: The device's idle time by cause.
        max_launch_ns: Longest time from one launch of work of the device to the next, between the
            ends of the calls, that counts.
    """
    launch = launches.of(device.rows)
    done_ns = distinct(events.end_ns[launch[launch != NO_ROW]])
    is_late = np.diff(done_ns, prepend=done_ns[:1]) > max_launch_ns

    gaps = device.idle
    ending = launches.of(_find_ending_work(events, device, gaps))

    # A launch long after the one before it is late for a reason of the program.
    counts = np.zeros(len(gaps), dtype=np.bool_)
    has_launch = ending != NO_ROW
    counts[has_launch] = ~is_late[np.searchsorted(done_ns, events.end_ns[ending[has_launch]])]
    return intersect(unite(causes.host, causes.launch), gaps[counts])
