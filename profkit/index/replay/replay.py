"""Replays of a recording: what its steps would take with some changes."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import by_number, distinct, marked
from profkit.index.host.steps import NO_STEP, Steps
from profkit.index.intervals import Intervals, covered_by, inside, of_pairs, unite
from profkit.index.launches import DEVICE_WORK
from profkit.index.replay.batch import MAX_CHANGES, ChangedNodes, Wanted, replay_all
from profkit.index.replay.graph import NEVER, ORIGIN, DependencyGraph, Edge, NodeKind, Weights
from profkit.model.change import ProgramChange
from profkit.model.events import NO_ROW, EventTable, Float64s, Int32s, Int64s, Mask, Rows

MAX_UNEXPLAINED_SHARE: Final = 0.05
"""The share of the steps up to which lags without a known cause leave the replay meaningful: other
simulators of traces (Lumos, dPRO) report errors of this size."""
_WORK: Final = (NodeKind.DEVICE, NodeKind.UNRECORDED)
_HOST_TIME: Final = (Edge.HOST, Edge.FETCH)
_LATENCIES: Final = (Edge.LAUNCH, Edge.STREAM, Edge.EVENT)
MIN_LAG_SHARE: Final = 0.02
"""The share of a step by which the device must fall behind per step to be the bottleneck: steps
differ by about as much."""
_NO_ROWS: Final = np.zeros(0, dtype=np.intp)
_MIN_CHANGES: Final = 4
"""With fewer changes, a replay for each is faster."""
_MIN_STEPS: Final = 3
"""With fewer steps, a single one that ends with a sync would decide which is the bottleneck."""


@dataclass(frozen=True)
class Saving:
    """The time that a change saves, over all steps or the recording.

    Attributes:
        ns: If all recorded lags stay.
        max_ns: If lags are hidden where they can be.
    """

    ns: int
    max_ns: int


@dataclass(frozen=True)
class Replay:
    """A recording that can be replayed with changes.

    A step is complete when its annotation has ended, and the last device work that it launched.

    Attributes:
        events: The events.
        steps: The steps.
        graph: The dependency graph.
    """

    events: EventTable
    steps: Steps
    graph: DependencyGraph

    @cached_property
    def _of_steps(self) -> tuple[Int32s, Rows]:
        """Nodes of which the last one completes each step, by step; where each step's begin."""
        graph, steps = self.graph, self.steps
        if not len(steps):
            return np.flatnonzero(graph.kind != NodeKind.JOIN).astype(np.int32), np.zeros(1, int)
        number = np.full(len(self.events) + 1, NO_STEP, dtype=np.int32)
        number[steps.rows] = np.arange(len(steps), dtype=np.int32)
        own = np.where(graph.kind == NodeKind.HOST, number[graph.row], NO_STEP)
        is_work = np.isin(graph.kind, _WORK)
        own[is_work] = steps.of(graph.issued_ns[is_work])
        nodes = np.flatnonzero(own != NO_STEP).astype(np.int32)
        nodes = nodes[np.argsort(own[nodes], kind="stable")]
        return nodes, np.searchsorted(own[nodes], np.arange(len(steps)))

    @cached_property
    def _starts(self) -> Int32s:
        """The node at which each step starts, or the recording without steps. Shape ``(s,)``."""
        graph, steps = self.graph, self.steps
        if not len(steps):
            return np.array([ORIGIN], dtype=np.int32)
        own = np.flatnonzero((graph.kind == NodeKind.HOST) & np.isin(graph.row, steps.rows))
        own = own[np.lexsort((own, graph.time_ns[own]))]
        return own[np.searchsorted(graph.time_ns[own], steps.starts_ns)].astype(np.int32)

    @cached_property
    def _before(self) -> Int32s:
        """Nodes of work that was launched before the first step, on streams of the steps' work.

        None unless the devices are the bottleneck: then the first step begins when it is done.
        """
        if not self.is_device_bound:
            return np.zeros(0, dtype=np.int32)
        graph, events = self.graph, self.events
        nodes = np.flatnonzero((graph.kind == NodeKind.DEVICE) & (graph.row != NO_ROW))
        stream, starts_ns = events.lane[graph.row[nodes]], events.ts_ns[graph.row[nodes]]
        is_of_steps = graph.issued_ns[nodes] >= self.steps.starts_ns[0]
        first_ns = np.full(len(events.lanes), NEVER)
        first_ns[stream[is_of_steps]] = np.iinfo(np.int64).max
        np.minimum.at(first_ns, stream[is_of_steps], starts_ns[is_of_steps])
        is_earlier = ~is_of_steps & (starts_ns < first_ns[stream])
        return np.asarray(nodes[is_earlier], dtype=np.int32)

    @cached_property
    def windows(self) -> tuple[Int64s, Int64s]:
        """As :meth:`windows_at`, as recorded."""
        return self.windows_at(self.graph.time_ns)

    def windows_at(self, times: Int64s) -> tuple[Int64s, Int64s]:
        """Start and completion of each step, disjoint; without steps of the recording.

        A step begins at its start, or when the step before is complete if that is later: where the
        host runs ahead, these are the steps of the device. If it is the bottleneck, the first step
        begins when the work is done that was launched before it, in a replay with changes too.

        Args:
            times: The moments of all nodes. Shape ``(n,)``.
        """
        before_ns = times[self._before].max(initial=NEVER)
        return _windows(times[self._starts], self._ends_at(times), before_ns)

    def _ends_at(self, times: Int64s) -> Int64s:
        """When each step is complete. Shape ``(s,)``."""
        nodes, first = self._of_steps
        return np.asarray(np.maximum.accumulate(np.maximum.reduceat(times[nodes], first)))

    def completed_at(self, times: Int64s) -> Int32s:
        """The node that completes each step; without steps the last node. Shape ``(s,)``.

        A step is not complete before the one before it.

        Args:
            times: As for :meth:`windows_at`.
        """
        nodes, first = self._of_steps
        latest = np.maximum.reduceat(times[nodes], first)
        step = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(nodes))))
        is_last = times[nodes] == latest[step]
        last = np.empty(len(first), dtype=np.int32)
        last[step[is_last]] = nodes[is_last]  # of nodes at one time the end of device work
        later = np.append(True, latest[1:] >= np.maximum.accumulate(latest)[:-1])
        return last[np.maximum.accumulate(np.where(later, np.arange(len(last)), 0))]

    @cached_property
    def is_device_bound(self) -> bool:
        """Whether the host runs ahead: steps complete ever later after their end on the host."""
        if len(self.steps) < _MIN_STEPS:
            return False
        steps = self.steps
        behind_ns = self._ends_at(self.graph.time_ns) - steps.ends_ns
        least_ns = MIN_LAG_SHARE * float(np.mean(steps.ends_ns - steps.starts_ns))
        growth_ns = (behind_ns[-1] - behind_ns[0]) / (len(steps) - 1)
        return bool(growth_ns > least_ns and (behind_ns[1:] > least_ns).all())

    def length_ns(self, times: Int64s) -> int:
        """Length of all steps, or of the recording, with the moments of a replay."""
        starts, ends = self.windows_at(times)
        return int((ends - starts).sum())

    @cached_property
    def recorded_ns(self) -> int:
        """Recorded length of all steps, or of the recording."""
        return self.length_ns(self.graph.time_ns)

    def removed_ns(self, change: ProgramChange) -> int:
        """The time that a change removes, wherever it was spent."""
        events = self.events
        host = covered_by(events, change.calls)
        shares = 0.0
        for rows, factor in change.scaled:
            shares += covered_by(events, rows).total_ns * (1 - factor)
        return unite(host, of_pairs(change.host_time)).total_ns + round(shares)

    def saving(self, change: ProgramChange) -> Saving:
        """The time that a change saves; of several, :meth:`savings` is faster."""
        return self.savings((change,))[0]

    def savings(self, changes: Sequence[ProgramChange]) -> list[Saving]:
        """The time that each of some changes saves."""
        saved = np.sort(self.recorded_ns - self.lengths_ns(changes), axis=0)
        return [Saving(low, high) for low, high in saved.T.tolist()]

    def lengths_ns(self, changes: Sequence[ProgramChange]) -> Int64s:
        """Length of all steps, or of the recording, with each of some changes, in few passes.

        Returns:
            First with all recorded lags, then with lags hidden where they can be. Shape
            ``(2, changes)``.
        """
        every = np.empty((2, len(changes)), dtype=np.int64)
        for hidden, lengths in ((False, every[0]), (True, every[1])):
            if len(changes) < _MIN_CHANGES:
                times = (self.replay(change, hidden=hidden) for change in changes)
                lengths[:] = [self.length_ns(each) for each in times]
                continue
            for i in range(0, len(changes), MAX_CHANGES):
                part = slice(i, i + MAX_CHANGES)
                lengths[part] = self._lengths_ns(changes[part], hidden=hidden)
        return every

    def _lengths_ns(self, changes: Sequence[ProgramChange], *, hidden: bool) -> Int64s:
        """As :meth:`lengths_ns`, of up to :data:`MAX_CHANGES` changes in one pass."""
        base, own = (self.graph.weights(hidden=hidden) for _ in range(2))
        changed = []
        for change in changes:
            self._change(own, change)
            touched = distinct(np.concatenate([_NO_ROWS, *own.touched]))
            changed.append(ChangedNodes(touched, *(column[touched] for column in own.columns)))
            own.reset(touched, base)
        nodes, first = self._of_steps
        # Groups are the steps, then the work before them.
        sizes = np.diff(np.append(first, len(nodes) + np.array([0, len(self._before)])))
        members = np.concatenate((nodes, self._before))
        group = np.repeat(np.arange(len(sizes)), sizes)
        wanted = Wanted(self._starts, members, group, len(sizes))
        starts, latest = replay_all(self.graph, base, changed, wanted)
        ends = np.maximum.accumulate(latest[:-1], axis=0)
        starts, ends = _windows(starts, ends, latest[-1])
        return np.asarray((ends - starts).sum(axis=0))

    def replay(self, change: ProgramChange, *, hidden: bool = False) -> Int64s:
        """The moments of all nodes with a change. Shape ``(n,)``."""
        return self.graph.replay(self.weights(change, hidden=hidden))

    def weights(self, change: ProgramChange, *, hidden: bool = False) -> Weights:
        """The durations and lags of the graph with a change."""
        return self._change(self.graph.weights(hidden=hidden), change)

    def _change(self, weights: Weights, change: ProgramChange) -> Weights:
        """Make a change."""
        graph, n = self.graph, len(self.events)
        if len(change.captured):
            self._capture(weights, marked(change.captured, n)[graph.row])
        for rows, factor in change.scaled:
            work = rows[self._is_device[rows]]
            if not len(work):
                continue
            is_own = marked(work, n)[graph.row] & (graph.kind != NodeKind.HOST)
            at = np.flatnonzero(is_own & (graph.kind == NodeKind.DEVICE))
            weights.set_dur(at, np.round(weights.dur_ns[at] * factor))
            if not factor:
                self._remove(weights, is_own)
        for lane, spent in self.host_times(change).items():
            self._spend(weights, spent, self._threads[lane])
        # Time before another thread begins, or after it has ended, is nobody's own.
        between = of_pairs(change.host_time)
        if len(between):
            self._hand_over(weights, HostTime.of([(between, 0.0)]))
        waits = np.concatenate([rows for rows, factor in change.scaled if not factor] or [_NO_ROWS])
        is_call, is_wait = marked(change.calls, n), marked(np.append(waits, change.calls), n)
        for side, edges in enumerate(graph.sides):
            nodes = self._released[side]
            row, is_sync = graph.row[nodes], edges.kind[nodes] == Edge.SYNC
            gone = nodes[np.where(is_sync, is_call[row], is_wait[row])]
            weights.set_lag(side, gone, NEVER)
        return weights

    @cached_property
    def _released(self) -> list[Rows]:
        """The nodes whose first, and whose second predecessor a change can remove."""
        removable = (Edge.SYNC, Edge.LOADER)
        return [np.flatnonzero(np.isin(edges.kind, removable)) for edges in self.graph.sides]

    @cached_property
    def _threads(self) -> dict[int, slice]:
        """The nodes of each host thread."""
        nodes = np.flatnonzero(self.graph.lane != NO_ROW)
        lane = self.graph.lane[nodes]
        first = np.flatnonzero(np.diff(lane, prepend=NO_ROW))
        ends = np.append(first, len(nodes))[1:]
        return {
            int(lane[begin]): slice(int(nodes[begin]), int(nodes[end - 1]) + 1)
            for begin, end in zip(first.tolist(), ends.tolist(), strict=True)
        }

    @cached_property
    def _is_device(self) -> Mask:
        """Rows of device work. Shape ``(events,)``."""
        return np.isin(self.events.category, DEVICE_WORK)

    def host_times(self, change: ProgramChange) -> dict[int, "HostTime"]:
        """The time that each host thread spends with a change; none where it is as recorded."""
        removed, changes = [change.calls], []
        for rows, factor in change.scaled:
            host = rows[~self._is_device[rows]]
            if factor:
                changes.append((host, factor))
            else:
                removed.append(host)
        changes.append((np.concatenate(removed), 0.0))
        found: dict[int, list[tuple[Intervals, float]]] = {lane: [] for lane in self._threads}
        for rows, factor in changes:
            by_lane = rows[by_number(self.events.lane[rows])]
            lane = self.events.lane[by_lane]
            begins = np.flatnonzero(np.diff(lane, prepend=NO_ROW))
            for own, here in zip(lane[begins].tolist(), np.split(by_lane, begins)[1:], strict=True):
                if own in found:
                    found[own].append((covered_by(self.events, here), factor))
        spared = of_pairs(change.host_time)
        for parts in found.values():
            parts.append((spared, 0.0))
        parts_of = {lane: [each for each in parts if len(each[0])] for lane, parts in found.items()}
        return {lane: HostTime.of(parts) for lane, parts in parts_of.items() if parts}

    def _remove(self, weights: Weights, is_own: Mask) -> None:
        """Take the latency of device work that no longer happens; what follows it keeps its own."""
        for side, edges in enumerate(self.graph.sides):
            at = np.flatnonzero(is_own & np.isin(edges.kind, _LATENCIES))
            weights.set_lag(side, at, np.minimum(weights.sides[side][at], 0))

    def _capture(self, weights: Weights, captured: Mask) -> None:
        """Let device work start with the usual lags."""
        graph = self.graph
        is_own = captured & (graph.kind != NodeKind.HOST)
        first = np.flatnonzero(is_own & (graph.kind == NodeKind.DEVICE))
        joined = np.flatnonzero(is_own & (graph.kind != NodeKind.DEVICE))
        own = np.flatnonzero(is_own)
        weights.set_lag(0, first, weights.first_ns[first] - graph.unexplained_ns[first])
        weights.set_lag(0, joined, graph.first.hidden_lag_ns[joined])
        weights.set_lag(1, own, graph.second.hidden_lag_ns[own])

    def _spend(self, weights: Weights, spent: "HostTime", thread: slice) -> None:
        """Let a host thread spend another time than recorded."""
        graph = self.graph
        times = graph.time_ns[thread]
        ends = spent.overlapping(times)
        took = times[ends] - times[ends - 1]
        share = spent.within(times[ends - 1], times[ends]) / np.maximum(took, 1)
        for side, edges in enumerate(graph.sides):
            at = ends + thread.start
            is_own = np.isin(edges.kind[at], _HOST_TIME) & (share != 1)
            at = at[is_own]
            weights.set_lag(side, at, np.round(weights.sides[side][at] * share[is_own]))

    def _hand_over(self, weights: Weights, between: "HostTime") -> None:
        """Let the time that passes from one thread to another be another than recorded."""
        graph = self.graph
        for side, edges in enumerate(graph.sides):
            is_own = (edges.kind == Edge.HANDOVER) & (graph.kind == NodeKind.HOST)
            at = np.flatnonzero(is_own)
            starts, ends = graph.time_ns[edges.before[at]], graph.time_ns[at]
            share = between.within(starts, ends) / np.maximum(ends - starts, 1)
            weights.set_lag(side, at, np.round(weights.sides[side][at] * share))


