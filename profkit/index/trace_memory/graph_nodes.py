"""Nodes of the autograd graph: which operator created each, and whether a backward pass used it.

While gradients are enabled, every operator has the sequence number that the next node of its thread
will get. So the number increases between operators exactly where a node was created, and a backward
pass identifies the nodes it runs by the same numbers.

Source: ``aten/src/ATen/SequenceNumber.h``, ``aten/src/ATen/core/dispatch/Dispatcher.h``
(``sequenceNumberForRunningRecordFunction``), ``torch/csrc/autograd/function.h``
(``Node::sequence_nr``).
"""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import distinct
from profkit.index.host.nesting import CallTree, find_rows_open_at
from profkit.index.host.source import backward_rows
from profkit.index.trace_memory.live_bytes import Allocations
from profkit.model.events import NO_ROW, EventTable, Int64s, Mask, Rows

NO_RUN: Final = -1
_MIN_NODES: Final = 3
"""An allocation is retained if it is live this many nodes later, or at the end of its run."""


@dataclass(frozen=True)
class GraphNodes:
    """Operators that created nodes, by thread and time.

    Attributes:
        row: The innermost operator that created the nodes. Shape ``(k,)``.
        n: Number of nodes; more than one for composite operators.
        is_used: Whether a backward pass ran one of them.
        run: Number of the run of consecutive unused nodes of one thread without a backward pass in
            between; :data:`NO_RUN` for used nodes.
    """

    row: Rows
    n: Int64s
    is_used: Mask
    run: Int64s

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class RetainedBytes:
    """Allocations of operators with unused nodes that stay live beyond the next few operators.

    Attributes:
        alloc: Rows of :attr:`Allocations.alloc`. Shape ``(b,)``.
        node: Index of the node whose operator allocated it.
        is_freed: Whether it was freed before the recording's end.
    """

    alloc: Rows
    node: Rows
    is_freed: Mask


def find_graph_nodes(events: EventTable, tree: CallTree) -> GraphNodes:
    """Find the operators that created nodes in a forward pass.

    Nodes created within a backward pass, such as by checkpointing, are excluded.
    """
    rows = events.sequence.rows
    is_backward = backward_rows(events)
    numbers = events.sequence.at(rows)
    used_numbers = distinct(numbers[is_backward[rows]])
    in_backward = tree.nearest(is_backward)[rows] != NO_ROW
    rows, numbers = rows[~in_backward], numbers[~in_backward]

    order = np.lexsort((tree.depth[rows], events.ts_ns[rows], events.lane[rows]))
    rows, numbers = rows[order], numbers[order]
    lane = events.lane[rows]

    # The last operator with a number created the nodes up to the next operator's number.
    n_made = np.zeros(len(rows), dtype=np.int64)
    n_made[:-1] = np.where(lane[1:] == lane[:-1], np.maximum(np.diff(numbers), 0), 0)

    first, n_nodes, row = numbers[n_made > 0], n_made[n_made > 0], rows[n_made > 0]
    is_used = np.searchsorted(used_numbers, first + n_nodes, side="left") > np.searchsorted(
        used_numbers, first
    )
    row = row.astype(np.intp)
    return GraphNodes(row, n_nodes, is_used, _number_runs(events, row, is_used, is_backward))


def _number_runs(events: EventTable, row: Rows, is_used: Mask, is_backward: Mask) -> Int64s:
    if not len(row):
        return np.zeros(0, dtype=np.int64)
    # A backward pass in between may have used nodes of a run, so it ends there.
    passes = np.sort(events.ts_ns[is_backward])
    pass_before = np.searchsorted(passes, events.ts_ns[row])

    is_begin = np.ones(len(row), dtype=np.bool_)
    is_begin[1:] = (
        is_used[:-1]
        | (events.lane[row][1:] != events.lane[row][:-1])
        | (pass_before[1:] != pass_before[:-1])
    )
    return np.where(is_used, NO_RUN, np.cumsum(is_begin & ~is_used) - 1)


def find_retained_bytes(
    events: EventTable, tree: CallTree, nodes: GraphNodes, allocations: Allocations
) -> RetainedBytes:
    """Find allocations of operators with unused nodes that were retained."""
    table, alloc = allocations.table, allocations.alloc
    open_row = find_rows_open_at(events, tree, table.lane[alloc], table.ts_ns[alloc])

    of_row = np.full(len(events), NO_ROW, dtype=np.int64)
    of_row[nodes.row] = np.arange(len(nodes))
    creator = tree.nearest(of_row != NO_ROW)
    creator_row = np.where(open_row == NO_ROW, NO_ROW, creator[open_row])
    node = np.where(creator_row == NO_ROW, NO_ROW, of_row[creator_row])
    retained = np.flatnonzero((node != NO_ROW) & ~nodes.is_used[node])

    node = node[retained]
    free = allocations.free[retained]
    freed_ns = np.where(free < 0, np.iinfo(np.int64).max, table.ts_ns[free])

    # At the end of a run the inputs of its last operator are live, and its output is the result.
    last = np.zeros(int(nodes.run.max(initial=NO_RUN)) + 1, dtype=np.int64)
    last[nodes.run[~nodes.is_used]] = np.flatnonzero(~nodes.is_used)

    end = last[nodes.run[node]]
    later = np.minimum(node + _MIN_NODES, end)
    row = nodes.row[later]
    checked_ns = np.where(node + _MIN_NODES <= end, events.ts_ns[row], events.end_ns[row])
    is_retained = (later > node) & (freed_ns >= checked_ns)
    return RetainedBytes(retained[is_retained], node[is_retained], free[is_retained] >= 0)


def peak_live_bytes(allocations: Allocations, among: Rows) -> int:
    """Return the peak of the live bytes of some rows of :attr:`Allocations.alloc`."""
    place, free = allocations.alloc[among], allocations.free[among]
    is_freed = free >= 0
    n_bytes = allocations.table.n_bytes[place]
    at = np.concatenate((place, free[is_freed]))
    change = np.concatenate((n_bytes, -n_bytes[is_freed]))
    return int(np.cumsum(change[np.argsort(at, kind="stable")]).max(initial=0))
