"""The dependency graph of a recording, and its replay with changed durations.

A node is a moment: a point of a host thread, or the end of a kernel, copy or fill. It is reached
when all of its predecessors are, each after its lag, plus the node's own duration:
``time = max(time of predecessor + lag) + duration``. The lags are recorded, so a
replay without changes returns every recorded time exactly.
"""

from dataclasses import field, fields
from enum import IntEnum
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.index.distinct import marked
from profkit.index.intervals import Intervals, union
from profkit.model.events import (
    NO_ROW,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    Rows,
    are_equally_long,
    is_within,
)

ORIGIN: Final = 0
"""The first node: the start of the recording, where time is 0."""
NEVER: Final = -(1 << 62)
"""A time before everything else: a predecessor that does not exist or was removed."""

_BLOCK: Final = 1 << 14
"""Heads of runs that are replayed from one list."""


class NodeKind(IntEnum):
    """What a node is."""

    HOST = 0
    """A moment on a host thread."""
    DEVICE = 1
    """The end of recorded device work."""
    UNRECORDED = 2
    """The end of device work that the recording does not show, but a blocking call waited for."""
    JOIN = 3
    """The latest of two other nodes."""


class Edge(IntEnum):
    """Why a node has to wait for a predecessor."""

    NONE = 0
    ORIGIN = 1
    """The predecessor is not known: the node keeps its recorded time."""
    HOST = 2
    """A thread goes on; the lag is the time that the thread spends in between."""
    LAUNCH = 3
    """Device work starts after its launch."""
    STREAM = 4
    """Device work starts after the work before it on its stream."""
    EVENT = 5
    """Device work starts after work on another stream."""
    SYNC = 6
    """A blocking call returns after the work that it waits for."""
    HANDOVER = 7
    """A thread waits for another one, such as for the backward pass."""
    LOADER = 8
    """The next batch arrives from a worker process, as long after the last one as recorded."""
    FETCH = 9
    """A thread goes on, up to the arrival of a batch from a worker process."""
    JOIN = 10
    """Joins predecessors of a node that has more than two."""


@dataclass(frozen=True)
class Edges:
    """One predecessor of every node.

    Attributes:
        before: The predecessor, or :data:`NO_ROW`. Shape ``(n,)``.
        kind: An :class:`Edge` value. Shape ``(n,)``.
        lag_ns: The lag if all recorded lags stay. Shape ``(n,)``.
        hidden_lag_ns: The lag if the usual lag of this kind is enough wherever the node waited for
            another predecessor, and the program waits for worker processes as long as recorded.
            Shape ``(n,)``.
    """

    before: Int32s
    kind: npt.NDArray[np.uint8]
    lag_ns: Int64s
    hidden_lag_ns: Int64s


