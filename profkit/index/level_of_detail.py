"""Levels of detail of a timeline: slices too short to be visible are merged."""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Final

import numpy as np

from profkit.index.distinct import by_number
from profkit.model.events import NO_ROW, Int32s, Int64s, Rows
from profkit.model.timeline import Level, Slices

COARSEST_PARTS: Final = 1024
"""Resolution of the coarsest level: about as many parts as a page has pixels."""
_FACTOR: Final = 8
_MIN_SLICES: Final = 4096
"""Levels with fewer slices need no coarser one."""
_MIN_REDUCTION: Final = 6
"""A level must have this many times fewer slices than the next finer one: a browser skips slices of
the same pixel quickly."""


def order_of(row: Int32s, starts_ns: Int64s, ends_ns: Int64s) -> Rows | None:
    """The order of slices by row, then start, then end; None if they have it.

    Recordings and the critical path are in order of time, so that it is enough to sort by row,
    for which NumPy has a radix sort.

    Args:
        row: 0 or more. Shape ``(k,)``, that of all.
        starts_ns: Nanoseconds from the trace's start.
        ends_ns: Nanoseconds from the trace's start.
    """
    if _is_ordered(row, starts_ns, ends_ns):
        return None
    order = by_number(row)
    if _is_ordered(row[order], starts_ns[order], ends_ns[order]):
        return order
    return np.lexsort((ends_ns, starts_ns, row))


def _is_ordered(row: Int32s, starts_ns: Int64s, ends_ns: Int64s) -> bool:
    """Whether slices are ordered by row, then start, then end."""
    later = starts_ns[1:] > starts_ns[:-1]
    later |= (starts_ns[1:] == starts_ns[:-1]) & (ends_ns[1:] >= ends_ns[:-1])
    later &= row[1:] == row[:-1]
    later |= row[1:] > row[:-1]
    return bool(later.all())


def merged(slices: Slices, group: Rows) -> Slices:
    """Neighboring slices merged into one each.

    Args:
        group: Index of the first slice of each group, ascending from 0. Shape ``(g,)``.
    """
    sizes = np.diff(np.append(group, len(slices)))
    found = slices.of(group)
    several = np.flatnonzero(sizes > 1)
    if not len(several):
        return found
    sizes = sizes[several]
    begins = np.cumsum(sizes) - sizes
    place = np.arange(int(sizes.sum())) + np.repeat(group[several] - begins, sizes)
    lengths = slices.longest_ns[place]
    longest = np.maximum.reduceat(lengths, begins)
    is_longest = np.flatnonzero(lengths == np.repeat(longest, sizes))
    first = is_longest[np.searchsorted(is_longest, begins)]
    found.end_ns[several] = np.maximum.reduceat(slices.end_ns[place], begins)
    found.busy_ns[several] = np.add.reduceat(slices.busy_ns[place], begins)
    found.n[several] = np.add.reduceat(slices.n[place], begins)
    found.longest_ns[several] = longest
    found.site[several] = slices.site[place[first]]
    found.event[several] = NO_ROW
    return found


def _groups(slices: Slices, resolution_ns: int, row: int | None = None) -> Rows:
    """Indices of the slices that start a new group, see :func:`coarser`."""
    small = slices.end_ns - slices.start_ns < resolution_ns
    if row is not None:
        small &= slices.row == row
    part = slices.start_ns // resolution_ns
    apart = np.ones(len(slices), dtype=np.bool_)
    apart[1:] = ~(
        small[1:]
        & small[:-1]
        & (slices.row[1:] == slices.row[:-1])
        & (part[1:] == part[:-1])
    )  # fmt: skip
    return np.flatnonzero(apart)


def coarser(slices: Slices, resolution_ns: int, *, row: int | None = None) -> Slices:
    """Slices of lower resolution.

    Args:
        resolution_ns: Shorter slices that begin in the same interval of this length are merged,
            unless a longer one is between them.
        row: The only row whose slices are merged; by default all are.
    """
    return merged(slices, _groups(slices, resolution_ns, row))


