"""Operators whose input shapes change from step to step."""

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import numbered
from profkit.index.host.nesting import CallTree
from profkit.model.events import NO_ROW, EventTable, Int32s, Rows


@dataclass(frozen=True)
class NewShapes:
    """Calls with shapes that no earlier call of the same line and operator had.

    Attributes:
        rows: Outermost operators in steps after the first, ascending. Shape ``(k,)``.
        group: The number of the line and operator of each. Shape ``(k,)``.
    """

    rows: Rows
    group: Rows


def find_new_shapes(events: EventTable, tree: CallTree, frame: Int32s, step: Int32s) -> NewShapes:
    """Find calls with new shapes after the first step, in which every shape is new.

    Args:
        frame: Source line of every row as a number, or negative. Shape ``(n,)``.
        step: The step of every row, or negative outside of all. Shape ``(n,)``.
    """
    rows = np.asarray(events.input_dims.rows, dtype=np.intp)
    rows = rows[tree.is_op[rows] & (tree.op_around[rows] == NO_ROW) & (step[rows] >= 0)]
    rows = events.sort_by_start(rows)

    line = np.maximum(frame[rows], -1).astype(np.int64) + 1
    _, group = numbered(line * (len(events.names) + 1) + events.name[rows])
    _, shape = numbered(events.input_dims.at(rows))
    both = group * (int(shape.max(initial=0)) + 1) + shape

    _, first = np.unique(both, return_index=True)
    first = first[step[rows[first]] > 0]
    order = np.argsort(rows[first])
    return NewShapes(rows[first][order], group[first][order].astype(np.intp))