@dataclass(frozen=True)
class NodeColumns:
    """The nodes. All nodes of a thread, or of a stream, are in a row.

    Attributes:
        time_ns: The recorded moment of every node. Shape ``(n,)``.
        dur_ns: Duration of the node's own device work; 0 on the host. Shape ``(n,)``.
        issued_ns: When the host issued it: the launch of device work, else the moment itself;
            :data:`NEVER` where the launch is not known. Shape ``(n,)``.
        may_be_lag: Unrecorded work that may also be the latency of the launch that follows. Shape
            ``(n,)``.
        kind: A :class:`NodeKind` value. Shape ``(n,)``.
        row: The event: device work, a launch, a blocking call, a step, or :data:`NO_ROW`. A
            join has the row of its node. Shape ``(n,)``.
        lane: The host thread of a moment on the host, else :data:`NO_ROW`. Shape ``(n,)``.
    """

    time_ns: Int64s
    dur_ns: Int64s
    issued_ns: Int64s
    may_be_lag: Mask
    kind: npt.NDArray[np.uint8]
    row: Int32s
    lane: Int32s

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class DependencyGraph(NodeColumns):
    """The dependency graph.

    Attributes:
        first: The predecessor that the node waited for in the recording.
        second: Another predecessor.
        main_lane: The thread that runs the steps, or :data:`NO_ROW`.
        unexplained_ns: Part of the first lag that is longer than usual. Shape ``(n,)``.
        heads: The nodes at which runs begin, each after its predecessors; first the origin. Any
            other node just follows the one before it. Shape ``(r,)``.
    """

    first: Edges
    second: Edges
    main_lane: int
    unexplained_ns: Int64s
    heads: Int32s

    def fits(self, events: EventTable) -> bool:
        """Return whether a graph from a cache may belong to some events."""
        columns = (self.dur_ns, self.issued_ns, self.may_be_lag, self.unexplained_ns)
        sides = [getattr(edges, column.name) for edges in self.sides for column in fields(Edges)]
        if not are_equally_long(self, *columns, self.kind, self.row, self.lane, *sides):
            return False

        return (
            all(is_within(column, NEVER, -NEVER) for column in (self.time_ns, *columns))
            and is_within(self.kind, 0, max(NodeKind))
            and is_within(self.row, NO_ROW, len(events) - 1)
            and is_within(self.lane, NO_ROW, len(events.lanes) - 1)
            and NO_ROW <= self.main_lane < len(events.lanes)
            and all(is_within(edges.kind, 0, max(Edge)) for edges in self.sides)
            and all(is_within(edges.before, NO_ROW, len(self) - 1) for edges in self.sides)
            and self._is_in_order()
        )

    def _is_in_order(self) -> bool:
        """Return whether runs begin after their predecessors, so that there are no cycles."""
        heads, first, second = self.heads, self.first.before, self.second.before
        if not len(heads) or heads[0] != ORIGIN or not is_within(heads, 0, len(self) - 1):
            return False

        # A node that is not a head follows the node before it, and waits for no other.
        is_head = marked(heads, len(self))[:-1]
        goes_on = (first == np.arange(-1, len(self) - 1)) & (second == NO_ROW)

        # Without the origin, which begins the first run.
        number = np.arange(1, len(heads))
        befores = (edges.before[heads[1:]] for edges in self.sides)

        return (
            int(is_head.sum()) == len(heads)
            and bool((is_head | goes_on).all())
            and all(((before == NO_ROW) | (self.run[before] < number)).all() for before in befores)
        )

    @cached_property
    def unrecorded(self) -> Intervals:
        """Return the time in which a device worked on something that is not in the recording."""
        nodes = self.kind == NodeKind.UNRECORDED
        return union(self.time_ns[nodes] - self.dur_ns[nodes], self.time_ns[nodes])

    def weights(self, *, hidden: bool) -> "Weights":
        """Copy the recorded durations and lags, to be changed and replayed."""
        first, second = (
            (edges.hidden_lag_ns if hidden else edges.lag_ns).copy()
            for edges in (self.first, self.second)
        )

        # Where latency is hidden, unrecorded work that may be latency takes no time.
        dur_ns = np.where(self.may_be_lag, 0, self.dur_ns) if hidden else self.dur_ns.copy()

        return Weights(dur_ns, first, second)

    @property
    def sides(self) -> tuple[Edges, Edges]:
        """Return both predecessors of every node."""
        return self.first, self.second

    @cached_property
    def run(self) -> Int32s:
        """Return the number of each node's run. Shape ``(n,)``."""
        # Heads ascend, so the last head up to a node is the head of its run.
        number = np.zeros(len(self), dtype=np.int32)
        number[self.heads] = np.arange(len(self.heads), dtype=np.int32)
        head = np.where(number > 0, np.arange(len(self), dtype=np.int32), ORIGIN)
        return number[np.maximum.accumulate(head)]

    def replay(self, weights: "Weights") -> Int64s:
        """Return the moment of every node with some durations and lags. Shape ``(n,)``.

        Within runs the moments are sums. Only the heads of runs are found one after the other.
        """
        run, heads = self.run, self.heads
        # The time since the head of each node's run is a difference of cumulative sums.
        since_ns = weights.first_ns + weights.dur_ns
        since_ns[heads] = 0
        np.cumsum(since_ns, out=since_ns)
        since_ns -= since_ns[heads][run]

        columns = []
        for edges, lags in zip(self.sides, weights.sides, strict=True):
            before = np.maximum(edges.before[heads[1:]], ORIGIN)
            lag_ns = lags[heads[1:]] + weights.dur_ns[heads[1:]] + since_ns[before]
            columns += [run[before], lag_ns]

        times = [0]
        # Lists are faster than arrays to go through, and short ones take little memory.
        for begin in range(0, len(heads) - 1, _BLOCK):
            block = (column[begin : begin + _BLOCK].tolist() for column in columns)
            for first, first_lag, second, second_lag in zip(*block, strict=True):
                first_ns = times[first] + first_lag
                second_ns = times[second] + second_lag
                times.append(second_ns if second_ns > first_ns else first_ns)  # noqa: FURB136  (max is slower)
        return np.array(times, dtype=np.int64)[run] + since_ns


@dataclass
class Weights:
    """Durations and lags of a replay in nanoseconds, each of shape ``(n,)``.

    Changes go through :meth:`set_dur` and :meth:`set_lag`, which note the nodes.

    Attributes:
        dur_ns: Durations of device work.
        first_ns: Lags after the first predecessor; :data:`NEVER` removes it.
        second_ns: Lags after the second predecessor; :data:`NEVER` removes it.
        touched: Nodes that changes touched, in any order.
    """

    dur_ns: Int64s
    first_ns: Int64s
    second_ns: Int64s
    touched: list[Rows] = field(default_factory=list)

    def set_dur(self, nodes: Rows, dur_ns: npt.NDArray[Any]) -> None:
        """Change durations of some nodes."""
        self.dur_ns[nodes] = dur_ns
        self.touched.append(nodes)

    def set_lag(self, side: int, nodes: Rows, lag_ns: npt.NDArray[Any] | int) -> None:
        """Change lags of some nodes after their first (0) or second (1) predecessor."""
        self.sides[side][nodes] = lag_ns
        self.touched.append(nodes)

    def reset(self, nodes: Rows, base: "Weights") -> None:
        """Restore the durations and lags without changes.

        Args:
            nodes: The nodes that they touched.
            base: Durations and lags without changes.
        """
        for weights, column in zip(self.columns, base.columns, strict=True):
            weights[nodes] = column[nodes]
        self.touched.clear()

    @property
    def columns(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return the durations, then the lags after both predecessors."""
        return self.dur_ns, self.first_ns, self.second_ns

    @property
    def sides(self) -> tuple[Int64s, Int64s]:
        """Return the lags after both predecessors."""
        return self.first_ns, self.second_ns
