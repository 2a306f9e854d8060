"""The lines of a program on which most of some time is spent."""

import numpy as np

from profkit.engine.context import Context
from profkit.model.events import Int32s, Int64s, Rows
from profkit.model.location import Location


def costliest_lines(
    ctx: Context, rows: Rows | Int32s, spent_ns: Int64s, most: int
) -> tuple[Location, ...]:
    """The lines with the most time, the costliest first.

    Args:
        rows: Rows on the host, in any order and as often as something was spent for each. Shape
            ``(k,)``.
        spent_ns: What was spent each time, in nanoseconds. Shape ``(k,)``.
        most: How many lines at most.
    """
    total_ns = np.zeros(len(ctx.events), dtype=np.int64)
    np.add.at(total_ns, rows, spent_ns)
    once = np.unique(rows).astype(np.intp)
    lines = sorted(ctx.by_line(once), key=lambda each: -int(total_ns[each[1]].sum()))
    return tuple(location for location, _ in lines[:most])
