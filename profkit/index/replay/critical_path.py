"""The critical path of the steps: what they waited for at each moment, from their end to the start.

The path is found by walking back from the node that completes the last step, always to the
predecessor that the node waited for. Its segments tile the steps: they sum to their length exactly.
A replay with changes has a path too. It moves the host's activity to other times, so that each
segment of a thread consists of what the thread did in the recording between the same two nodes,
less what the change removed.
"""

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from profkit.index.distinct import distinct, used
from profkit.index.intervals import union
from profkit.index.replay.graph import (
    NEVER,
    ORIGIN,
    DependencyGraph,
    Edge,
    Edges,
    NodeKind,
    Weights,
)
from profkit.index.replay.path import COLUMNS, CriticalPath
from profkit.index.replay.path_activity import HostActivity, cut_by_activity
from profkit.index.replay.replay import HostTime, Replay
from profkit.index.replay.waits import EXPLAINED_NS
from profkit.model.change import ProgramChange
from profkit.model.critical_path import PathKind
from profkit.model.events import (
    NO_ROW,
    Category,
    Int32s,
    Int64s,
    Mask,
)

_LAG_KINDS: Final = np.full(len(Edge), PathKind.GAP, dtype=np.uint8)
"""Kinds of segments between nodes; on a host thread they are refined by what ran there."""
_LAG_KINDS[[Edge.HOST, Edge.FETCH, Edge.HANDOVER]] = PathKind.PYTHON
_LAG_KINDS[Edge.LAUNCH] = PathKind.LAUNCH_LATENCY
_LAG_KINDS[Edge.SYNC] = PathKind.SYNC
_LAG_KINDS[Edge.LOADER] = PathKind.DATA_WAIT


def find_critical_path(
    replay: Replay, activity: HostActivity, change: ProgramChange | None = None
) -> CriticalPath:
    """Find the critical path of all steps, as recorded or with a change and all recorded lags.

    Steps that follow each other have one path, which is cut where they are complete: only what is
    on it can make them shorter together. A step that begins after the one before is complete begins
    a path of its own.
    """
    graph, times = replay.graph, replay.graph.time_ns
    if change is not None:
        weights = replay.weights(change)
        times = graph.replay(weights)
        graph = _apply_times(graph, weights, times)

    starts, ends = replay.windows_at(times)

    # A step that begins after the step ahead is complete begins a path of its own.
    last = np.append(starts[1:] > ends[:-1], True)[: len(starts)]
    first = np.append(True, last[:-1])[: len(starts)]

    path = trace_paths(graph, replay.completed_at(times)[last], starts[first], ends[last])
    path = _refine_activity(replay, graph, activity, change, path)
    return _merge_adjacent(_cut_at_steps(path, ends))


def trace_paths(
    graph: DependencyGraph, completed: Int32s, starts_ns: Int64s, ends_ns: Int64s
) -> CriticalPath:
    """Find critical paths by the nodes that complete them, without what host threads did.

    The row of each segment is the node that ends it, and its step the number of its path.

    Args:
        completed: The node that completes each path, ascending in time. Shape ``(s,)``.
        starts_ns: Where each path starts. Shape ``(s,)``.
        ends_ns: When its node is reached. Shape ``(s,)``.
    """
    nodes, step = _walk_back(graph, completed, starts_ns)
    is_root, times = _is_root(graph, nodes), graph.time_ns[nodes]

    # Of each node the end, the start, and the moment that it waited for.
    moments = np.empty((len(nodes), 3), dtype=np.int64)
    moments[:, 0] = times
    moments[:, 1] = times - graph.dur_ns[nodes]
    moments[:, 2] = np.where(is_root, NEVER, graph.time_ns[graph.first.before[nodes]])

    # Clocks of host and device differ: no moment may be later than the moments that follow it.
    np.clip(moments, starts_ns[step, None], ends_ns[step, None], out=moments)
    moments_ns = moments.ravel()
    np.minimum.accumulate(moments_ns, out=moments_ns)

    unexplained, lags_ns = graph.unexplained_ns[nodes], moments[:, 1] - moments[:, 2]
    lag_kinds = _LAG_KINDS[graph.first.kind[nodes]]
    lag_kinds[unexplained > EXPLAINED_NS] = PathKind.GAP
    is_unrecorded = graph.kind[nodes] == NodeKind.UNRECORDED
    node_kinds = np.where(is_unrecorded, np.uint8(PathKind.UNRECORDED), np.uint8(PathKind.KERNEL))
    unexplained = np.where(is_root, lags_ns, np.minimum(unexplained, lags_ns))

    # Segments are the durations and the lags that take time, in time order. Each node has both,
    # in this order, between the three moments of its row.
    place = np.flatnonzero(moments[:, :-1] > moments[:, 1:])[::-1]
    index, is_lag = place >> 1, (place & 1).astype(np.bool_)
    ends = 3 * index + is_lag
    return CriticalPath(
        starts_ns=moments_ns[ends + 1],
        ends_ns=moments_ns[ends],
        kind=np.where(is_lag, lag_kinds[index], node_kinds[index]),
        row=nodes[index],
        lane=np.where(is_lag, graph.lane[nodes[index]], np.int32(NO_ROW)),
        step=step[index],
        unexplained=union(moments[:, 1] - unexplained, moments[:, 1]),
    )


