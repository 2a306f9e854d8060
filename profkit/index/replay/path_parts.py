"""What the critical path of a window consists of, with and without changes.

A replay moves the host's activity to other times, so that events no longer tell what a thread did
at some moment. Each segment of a thread therefore consists of what the thread did in the recording
between the same two nodes, less what the change removed.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from profkit.index.replay.critical_path import (
    CriticalPath,
    HostActivity,
    cut_by_activity,
    path_of,
)
from profkit.index.replay.graph import NEVER, DependencyGraph, Edge, Edges, Weights
from profkit.index.replay.replay import HostTime, Replay
from profkit.model.change import ProgramChange
from profkit.model.critical_path import PathKind
from profkit.model.events import NO_ROW, Category, Float64s, Int64s

_OF_THREADS = (Edge.HOST, Edge.FETCH, Edge.HANDOVER)


@dataclass(frozen=True)
class PathParts:
    """What the critical path of the window consists of.

    Attributes:
        total_ns: Length of the window; the sum of all parts.
        by_kind: Nanoseconds of each kind that occurs.
    """

    total_ns: int
    by_kind: dict[PathKind, int]


def path_parts(replay: Replay, activity: HostActivity, change: ProgramChange) -> PathParts:
    """Find the critical path of the window with a change, all recorded lags kept."""
    graph = replay.graph
    weights = replay.weights(change)
    times = graph.replay(weights)
    changed = _with_times(graph, weights, times)
    end = replay.last(times)
    total_ns = int(times[end] - times[replay.start])
    path = path_of(changed, np.array([end]), times[[replay.start]], times[[end]])
    lengths, kind, node = path.lengths_ns, path.kind, path.row
    row = graph.row[node]
    is_device = (kind == PathKind.KERNEL) & (row != NO_ROW)
    of_device = np.where(
        activity.is_communication[row],
        PathKind.COMMUNICATION,
        np.where(replay.events.category[row] == Category.KERNEL, PathKind.KERNEL, PathKind.COPY),
    )
    kind = np.where(is_device, of_device, kind)
    edge, before = changed.first.kind[node], changed.first.before[node]
    is_host = (kind == PathKind.PYTHON) & np.isin(edge, _OF_THREADS) & (before != NO_ROW)
    by_kind = np.bincount(kind[~is_host], lengths[~is_host], len(PathKind)).astype(np.float64)
    by_kind += _of_host(replay, activity, change, node[is_host], before[is_host], lengths[is_host])
    ns = whole(by_kind, total_ns)
    found = {each: ns[each] for each in PathKind if ns[each]}
    return PathParts(total_ns, found)


def whole(parts: Float64s, total: int) -> list[int]:
    """Round parts so that they sum to an integer total, as their sum does up to rounding."""
    ends = np.round(np.cumsum(parts)).astype(np.int64)
    if len(ends):
        ends[ends == ends[-1]] = total
    return [int(each) for each in np.diff(ends, prepend=0)]


def _with_times(graph: DependencyGraph, weights: Weights, times: Int64s) -> DependencyGraph:
    """The graph of a replay: each node's first predecessor is the one that it waits for.

    The rows of its nodes are the numbers of the nodes.
    """
    sides = ((graph.first, weights.first_ns), (graph.second, weights.second_ns))
    one, two = (
        np.where(edges.before == NO_ROW, NEVER, times[edges.before] + lags) for edges, lags in sides
    )
    is_second = two > one
    first = Edges(
        *(
            np.where(is_second, getattr(graph.second, name), getattr(graph.first, name))
            for name in ("before", "kind", "lag_ns", "hidden_lag_ns")
        )
    )
    return replace(
        graph,
        time_ns=times,
        dur_ns=weights.dur_ns,
        row=np.arange(len(graph), dtype=np.int32),
        first=first,
        unexplained_ns=np.where(is_second, 0, graph.unexplained_ns),
    )


def _of_host(
    replay: Replay,
    activity: HostActivity,
    change: ProgramChange,
    node: Int64s,
    before: npt.NDArray[np.int32],
    lengths: Int64s,
) -> Float64s:
    """Nanoseconds of each kind that host threads spend between some nodes."""
    graph, events = replay.graph, replay.events
    found = np.zeros(len(PathKind))
    lanes = np.where(graph.lane[node] == NO_ROW, graph.lane[before], graph.lane[node])
    starts, ends = graph.time_ns[before], graph.time_ns[node]
    for lane in np.unique(lanes).tolist():
        own = np.flatnonzero((lanes == lane) & (ends > starts))
        own = own[np.argsort(starts[own], kind="stable")]
        nothing = np.full(len(own), NO_ROW, dtype=np.int32)
        recorded = CriticalPath(
            starts[own], ends[own], kind=nothing.astype(np.uint8), row=nothing, lane=nothing,
            step=np.arange(len(own), dtype=np.int32), unexplained_ns=0,
        )  # fmt: skip
        if not len(own):
            continue
        pieces = cut_by_activity(events, activity, recorded, lane)
        time = HostTime.of(events, replay.host_changes(change), lane)
        lengths_ns = pieces.lengths_ns.astype(np.float64)
        spent = time.within(pieces.starts_ns, pieces.ends_ns) if time else lengths_ns.copy()
        total = np.bincount(pieces.step, spent, len(own))
        # Where nothing is left of what the thread did, a segment keeps its recorded composition.
        gone = (total < 1)[pieces.step]
        spent[gone] = lengths_ns[gone]
        total = np.bincount(pieces.step, spent, len(own))
        found += np.bincount(
            pieces.kind, spent * (lengths[own] / total)[pieces.step], len(PathKind)
        )
    return found
