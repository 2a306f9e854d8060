"""Which event of a host thread was under way at some moment."""

import numpy as np

from profkit.index.host.nesting import CallTree
from profkit.model.events import NO_ROW, EventTable, Int32s, Int64s


def rows_open_at(events: EventTable, tree: CallTree, lane: Int32s, at_ns: Int64s) -> Int32s:
    """The innermost host row that was under way on a thread at each of some moments.

    Args:
        lane: The thread of each moment. Shape ``(k,)``.
        at_ns: The moments in nanoseconds. Shape ``(k,)``.

    Returns:
        Rows, or :data:`NO_ROW` where nothing was under way. Shape ``(k,)``.
    """
    rows = tree.rows
    if not len(rows) or not len(at_ns):
        return np.full(len(at_ns), NO_ROW, dtype=np.int32)
    width = int(max(events.ts_ns[rows].max(), at_ns.max())) + 1
    begins = events.lane[rows].astype(np.int64) * width + events.ts_ns[rows]
    place = np.searchsorted(begins, lane.astype(np.int64) * width + at_ns, side="right") - 1
    found = np.where(place >= 0, rows[np.maximum(place, 0)], NO_ROW).astype(np.int32)
    found[(found != NO_ROW) & (events.lane[found] != lane)] = NO_ROW
    over = (found != NO_ROW) & (events.end_ns[found] < at_ns)
    while over.any():
        found[over] = tree.parent[found[over]]
        over = (found != NO_ROW) & (events.end_ns[found] < at_ns)
    return found
