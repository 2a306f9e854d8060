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
    Category,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    are_equally_long,
    is_within,
)

HOST: Final = (
    Category.OP,
    Category.ANNOTATION,
    Category.PYTHON,
    Category.RUNTIME,
    Category.DRIVER,
    Category.PROFKIT,
)
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
        """As :meth:`enclosing`, of operators."""
        return self.enclosing(self.is_op)

    @cached_property
    def innermost_op(self) -> Int32s:
        """As :meth:`nearest`, of operators."""
        return self.nearest(self.is_op)

    @cached_property
    def outermost_op(self) -> Int32s:
        """As :meth:`outermost`, of operators."""
        return self.outermost(self.is_op)

    @cached_property
    def levels(self) -> tuple[Int32s, ...]:
        """Host rows by depth, outermost first."""
        depths = self.depth[self.rows]
        sizes = np.bincount(depths, minlength=1)
        return tuple(np.split(self.rows[by_number(depths)], np.cumsum(sizes)[:-1]))

    def fits(self, events: EventTable) -> bool:
        """Whether these may be the trees of some events: of what is read from a cache."""
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
        """The innermost wanted row that encloses each row or is the row itself, or :data:`NO_ROW`.

        Args:
            wanted: Shape ``(n,)``, over all rows; so is the result.
        """
        found = _own_rows(wanted)
        if not wanted.any():
            return found
        for level in self.levels[1:]:
            missing = level[found[level] == NO_ROW]
            found[missing] = found[self.parent[missing]]
        return found

    def outermost(self, wanted: Mask) -> Int32s:
        """The outermost wanted row that encloses each row or is the row itself."""
        found = _own_rows(wanted)
        if not wanted.any():
            return found
        for level in self.levels[1:]:
            above = found[self.parent[level]]
            found[level] = np.where(above != NO_ROW, above, found[level])
        return found

    def enclosing(self, wanted: Mask) -> Int32s:
        """The innermost wanted row that encloses each row, excluding the row itself."""
        found = np.full(len(wanted), NO_ROW, dtype=np.int32)
        if not wanted.any():
            return found
        for level in self.levels[1:]:
            above = self.parent[level]
            found[level] = np.where(wanted[above], above, found[above])
        return found


def _own_rows(wanted: Mask) -> Int32s:
    """Row numbers of the wanted rows, else :data:`NO_ROW`. Shape of ``wanted``."""
    found = np.arange(len(wanted), dtype=np.int32)
    found[~wanted] = NO_ROW
    return found


_INTERNAL: Final = "aten::_"
"""Begin of the names of operators that other operators call."""
_MAX_TICKS: Final = 1 << 62
"""The threads' concatenated time axes must fit into 64 bits."""
_CHUNK: Final = 1 << 18
"""Rows processed at once, to bound memory."""


def call_tree(events: EventTable) -> CallTree:
    """Derive the call trees."""
    parent = np.full(len(events), NO_ROW, dtype=np.int32)
    depth = np.zeros(len(events), dtype=np.int32)
    at_end = _at_end_of_caller(events)
    rows = _in_order(events, at_end)
    if len(rows):
        _fill(events, rows, at_end, parent, depth)
    return CallTree(rows, parent, depth, events.category == Category.OP)


def _at_end_of_caller(events: EventTable) -> Mask:
    """Find internal operators of no length that begin where the operator that calls them ends.

    Times of old traces are whole microseconds, so that such an operator may as well have been
    called after the other one. An internal one, whose name begins with an underscore, is called by
    an operator: ``aten::_local_scalar_dense`` by ``aten::item``.

    Returns:
        Shape ``(n,)``.
    """
    found = np.zeros(len(events), dtype=np.bool_)
    ops = events.rows_by_category[Category.OP]
    short = ops[events.dur_ns[ops] == 0]
    if not len(short):
        return found
    is_internal = np.array([name.startswith(_INTERNAL) for name in events.names], dtype=np.bool_)
    short = short[is_internal[events.name[short]]]

    # Where another operator begins at that moment, it is the caller, and ends later.
    longer = ops[events.dur_ns[ops] > 0]
    ends = _moments(events, longer, events.end_ns)
    begins = _moments(events, longer, events.ts_ns)
    moments = _moments(events, short, events.ts_ns)
    found[short[np.isin(moments, ends) & ~np.isin(moments, begins)]] = True
    return found


