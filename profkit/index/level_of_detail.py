"""Levels of detail of a timeline: slices too short to be visible are merged."""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Final

import numpy as np

from profkit.index.distinct import by_number
from profkit.index.ranges import expand_ranges
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
    """Return the order of slices by row, then start, then end, or None if they have it.

    Recordings and the critical path are in order of time, so that it is enough to sort by row,
    for which NumPy has a radix sort.

    Args:
        row: 0 or more. Shape ``(k,)``, as the times.
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
    """Return whether slices are ordered by row, then start, then end."""
    later = starts_ns[1:] > starts_ns[:-1]
    later |= (starts_ns[1:] == starts_ns[:-1]) & (ends_ns[1:] >= ends_ns[:-1])
    later &= row[1:] == row[:-1]
    later |= row[1:] > row[:-1]
    return bool(later.all())


def merge(slices: Slices, group: Rows) -> Slices:
    """Merge each group of neighboring slices.

    Args:
        group: Index of the first slice of each group, ascending from 0. Shape ``(g,)``.
    """
    sizes = np.diff(np.append(group, len(slices)))
    merged = slices.of(group)
    groups = np.flatnonzero(sizes > 1)
    if not len(groups):
        return merged

    sizes = sizes[groups]
    begins = np.cumsum(sizes) - sizes
    place = expand_ranges(group[groups], sizes)

    # A group has the site of its longest slice.
    lengths = slices.longest_ns[place]
    longest = np.maximum.reduceat(lengths, begins)
    is_longest = np.flatnonzero(lengths == np.repeat(longest, sizes))
    first = is_longest[np.searchsorted(is_longest, begins)]

    merged.end_ns[groups] = np.maximum.reduceat(slices.end_ns[place], begins)
    merged.busy_ns[groups] = np.add.reduceat(slices.busy_ns[place], begins)
    merged.n[groups] = np.add.reduceat(slices.n[place], begins)
    merged.longest_ns[groups] = longest
    merged.site[groups] = slices.site[place[first]]
    merged.event[groups] = NO_ROW
    return merged


def _find_groups(slices: Slices, resolution_ns: int, row: int | None = None) -> Rows:
    """Find the indices of the slices that start a new group, see :func:`coarser`."""
    is_small = slices.end_ns - slices.start_ns < resolution_ns
    if row is not None:
        is_small &= slices.row == row
    part = slices.start_ns // resolution_ns
    is_apart = np.ones(len(slices), dtype=np.bool_)
    is_apart[1:] = ~(
        is_small[1:] & is_small[:-1] & (slices.row[1:] == slices.row[:-1]) & (part[1:] == part[:-1])
    )
    return np.flatnonzero(is_apart)


def coarser(slices: Slices, resolution_ns: int, *, row: int | None = None) -> Slices:
    """Return slices of lower resolution.

    Args:
        resolution_ns: Shorter slices that begin in the same interval of this length are merged,
            unless a longer one is between them.
        row: The only row whose slices are merged; by default all are.
    """
    return merge(slices, _find_groups(slices, resolution_ns, row))


def build_levels(slices: Slices, span_ns: int) -> tuple[Level, ...]:
    """Build all levels, finest first (a slice per event), each merged from the previous."""
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
            group = _find_groups(finer, resolution)
            if _MIN_REDUCTION * len(group) <= len(finer):
                coarse = merge(finer, group)
                levels.append(Level(resolution, coarse))
                lengths = coarse.end_ns - coarse.start_ns
        resolution *= _FACTOR
    return tuple(levels)


def stacked(lane: Int32s, slices: Slices) -> Int32s:
    """Return the row of each slice within its lane, so that slices of one row do not overlap.

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
    """Concatenate the slices of several tables."""
    names = [field.name for field in fields(Slices)]
    return Slices(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def within_rows(slices: Slices, n_rows: int) -> Slices:
    """Limit slices to some rows, merging overlapping slices of the last row."""
    is_deep = slices.row >= n_rows - 1
    if not is_deep.any():
        return slices
    below = slices.of(np.flatnonzero(is_deep))
    below = below.of(np.argsort(below.start_ns, kind="stable"))
    below = replace(below, row=np.full(len(below), n_rows - 1, dtype=np.int32))
    last = flattened(below, below.row)
    return joined((slices.of(np.flatnonzero(~is_deep)), last))


def _rows_of_cluster(starts: list[int], ends: list[int]) -> list[int]:
    """Return the rows of overlapping slices, in order of start."""
    rows, free, taken = [], list[int](), list[tuple[int, int]]()
    for start, end in zip(starts, ends, strict=True):
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        row = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end, row))
        rows.append(row)
    return rows


def opens(lane: Int32s, slices: Slices) -> Rows:
    """Find the indices of slices that begin while no earlier slice of their lane is running.

    Args:
        lane: Lane of each slice; slices are ordered by lane, then start. Shape ``(k,)``.
    """
    indices = [np.zeros(0, dtype=np.intp)]
    bounds = np.flatnonzero(np.diff(lane, prepend=-1, append=-1))
    for first, last in itertools.pairwise(bounds.tolist()):
        starts, ends = slices.start_ns[first:last], slices.end_ns[first:last]
        begins = np.ones(last - first, dtype=np.bool_)
        begins[1:] = starts[1:] >= np.maximum.accumulate(ends)[:-1]
        indices.append(first + np.flatnonzero(begins))
    return np.concatenate(indices)


def flattened(slices: Slices, lane: Int32s) -> Slices:
    """Merge overlapping slices, counting the merged events.

    Slices and their lanes are as for :func:`opens`.
    """
    flat = merge(slices, opens(lane, slices))
    return replace(flat, busy_ns=flat.end_ns - flat.start_ns)
