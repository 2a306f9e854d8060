"""The call tree of every host thread.

Operators, annotations, Python functions and runtime calls of one thread share one tree. Nesting is
derived from times, which are valid for all versions of all producers, unlike ids.
"""

from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import by_number, distinct
from profkit.model.events import (
    NO_ROW,
    PROGRAM,
    Category,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    are_equally_long,
    is_within,
)

HOST: Final = (*PROGRAM, Category.PROFKIT)
"""Categories of host events, which can contain each other."""


@dataclass(frozen=True)
class CallTree:
    """The call trees of all host threads.

    Attributes:
        rows: Host rows by thread, then start, longest first. Shape ``(k,)``.
        parent: Row of the caller, or :data:`NO_ROW`. Shape ``(n,)``, over all rows.
        depth: Number of callers; 0 at the top of a thread and for rows that are not on the host.
            Shape ``(n,)``.
        is_op: Which rows are operators. Shape ``(n,)``.
    """

    rows: Int32s
    parent: Int32s
    depth: Int32s
    is_op: Mask

    @cached_property
    def op_around(self) -> Int32s:
        """Return the innermost operator that encloses each row, excluding the row itself."""
        return self.enclosing(self.is_op)

    @cached_property
    def innermost_op(self) -> Int32s:
        """Return the innermost operator that encloses each row or is the row itself."""
        return self.nearest(self.is_op)

    @cached_property
    def outermost_op(self) -> Int32s:
        """Return the outermost operator that encloses each row or is the row itself."""
        return self.outermost(self.is_op)

    @cached_property
    def levels(self) -> tuple[Int32s, ...]:
        """Return host rows by depth, outermost first."""
        depths = self.depth[self.rows]
        sizes = np.bincount(depths, minlength=1)
        return tuple(np.split(self.rows[by_number(depths)], np.cumsum(sizes)[:-1]))

    def fits(self, events: EventTable) -> bool:
        """Return whether trees from a cache may belong to some events."""
        last = len(events) - 1
        if not are_equally_long(events, self.parent, self.depth, self.is_op):
            return False
        if not is_within(self.parent, NO_ROW, last) or not is_within(self.rows, 0, last):
            return False
        # A caller is one level above, so that there are no cycles.
        above = np.where(self.parent == NO_ROW, -1, self.depth[self.parent])
        return (
            bool((self.depth == above + 1).all())
            and np.array_equal(np.sort(self.rows), events.rows_of(*HOST))
            and np.array_equal(self.is_op, events.category == Category.OP)
        )

    def nearest(self, wanted: Mask) -> Int32s:
        """Find the innermost wanted row that encloses each row or is it, or :data:`NO_ROW`.

        Args:
            wanted: Shape ``(n,)``, over all rows, as the result.
        """
        nearest_row = _keep_wanted(wanted)
        if not wanted.any():
            return nearest_row

        # ``take`` reads at 32-bit rows twice as fast as an index does, here and below.
        for level in self.levels[1:]:
            missing = level.take(np.flatnonzero(nearest_row.take(level) == NO_ROW))
            nearest_row[missing] = nearest_row.take(self.parent.take(missing))
        return nearest_row

    def outermost(self, wanted: Mask) -> Int32s:
        """Find the outermost wanted row that encloses each row or is the row itself."""
        outermost_row = _keep_wanted(wanted)
        if not wanted.any():
            return outermost_row

        for level in self.levels[1:]:
            above = outermost_row.take(self.parent.take(level))
            outermost_row[level] = np.where(above != NO_ROW, above, outermost_row.take(level))
        return outermost_row

    def enclosing(self, wanted: Mask) -> Int32s:
        """Find the innermost wanted row that encloses each row, excluding the row itself."""
        enclosing_row = np.full(len(wanted), NO_ROW, dtype=np.int32)
        if not wanted.any():
            return enclosing_row

        for level in self.levels[1:]:
            above = self.parent.take(level)
            enclosing_row[level] = np.where(wanted.take(above), above, enclosing_row.take(above))
        return enclosing_row


def _keep_wanted(wanted: Mask) -> Int32s:
    """Return the row numbers of the wanted rows, else :data:`NO_ROW`. Shape of ``wanted``."""
    rows = np.arange(len(wanted), dtype=np.int32)
    rows[~wanted] = NO_ROW
    return rows


