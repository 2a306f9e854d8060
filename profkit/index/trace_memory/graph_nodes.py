"""Nodes of autograd's graph: which operator made each, and whether a backward pass used it.

While gradients are on, every operator carries the number that the next node of its thread will
have. So the number grows from one operator to the next exactly where a node was made in between,
and a backward pass names the nodes that it runs by the same numbers.

Source: ``aten/src/ATen/SequenceNumber.h``, ``aten/src/ATen/core/dispatch/Dispatcher.h``
(``sequenceNumberForRunningRecordFunction``), ``torch/csrc/autograd/function.h``
(``Node::sequence_nr``).
"""

from dataclasses import dataclass

import numpy as np

from profkit.index.host.nesting import CallTree, rows_open_at
from profkit.index.host.source import backward_rows
from profkit.index.trace_memory.live_bytes import Allocations
from profkit.model.events import NO_ROW, EventTable, Int64s, Mask, Rows

NO_RUN = -1
_SOON = 3
"""What an operator takes and this many nodes later, or at the end of its run, still stands is kept
by somebody; what is gone by then was only passed on."""


@dataclass(frozen=True)
class GraphNodes:
    """Operators that made nodes of the graph, by thread and time.

    Attributes:
        row: The innermost operator that made it. Shape ``(k,)``.
        n: Nodes that it made; more than one where an operator is put together of several.
        is_used: Whether a backward pass ran one of them.
        run: A number for every run of nodes of one thread that none was used of and no
            backward pass began in between; :data:`NO_RUN` for nodes that were used.
    """

    row: Rows
    n: Int64s
    is_used: Mask
    run: Int64s

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class RetainedBytes:
    """Allocations of operators that made nodes, and that stood longer than it takes to pass on.

    Attributes:
        alloc: Rows of :attr:`Allocations.alloc`. Shape ``(b,)``.
        node: For each the node whose operator took it.
        is_freed: Whether it was freed before the recording's end.
    """

    alloc: Rows
    node: Rows
    is_freed: Mask


def graph_nodes(events: EventTable, tree: CallTree) -> GraphNodes:
    """Find the operators that made nodes in a forward pass.

    What is made within a backward pass, such as a checkpoint's second forward pass, is left out.
    """
    rows = events.sequence.rows
    is_backward = backward_rows(events)
    numbers = events.sequence.at(rows)
    used = np.unique(numbers[is_backward[rows]])
    within = tree.nearest(is_backward)[rows] != NO_ROW
    rows, numbers = rows[~within], numbers[~within]
    order = np.lexsort((tree.depth[rows], events.ts_ns[rows], events.lane[rows]))
    rows, numbers = rows[order], numbers[order]
    lane = events.lane[rows]
    # The last operator with a number made the nodes up to the number of the next one.
    made = np.zeros(len(rows), dtype=np.int64)
    made[:-1] = np.where(lane[1:] == lane[:-1], np.maximum(np.diff(numbers), 0), 0)
    first, n, row = numbers[made > 0], made[made > 0], rows[made > 0]
    is_used = np.searchsorted(used, first + n, side="left") > np.searchsorted(used, first)
    row = row.astype(np.intp)
    return GraphNodes(row, n, is_used, _stretches(events, row, is_used, is_backward))


def _stretches(events: EventTable, row: Rows, is_used: Mask, is_backward: Mask) -> Int64s:
    if not len(row):
        return np.zeros(0, dtype=np.int64)
    passes = np.sort(events.ts_ns[is_backward])
    pass_before = np.searchsorted(passes, events.ts_ns[row])
    begins = np.ones(len(row), dtype=np.bool_)
    begins[1:] = (
        is_used[:-1]
        | (events.lane[row][1:] != events.lane[row][:-1])
        | (pass_before[1:] != pass_before[:-1])
    )
    return np.where(is_used, NO_RUN, np.cumsum(begins & ~is_used) - 1)


def retained_bytes(
    events: EventTable, tree: CallTree, nodes: GraphNodes, allocations: Allocations
) -> RetainedBytes:
    """Find what operators that made unused nodes took and somebody kept.

    Args:
        allocations: The allocations and their frees.
    """
    table, alloc = allocations.table, allocations.alloc
    open_row = rows_open_at(events, tree, table.lane[alloc], table.ts_ns[alloc])
    of_row = np.full(len(events), NO_ROW, dtype=np.int64)
    of_row[nodes.row] = np.arange(len(nodes))
    maker = tree.nearest(of_row != NO_ROW)
    within = np.where(open_row == NO_ROW, NO_ROW, maker[open_row])
    node = np.where(within == NO_ROW, NO_ROW, of_row[within])
    found = np.flatnonzero((node != NO_ROW) & ~nodes.is_used[node])
    node = node[found]
    free = allocations.free[found]
    until = np.where(free < 0, np.iinfo(np.int64).max, table.ts_ns[free])
    # At the end of a run what its last operator has read still stands, and what it made is its
    # result.
    last = np.zeros(int(nodes.run.max(initial=NO_RUN)) + 1, dtype=np.int64)
    last[nodes.run[~nodes.is_used]] = np.flatnonzero(~nodes.is_used)
    end = last[nodes.run[node]]
    later = np.minimum(node + _SOON, end)
    row = nodes.row[later]
    judged_ns = np.where(node + _SOON <= end, events.ts_ns[row], events.end_ns[row])
    is_kept = (later > node) & (until >= judged_ns)
    return RetainedBytes(found[is_kept], node[is_kept], free[is_kept] >= 0)


def peak_live_bytes(allocations: Allocations, among: Rows) -> int:
    """The most bytes of some allocations that stood at one time.

    Args:
        allocations: The allocations and their frees.
        among: Rows of :attr:`Allocations.alloc`.
    """
    place, free = allocations.alloc[among], allocations.free[among]
    freed = free >= 0
    n_bytes = allocations.table.n_bytes[place]
    at = np.concatenate((place, free[freed]))
    change = np.concatenate((n_bytes, -n_bytes[freed]))
    return int(np.cumsum(change[np.argsort(at, kind="stable")]).max(initial=0))
