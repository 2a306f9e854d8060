"""The critical path of each step: what the step consists of, from its end back to its start.

The path is found by walking back from the node that completes the step, always to the predecessor
that the node waited for. Its segments tile the step: they sum to its length exactly.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.index.device.syncs import Syncs
from profkit.index.host.nesting import CallTree, rows_open_at
from profkit.index.intervals import Intervals, distinct, inside
from profkit.index.launches import CALLS
from profkit.index.replay.graph import NEVER, DependencyGraph, Edge, NodeKind
from profkit.index.replay.replay import Replay
from profkit.index.replay.waits import EXPLAINED_NS
from profkit.index.runtime_calls import names_matching
from profkit.model.critical_path import PathKind
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import FRAMING

_LAG_KINDS: Final = np.full(len(Edge), PathKind.GAP, dtype=np.uint8)
"""Kinds of segments between nodes; on a host thread they are refined by what ran there."""
_LAG_KINDS[[Edge.HOST, Edge.FETCH, Edge.HANDOVER]] = PathKind.PYTHON
_LAG_KINDS[Edge.LAUNCH] = PathKind.LAUNCH_LATENCY
_LAG_KINDS[Edge.SYNC] = PathKind.SYNC
_LAG_KINDS[Edge.LOADER] = PathKind.DATA_WAIT
_COLUMNS: Final = ("starts_ns", "ends_ns", "kind", "row", "lane", "step")


@dataclass(frozen=True)
class CriticalPath:
    """The critical paths of all steps, in time order.

    Attributes:
        starts_ns: Shape ``(p,)``.
        ends_ns: Shape ``(p,)``.
        kind: A :class:`PathKind` value. Shape ``(p,)``.
        row: The device work, or the innermost host event, or :data:`NO_ROW`. Shape ``(p,)``.
        lane: The host thread, or :data:`NO_ROW`. Shape ``(p,)``.
        step: Number of the step; 0 without steps. Shape ``(p,)``.
        unexplained_ns: Time on the path without a known cause: the parts of lags that are longer
            than usual, and what is before the first event that is known to cause anything.
    """

    starts_ns: Int64s
    ends_ns: Int64s
    kind: npt.NDArray[np.uint8]
    row: Int32s
    lane: Int32s
    step: Int32s
    unexplained_ns: int

    @property
    def lengths_ns(self) -> Int64s:
        """Length of each segment. Shape ``(p,)``."""
        return self.ends_ns - self.starts_ns


@dataclass(frozen=True)
class HostActivity:
    """What ran on the host threads.

    Attributes:
        tree: The call trees.
        syncs: The blocking calls.
        data_wait: The wait for a batch around each row, or :data:`NO_ROW`. Shape ``(n,)``.
        is_communication: Kernels of collectives. Shape ``(n,)``.
    """

    tree: CallTree
    syncs: Syncs
    data_wait: Int32s
    is_communication: Mask


def critical_path(replay: Replay, activity: HostActivity) -> CriticalPath:
    """Find the critical path of every step."""
    path = path_of(replay.graph, replay.completed, *replay.windows)
    return _refined(replay.events, activity, path)


def path_of(
    graph: DependencyGraph, completed: Int32s, starts_ns: Int64s, ends_ns: Int64s
) -> CriticalPath:
    """Find critical paths by the nodes that complete them, without what host threads did.

    Args:
        completed: The node that completes each path, ascending in time. Shape ``(s,)``.
        starts_ns: Where each path starts. Shape ``(s,)``.
        ends_ns: When its node is reached. Shape ``(s,)``.
    """
    nodes, step = _walk_back(graph, completed, starts_ns)
    # Of each node the end, the start, and the moment that it waited for.
    moments = np.stack(
        (
            graph.time_ns[nodes],
            graph.time_ns[nodes] - graph.dur_ns[nodes],
            np.where(_is_root(graph, nodes), NEVER, graph.time_ns[graph.first.before[nodes]]),
        ),
        axis=1,
    )
    # Clocks of host and device differ: a moment is never later than those that follow it.
    clipped = np.clip(moments, starts_ns[step, None], ends_ns[step, None])
    reached = np.minimum.accumulate(clipped.ravel()).reshape(-1, 3)
    unexplained = graph.unexplained_ns[nodes]
    work, gap = NodeKind.UNRECORDED, unexplained > EXPLAINED_NS
    of_lag = np.where(gap, PathKind.GAP, _LAG_KINDS[graph.first.kind[nodes]])
    of_node = np.where(graph.kind[nodes] == work, PathKind.UNRECORDED, PathKind.KERNEL)
    lane, lags_ns = graph.lane[nodes], reached[:, 1] - reached[:, 2]
    unexplained = np.where(_is_root(graph, nodes), lags_ns, np.minimum(unexplained, lags_ns))
    segments = CriticalPath(
        starts_ns=reached[:, 1:].ravel(),
        ends_ns=reached[:, :-1].ravel(),
        kind=np.stack((of_node, of_lag), axis=1).ravel().astype(np.uint8),
        row=np.repeat(graph.row[nodes], 2),
        lane=np.stack((np.full_like(lane, NO_ROW), lane), axis=1).ravel(),
        step=np.repeat(step, 2),
        unexplained_ns=int(unexplained.sum()),
    )
    positive = np.flatnonzero(segments.lengths_ns > 0)[::-1]
    return _select(segments, positive)


def _walk_back(
    graph: DependencyGraph, completed: Int32s, starts_ns: Int64s
) -> tuple[Int32s, Int32s]:
    """The nodes of all paths, latest first, and their steps."""
    times, befores = graph.time_ns.tolist(), graph.first.before.tolist()
    roots = np.flatnonzero(_is_root(graph, np.arange(len(graph), dtype=np.int32)))
    is_root = set(roots.tolist())
    found: list[int] = []
    counts = []
    paths = zip(completed[::-1].tolist(), starts_ns[::-1].tolist(), strict=True)
    for node, start_ns in paths:
        at, n_before = node, len(found)
        while times[at] > start_ns:
            found.append(at)
            if at in is_root:
                break
            at = befores[at]
        counts.append(len(found) - n_before)
    step = np.repeat(np.arange(len(counts), dtype=np.int32)[::-1], counts)
    return np.array(found, dtype=np.int32), step


def _is_root(graph: DependencyGraph, nodes: Int32s) -> Mask:
    """Whether it is not known what each node waited for. Shape of ``nodes``."""
    first = graph.first
    is_origin = first.kind[nodes] == Edge.ORIGIN
    return np.asarray(is_origin | (first.before[nodes] == NO_ROW))


def _refined(events: EventTable, activity: HostActivity, path: CriticalPath) -> CriticalPath:
    """Tell kernels from copies, and cut the host's segments where its activity changes."""
    kind = path.kind.copy()
    device = np.flatnonzero((kind == PathKind.KERNEL) & (path.row != NO_ROW))
    rows = path.row[device]
    kind[device[events.category[rows] != Category.KERNEL]] = PathKind.COPY
    kind[device[activity.is_communication[rows]]] = PathKind.COMMUNICATION
    is_host = (kind == PathKind.PYTHON) & (path.lane != NO_ROW)
    pieces = [_select(replace(path, kind=kind), ~is_host)]
    pieces += [
        cut_by_activity(events, activity, _select(path, is_host & (path.lane == lane)), lane)
        for lane in np.unique(path.lane[is_host]).tolist()
    ]
    order = np.argsort(np.concatenate([each.starts_ns for each in pieces]), kind="stable")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in pieces])[order] for name in _COLUMNS
    }
    return _merged(replace(path, **joined))