_INTERNAL: Final = "aten::_"
"""Begin of the names of operators that other operators call."""
_MAX_TICKS: Final = 1 << 62
"""The threads' concatenated time axes must fit into 64 bits."""
_CHUNK: Final = 1 << 18
"""Rows processed at once, to bound memory."""
_WALKED: Final = 1 << 14


def build_call_tree(events: EventTable) -> CallTree:
    """Derive the call trees."""
    parent = np.full(len(events), NO_ROW, dtype=np.int32)
    depth = np.zeros(len(events), dtype=np.int32)
    at_end = _find_at_end_of_caller(events)
    rows = _sort_rows(events, at_end)
    if len(rows):
        _fill(events, rows, at_end, parent, depth)
    return CallTree(rows, parent, depth, events.category == Category.OP)


def _find_at_end_of_caller(events: EventTable) -> Mask:
    """Find internal operators of no length that begin where the operator that calls them ends.

    Times of old traces are whole microseconds, so such an operator may have been called after the
    longer one. An operator whose name begins with an underscore is internal, so another one calls
    it: ``aten::_local_scalar_dense`` by ``aten::item``.

    Returns:
        Shape ``(n,)``.
    """
    is_at_end = np.zeros(len(events), dtype=np.bool_)
    ops = events.rows_by_category[Category.OP]
    short = ops[events.dur_ns[ops] == 0]
    if not len(short):
        return is_at_end
    is_internal = np.array([name.startswith(_INTERNAL) for name in events.names], dtype=np.bool_)
    short = short[is_internal[events.name[short]]]

    # Where another operator begins at that moment, it is the caller, and ends later.
    longer = ops[events.dur_ns[ops] > 0]
    ends = _number_moments(events, longer, events.end_ns)
    begins = _number_moments(events, longer, events.ts_ns)
    moments = _number_moments(events, short, events.ts_ns)
    is_at_end[short[np.isin(moments, ends) & ~np.isin(moments, begins)]] = True
    return is_at_end


def _number_moments(events: EventTable, rows: Int32s, times_ns: Int64s) -> Int64s:
    """Number the moments of some rows over all threads. Shape of ``rows``."""
    width = int(events.end_ns.max(initial=0)) + 1
    return np.asarray(events.lane[rows].astype(np.int64) * width + times_ns[rows])


def _sort_rows(events: EventTable, at_end: Mask) -> Int32s:
    """Sort host rows by thread, then start, longest first, then file order.

    Successive sorts by one key each need the least memory, and most rows are sorted by start.
    """
    rows = events.rows_of(*HOST).astype(np.int32)
    rows = events.sort_by_start(rows)
    rows = rows[by_number(events.lane[rows])]

    # Only rows of one thread with the same start need the other keys.
    starts, lanes = events.ts_ns[rows], events.lane[rows]
    is_same = (starts[1:] == starts[:-1]) & (lanes[1:] == lanes[:-1])
    is_tied = np.zeros(len(rows), dtype=np.bool_)
    is_tied[1:] |= is_same
    is_tied[:-1] |= is_same

    tied_rows = rows[is_tied]
    order = (
        events.position[tied_rows],
        -events.dur_ns[tied_rows],
        ~at_end[tied_rows],
        events.ts_ns[tied_rows],
        events.lane[tied_rows],
    )
    rows[is_tied] = tied_rows[np.lexsort(order)]
    return rows


@dataclass(frozen=True)
class _Axis:
    """The time axes of all threads, concatenated.

    Times are doubled, so that an event of zero length can be nested in another.

    Attributes:
        lane: Thread of every row. Shape ``(n,)``.
        start: Start of every row on its thread. Shape ``(n,)``.
        length: Shape ``(n,)``.
        at_end: Result of :func:`_find_at_end_of_caller`. Shape ``(n,)``.
        window: Exceeds the latest end.
    """

    lane: Int32s
    start: Int64s
    length: Int64s
    at_end: Mask
    window: int

    def spans(self, rows: Int32s) -> tuple[Int64s, Int64s]:
        """Return starts and ends of some rows in ticks. Shape of ``rows`` each."""
        starts = self.lane[rows].astype(np.int64)
        starts *= 2 * self.window
        starts += 2 * self.start[rows] - self.at_end[rows]
        # An event of no length is one tick long, any other ends a tick before the next can start.
        return starts, starts + np.maximum(2 * self.length[rows] - 1, 0)


