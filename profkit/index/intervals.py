"""Sets of time as sorted, disjoint intervals: unions, overlaps, gaps.

Busy time is the length of a union, never a sum: concurrent work on two streams counts once.
"""

from collections.abc import Iterable
from functools import reduce
from itertools import chain
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import distinct
from profkit.index.ranges import expand_ranges
from profkit.model.events import EventTable, Int32s, Int64s, Mask, Rows

_CHUNK: Final = 1 << 18
"""Rows united at once; rows nested in other rows drop out before the next chunk."""


@dataclass(frozen=True)
class Intervals:
    """Disjoint, non-empty intervals in ascending order.

    Attributes:
        starts_ns: Shape ``(n,)``.
        ends_ns: Exclusive. Shape ``(n,)``.
    """

    starts_ns: Int64s
    ends_ns: Int64s

    def __len__(self) -> int:
        return len(self.starts_ns)

    def __getitem__(self, chosen: Mask | Rows) -> "Intervals":
        """Select some of the intervals, in their order."""
        return Intervals(self.starts_ns[chosen], self.ends_ns[chosen])

    @property
    def lengths_ns(self) -> Int64s:
        """Return the length of each interval. Shape ``(n,)``."""
        return self.ends_ns - self.starts_ns

    @property
    def are_valid(self) -> bool:
        """Return whether intervals from a cache are disjoint and ascending."""
        starts, ends = self.starts_ns, self.ends_ns
        return len(starts) == len(ends) and bool(
            (starts < ends).all() and (ends[:-1] <= starts[1:]).all()
        )

    @property
    def total_ns(self) -> int:
        """Return the sum of the lengths."""
        return int(self.lengths_ns.sum())

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the (start, end) pairs."""
        return tuple(zip(self.starts_ns.tolist(), self.ends_ns.tolist(), strict=True))


def union(starts_ns: Int64s, ends_ns: Int64s) -> Intervals:
    """Return the time that at least one interval covers.

    Args:
        starts_ns: In any order. Shape ``(n,)``.
        ends_ns: An interval that does not end after its start is empty. Shape ``(n,)``.
    """
    starts, ends = starts_ns, ends_ns
    is_positive = ends > starts
    if not is_positive.all():
        starts, ends = starts[is_positive], ends[is_positive]
    if not len(starts):
        return EMPTY

    # Most rows are in order already, and sorting would take most of the time.
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]

    # An interval opens where it starts after all earlier ones have ended.
    reached = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], starts[1:] > reached[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(starts[opens], reached[closes])


def of_pairs(pairs: tuple[tuple[int, int], ...]) -> Intervals:
    """Return the union of (start, end) pairs."""
    times = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * len(pairs))
    return union(times[::2], times[1::2])


EMPTY: Final = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def covered_before(covered: Intervals, at_ns: Int64s) -> Int64s:
    """Return the covered time before each moment. Shape of ``at_ns``."""
    if not len(covered):
        return np.zeros(len(at_ns), dtype=np.int64)

    before = np.concatenate(([0], np.cumsum(covered.lengths_ns)))
    place = np.searchsorted(covered.starts_ns, at_ns, side="right")
    beyond = np.maximum(0, covered.ends_ns[np.maximum(place - 1, 0)] - at_ns)
    return np.asarray(before[place] - np.where(place > 0, beyond, 0))


def covered_within(covered: Intervals, starts_ns: Int64s, ends_ns: Int64s) -> Int64s:
    """Return the covered time within each window. Shape of ``starts_ns``."""
    inside = covered_before(covered, ends_ns) - covered_before(covered, starts_ns)
    return np.asarray(np.maximum(inside, 0))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that both cover."""
    # The intervals of b that overlap each interval of a are contiguous.
    first = np.searchsorted(b.ends_ns, a.starts_ns, side="right")
    n_overlaps = np.maximum(np.searchsorted(b.starts_ns, a.ends_ns, side="left") - first, 0)
    of_a = np.repeat(np.arange(len(a)), n_overlaps)
    of_b = expand_ranges(first, n_overlaps)

    starts = np.maximum(a.starts_ns[of_a], b.starts_ns[of_b])
    return Intervals(starts, np.minimum(a.ends_ns[of_a], b.ends_ns[of_b]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that ``a`` covers and ``b`` does not."""
    if not len(a) or not len(b):
        return a
    start, end = min(a.starts_ns[0], b.starts_ns[0]), max(a.ends_ns[-1], b.ends_ns[-1])
    return intersect(a, complement(b, int(start), int(end)))


def unite(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that at least one of the two covers."""
    return union(np.concatenate((a.starts_ns, b.starts_ns)), np.concatenate((a.ends_ns, b.ends_ns)))


def unite_all(parts: Iterable[Intervals]) -> Intervals:
    """Return the time that at least one of several sets covers."""
    return reduce(unite, parts, EMPTY)


def complement(covered: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Return the time of a window that is not covered."""
    starts = np.concatenate(([start_ns], np.clip(covered.ends_ns, start_ns, end_ns)))
    ends = np.concatenate((np.clip(covered.starts_ns, start_ns, end_ns), [end_ns]))
    return _drop_empty(starts, ends)


def clip(covered: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Return the covered time within a window."""
    starts = np.clip(covered.starts_ns, start_ns, end_ns)
    return _drop_empty(starts, np.clip(covered.ends_ns, start_ns, end_ns))


def _drop_empty(starts: Int64s, ends: Int64s) -> Intervals:
    is_positive = ends > starts
    return Intervals(starts[is_positive], ends[is_positive])


def inside(covered: Intervals, at_ns: Int64s) -> Mask:
    """Return which moments are covered. Shape of ``at_ns``."""
    if not len(covered):
        return np.zeros(len(at_ns), dtype=np.bool_)
    place = np.searchsorted(covered.starts_ns, at_ns, side="right") - 1
    return (place >= 0) & (at_ns < covered.ends_ns[np.maximum(place, 0)])


def cut_at(covered: Intervals, at_ns: Int64s) -> Intervals:
    """Cut the intervals at the moments that are within them."""
    at_ns = distinct(at_ns)
    place = np.searchsorted(covered.starts_ns, at_ns) - 1
    cuts = at_ns[(place >= 0) & (at_ns < np.append(covered.ends_ns, 0)[place])]
    return Intervals(
        np.sort(np.concatenate((covered.starts_ns, cuts)), kind="stable"),
        np.sort(np.concatenate((covered.ends_ns, cuts)), kind="stable"),
    )


def covered_by(events: EventTable, rows: Rows | Int32s) -> Intervals:
    """Return the time that some rows cover."""
    parts = (rows[first : first + _CHUNK] for first in range(0, len(rows), _CHUNK))
    chunks = [union(events.ts_ns[part], events.ts_ns[part] + events.dur_ns[part]) for part in parts]
    if len(chunks) == 1:
        return chunks[0]
    starts = [chunk.starts_ns for chunk in (EMPTY, *chunks)]
    ends = [chunk.ends_ns for chunk in (EMPTY, *chunks)]
    return union(np.concatenate(starts), np.concatenate(ends))


def take_from_start(
    covered: Intervals, starts_ns: Int64s, ends_ns: Int64s, wanted_ns: Int64s
) -> tuple[tuple[int, int], ...]:
    """Take the first nanoseconds of the covered time in each window.

    Args:
        starts_ns: Starts of disjoint windows, ascending. Shape ``(n,)``.
        ends_ns: Shape ``(n,)``.
        wanted_ns: How much to take from each window. Shape ``(n,)``.

    Returns:
        (start, end) pairs in nanoseconds, ascending and disjoint.
    """
    if not len(covered) or not len(starts_ns):
        return ()

    cut = cut_at(covered, np.concatenate((starts_ns, ends_ns)))
    starts, ends = cut.starts_ns, cut.ends_ns
    window = np.searchsorted(starts_ns, starts, side="right") - 1
    in_window = (window >= 0) & (starts < ends_ns[window])
    starts, ends, window = starts[in_window], ends[in_window], window[in_window]

    taken = covered_before(covered, starts) - covered_before(covered, starts_ns[window])
    return _drop_empty(starts, np.minimum(ends, starts + wanted_ns[window] - taken)).pairs()
