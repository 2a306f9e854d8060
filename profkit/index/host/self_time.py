"""Whose each moment of a host thread is: the innermost event that is under way has it."""

import numpy as np

from profkit.index.host.nesting import CallTree
from profkit.model.events import NO_ROW, EventTable, Int64s


def own_ns(events: EventTable, tree: CallTree) -> Int64s:
    """The time of each host row that is no other's below it.

    On every thread these add up to the time that any of its events covers, to the nanosecond, also
    where a call seems to end after its caller: then the caller lasts as long as what it called.

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