def _moments(events: EventTable, rows: Int32s, times_ns: Int64s) -> Int64s:
    """Number the moments of some rows over all threads. Shape of ``rows``."""
    width = int(events.end_ns.max(initial=0)) + 1
    return np.asarray(events.lane[rows].astype(np.int64) * width + times_ns[rows])


def _in_order(events: EventTable, at_end: Mask) -> Int32s:
    """Host rows by thread, then start, longest first, then file order.

    Successive sorts by one key each need the least memory, and most rows are sorted by start.
    """
    rows = events.rows_of(*HOST).astype(np.int32)
    rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
    rows = rows[by_number(events.lane[rows])]
    starts, lanes = events.ts_ns[rows], events.lane[rows]
    same = (starts[1:] == starts[:-1]) & (lanes[1:] == lanes[:-1])
    tied = np.zeros(len(rows), dtype=np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    among = rows[tied]
    order = (
        events.position[among],
        -events.dur_ns[among],
        ~at_end[among],
        events.ts_ns[among],
        events.lane[among],
    )
    rows[tied] = among[np.lexsort(order)]
    return rows


@dataclass(frozen=True)
class _Axis:
    """The time axes of all threads, concatenated.

    Times are doubled, so that an event of zero length can be nested in another.

    Attributes:
        lane: Thread of every row. Shape ``(n,)``.
        start: Start of every row on its thread. Shape ``(n,)``.
        length: Shape ``(n,)``.
        at_end: As :func:`_at_end_of_caller` returns it. Shape ``(n,)``.
        window: Exceeds the latest end.
    """

    lane: Int32s
    start: Int64s
    length: Int64s
    at_end: Mask
    window: int

    def spans(self, rows: Int32s) -> tuple[Int64s, Int64s]:
        """Starts and ends of some rows in ticks. Shape of ``rows`` each."""
        starts = self.lane[rows].astype(np.int64)
        starts *= 2 * self.window
        starts += 2 * self.start[rows] - self.at_end[rows]
        # An event of no length is one tick long, any other ends a tick before the next can start.
        return starts, starts + np.maximum(2 * self.length[rows] - 1, 0)


def _axis(events: EventTable, rows: Int32s, at_end: Mask) -> _Axis:
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

    Rows are processed in chunks; rows still open at the end of a chunk precede the next one.
    """
    axis = _axis(events, rows, at_end)
    still_open = rows[:0]
    overlapping: list[Int32s] = []
    first = 0
    while first < len(rows):
        # Longer chunks keep the cost linear where more rows are open than a chunk is long.
        last = first + max(_CHUNK, len(still_open))
        here = np.concatenate((still_open, rows[first:last]))
        starts, ends = axis.spans(here)
        depths = np.arange(len(here), dtype=np.int32)
        depths -= np.searchsorted(np.sort(ends), starts, side="left").astype(np.int32)
        places = _parents_by_depth(depths)
        outlasts = (places != NO_ROW) & (ends > ends[places])
        overlapping.append(distinct(events.lane[here[outlasts]]))
        depth[here] = depths
        parent[here] = np.where(places == NO_ROW, NO_ROW, here[places])
        still_open = here[ends >= axis.spans(rows[last : last + 1])[0].min(initial=_MAX_TICKS)]
        first = last
    lanes = np.concatenate(overlapping)
    if len(lanes):
        walked = rows[np.isin(events.lane[rows], lanes)]
        _walk(walked, *axis.spans(walked), parent, depth)


def _parents_by_depth(depths: Int32s) -> Int32s:
    """Index of the last preceding event one level above each. Shape of ``depths``."""
    places = np.full(len(depths), NO_ROW, dtype=np.int32)
    order = np.argsort(depths, kind="stable").astype(np.int32)
    bounds = np.searchsorted(depths[order], np.arange(int(depths.max()) + 2))
    for level in range(1, len(bounds) - 1):
        here = order[bounds[level] : bounds[level + 1]]
        above = order[bounds[level - 1] : bounds[level]]
        places[here] = above[np.searchsorted(above, here) - 1]
    return places


def _walk(rows: Int32s, starts: Int64s, ends: Int64s, parent: Int32s, depth: Int32s) -> None:
    """Assign parents one event at a time, for threads whose events overlap without nesting.

    Old traces are rounded to microseconds, so that a call may appear to end after its caller. An
    event that begins within the caller is its child.
    """
    open_rows: list[int] = []
    open_ends: list[int] = []
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        while open_ends and open_ends[-1] < start:
            open_ends.pop()
            open_rows.pop()
        parent[row] = open_rows[-1] if open_rows else NO_ROW
        depth[row] = len(open_rows)
        open_rows.append(row)
        open_ends.append(end)


def self_ns(events: EventTable, tree: CallTree, among: Mask) -> Int64s:
    """Duration of each row without its children, among some rows only.

    Args:
        among: Rows that count, such as operators; others between them are skipped. Shape ``(n,)``.

    Returns:
        Nanoseconds, never negative; 0 for other rows. Shape ``(n,)``.
    """
    own = np.where(among, events.dur_ns, 0)
    rows = np.flatnonzero(among).astype(np.int32)
    enclosing = tree.enclosing(among)
    for first in range(0, len(rows), _CHUNK):
        here = rows[first : first + _CHUNK]
        above = enclosing[here]
        has = above != NO_ROW
        here, above = here[has], above[has]
        start, start_above = events.ts_ns[here], events.ts_ns[above]
        end = np.minimum(start + events.dur_ns[here], start_above + events.dur_ns[above])
        np.subtract.at(own, above, np.maximum(0, end - np.maximum(start, start_above)))
    return np.maximum(own, 0, out=own)


def own_ns(events: EventTable, tree: CallTree) -> Int64s:
    """Duration of each host row without its children.

    On every thread they add up exactly to the time that its events cover. A call that appears to
    end after its caller extends the caller.

    Returns:
        Nanoseconds, never negative; 0 for rows that are not on the host. Shape ``(n,)``.
    """
    end = np.zeros(len(events), dtype=np.int64)
    end[tree.rows] = events.ts_ns[tree.rows] + events.dur_ns[tree.rows]
    for level in reversed(tree.levels[1:]):
        np.maximum.at(end, tree.parent[level], end[level])
    own = np.zeros(len(events), dtype=np.int64)
    own[tree.rows] = end[tree.rows] - events.ts_ns[tree.rows]
    lengths = own.copy()
    below = tree.rows[tree.parent[tree.rows] != NO_ROW]
    np.subtract.at(own, tree.parent[below], lengths[below])
    return own


def rows_open_at(events: EventTable, tree: CallTree, lane: Int32s, at_ns: Int64s) -> Int32s:
    """The innermost host row running on a thread at each moment, or :data:`NO_ROW`.

    Args:
        lane: Thread of each moment. Shape ``(k,)``.
        at_ns: Shape ``(k,)``, that of the result.
    """
    rows = tree.rows
    if not len(rows) or not len(at_ns):
        return np.full(len(at_ns), NO_ROW, dtype=np.int32)
    width = int(max(events.ts_ns[rows].max(), at_ns.max())) + 1
    begins = events.lane[rows].astype(np.int64) * width + events.ts_ns[rows]
    place = np.searchsorted(begins, lane.astype(np.int64) * width + at_ns, side="right") - 1
    found = np.where(place >= 0, rows[np.maximum(place, 0)], NO_ROW).astype(np.int32)
    found[(found != NO_ROW) & (events.lane[found] != lane)] = NO_ROW
    return _still_open(events, tree, found, at_ns)


def open_rows(
    events: EventTable, tree: CallTree, rows: Int32s, starts_ns: Int64s, at_ns: Int64s
) -> Int32s:
    """The innermost row running on one thread at each moment, or :data:`NO_ROW`.

    Args:
        rows: All rows of the thread in the call trees, by start. Shape ``(r,)``.
        starts_ns: Their starts. Shape ``(r,)``.
        at_ns: Shape ``(k,)``, that of the result.
    """
    if not len(rows):
        return np.full(len(at_ns), NO_ROW, dtype=np.int32)
    place = np.searchsorted(starts_ns, at_ns, side="right") - 1
    found = np.where(place >= 0, rows[np.maximum(place, 0)], NO_ROW).astype(np.int32)
    return _still_open(events, tree, found, at_ns)


def _still_open(events: EventTable, tree: CallTree, row: Int32s, at_ns: Int64s) -> Int32s:
    """The innermost row, of each row and its callers, that has not ended at a moment.

    Args:
        row: Changed in place. Shape of ``at_ns``.
    """
    left = np.flatnonzero(row != NO_ROW)
    while len(left):
        here = row[left]
        left = left[events.ts_ns[here] + events.dur_ns[here] < at_ns[left]]
        row[left] = tree.parent[row[left]]
        left = left[row[left] != NO_ROW]
    return row