def _build_axis(events: EventTable, rows: Int32s, at_end: Mask) -> _Axis:
    # One axis for all threads allows a single search per chunk.
    window = int(events.end_ns.max()) + 2
    if window < _MAX_TICKS // (2 * len(events.lanes)):
        return _Axis(events.lane, events.ts_ns, events.dur_ns, at_end, window)

    # Invalid times, centuries apart: only their order matters here.
    begin, end = events.ts_ns[rows], events.end_ns[rows]
    ranks = np.unique(np.concatenate((begin, end)), return_inverse=True)[1]
    start, length = np.zeros((2, len(events)), dtype=np.int64)
    start[rows] = ranks[: len(rows)]
    length[rows] = ranks[len(rows) :] - ranks[: len(rows)]
    return _Axis(events.lane, start, length, at_end, len(ranks) + 2)


def _fill(events: EventTable, rows: Int32s, at_end: Mask, parent: Int32s, depth: Int32s) -> None:
    """Fill in parents and depths of rows ordered by thread and start.

    Rows are processed in chunks. Rows still open at the end of a chunk precede the next chunk.
    """
    axis = _build_axis(events, rows, at_end)
    still_open = rows[:0]
    overlapping: list[Int32s] = []

    first = 0
    while first < len(rows):
        # Longer chunks keep the cost linear where more rows are open than a chunk is long.
        last = first + max(_CHUNK, len(still_open))
        chunk = np.concatenate((still_open, rows[first:last]))
        starts, ends = axis.spans(chunk)

        # The depth is the number of rows that began before, less the rows that ended before.
        depths = np.arange(len(chunk), dtype=np.int32)
        depths -= np.searchsorted(np.sort(ends), starts, side="left").astype(np.int32)
        places = _find_parents(depths)
        outlasts = (places != NO_ROW) & (ends > ends[places])

        overlapping.append(distinct(events.lane[chunk[outlasts]]))
        depth[chunk] = depths
        parent[chunk] = np.where(places == NO_ROW, NO_ROW, chunk[places])
        still_open = chunk[ends >= axis.spans(rows[last : last + 1])[0].min(initial=_MAX_TICKS)]
        first = last

    # Old traces have events that overlap without nesting, whose parents need another algorithm.
    lanes = np.concatenate(overlapping)
    if len(lanes):
        walked = rows[np.isin(events.lane[rows], lanes)]
        _assign_overlapping(walked, *axis.spans(walked), parent, depth)


def _find_parents(depths: Int32s) -> Int32s:
    """Find the last preceding event one level above each, as an index. Shape of ``depths``."""
    places = np.full(len(depths), NO_ROW, dtype=np.int32)
    order = np.argsort(depths, kind="stable").astype(np.int32)
    bounds = np.searchsorted(depths[order], np.arange(int(depths.max()) + 2))

    for level in range(1, len(bounds) - 1):
        current = order[bounds[level] : bounds[level + 1]]
        above = order[bounds[level - 1] : bounds[level]]
        places[current] = above[np.searchsorted(above, current) - 1]
    return places


def _assign_overlapping(
    rows: Int32s, starts: Int64s, ends: Int64s, parent: Int32s, depth: Int32s
) -> None:
    """Assign parents one event at a time, for threads whose events overlap without nesting.

    Old traces are rounded to microseconds, so that a call may appear to end after its caller. An
    event that begins within the caller is its child.
    """
    open_rows: list[int] = [NO_ROW]
    open_ends: list[int] = [_MAX_TICKS]

    # Lists are faster than arrays to go through, and short ones take little memory.
    for first in range(0, len(rows), _WALKED):
        part = rows[first : first + _WALKED]
        times = (column[first : first + _WALKED].tolist() for column in (starts, ends))
        parents: list[int] = []
        depths: list[int] = []

        for row, start, end in zip(part.tolist(), *times, strict=True):
            while open_ends[-1] < start:
                open_ends.pop()
                open_rows.pop()
            parents.append(open_rows[-1])
            depths.append(len(open_rows) - 1)
            open_rows.append(row)
            open_ends.append(end)
        parent[part], depth[part] = parents, depths


