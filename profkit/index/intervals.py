"""Sets of time as sorted, disjoint intervals: unions, overlaps, gaps.

Busy time is the length of a union, never a sum: work on two streams at once is one stretch of time.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.model.events import EventTable, Int32s, Int64s, Mask, Rows

_PIECE: Final = 1 << 18
"""Rows that are united at once: what nests in others is forgotten before the next."""


@dataclass(frozen=True)
class Intervals:
    """Disjoint stretches of time in ascending order, each longer than nothing.

    Attributes:
        starts_ns: Shape ``(n,)``.
        ends_ns: Shape ``(n,)``; the end itself is outside.
    """

    starts_ns: Int64s
    ends_ns: Int64s

    def __len__(self) -> int:
        return len(self.starts_ns)

    @property
    def total_ns(self) -> int:
        """Their length together."""
        return int((self.ends_ns - self.starts_ns).sum())

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(start, end) of each."""
        return tuple(zip(self.starts_ns.tolist(), self.ends_ns.tolist(), strict=True))


def union(starts_ns: Int64s, ends_ns: Int64s) -> Intervals:
    """The time that at least one of the given stretches covers.

    Args:
        starts_ns: Shape ``(n,)``, in any order.
        ends_ns: Shape ``(n,)``. A stretch that does not end after its start covers nothing.
    """
    starts, ends = starts_ns, ends_ns
    real = ends > starts
    if not real.all():
        starts, ends = starts[real], ends[real]
    if not len(starts):
        return EMPTY
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], starts[1:] > reached[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(starts[opens], reached[closes])


def of_pairs(pairs: tuple[tuple[int, int], ...]) -> Intervals:
    """The union of (start, end) pairs."""
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return union(table[:, 0], table[:, 1])


EMPTY = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def covered_before(covered: Intervals, at_ns: Int64s) -> Int64s:
    """How much of the covered time lies before each of some moments. Shape of ``at_ns``."""
    if not len(covered):
        return np.zeros(len(at_ns), dtype=np.int64)
    lengths = covered.ends_ns - covered.starts_ns
    before = np.concatenate(([0], np.cumsum(lengths)))
    place = np.searchsorted(covered.starts_ns, at_ns, side="right")
    beyond = np.maximum(0, covered.ends_ns[np.maximum(place - 1, 0)] - at_ns)
    return np.asarray(before[place] - np.where(place > 0, beyond, 0))


def covered_within(covered: Intervals, starts_ns: Int64s, ends_ns: Int64s) -> Int64s:
    """How much of the covered time lies in each of some windows. Shape of ``starts_ns``."""
    inside = covered_before(covered, ends_ns) - covered_before(covered, starts_ns)
    return np.asarray(np.maximum(inside, 0))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The time that both cover."""
    # Of b's stretches, which end after a stretch of a starts, and start before it ends.
    first = np.searchsorted(b.ends_ns, a.starts_ns, side="right")
    n_met = np.maximum(np.searchsorted(b.starts_ns, a.ends_ns, side="left") - first, 0)
    of_a = np.repeat(np.arange(len(a)), n_met)
    of_b = np.arange(len(of_a)) + np.repeat(first - (np.cumsum(n_met) - n_met), n_met)
    starts = np.maximum(a.starts_ns[of_a], b.starts_ns[of_b])
    return Intervals(starts, np.minimum(a.ends_ns[of_a], b.ends_ns[of_b]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The time that ``a`` covers and ``b`` does not."""
    if not len(a) or not len(b):
        return a
    return intersect(a, complement(b, *_hull(a, b)))


def unite(a: Intervals, b: Intervals) -> Intervals:
    """The time that at least one of the two covers."""
    return union(np.concatenate((a.starts_ns, b.starts_ns)), np.concatenate((a.ends_ns, b.ends_ns)))


def complement(covered: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The time of a window that is not covered."""
    starts = np.concatenate(([start_ns], np.clip(covered.ends_ns, start_ns, end_ns)))
    ends = np.concatenate((np.clip(covered.starts_ns, start_ns, end_ns), [end_ns]))
    real = ends > starts
    return Intervals(starts[real], ends[real])


def clip(covered: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The covered time within a window."""
    starts = np.clip(covered.starts_ns, start_ns, end_ns)
    ends = np.clip(covered.ends_ns, start_ns, end_ns)
    real = ends > starts
    return Intervals(starts[real], ends[real])


def inside(covered: Intervals, at_ns: Int64s) -> Mask:
    """Which of some moments are covered. Shape of ``at_ns``."""
    if not len(covered):
        return np.zeros(len(at_ns), dtype=np.bool_)
    place = np.searchsorted(covered.starts_ns, at_ns, side="right") - 1
    return (place >= 0) & (at_ns < covered.ends_ns[np.maximum(place, 0)])


def _hull(a: Intervals, b: Intervals) -> tuple[int, int]:
    """From the first start to the last end of both."""
    return (
        int(min(a.starts_ns[0], b.starts_ns[0])),
        int(max(a.ends_ns[-1], b.ends_ns[-1])),
    )


def covered_by(events: EventTable, rows: Rows | Int32s) -> Intervals:
    """The time that some rows cover."""
    pieces = [
        union(events.ts_ns[here], events.ts_ns[here] + events.dur_ns[here])
        for here in (rows[first : first + _PIECE] for first in range(0, len(rows), _PIECE))
    ]
    if len(pieces) == 1:
        return pieces[0]
    starts = [piece.starts_ns for piece in (EMPTY, *pieces)]
    ends = [piece.ends_ns for piece in (EMPTY, *pieces)]
    return union(np.concatenate(starts), np.concatenate(ends))


def take_from_start(
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
