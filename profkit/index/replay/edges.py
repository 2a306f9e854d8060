"""The predecessors of the nodes of a dependency graph."""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from profkit.index.distinct import by_number
from profkit.index.replay.graph import NEVER, ORIGIN, DependencyGraph, Edge, Edges, NodeKind
from profkit.index.replay.nodes import Nodes
from profkit.model.events import NO_ROW, Int32s, Int64s

_LATENCIES: Final = (Edge.LAUNCH, Edge.STREAM, Edge.EVENT, Edge.SYNC)
"""Edges whose lag is a latency: what it is longer than usual, the node would also have after
another predecessor."""
_EDGE: Final = np.dtype(
    [("before", np.int32), ("kind", np.uint8), ("ready_ns", np.int64)], align=True
)
"""A predecessor, the kind of edge, and the predecessor's time with the lag that is usual."""
Records: TypeAlias = npt.NDArray[np.void]


class EdgeTable:
    """Two predecessors of every node: first the one with which it is ready last.

    That is what the node waited for in the recording. Any further one is joined with the second.

    Args:
        nodes: The nodes.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._start_ns = nodes.time_ns - nodes.dur_ns
        none = np.empty((2, len(nodes)), dtype=_EDGE)
        none["before"], none["kind"], none["ready_ns"] = NO_ROW, Edge.NONE, NEVER
        # Those of the nodes, then those of joins, with the nodes to which they belong.
        self._edges = [none]
        self._owner = [np.zeros(0, dtype=np.int32)]
        self._n = len(nodes)

    def add(self, before: Int32s, after: Int32s, kind: Edge, usual_ns: Int64s | int) -> None:
        """Add a predecessor of each of some nodes; none where it is :data:`NO_ROW`.

        Args:
            before: Shape ``(k,)``.
            after: No node twice. Shape ``(k,)``.
            usual_ns: The lag that is usual for this kind. Shape ``(k,)``.
        """
        first, second = self._edges[0]
        new = _edges(before, kind, self._nodes.time_ns[before] + usual_ns)
        # Clocks of host and device can differ so much that a predecessor follows: not one, then.
        fits = (before != NO_ROW) & self._nodes.precedes(before, after)
        if not fits.all():
            new, after = new[np.flatnonzero(fits)], after[fits]
        old = first[after]
        later = np.flatnonzero(new["ready_ns"] > old["ready_ns"])
        first[after[later]] = new[later]
        new[later] = old[later]
        left = np.flatnonzero(new["before"] != NO_ROW)
        new, after = new[left], after[left]
        old = second[after]
        taken = np.flatnonzero(old["before"] != NO_ROW)
        new[taken] = self._join(after[taken], old[taken], new[taken])
        second[after] = new

    def add_several(
        self, before: Int32s, after: Int32s, kind: Edge, usual_ns: Int64s | int
    ) -> None:
        """As :meth:`add`, of nodes that may have several such predecessors."""
        usual = np.broadcast_to(np.asarray(usual_ns, dtype=np.int64), before.shape)
        order = by_number(after)
        before, after, usual = before[order], after[order], usual[order]
        begins = np.flatnonzero(np.diff(after, prepend=NO_ROW))
        nth = np.arange(len(after)) - np.repeat(begins, np.diff(np.append(begins, len(after))))
        for number in range(int(nth.max(initial=-1)) + 1):
            here = nth == number
            self.add(before[here], after[here], kind, usual[here])

    def _join(self, owner: Int32s, one: Records, other: Records) -> Records:
        """Join predecessors of each of some nodes; returns the edges from the joins."""
        self._owner.append(owner)
        self._edges.append(np.stack((one, other)))
        self._n += len(owner)
        joins = np.arange(self._n - len(owner), self._n, dtype=np.int32)
        return _edges(joins, Edge.JOIN, self._start_ns[owner])

    def graph(self, main_lane: int) -> DependencyGraph:
        """The graph of all nodes and edges."""
        nodes, n = self._nodes, len(self._start_ns)
        lost = 1 + np.flatnonzero(self._edges[0]["before"][0, 1:] == NO_ROW).astype(np.int32)
        self.add(np.full_like(lost, ORIGIN), lost, Edge.ORIGIN, self._start_ns[lost])
        of = np.concatenate(self._owner)

        def column(values: npt.NDArray[Any], of_joins: object) -> npt.NDArray[Any]:
            rest = np.broadcast_to(np.asarray(of_joins, dtype=values.dtype), len(of))
            return np.append(values, rest) if len(rest) else values

        time_ns, start_ns = (
            column(values, self._start_ns[of]) for values in (nodes.time_ns, self._start_ns)
        )
        first = self._edges[0][0]
        late_ns = np.maximum(0, self._start_ns - first["ready_ns"])
        late_ns[ORIGIN] = 0
        also_ns = np.where(np.isin(first["kind"], _LATENCIES), late_ns, 0)
        also_ns = column(also_ns, also_ns[of])
        other = self._side(1, time_ns, start_ns, also_ns)
        # A node keeps all of the lag after what it waited for.
        also_ns[:n] = late_ns
        one = self._side(0, time_ns, start_ns, also_ns)
        # Without the workers' pace the program would wait as long as in the recording.
        is_paced = one.kind[1:n] == Edge.LOADER
        one.hidden_lag_ns[1:n] = np.where(is_paced, NEVER, one.lag_ns[1:n])
        return DependencyGraph(
            time_ns=time_ns,
            dur_ns=column(nodes.dur_ns, 0),
            may_be_lag=column(nodes.may_be_lag, 0),
            issued_ns=column(nodes.issued_ns, nodes.issued_ns[of]),
            kind=column(nodes.kind, NodeKind.JOIN),
            row=column(nodes.row, nodes.row[of]),
            lane=column(nodes.lane, NO_ROW),
            first=one,
            second=other,
            main_lane=main_lane,
            unexplained_ns=column(late_ns, 0),
            heads=self._heads(one, other, of),
        )

    def _side(self, side: int, time_ns: Int64s, start_ns: Int64s, also_ns: Int64s) -> Edges:
        """First or second predecessors, with the lags that nodes have in addition to a usual one.

        Args:
            time_ns: The moment of each node and join. Shape ``(n,)``.
            start_ns: When its own duration begins. Shape ``(n,)``.
            also_ns: What a lag is longer than usual. Shape ``(n,)``.
        """
        before, kind, usual_ns = (
            np.concatenate([edges[side][name] for edges in self._edges])
            for name in ("before", "kind", "ready_ns")
        )
        before_ns = time_ns[before]
        usual_ns -= before_ns
        lag_ns = np.subtract(start_ns, before_ns, out=before_ns)
        hidden_ns = np.minimum(lag_ns, usual_ns)
        fetches = np.flatnonzero(kind == Edge.FETCH)
        hidden_ns[fetches] = lag_ns[fetches]
        hidden_ns[kind == Edge.LOADER] = NEVER
        usual_ns += also_ns
        np.minimum(lag_ns, usual_ns, out=lag_ns)
        none = before == NO_ROW
        lag_ns[none] = hidden_ns[none] = NEVER
        return Edges(before, kind, lag_ns, hidden_ns)

    def _heads(self, first: Edges, second: Edges, owner: Int32s) -> Int32s:
        """The nodes at which runs begin, each after its predecessors; a join is before its owner.

        Args:
            owner: The node to which each join belongs.
        """
        n = len(self._start_ns)
        is_head = (first.before[:n] != np.arange(-1, n - 1)) | (second.before[:n] != NO_ROW)
        is_head |= first.kind[:n] == Edge.ORIGIN
        is_head[ORIGIN] = True
        heads = self._nodes.sorted(np.flatnonzero(is_head).astype(np.int32))
        place = np.empty(n, dtype=np.int32)
        place[heads] = np.arange(len(heads), dtype=np.int32)
        return np.insert(heads, place[owner], np.arange(n, self._n, dtype=np.int32))


def _edges(before: Int32s, kind: Edge, ready_ns: Int64s | int) -> Records:
    found = np.empty(before.shape, dtype=_EDGE)
    found["before"], found["kind"], found["ready_ns"] = before, kind, ready_ns
    return found
