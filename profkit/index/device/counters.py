"""Figures that stand at one value until they change: how many, how much, what share, over time."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profkit.index.intervals import Intervals, covered_within
from profkit.index.launches import Launches
from profkit.model.events import NO_ROW, EventTable, Int64s, Rows


@dataclass(frozen=True)
class CounterSeries:
    """A figure over time.

    Attributes:
        at_ns: When it changes, ascending. Shape ``(n,)``.
        values: What it is from then on. Shape ``(n,)``.
    """

    at_ns: Int64s
    values: Int64s

    def __len__(self) -> int:
        return len(self.at_ns)


def counter_of_changes(at_ns: Int64s, changes: Int64s) -> CounterSeries:
    """The running sum of changes; several at one moment are one.

    Args:
        at_ns: When, in any order. Shape ``(n,)``.
        changes: By how much. Shape ``(n,)``.
    """
    if not len(at_ns):
        return CounterSeries(at_ns, changes)
    moments, group = np.unique(at_ns, return_inverse=True)
    by_moment = np.zeros(len(moments), dtype=np.int64)
    np.add.at(by_moment, group, changes)
    moved = by_moment != 0
    return CounterSeries(moments[moved], np.cumsum(by_moment)[moved])


def launch_queue(events: EventTable, launches: Launches, work: Rows) -> CounterSeries:
    """How many pieces of device work were launched and had not started.

    Args:
        launches: All device work and its launches.
        work: Rows of the device work that counts; what has no launch in the trace is left out.
    """
    launch = launches.launch[np.searchsorted(launches.work, work)]
    known = launch != NO_ROW
    starts = events.ts_ns[work[known]]
    # Clocks of host and device may differ by a little: nothing starts before its launch begins.
    launched = np.minimum(events.ts_ns[launch[known]], starts)
    ones = np.ones(len(starts), dtype=np.int64)
    return counter_of_changes(np.concatenate((launched, starts)), np.concatenate((ones, -ones)))


def downsampled(levels: CounterSeries, max_bins: int) -> CounterSeries:
    """At max_bins so many changes: of each of equally long stretches the highest value.

    The last value stays as it is, so that what is left over in the end is not made up.

    Args:
        levels: The figure.
        max_bins: How many changes may be left, at least 2.
    """
    if len(levels) <= max_bins:
        return levels
    start, end = int(levels.at_ns[0]), int(levels.at_ns[-1])
    edges = bin_edges(start, end, max_bins - 1)
    # What stood when a stretch began counts in it too.
    first = np.maximum(np.searchsorted(levels.at_ns, edges[:-1], side="right") - 1, 0)
    beyond = np.searchsorted(levels.at_ns, edges[1:], side="left")
    bounds = np.stack((first, beyond), axis=1).ravel()
    highest = np.maximum.reduceat(np.append(levels.values, 0), bounds)[::2]
    return CounterSeries(
        np.concatenate((edges[:-1], [end])), np.concatenate((highest, levels.values[-1:]))
    )


def bin_edges(start_ns: int, end_ns: int, max_bins: int) -> Int64s:
    """The edges of equally long stretches of time, each a nanosecond or longer.

    Args:
        start_ns: Where the first begins.
        end_ns: Where the last ends, later than that.
        max_bins: How many there may be.
    """
    n = max(1, min(max_bins, end_ns - start_ns))
    return np.array([start_ns + (end_ns - start_ns) * i // n for i in range(n + 1)], np.int64)


def covered_share(covered: Intervals, edges_ns: Int64s) -> npt.NDArray[np.float64]:
    """What share of each stretch is covered, 0 to 1.

    Args:
        covered: The time that counts.
        edges_ns: The edges of the stretches, ascending. Shape ``(n+1,)``.

    Returns:
        Shape ``(n,)``.
    """
    within = covered_within(covered, edges_ns[:-1], edges_ns[1:])
    return np.asarray(within / np.diff(edges_ns), dtype=np.float64)
