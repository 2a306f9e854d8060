"""When a rank waits for others; the rest of its time is its own: it computes, launches or loads."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.device.streams import DeviceActivity
from profkit.index.distinct import marked
from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import Steps
from profkit.index.intervals import (
    EMPTY,
    Intervals,
    complement,
    covered_before,
    subtract,
    union,
    unite,
    unite_all,
)
from profkit.index.launches import Launches
from profkit.index.ranks.collectives import (
    find_exposed_waits,
    find_late_launch_time,
    host_collectives,
    host_compute_time,
    host_work_time,
)
from profkit.model.events import NO_ROW, Category, EventTable, Int64s, Mask, Rows
from profkit.model.trace import Trace

_MAX_PER_STEP: Final = 2
"""Calls per step of a kernel that may wait for all ranks; a kernel with more is part of a layer."""
_MAX_NAMES: Final = 32
"""Names of kernels that are kept: a wait is among the longest."""
OVERLAP_NS: Final = 200_000
"""Longest time that a collective may seem to end after the start of work that waits for it, besides
a share of the wait: recorded times of streams are rounded, by some producers to floats."""
_OVERLAP_SHARE: Final = 0.1


@dataclass(frozen=True)
class RareKernels:
    """Kernels that run rarely, by start. Times are nanoseconds since 1970 on the rank's own clock.

    Attributes:
        names: ``k`` of them.
        starts_ns: Shape ``(k,)``.
        ends_ns: Shape ``(k,)``.
    """

    names: tuple[str, ...]
    starts_ns: Int64s
    ends_ns: Int64s


@dataclass(frozen=True)
class RankActivity:
    """When a rank waits for its collectives. Times are nanoseconds since 1970 on its own clock.

    Attributes:
        start_ns: Start of its first event.
        end_ns: End of its last event.
        steps: The names of its steps, in order.
        step_starts_ns: Shape ``(s,)``.
        step_ends_ns: Shape ``(s,)``.
        waits: Time in which it goes on only when a collective has ended, each ending with one.
        idle: Time in which its device computes nothing for unknown reasons: the recording does not
            show when the host launches.
        computed_ns: How long any of its devices, or without devices its host's operators, had
            computed before each of its collectives, by start, since its first event. Shape
            ``(k,)``.
        kernels: The longest kernels that run once or twice per step, other than collectives.
    """

    start_ns: int
    end_ns: int
    steps: tuple[str, ...]
    step_starts_ns: Int64s
    step_ends_ns: Int64s
    waits: Intervals
    idle: Intervals
    computed_ns: Int64s
    kernels: RareKernels


def find_rank_activity(
    trace: Trace,
    tree: CallTree,
    launches: Launches,
    steps: Steps,
    devices: Sequence[DeviceActivity],
    communication: Mask,
    blocked: Intervals,
    called_ns: Int64s,
) -> RankActivity:
    """Find the time in which a rank waits for collectives.

    Args:
        communication: Rows of collective kernels. Shape ``(n,)``.
        blocked: Time in which a device blocks the host.
        called_ns: The starts of its collectives, since 1970. Shape ``(k,)``.
    """
    events = trace.events

    start_ns, end_ns = int(events.ts_ns.min()), int(events.end_ns.max())
    waits = _find_host_waits(events, tree, devices, start_ns, end_ns)

    idle = EMPTY
    exchanging = [device for device in devices if len(device.communication)]
    if exchanging:
        device = max(exchanging, key=lambda device: device.communication.total_ns)
        rows = device.rows[communication[device.rows]]
        waited = _find_gaps_ended_by(events, rows, device.compute, end_ns)
        late = find_late_launch_time(events, launches, device, communication, blocked)
        waits = unite(waits, subtract(waited, late))
        if not (launches.launch != NO_ROW).any():
            idle = complement(device.compute, start_ns, end_ns)

    return RankActivity(
        start_ns + trace.base_ns,
        end_ns + trace.base_ns,
        steps.names,
        steps.starts_ns + trace.base_ns,
        steps.ends_ns + trace.base_ns,
        _absolute(waits, trace.base_ns),
        _absolute(idle, trace.base_ns),
        covered_before(_find_compute(events, tree, devices), called_ns - trace.base_ns),
        _find_rare_kernels(trace, communication, len(steps)),
    )


def _find_compute(
    events: EventTable, tree: CallTree, devices: Sequence[DeviceActivity]
) -> Intervals:
    """Find the time in which a rank computes: on its devices, or without devices on its host."""
    if not devices:
        return host_compute_time(events, tree)
    return unite_all(device.compute for device in devices)


def _absolute(times: Intervals, base_ns: int) -> Intervals:
    return Intervals(times.starts_ns + base_ns, times.ends_ns + base_ns)


def _find_rare_kernels(trace: Trace, communication: Mask, n_steps: int) -> RareKernels:
    """Find the longest kernels that run once or twice per step.

    Args:
        n_steps: Number of steps; 0 without.
    """
    events = trace.events
    rows = np.flatnonzero((events.category == Category.KERNEL) & ~communication)
    # Kernels that run often are layers, and wait for nobody.
    count = np.bincount(events.name[rows], minlength=len(events.names))
    longest = np.zeros(len(events.names), dtype=np.int64)
    np.maximum.at(longest, events.name[rows], events.dur_ns[rows])
    longest[count > _MAX_PER_STEP * max(1, n_steps)] = 0

    names = np.argsort(-longest, kind="stable")[:_MAX_NAMES]
    is_longest = marked(names[longest[names] > 0], len(longest))
    rows = rows[is_longest[events.name[rows]]]
    rows = events.sort_by_start(rows)

    return RareKernels(
        tuple(events.names[name] for name in events.name[rows].tolist()),
        events.ts_ns[rows] + trace.base_ns,
        events.end_ns[rows] + trace.base_ns,
    )


def _find_gaps_ended_by(events: EventTable, rows: Rows, work: Intervals, end_ns: int) -> Intervals:
    """Find time without work until a collective ends, or until work that waited for it.

    Args:
        work: Time in which work runs.
        end_ns: Until when ``work`` is known.
    """
    gaps = complement(work, int(events.ts_ns.min()), end_ns)
    if not len(gaps) or not len(rows):
        return EMPTY

    starts, ends = events.ts_ns[rows], events.end_ns[rows]
    # The last gap that begins before each end.
    place = np.searchsorted(gaps.starts_ns, ends, side="left") - 1
    until = np.minimum(ends, gaps.ends_ns[np.maximum(place, 0)])
    begins = np.maximum(starts, gaps.starts_ns[np.maximum(place, 0)])

    allowed = np.minimum(OVERLAP_NS, _OVERLAP_SHARE * (until - begins))
    is_end = (place >= 0) & (ends - until <= allowed)
    return union(begins[is_end], until[is_end])


def _find_host_waits(
    events: EventTable,
    tree: CallTree,
    devices: Sequence[DeviceActivity],
    start_ns: int,
    end_ns: int,
) -> Intervals:
    """Find waits for collectives that threads of the host run."""
    rows = host_collectives(events)
    if not len(rows):
        return EMPTY
    computing = unite_all(device.compute for device in devices)
    working = unite(host_work_time(events, tree), computing)
    return find_exposed_waits(events, rows, working, start_ns, end_ns)