def compute_self_ns(events: EventTable, tree: CallTree, among: Mask) -> Int64s:
    """Compute the duration of each row without its children, among some rows only.

    Args:
        among: Rows that count, such as operators; rows between them are skipped. Shape ``(n,)``.

    Returns:
        Nanoseconds, never negative; 0 for other rows. Shape ``(n,)``.
    """
    self_time_ns = np.where(among, events.dur_ns, 0)
    rows = np.flatnonzero(among).astype(np.int32)
    enclosing = tree.enclosing(among)

    # Only the overlap with a child is subtracted: a child may end after its caller.
    for first in range(0, len(rows), _CHUNK):
        part = rows[first : first + _CHUNK]
        above = enclosing[part]
        is_nested = above != NO_ROW
        part, above = part[is_nested], above[is_nested]
        start, start_above = events.ts_ns[part], events.ts_ns[above]
        end = np.minimum(start + events.dur_ns[part], start_above + events.dur_ns[above])
        np.subtract.at(self_time_ns, above, np.maximum(0, end - np.maximum(start, start_above)))

    return np.maximum(self_time_ns, 0, out=self_time_ns)


def compute_own_ns(events: EventTable, tree: CallTree) -> Int64s:
    """Compute the duration of each host row without its children.

    On every thread they add up exactly to the time that its events cover. A call that appears to
    end after its caller extends the caller.

    Returns:
        Nanoseconds, never negative; 0 for rows that are not on the host. Shape ``(n,)``.
    """
    end = np.zeros(len(events), dtype=np.int64)
    end[tree.rows] = events.ts_ns[tree.rows] + events.dur_ns[tree.rows]
    # A child that ends late extends its caller, innermost first.
    for level in reversed(tree.levels[1:]):
        np.maximum.at(end, tree.parent[level], end[level])

    own_time_ns = np.zeros(len(events), dtype=np.int64)
    own_time_ns[tree.rows] = end[tree.rows] - events.ts_ns[tree.rows]
    lengths = own_time_ns.copy()

    below = tree.rows[tree.parent[tree.rows] != NO_ROW]
    np.subtract.at(own_time_ns, tree.parent[below], lengths[below])
    return own_time_ns


def find_rows_open_at(events: EventTable, tree: CallTree, lane: Int32s, at_ns: Int64s) -> Int32s:
    """Find the innermost host row running on a thread at each moment, or :data:`NO_ROW`.

    Args:
        lane: Thread of each moment. Shape ``(k,)``.
        at_ns: Shape ``(k,)``, as the result.
    """
    rows = tree.rows
    if not len(rows) or not len(at_ns):
        return np.full(len(at_ns), NO_ROW, dtype=np.int32)

    # Threads are put one after the other on a single axis, so that one search serves all.
    width = int(max(events.ts_ns[rows].max(), at_ns.max())) + 1
    begins = events.lane[rows].astype(np.int64) * width + events.ts_ns[rows]
    place = np.searchsorted(begins, lane.astype(np.int64) * width + at_ns, side="right") - 1

    row = np.where(place >= 0, rows[np.maximum(place, 0)], NO_ROW).astype(np.int32)
    row[(row != NO_ROW) & (events.lane[row] != lane)] = NO_ROW
    return _climb_to_open(events, tree, row, at_ns)


def find_open_rows(
    events: EventTable, tree: CallTree, rows: Int32s, starts_ns: Int64s, at_ns: Int64s
) -> Int32s:
    """Find the innermost row running on one thread at each moment, or :data:`NO_ROW`.

    Args:
        rows: All rows of the thread in the call trees, by start. Shape ``(r,)``.
        starts_ns: Their starts. Shape ``(r,)``.
        at_ns: Shape ``(k,)``, as the result.
    """
    if not len(rows):
        return np.full(len(at_ns), NO_ROW, dtype=np.int32)

    place = np.searchsorted(starts_ns, at_ns, side="right") - 1
    row = np.where(place >= 0, rows[np.maximum(place, 0)], NO_ROW).astype(np.int32)
    return _climb_to_open(events, tree, row, at_ns)


def _climb_to_open(events: EventTable, tree: CallTree, row: Int32s, at_ns: Int64s) -> Int32s:
    """Climb from each row to the innermost caller that has not ended at a moment.

    Args:
        row: Changed in place. Shape of ``at_ns``.
    """
    open_places = np.flatnonzero(row != NO_ROW)
    while len(open_places):
        current = row.take(open_places)
        end_ns = events.ts_ns.take(current) + events.dur_ns.take(current)
        has_ended = np.flatnonzero(end_ns < at_ns.take(open_places))

        above = tree.parent.take(current.take(has_ended))
        open_places = open_places.take(has_ended)
        row[open_places] = above
        open_places = open_places.take(np.flatnonzero(above != NO_ROW))
    return row