def levels_of(slices: Slices, span_ns: int) -> tuple[Level, ...]:
    """All levels, finest first (a slice per event), each merged from the one before."""
    levels = [Level(0, slices)]
    coarsest = max(1, span_ns // COARSEST_PARTS)
    resolution = coarsest
    while resolution > _FACTOR:
        resolution //= _FACTOR
    lengths = slices.end_ns - slices.start_ns
    while resolution <= coarsest and len(levels[-1].slices) > _MIN_SLICES:
        finer = levels[-1].slices
        # Every slice that is not small begins a group: most resolutions need no look at the rest.
        n_large = len(finer) - int(np.count_nonzero(lengths < resolution))
        if _MIN_REDUCTION * n_large <= len(finer):
            group = _groups(finer, resolution)
            if _MIN_REDUCTION * len(group) <= len(finer):
                coarse = merged(finer, group)
                levels.append(Level(resolution, coarse))
                lengths = coarse.end_ns - coarse.start_ns
        resolution *= _FACTOR
    return tuple(levels)


def stacked(lane: Int32s, slices: Slices) -> Int32s:
    """The row of each slice within its lane, so that slices of one row do not overlap.

    A slice takes the first row that is free when it begins. Slices and their lanes are as for
    :func:`opens`; only starts and ends are used.
    """
    row = np.zeros(len(lane), dtype=np.int32)
    first = opens(lane, slices)
    last = np.append(first[1:], len(lane))
    several = last - first > 1
    for begin, end in zip(first[several].tolist(), last[several].tolist(), strict=True):
        starts, ends = slices.start_ns[begin:end].tolist(), slices.end_ns[begin:end].tolist()
        row[begin:end] = _rows_of_cluster(starts, ends)
    return row


def joined(parts: Sequence[Slices]) -> Slices:
    """The slices of several tables, one table after the other."""
    names = [each.name for each in fields(Slices)]
    return Slices(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def within_rows(slices: Slices, n_rows: int) -> Slices:
    """Slices in at most so many rows; overlapping slices of the last row are merged."""
    deep = slices.row >= n_rows - 1
    if not deep.any():
        return slices
    below = slices.of(np.flatnonzero(deep))
    below = below.of(np.argsort(below.start_ns, kind="stable"))
    below = replace(below, row=np.full(len(below), n_rows - 1, dtype=np.int32))
    last = flattened(below, below.row)
    return joined((slices.of(np.flatnonzero(~deep)), last))


def _rows_of_cluster(starts: list[int], ends: list[int]) -> list[int]:
    """Rows of overlapping slices, in order of start."""
    rows, free, taken = [], list[int](), list[tuple[int, int]]()
    for start, end in zip(starts, ends, strict=True):
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        row = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end, row))
        rows.append(row)
    return rows


def opens(lane: Int32s, slices: Slices) -> Rows:
    """Indices of slices that begin while no earlier slice of their lane is running.

    Args:
        lane: Lane of each slice; slices are ordered by lane, then start. Shape ``(k,)``.
    """
    found = [np.zeros(0, dtype=np.intp)]
    bounds = np.flatnonzero(np.diff(lane, prepend=-1, append=-1))
    for first, last in itertools.pairwise(bounds.tolist()):
        starts, ends = slices.start_ns[first:last], slices.end_ns[first:last]
        begins = np.ones(last - first, dtype=np.bool_)
        begins[1:] = starts[1:] >= np.maximum.accumulate(ends)[:-1]
        found.append(first + np.flatnonzero(begins))
    return np.concatenate(found)


def flattened(slices: Slices, lane: Int32s) -> Slices:
    """Overlapping slices merged into one each, with the number of merged events.

    Slices and their lanes are as for :func:`opens`.
    """
    found = merged(slices, opens(lane, slices))
    return replace(found, busy_ns=found.end_ns - found.start_ns)
