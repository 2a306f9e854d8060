"""The source lines with the most time."""

import numpy as np

from profkit.engine.context import Context
from profkit.model.events import Int32s, Int64s, Rows
from profkit.model.location import Location


def costliest_lines(
    ctx: Context, rows: Rows | Int32s, spent_ns: Int64s, limit: int
) -> tuple[Location, ...]:
    """The lines with the most time, the costliest first.

    Args:
        rows: Host rows, in any order; a row may occur several times. Shape ``(k,)``.
        spent_ns: The time to add for each. Shape ``(k,)``.
        limit: The maximum number of lines.
    """
    total_ns = np.zeros(len(ctx.events), dtype=np.int64)
    np.add.at(total_ns, rows, spent_ns)
    once = np.unique(rows).astype(np.intp)
    lines = sorted(ctx.by_line(once), key=lambda each: -int(total_ns[each[1]].sum()))
    return tuple(location for location, _ in lines[:limit])
