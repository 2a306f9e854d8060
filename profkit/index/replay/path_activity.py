"""What host threads do on the critical path: their innermost events, waits and collectives."""

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.index.device.syncs import Syncs
from profkit.index.distinct import distinct, marked
from profkit.index.host.nesting import CallTree, find_open_rows
from profkit.index.intervals import Intervals, inside
from profkit.index.replay.path import CriticalPath
from profkit.index.runtime_calls import names_matching
from profkit.model.critical_path import PathKind
from profkit.model.events import (
    HOST_CALLS,
    NO_ROW,
    Category,
    EventTable,
    Int32s,
    Int64s,
    Mask,
)
from profkit.model.torch_names import FRAMING

_BLOCK: Final = 1 << 16
"""Pieces of a path that are looked at together: a path may have millions."""


@dataclass(frozen=True)
class HostActivity:
    """What ran on the host threads.

    Attributes:
        tree: The call trees.
        syncs: The blocking calls.
        data_wait: The wait for a batch around each row, or :data:`NO_ROW`. Shape ``(n,)``.
        is_communication: Kernels of collectives. Shape ``(n,)``.
        collectives: Time in which threads wait for collectives that the host runs.
    """

    tree: CallTree
    syncs: Syncs
    data_wait: Int32s
    is_communication: Mask
    collectives: Intervals

    @cached_property
    def is_sync(self) -> Mask:
        """Return which rows are blocking calls. Shape ``(n + 1,)``, the last one for ``NO_ROW``."""
        return marked(self.syncs.rows, len(self.is_communication))


def cut_by_activity(
    events: EventTable, activity: HostActivity, path: CriticalPath, lane: int
) -> CriticalPath:
    """Cut segments of a host thread where its innermost event or its wait for peers changes."""
    rows = activity.tree.rows
    rows = rows[events.lane[rows] == lane]

    collectives = activity.collectives
    moments = (events.ts_ns[rows], events.end_ns[rows])
    bounds = distinct(np.concatenate((*moments, collectives.starts_ns, collectives.ends_ns)))
    bounds = bounds[_is_within(path, bounds)]

    starts = distinct(np.concatenate((path.starts_ns, bounds)))
    del bounds, moments

    # The segment of each piece: it grows by one where a segment starts.
    segment_of = np.zeros(len(starts), dtype=np.int32)
    segment_of[np.searchsorted(starts, path.starts_ns)[1:]] = 1
    np.cumsum(segment_of, out=segment_of)
    ends = np.minimum(np.append(starts[1:], path.ends_ns[-1]), path.ends_ns[segment_of])

    row, kind = np.empty(len(starts), dtype=np.int32), np.empty(len(starts), dtype=np.uint8)
    begins = events.ts_ns[rows]

    # Blocks bound the memory of what is looked up per piece.
    for first in range(0, len(starts), _BLOCK):
        block = slice(first, first + _BLOCK)
        middle = (starts[block] + ends[block]) // 2
        open_row = find_open_rows(events, activity.tree, rows, begins, middle)
        row[block] = _replace_annotations(events, activity.tree, open_row)
        kind[block] = _classify(events, activity, row[block], middle)

    return CriticalPath(
        starts,
        ends,
        kind,
        row,
        np.full(len(starts), lane, dtype=np.int32),
        segment_of,
        path.unexplained,
    )


def _is_within(path: CriticalPath, moments: Int64s) -> Mask:
    """Return which of some ascending moments are in the disjoint segments of a thread."""
    changes = np.zeros(len(moments) + 1, dtype=np.int8)
    np.add.at(changes, np.searchsorted(moments, path.starts_ns), 1)
    np.subtract.at(changes, np.searchsorted(moments, path.ends_ns), 1)
    return np.cumsum(changes, out=changes)[:-1] > 0


def _classify(
    events: EventTable, activity: HostActivity, row: Int32s, at_ns: Int64s
) -> npt.NDArray[np.int64]:
    """Classify what a host thread does at some moments, as :class:`PathKind`.

    Args:
        row: The innermost event then. Shape ``(k,)``, as the result.
        at_ns: Shape ``(k,)``.
    """
    # Old traces have the profiler's own annotations as operators.
    framing = names_matching(events, FRAMING)[events.name[row]]
    is_annotation = (row == NO_ROW) | framing
    category = np.where(is_annotation, Category.OTHER, events.category[row])

    wait = np.where(row == NO_ROW, NO_ROW, activity.data_wait[row])
    # A call that began during a wait can end after it.
    ends = events.ts_ns[wait] + events.dur_ns[wait]
    wait = np.where((wait != NO_ROW) & (at_ns < ends), wait, NO_ROW)

    # The first kind that applies: a wait covers the operators and calls inside it.
    return np.select(
        [
            wait != NO_ROW,
            inside(activity.collectives, at_ns),
            activity.is_sync[row],
            category == Category.OP,
            np.isin(category, HOST_CALLS),
        ],
        [
            PathKind.DATA_WAIT,
            PathKind.COMMUNICATION,
            PathKind.SYNC,
            PathKind.OPERATOR,
            PathKind.RUNTIME,
        ],
        PathKind.PYTHON,
    )


def _replace_annotations(events: EventTable, tree: CallTree, row: Int32s) -> Int32s:
    """Replace annotations by the operator that wrote them, such as ``nccl:all_reduce``."""
    parent = np.where(row == NO_ROW, NO_ROW, tree.parent[row])
    is_written_by_op = (events.category[row] == Category.ANNOTATION) & (parent != NO_ROW)
    is_written_by_op &= events.category[parent] == Category.OP
    return np.where(is_written_by_op, parent, row).astype(np.int32)