def _walk_back(
    graph: DependencyGraph, completed: Int32s, starts_ns: Int64s
) -> tuple[Int32s, Int32s]:
    """Return the nodes of all paths, latest first, and their steps."""
    heads, run_of = _find_runs(graph)
    before, heads_ns = graph.first.before[heads], graph.time_ns[heads].data
    before_run = np.where(_is_root(graph, heads), NO_ROW, run_of[before]).data

    runs_back: list[int] = []
    begins = []
    paths = zip(run_of[completed[::-1]].tolist(), starts_ns[::-1].tolist(), strict=True)
    for end, start_ns in paths:
        run = end
        begins.append(len(runs_back))
        runs_back.append(run)
        while heads_ns[run] > start_ns and (run := before_run[run]) != NO_ROW:
            runs_back.append(run)

    runs = np.array(runs_back, dtype=np.int32)
    first, last = heads[runs], np.empty(len(runs), dtype=np.int32)
    last[1:] = before[runs[:-1]]
    last[begins] = completed[::-1]
    # The last run of a path may begin before the path does.
    for number, start_ns in zip([*begins[1:], len(runs)], starts_ns[::-1].tolist(), strict=True):
        run = graph.time_ns[first[number - 1] : last[number - 1] + 1]
        first[number - 1] += np.searchsorted(run, start_ns, side="right")

    step = np.repeat(
        np.arange(len(begins), dtype=np.int32)[::-1], np.diff(np.append(begins, len(runs)))
    )
    size = last + 1 - first
    place = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
    return (np.repeat(last, size) - place).astype(np.int32), np.repeat(step, size)


def _find_runs(graph: DependencyGraph) -> tuple[Int32s, Int32s]:
    """Find the nodes that did not wait for the node before, and the last such node up to each.

    Returns:
        Nodes, ascending; and for each node of the graph an index into them. Times ascend from each
        to the next.
    """
    # Runs of nodes are followed as a whole, so that the loop in Python is short.
    is_head = graph.first.before != np.arange(-1, len(graph) - 1)
    is_head |= graph.first.kind == Edge.ORIGIN
    is_head[1:] |= graph.time_ns[1:] < graph.time_ns[:-1]
    is_head[ORIGIN] = True

    return np.flatnonzero(is_head).astype(np.int32), np.cumsum(is_head, dtype=np.int32) - 1


def _is_root(graph: DependencyGraph, nodes: Int32s) -> Mask:
    """Return whether it is unknown what each node waited for. Shape of ``nodes``."""
    first = graph.first

    is_origin = first.kind[nodes] == Edge.ORIGIN
    return np.asarray(is_origin | (first.before[nodes] == NO_ROW))


def _apply_times(graph: DependencyGraph, weights: Weights, times: Int64s) -> DependencyGraph:
    """Return the graph of a replay, in which nodes wait for their first predecessor."""
    sides = ((graph.first, weights.first_ns), (graph.second, weights.second_ns))
    first_ns, second_ns = (
        np.where(edges.before == NO_ROW, NEVER, times[edges.before] + lags) for edges, lags in sides
    )

    # The later predecessor is the one that a node waits for.
    is_second = second_ns > first_ns
    first = Edges(
        *(
            np.where(
                is_second, getattr(graph.second, column.name), getattr(graph.first, column.name)
            )
            for column in fields(Edges)
        )
    )

    unexplained = np.where(is_second, 0, graph.unexplained_ns)
    return replace(
        graph, time_ns=times, dur_ns=weights.dur_ns, first=first, unexplained_ns=unexplained
    )


def _refine_activity(
    replay: Replay,
    graph: DependencyGraph,
    activity: HostActivity,
    change: ProgramChange | None,
    path: CriticalPath,
) -> CriticalPath:
    """Separate kernels from copies, and cut the host's segments where its activity changes."""
    events, kind, row = replay.events, path.kind.copy(), graph.row[path.row]
    device = np.flatnonzero((kind == PathKind.KERNEL) & (row != NO_ROW))
    rows = row[device]
    kind[device[events.category[rows] != Category.KERNEL]] = PathKind.COPY
    kind[device[activity.is_communication[rows]]] = PathKind.COMMUNICATION

    before = graph.first.before[path.row]
    is_host = (kind == PathKind.PYTHON) & (path.lane != NO_ROW) & (before != NO_ROW)

    # A replay can have a segment where the recording has none, without any activity to show.
    recorded_ns = replay.graph.time_ns
    is_host[is_host] = (recorded_ns[before] < recorded_ns[path.row])[is_host]

    pieces = [replace(path, kind=kind, row=row).select(~is_host)]
    host_times = replay.measure_host_times(change) if change else {}
    for lane in used(path.lane[is_host]).tolist():
        thread_path = path.select(is_host & (path.lane == lane))
        pieces.append(_cut_thread(replay, graph, activity, host_times.get(lane), thread_path))

    pieces = [piece for piece in pieces if len(piece.row)] or pieces[:1]
    if len(pieces) == 1:
        return pieces[0]
    order = np.argsort(np.concatenate([piece.starts_ns for piece in pieces]), kind="stable")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])[order] for name in COLUMNS
    }
    return replace(path, **joined)


