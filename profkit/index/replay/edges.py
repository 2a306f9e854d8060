"""The predecessors of the nodes of a dependency graph."""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from profkit.index.distinct import by_number
from profkit.index.ranges import find_runs
from profkit.index.replay.graph import NEVER, ORIGIN, DependencyGraph, Edge, Edges, NodeKind
from profkit.index.replay.nodes import Nodes
from profkit.model.events import NO_ROW, Int32s, Int64s

_LATENCIES: Final = (Edge.LAUNCH, Edge.STREAM, Edge.EVENT, Edge.SYNC)
"""Edges whose lag is a latency: the part that is longer than usual stays with the node when it
waits for another predecessor."""
_EDGE: Final = np.dtype(
    [("before", np.int32), ("kind", np.uint8), ("ready_ns", np.int64)], align=True
)
"""A predecessor, the kind of edge, and the predecessor's time with the lag that is usual."""
Records: TypeAlias = npt.NDArray[np.void]


class EdgeTable:
    """Two predecessors of every node: first the one with which it is ready last.

    The node waited for that one in the recording. Any further one is joined with the second.

    Args:
        nodes: The nodes.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._start_ns = nodes.time_ns - nodes.dur_ns
        no_edges = np.empty((2, len(nodes)), dtype=_EDGE)
        no_edges["before"], no_edges["kind"], no_edges["ready_ns"] = NO_ROW, Edge.NONE, NEVER
        # Edges of the nodes, then edges of joins, with the nodes to which they belong.
        self._edges = [no_edges]
        self._owner = [np.zeros(0, dtype=np.int32)]
        self._n = len(nodes)

    def add(self, before: Int32s, after: Int32s, kind: Edge, usual_ns: Int64s | int) -> None:
        """Add a predecessor of each of some nodes, except where it is :data:`NO_ROW`.

        Args:
            before: Shape ``(k,)``.
            after: No node twice. Shape ``(k,)``.
            usual_ns: The lag that is usual for this kind. Shape ``(k,)``.
        """
        first, second = self._edges[0]
        new = _build_edges(before, kind, self._nodes.time_ns[before] + usual_ns)

        # Clocks of host and device can differ so much that a predecessor follows its node. Then it
        # explains nothing.
        is_usable = (before != NO_ROW) & self._nodes.precedes(before, after)
        if not is_usable.all():
            new, after = new[np.flatnonzero(is_usable)], after[is_usable]

        old = first[after]
        later = np.flatnonzero(new["ready_ns"] > old["ready_ns"])
        first[after[later]] = new[later]
        new[later] = old[later]

        demoted = np.flatnonzero(new["before"] != NO_ROW)
        new, after = new[demoted], after[demoted]
        old = second[after]
        taken = np.flatnonzero(old["before"] != NO_ROW)
        new[taken] = self._join(after[taken], old[taken], new[taken])
        second[after] = new

    def add_several(
        self, before: Int32s, after: Int32s, kind: Edge, usual_ns: Int64s | int
    ) -> None:
        """Add predecessors of nodes that may have several of a kind, see :meth:`add`."""
        usual = np.broadcast_to(np.asarray(usual_ns, dtype=np.int64), before.shape)
        order = by_number(after)
        before, after, usual = before[order], after[order], usual[order]

        # A call of add takes one predecessor of each node: first the first of each, then the
        # second.
        begins, sizes = find_runs(after)
        nth = np.arange(len(after)) - np.repeat(begins, sizes)

        for number in range(int(nth.max(initial=-1)) + 1):
            is_nth = nth == number
            self.add(before[is_nth], after[is_nth], kind, usual[is_nth])

    def _join(self, owner: Int32s, first: Records, second: Records) -> Records:
        """Join two predecessors of each of some nodes, and return the edges from the joins."""
        self._owner.append(owner)
        self._edges.append(np.stack((first, second)))
        self._n += len(owner)
        joins = np.arange(self._n - len(owner), self._n, dtype=np.int32)
        return _build_edges(joins, Edge.JOIN, self._start_ns[owner])

    def build_graph(self, main_lane: int) -> DependencyGraph:
        """Build the graph of all nodes and edges."""
        nodes, n = self._nodes, len(self._start_ns)

        # A node without a known predecessor keeps its recorded time.
        unexplained = 1 + np.flatnonzero(self._edges[0]["before"][0, 1:] == NO_ROW).astype(np.int32)
        self.add(
            np.full_like(unexplained, ORIGIN), unexplained, Edge.ORIGIN, self._start_ns[unexplained]
        )
        owner = np.concatenate(self._owner)

        def append_joins(values: npt.NDArray[Any], join_values: object) -> npt.NDArray[Any]:
            added = np.broadcast_to(np.asarray(join_values, dtype=values.dtype), len(owner))
            return np.append(values, added) if len(added) else values

        time_ns, start_ns = (
            append_joins(values, self._start_ns[owner])
            for values in (nodes.time_ns, self._start_ns)
        )

        first = self._edges[0][0]
        late_ns = np.maximum(0, self._start_ns - first["ready_ns"])
        late_ns[ORIGIN] = 0
        extra_ns = np.where(np.isin(first["kind"], _LATENCIES), late_ns, 0)
        extra_ns = append_joins(extra_ns, extra_ns[owner])

        second = self._build_side(1, time_ns, start_ns, extra_ns)
        # A node keeps all of the lag after what it waited for.
        extra_ns[:n] = late_ns
        first_edges = self._build_side(0, time_ns, start_ns, extra_ns)

        # Without the workers' pace the program would wait as long as in the recording.
        is_paced = first_edges.kind[1:n] == Edge.LOADER
        first_edges.hidden_lag_ns[1:n] = np.where(is_paced, NEVER, first_edges.lag_ns[1:n])

        return DependencyGraph(
            time_ns=time_ns,
            dur_ns=append_joins(nodes.dur_ns, 0),
            may_be_lag=append_joins(nodes.may_be_lag, 0),
            issued_ns=append_joins(nodes.issued_ns, nodes.issued_ns[owner]),
            kind=append_joins(nodes.kind, NodeKind.JOIN),
            row=append_joins(nodes.row, nodes.row[owner]),
            lane=append_joins(nodes.lane, NO_ROW),
            first=first_edges,
            second=second,
            main_lane=main_lane,
            unexplained_ns=append_joins(late_ns, 0),
            heads=self._find_heads(first_edges, second, owner),
        )

    def _build_side(self, side: int, time_ns: Int64s, start_ns: Int64s, extra_ns: Int64s) -> Edges:
        """Return first or second predecessors, with lags of the usual length and an extra.

        Args:
            time_ns: The moment of each node and join. Shape ``(n,)``.
            start_ns: When its own duration begins. Shape ``(n,)``.
            extra_ns: By how much a lag is longer than usual. Shape ``(n,)``.
        """
        before, kind, ready_ns = (
            np.concatenate([edges[side][name] for edges in self._edges])
            for name in ("before", "kind", "ready_ns")
        )

        # In place: the columns of a large recording are a gigabyte.
        before_ns = time_ns[before]
        usual_ns = np.subtract(ready_ns, before_ns, out=ready_ns)
        lag_ns = np.subtract(start_ns, before_ns, out=before_ns)
        hidden_ns = np.minimum(lag_ns, usual_ns)

        # Hiding its lag would make a thread fetch faster than recorded, and a worker decide
        # nothing.
        fetches = np.flatnonzero(kind == Edge.FETCH)
        hidden_ns[fetches] = lag_ns[fetches]
        hidden_ns[kind == Edge.LOADER] = NEVER

        usual_ns += extra_ns
        np.minimum(lag_ns, usual_ns, out=lag_ns)
        is_missing = before == NO_ROW
        lag_ns[is_missing] = hidden_ns[is_missing] = NEVER
        return Edges(before, kind, lag_ns, hidden_ns)

    def _find_heads(self, first: Edges, second: Edges, owner: Int32s) -> Int32s:
        """Return the nodes at which runs begin, after their predecessors and joins.

        Args:
            owner: The node to which each join belongs.
        """
        n = len(self._start_ns)
        is_head = (first.before[:n] != np.arange(-1, n - 1)) | (second.before[:n] != NO_ROW)
        is_head |= first.kind[:n] == Edge.ORIGIN
        is_head[ORIGIN] = True

        heads = self._nodes.sort(np.flatnonzero(is_head).astype(np.int32))
        place = np.empty(n, dtype=np.int32)
        place[heads] = np.arange(len(heads), dtype=np.int32)
        return np.insert(heads, place[owner], np.arange(n, self._n, dtype=np.int32))


def _build_edges(before: Int32s, kind: Edge, ready_ns: Int64s | int) -> Records:
    edges = np.empty(before.shape, dtype=_EDGE)
    edges["before"], edges["kind"], edges["ready_ns"] = before, kind, ready_ns
    return edges