def _merged(path: CriticalPath) -> CriticalPath:
    """Join adjacent segments of the same event."""
    same = path.starts_ns[1:] == path.ends_ns[:-1]
    for name in ("kind", "row", "lane", "step"):
        column = getattr(path, name)
        same &= column[1:] == column[:-1]
    first = np.flatnonzero(np.concatenate((np.ones(len(path.kind[:1]), dtype=np.bool_), ~same)))
    last = np.append(first[1:], len(path.kind)) - 1 if len(first) else first
    return replace(_select(path, first), ends_ns=path.ends_ns[last])


def _select(path: CriticalPath, mask: Mask | Rows) -> CriticalPath:
    return replace(path, **{name: getattr(path, name)[mask] for name in _COLUMNS})


def cut_by_activity(
    events: EventTable, activity: HostActivity, path: CriticalPath, lane: int
) -> CriticalPath:
    """Cut the segments of a host thread where its innermost event changes."""
    rows = activity.tree.rows
    rows = rows[events.lane[rows] == lane]
    bounds = np.concatenate((events.ts_ns[rows], events.ts_ns[rows] + events.dur_ns[rows]))
    bounds = bounds[inside(Intervals(path.starts_ns, path.ends_ns), bounds)]
    starts = distinct(np.concatenate((path.starts_ns, bounds)))
    of = np.searchsorted(path.starts_ns, starts, side="right") - 1
    ends = np.minimum(np.append(starts[1:], path.ends_ns[-1]), path.ends_ns[of])
    lanes = np.full(len(starts), lane, dtype=np.int32)
    middle = (starts + ends) // 2
    row = rows_open_at(events, activity.tree, lanes, middle)
    row = _without_annotations(events, activity.tree, row)
    # Old traces have the profiler's own annotations as operators.
    framing = names_matching(events.names, FRAMING)[events.name[row]]
    is_annotation = (row == NO_ROW) | framing
    category = np.where(is_annotation, Category.OTHER, events.category[row])
    wait = np.where(row == NO_ROW, NO_ROW, activity.data_wait[row])
    # A call that began during a wait can end after it.
    wait = np.where((wait != NO_ROW) & (middle < events.end_ns[wait]), wait, NO_ROW)
    kind = np.select(
        [
            wait != NO_ROW,
            np.isin(row, activity.syncs.rows),
            category == Category.OP,
            np.isin(category, CALLS),
        ],
        [PathKind.DATA_WAIT, PathKind.SYNC, PathKind.OPERATOR, PathKind.RUNTIME],
        PathKind.PYTHON,
    )
    return CriticalPath(
        starts,
        ends,
        kind.astype(np.uint8),
        row,
        lanes,
        path.step[of],
        path.unexplained_ns,
    )


def _without_annotations(events: EventTable, tree: CallTree, row: Int32s) -> Int32s:
    """The operator in place of an annotation that it wrote, such as ``nccl:all_reduce``."""
    parent = np.where(row == NO_ROW, NO_ROW, tree.parent[row])
    is_own = (events.category[row] == Category.ANNOTATION) & (parent != NO_ROW)
    is_own &= events.category[parent] == Category.OP
    return np.where(is_own, parent, row).astype(np.int32)