def _cut_thread(
    replay: Replay,
    graph: DependencyGraph,
    activity: HostActivity,
    host_time: HostTime | None,
    path: CriticalPath,
) -> CriticalPath:
    """Cut segments of one thread where its activity changes.

    Args:
        host_time: The time that the thread spends with a change, if it differs from the recording.
        path: Segments of the thread, by node.
    """
    path = path.select(np.argsort(replay.graph.time_ns[path.row], kind="stable"))
    before_nodes = graph.first.before[path.row]
    recorded_ns, times = replay.graph.time_ns, graph.time_ns

    whole = replace(
        path,
        starts_ns=recorded_ns[before_nodes],
        ends_ns=recorded_ns[path.row],
        step=np.arange(len(path.row), dtype=np.int32),
    )

    pieces = cut_by_activity(replay.events, activity, whole, int(path.lane[0]))
    segment_of = pieces.step
    if graph is not replay.graph or host_time is not None:
        pieces = _move_pieces(pieces, times[before_nodes], times[path.row], host_time)

    # In place, as there are up to millions of pieces.
    for moments in (pieces.starts_ns, pieces.ends_ns):
        np.clip(moments, path.starts_ns[segment_of], path.ends_ns[segment_of], out=moments)
    pieces = replace(pieces, step=path.step[segment_of])
    return pieces.select(pieces.ends_ns > pieces.starts_ns)


def _move_pieces(
    pieces: CriticalPath, starts: Int64s, ends: Int64s, host_time: HostTime | None
) -> CriticalPath:
    """Scale the pieces of segments to the times that the segments have with a change.

    Args:
        pieces: With the number of the segment as step.
        starts: When each segment starts. Shape ``(s,)``.
        ends: When each ends. Shape ``(s,)``.
    """
    segment_of, lengths_ns = pieces.step, pieces.lengths_ns.astype(np.float64)
    spent_ns = host_time.within(pieces.starts_ns, pieces.ends_ns) if host_time else lengths_ns
    # Where nothing is left of what the thread did, a segment keeps its recorded composition.
    spent_ns = np.where((np.bincount(segment_of, spent_ns) < 1)[segment_of], lengths_ns, spent_ns)

    total, ended = np.bincount(segment_of, spent_ns), np.cumsum(spent_ns)
    ended -= (np.cumsum(total) - total)[segment_of]
    after = starts[segment_of] + np.round(ended * ((ends - starts) / total)[segment_of]).astype(
        np.int64
    )

    is_last = np.append(segment_of[1:] != segment_of[:-1], True)
    after[is_last] = ends
    begins = np.where(np.append(True, is_last[:-1]), starts[segment_of], np.append(0, after[:-1]))
    return replace(pieces, starts_ns=begins, ends_ns=after)


def _cut_at_steps(path: CriticalPath, ends_ns: Int64s) -> CriticalPath:
    """Cut segments where a step is complete.

    Args:
        ends_ns: When each step is complete. Shape ``(s,)``.
    """
    if not len(path.kind):
        return path

    cuts = distinct(ends_ns)
    segment_of = np.searchsorted(path.starts_ns, cuts) - 1
    is_within = (segment_of >= 0) & (cuts < path.ends_ns[segment_of])
    cuts, segment_of = cuts[is_within], segment_of[is_within]
    if len(cuts):
        starts = np.insert(path.starts_ns, segment_of + 1, cuts)
        ends = np.insert(path.ends_ns, segment_of, cuts)
        repeated = np.insert(np.arange(len(path.row)), segment_of, segment_of)
        path = replace(path.select(repeated), starts_ns=starts, ends_ns=ends)

    step = np.searchsorted(ends_ns, path.starts_ns, side="right").astype(np.int32)
    return replace(path, step=step)


def _merge_adjacent(path: CriticalPath) -> CriticalPath:
    """Join adjacent segments of the same event."""
    # Segments are adjacent if no time is between them and nothing else differs.
    same = path.starts_ns[1:] == path.ends_ns[:-1]
    for name in ("kind", "row", "lane", "step"):
        column = getattr(path, name)
        same &= column[1:] == column[:-1]

    is_first = np.concatenate((np.ones(len(path.kind[:1]), dtype=np.bool_), ~same))
    is_last = np.append(is_first[1:], True)[: len(is_first)]
    return replace(path.select(is_first), ends_ns=path.ends_ns[is_last])
