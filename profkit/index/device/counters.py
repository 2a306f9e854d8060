"""Counters: values that stay constant until they change."""

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.index.intervals import Intervals, covered_within
from profkit.index.launches import Launches
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, EventTable, Int64s, Rows


@dataclass(frozen=True)
class CounterSeries:
    """A counter over time.

    Attributes:
        at_ns: Times of the changes, ascending. Shape ``(n,)``.
        values: Value from each change on. Shape ``(n,)``.
    """

    at_ns: Int64s
    values: Int64s

    def __len__(self) -> int:
        return len(self.at_ns)


def counter_of_changes(at_ns: Int64s, changes: Int64s) -> CounterSeries:
    """Return the running sum of unordered changes, merging simultaneous ones.

    Shape ``(n,)`` each.
    """
    if not len(at_ns):
        return CounterSeries(at_ns, changes)

    moments, group = np.unique(at_ns, return_inverse=True)
    by_moment = sum_by_key(len(moments), group, changes)
    is_change = by_moment != 0
    return CounterSeries(moments[is_change], np.cumsum(by_moment)[is_change])


def launch_queue(events: EventTable, launches: Launches, work: Rows) -> CounterSeries:
    """Count the kernels, copies and fills that were launched and had not started.

    Args:
        work: Rows of device work to count; work without a launch in the trace is ignored.
    """
    launch = launches.of(work)
    has_launch = launch != NO_ROW
    starts = events.ts_ns[work[has_launch]]
    # Host and device clocks may differ slightly: no work starts before its launch.
    launched = np.minimum(events.ts_ns[launch[has_launch]], starts)
    ones = np.ones(len(starts), dtype=np.int64)
    return counter_of_changes(np.concatenate((launched, starts)), np.concatenate((ones, -ones)))


def downsample(series: CounterSeries, max_changes: int) -> CounterSeries:
    """Limit a counter to ``max_changes`` changes (2 or more), the highest values of equal bins.

    The last value is exact.
    """
    if len(series) <= max_changes:
        return series

    start, end = int(series.at_ns[0]), int(series.at_ns[-1])
    edges = bin_edges(start, end, max_changes - 1)

    # The value at the start of a bin counts in it too.
    first = np.maximum(np.searchsorted(series.at_ns, edges[:-1], side="right") - 1, 0)
    beyond = np.searchsorted(series.at_ns, edges[1:], side="left")
    bounds = np.stack((first, beyond), axis=1).ravel()
    highest = np.maximum.reduceat(np.append(series.values, 0), bounds)[::2]

    return CounterSeries(
        np.concatenate((edges[:-1], [end])), np.concatenate((highest, series.values[-1:]))
    )


def bin_edges(start_ns: int, end_ns: int, max_bins: int) -> Int64s:
    """Return the edges of at most ``max_bins`` equally long bins of at least one nanosecond."""
    n = max(1, min(max_bins, end_ns - start_ns))
    return np.array([start_ns + (end_ns - start_ns) * i // n for i in range(n + 1)], np.int64)


def covered_share(covered: Intervals, edges_ns: Int64s) -> npt.NDArray[np.float64]:
    """Return the covered share of each bin, 0 to 1.

    Shape ``(n,)`` for ``n + 1`` ascending edges.
    """
    within = covered_within(covered, edges_ns[:-1], edges_ns[1:])
    return np.asarray(within / np.diff(edges_ns), dtype=np.float64)