def _windows(starts: Int64s, ends: Int64s, before_ns: Int64s) -> tuple[Int64s, Int64s]:
    """The windows of steps that start and are complete at some moments. Shape ``(s, …)``.

    Args:
        before_ns: When the work before the first step is done. Shape ``(…)``.
    """
    starts[0] = np.maximum(starts[0], before_ns)
    starts[1:] = np.maximum(starts[1:], ends[:-1])
    return np.minimum(starts, ends), ends


@dataclass(frozen=True)
class HostTime:
    """The time that a host thread spends with some changes.

    Attributes:
        bounds_ns: Where it changes, ascending. Shape ``(b,)``.
        factor: What the time up to each bound, and after the last one, is multiplied by. Shape
            ``(b + 1,)``.
    """

    bounds_ns: Int64s
    factor: Float64s

    @classmethod
    def of(cls, parts: list[tuple[Intervals, float]]) -> "HostTime":
        """The time of a thread of which some parts take another time.

        Args:
            parts: Time, and what it is multiplied by.
        """
        bounds = distinct(
            np.concatenate(
                [side for spent, _ in parts for side in (spent.starts_ns, spent.ends_ns)]
            )
        )
        factor = np.ones(len(bounds) + 1)
        for spent, each in parts:
            factor[1:][inside(spent, bounds)] *= each
        return cls(bounds, factor)

    def overlapping(self, times_ns: Int64s) -> Rows:
        """Which of some ascending moments end a period, since the one before, that changes."""
        changed = np.flatnonzero(self.factor[1:-1] != 1)
        first = np.searchsorted(times_ns, self.bounds_ns[changed], side="right")
        last = np.searchsorted(times_ns, self.bounds_ns[changed + 1])
        first, last = np.maximum(first, 1), np.minimum(last, len(times_ns) - 1)
        size = np.maximum(last + 1 - first, 0)
        nth = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        found = np.repeat(first, size) + nth
        return np.asarray(found[np.diff(found, prepend=NO_ROW) != 0])

    def within(self, starts_ns: Int64s, ends_ns: Int64s) -> Float64s:
        """Nanoseconds that the thread spends in some recorded periods. Shape of ``starts_ns``."""
        return np.asarray(ends_ns - starts_ns - self.saved_ns(ends_ns) + self.saved_ns(starts_ns))

    def saved_ns(self, at_ns: Int64s) -> Float64s:
        """Nanoseconds saved before each of some moments."""
        lengths = np.diff(self.bounds_ns) * (1 - self.factor[1:-1])
        before = np.concatenate(([0.0], np.cumsum(lengths)))
        place = np.searchsorted(self.bounds_ns, at_ns, side="right") - 1
        last = np.maximum(place, 0)
        saved = before[last] + (at_ns - self.bounds_ns[last]) * (1 - self.factor[last + 1])
        return np.asarray(np.where(place < 0, 0.0, saved))
