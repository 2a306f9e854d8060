"""Levels of detail: what is too short to be seen becomes one slice that says how much it holds."""

import heapq
import itertools
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.model.events import Int32s, Rows
from profkit.model.timeline import Level, Slices

COARSEST_PARTS: Final = 1024
"""Into so many parts the coarsest level divides the whole: about as many as a page has pixels."""
_FACTOR: Final = 8
_ENOUGH: Final = 4096
"""So few slices need no coarser level."""
_WORTH: Final = 6
"""A level is worth its place if the next finer has so many times more slices: to pass over those
that share a pixel takes a browser no time."""


def merged(slices: Slices, group: Rows) -> Slices:
    """Neighbours made one slice each.

    Args:
        group: The place of the first slice of each group, ascending from 0. Shape ``(g,)``.
    """
    sizes = np.diff(np.append(group, len(slices)))
    found = slices.of(group)
    several = np.flatnonzero(sizes > 1)
    if not len(several):
        return found
    # Only of groups of several there is something to work out.
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
    return found


def _groups(slices: Slices, resolution_ns: int) -> Rows:
    """Places of the slices that are not made one with the one before, see :func:`coarser`."""
    small = slices.end_ns - slices.start_ns < resolution_ns
    part = slices.start_ns // resolution_ns
    apart = np.ones(len(slices), dtype=np.bool_)
    apart[1:] = ~(
        small[1:]
        & small[:-1]
        & (slices.row[1:] == slices.row[:-1])
        & (part[1:] == part[:-1])
    )  # fmt: skip
    return np.flatnonzero(apart)


def coarser(slices: Slices, resolution_ns: int) -> Slices:
    """Slices of which those too short to be told apart are one.

    Args:
        resolution_ns: Slices shorter than this that begin in the same stretch of this length are
            made one, unless a longer one is between them; in nanoseconds.
    """
    return merged(slices, _groups(slices, resolution_ns))


def levels_of(slices: Slices, span_ns: int) -> tuple[Level, ...]:
    """All levels, the finest first: the slices as they are, then ever coarser ones.

    Args:
        slices: One a recorded event.
        span_ns: Length of the whole, in nanoseconds.
    """
    levels = [Level(0, slices)]
    coarsest = max(1, span_ns // COARSEST_PARTS)
    resolution = coarsest
    while resolution > _FACTOR:
        resolution //= _FACTOR
    while resolution <= coarsest and len(levels[-1].slices) > _ENOUGH:
        finer = levels[-1].slices
        group = _groups(finer, resolution)
        if _WORTH * len(group) <= len(finer):
            levels.append(Level(resolution, merged(finer, group)))
        resolution *= _FACTOR
    return tuple(levels)


def stacked(lane: Int32s, slices: Slices) -> Int32s:
    """The row within its lane of each slice, so that no two of one row overlap.

    The first row that is free when a slice begins has it.

    Args:
        lane: The lane of each slice; slices are ordered by lane, then start. Shape ``(k,)``.
        slices: The slices, of which only starts and ends count.
    """
    row = np.zeros(len(lane), dtype=np.int32)
    first = opens(lane, slices)
    last = np.append(first[1:], len(lane))
    several = last - first > 1
    for begin, end in zip(first[several].tolist(), last[several].tolist(), strict=True):
        starts, ends = slices.start_ns[begin:end].tolist(), slices.end_ns[begin:end].tolist()
        row[begin:end] = _rows_of_cluster(starts, ends)
    return row


def _rows_of_cluster(starts: list[int], ends: list[int]) -> list[int]:
    """Rows of slices that overlap one another, in the order of their starts."""
    rows, free, taken = [], list[int](), list[tuple[int, int]]()
    for start, end in zip(starts, ends, strict=True):
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        row = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end, row))
        rows.append(row)
    return rows


def opens(lane: Int32s, slices: Slices) -> Rows:
    """Places of the slices that begin when no earlier one of their lane is under way.

    Args:
        lane: The lane of each slice; slices are ordered by lane, then start. Shape ``(k,)``.
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
    """Slices that overlap made one each, which says how many it holds.

    Args:
        slices: Ordered by lane, then start.
        lane: The lane of each. Shape ``(k,)``.
    """
    found = merged(slices, opens(lane, slices))
    return replace(found, busy_ns=found.end_ns - found.start_ns)
