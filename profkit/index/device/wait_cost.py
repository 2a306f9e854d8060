"""What waiting for a device costs: the host's blocked time against the device's idle time.

A host that waits costs nothing while the device has work. It costs when the device runs dry
because the host, let go too late, has sent nothing more. So within a step no more can be given
back than the host was blocked, and no more than the device was idle.
"""

from dataclasses import dataclass

import numpy as np

from profkit.index.intervals import Intervals, covered_before, covered_within, inside
from profkit.model.events import Int64s


@dataclass(frozen=True)
class WaitCost:
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


def wait_cost(blocked: Intervals, idle: Intervals, starts_ns: Int64s, ends_ns: Int64s) -> WaitCost:
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
    return WaitCost(
        blocked_ns=int(blocked_in.sum()),
        idle_ns=int(idle_in.sum()),
        saving_ns=int(saving_in.sum()),
        n_windows=int(touched.sum()),
        claims=first_of_each(idle, starts_ns, ends_ns, saving_in),
    )


def first_of_each(
    covered: Intervals, starts_ns: Int64s, ends_ns: Int64s, wanted_ns: Int64s
) -> tuple[tuple[int, int], ...]:
    """The first so many nanoseconds of the covered time of each window.

    Args:
        covered: The covered time.
        starts_ns: Starts of the windows, ascending; the windows don't overlap. Shape ``(n,)``.
        ends_ns: Their ends. Shape ``(n,)``.
        wanted_ns: How much of each is wanted. Shape ``(n,)``.

    Returns:
        (start, end) pairs in nanoseconds, ascending and disjoint.
    """
    if not len(covered) or not len(starts_ns):
        return ()
    edges = np.unique(np.concatenate((starts_ns, ends_ns)))
    cuts = edges[inside(covered, edges) & ~np.isin(edges, covered.starts_ns)]
    starts = np.sort(np.concatenate((covered.starts_ns, cuts)))
    ends = np.sort(np.concatenate((covered.ends_ns, cuts)))
    window = np.searchsorted(starts_ns, starts, side="right") - 1
    held = (window >= 0) & (starts < ends_ns[window])
    starts, ends, window = starts[held], ends[held], window[held]
    taken = covered_before(covered, starts) - covered_before(covered, starts_ns[window])
    ends = np.minimum(ends, starts + wanted_ns[window] - taken)
    real = ends > starts
    return tuple(zip(starts[real].tolist(), ends[real].tolist(), strict=True))
