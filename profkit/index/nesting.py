"""Who called whom on the host: the call tree of every thread.

Operators, annotations, Python functions and runtime calls of one thread share one tree; nesting is
by time, which holds for every version of every producer, where ids do not.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows

HOST: Final = (
    Category.OP,
    Category.ANNOTATION,
    Category.PYTHON,
    Category.RUNTIME,
    Category.DRIVER,
)
"""Categories of events that happen on a host thread and can contain one another."""


@dataclass(frozen=True)
class CallTree:
    """The call trees of all host threads, over the rows of the event table.

    Attributes:
        rows: Host rows by thread, then start, the longer first. Shape ``(k,)``.
        parent: Row of the caller, or :data:`NO_ROW`. Shape ``(n,)``, over all rows.
        depth: Callers above; 0 at the top of a thread and for rows that are not on the host.
            Shape ``(n,)``.
    """

    rows: Int32s
    parent: Int32s
    depth: Int32s

    @cached_property
    def levels(self) -> tuple[Int32s, ...]:
        """Host rows by depth, the outermost first: to work down a tree a level at a time."""
        depths = self.depth[self.rows]
        order = np.argsort(depths, kind="stable")
        bounds = np.searchsorted(depths[order], np.arange(1, int(depths.max(initial=0)) + 1))
        return tuple(np.split(self.rows[order], bounds))

    def nearest(self, wanted: Mask) -> Int32s:
        """For every row the innermost wanted row that encloses it, itself included.

        Args:
            wanted: Over all rows. Shape ``(n,)``.

        Returns:
            Rows, or :data:`NO_ROW`. Shape ``(n,)``.
        """
        found = np.where(wanted, np.arange(len(wanted), dtype=np.int32), NO_ROW).astype(np.int32)
        for level in self.levels[1:]:
            missing = level[found[level] == NO_ROW]
            found[missing] = found[self.parent[missing]]
        return found

    def outermost(self, wanted: Mask) -> Int32s:
        """For every row the outermost wanted row that encloses it, itself included."""
        found = np.where(wanted, np.arange(len(wanted), dtype=np.int32), NO_ROW).astype(np.int32)
        for level in self.levels[1:]:
            above = found[self.parent[level]]
            found[level] = np.where(above != NO_ROW, above, found[level])
        return found

    def below(self, wanted: Mask) -> Int32s:
        """For every row the innermost wanted row that encloses it, itself not included."""
        found = self.nearest(wanted)
        own = np.flatnonzero(wanted)
        above = self.parent[own]
        found[own] = np.where(above == NO_ROW, NO_ROW, found[above])
        return found


_MOST_TICKS: Final = 1 << 62
"""All threads behind one another have to fit into 64 bits."""


def call_tree(events: EventTable) -> CallTree:
    """Work out the call trees."""
    host = events.rows_of(*HOST)
    parent = np.full(len(events), NO_ROW, dtype=np.int32)
    depth = np.zeros(len(events), dtype=np.int32)
    order = np.lexsort(
        (events.position[host], -events.dur_ns[host], events.ts_ns[host], events.lane[host])
    )
    rows = host[order].astype(np.int32)
    if len(rows):
        _fill(events, rows, parent, depth)
    return CallTree(rows=rows, parent=parent, depth=depth)


def _fill(events: EventTable, rows: Int32s, parent: Int32s, depth: Int32s) -> None:
    """Fill parents and depths of rows that are ordered by thread and start.

    All threads are laid behind one another on one axis, and every time is doubled so that an event
    of no length still has room to be within another.
    """
    begin, length = events.ts_ns[rows], events.dur_ns[rows]
    window = int((begin + length).max()) + 2
    if window >= _MOST_TICKS // (2 * len(events.lanes)):
        # Broken times, centuries apart. Their order is all that matters here.
        ranks = np.unique(np.concatenate((begin, begin + length)), return_inverse=True)[1]
        begin, end = ranks[: len(rows)], ranks[len(rows) :]
        length, window = end - begin, len(ranks) + 2
    starts = events.lane[rows].astype(np.int64)
    starts *= 2 * window
    starts += 2 * begin
    # An event of no length is one tick long, any other ends a tick before the next can start.
    ends = starts + np.maximum(2 * length - 1, 0)
    depths = np.arange(len(rows), dtype=np.int32)
    depths -= np.searchsorted(np.sort(ends), starts, side="left").astype(np.int32)
    places = _parents_by_depth(depths)
    astray = (places != NO_ROW) & (ends > ends[places])
    if astray.any():
        lanes = np.unique(events.lane[rows[astray]])
        _walk(np.flatnonzero(np.isin(events.lane[rows], lanes)), starts, ends, places, depths)
    depth[rows] = depths
    parent[rows] = np.where(places == NO_ROW, NO_ROW, rows[places])


def _parents_by_depth(depths: Int32s) -> Int32s:
    """The place of the last event before each that is one level above it. Shape of ``depths``."""
    places = np.full(len(depths), NO_ROW, dtype=np.int32)
    order = np.argsort(depths, kind="stable").astype(np.int32)
    bounds = np.searchsorted(depths[order], np.arange(int(depths.max()) + 2))
    for level in range(1, len(bounds) - 1):
        here = order[bounds[level] : bounds[level + 1]]
        above = order[bounds[level - 1] : bounds[level]]
        places[here] = above[np.searchsorted(above, here) - 1]
    return places


def _walk(walked: Rows, starts: Int64s, ends: Int64s, places: Int32s, depths: Int32s) -> None:
    """Parents one event after another, for threads whose events overlap without nesting.

    Old traces are rounded to microseconds, so that a call may seem to end after its caller. What
    began within the caller is its child all the same.
    """
    open_places: list[int] = []
    open_ends: list[int] = []
    for place, start, end in zip(
        walked.tolist(), starts[walked].tolist(), ends[walked].tolist(), strict=True
    ):
        while open_ends and open_ends[-1] < start:
            open_ends.pop()
            open_places.pop()
        places[place] = open_places[-1] if open_places else NO_ROW
        depths[place] = len(open_places)
        open_places.append(place)
        open_ends.append(end)


def self_ns(events: EventTable, tree: CallTree, among: Mask) -> Int64s:
    """Time of each row without the rows directly below it, of the given ones alone.

    Args:
        events: The events.
        tree: Their call tree.
        among: Rows that count, such as operators: between two of them others are passed over.
            Shape ``(n,)``.

    Returns:
        Nanoseconds, never negative; 0 for rows that do not count. Shape ``(n,)``.
    """
    own = np.where(among, events.dur_ns, 0)
    rows = np.flatnonzero(among)
    above = tree.below(among)[rows]
    has = above != NO_ROW
    rows, above = rows[has], above[has]
    end = np.minimum(events.end_ns[rows], events.end_ns[above])
    inside = np.maximum(0, end - np.maximum(events.ts_ns[rows], events.ts_ns[above]))
    np.subtract.at(own, above, inside)
    return np.maximum(own, 0)
