"""Replays of a recording: what its steps would take with some changes."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import by_number, distinct, marked
from profkit.index.host.steps import NO_STEP, Steps
from profkit.index.intervals import Intervals, covered_by, inside, of_pairs, unite
from profkit.index.ranges import expand_ranges
from profkit.index.replay.batch import MAX_CHANGES, ChangedNodes, Wanted, replay_all
from profkit.index.replay.graph import NEVER, ORIGIN, DependencyGraph, Edge, NodeKind, Weights
from profkit.model.change import ProgramChange
from profkit.model.events import (
    DEVICE_WORK,
    NO_ROW,
    EventTable,
    Float64s,
    Int32s,
    Int64s,
    Mask,
    Rows,
)

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
    def _completing_nodes(self) -> tuple[Int32s, Rows]:
        """Return the nodes that may complete each step, by step, and where each step's begin."""
        graph, steps = self.graph, self.steps

        if not len(steps):
            return np.flatnonzero(graph.kind != NodeKind.JOIN).astype(np.int32), np.zeros(1, int)

        number = np.full(len(self.events) + 1, NO_STEP, dtype=np.int32)
        number[steps.rows] = np.arange(len(steps), dtype=np.int32)
        step_of_node = np.where(graph.kind == NodeKind.HOST, number[graph.row], NO_STEP)
        is_work = np.isin(graph.kind, _WORK)

        # Device work belongs to the step that launched it, not to the step in which it ran.
        step_of_node[is_work] = steps.of(graph.issued_ns[is_work])
        nodes = np.flatnonzero(step_of_node != NO_STEP).astype(np.int32)
        nodes = nodes[np.argsort(step_of_node[nodes], kind="stable")]

        return nodes, np.searchsorted(step_of_node[nodes], np.arange(len(steps)))

    @cached_property
    def _starts(self) -> Int32s:
        """Return the node at which each step starts, or the recording without steps.

        Shape ``(s,)``.
        """
        graph, steps = self.graph, self.steps
        if not len(steps):
            return np.array([ORIGIN], dtype=np.int32)

        step_nodes = np.flatnonzero((graph.kind == NodeKind.HOST) & np.isin(graph.row, steps.rows))
        step_nodes = step_nodes[np.lexsort((step_nodes, graph.time_ns[step_nodes]))]
        return step_nodes[np.searchsorted(graph.time_ns[step_nodes], steps.starts_ns)].astype(
            np.int32
        )

    @cached_property
    def _before(self) -> Int32s:
        """Return the nodes of work launched before the first step, on streams of the steps' work.

        Empty unless the devices are the bottleneck: then the first step begins when it is done.
        """
        if not self.is_device_bound:
            return np.zeros(0, dtype=np.int32)

        graph, events = self.graph, self.events
        nodes = np.flatnonzero((graph.kind == NodeKind.DEVICE) & (graph.row != NO_ROW))
        stream, starts_ns = events.lane[graph.row[nodes]], events.ts_ns[graph.row[nodes]]
        is_of_steps = graph.issued_ns[nodes] >= self.steps.starts_ns[0]

        # Streams without work of the steps do not count: what runs there delays no step.
        first_ns = np.full(len(events.lanes), NEVER)
        first_ns[stream[is_of_steps]] = np.iinfo(np.int64).max
        np.minimum.at(first_ns, stream[is_of_steps], starts_ns[is_of_steps])

        is_earlier = ~is_of_steps & (starts_ns < first_ns[stream])
        return np.asarray(nodes[is_earlier], dtype=np.int32)

    @cached_property
    def windows(self) -> tuple[Int64s, Int64s]:
        """Return the recorded start and completion of each step, see :meth:`windows_at`."""
        return self.windows_at(self.graph.time_ns)

    def windows_at(self, times: Int64s) -> tuple[Int64s, Int64s]:
        """Return the disjoint start and completion of each step, or of a recording without steps.

        A step begins at its start, or when the step before is complete if that is later: where the
        host runs ahead, these are the steps of the device. If it is the bottleneck, the first step
        begins when the work is done that was launched before it, in a replay with changes too.

        Args:
            times: The moments of all nodes. Shape ``(n,)``.
        """
        before_ns = times[self._before].max(initial=NEVER)
        return _build_windows(times[self._starts], self._ends_at(times), before_ns)

    def _ends_at(self, times: Int64s) -> Int64s:
        """Return when each step is complete. Shape ``(s,)``."""
        nodes, first = self._completing_nodes
        return np.asarray(np.maximum.accumulate(np.maximum.reduceat(times[nodes], first)))

    def completed_at(self, times: Int64s) -> Int32s:
        """Return the node that completes each step, or the last node without steps. Shape ``(s,)``.

        A step is not complete before the one before it.

        Args:
            times: The moments of all nodes. Shape ``(n,)``.
        """
        nodes, first = self._completing_nodes
        latest = np.maximum.reduceat(times[nodes], first)
        step = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(nodes))))

        # Of nodes that end at the same time, the last one wins: the end of device work.
        is_last = times[nodes] == latest[step]
        last = np.empty(len(first), dtype=np.int32)
        last[step[is_last]] = nodes[is_last]

        # A step that is complete before the step ahead of it takes over that step's node.
        is_latest_yet = np.append(True, latest[1:] >= np.maximum.accumulate(latest)[:-1])
        return last[np.maximum.accumulate(np.where(is_latest_yet, np.arange(len(last)), 0))]

    @cached_property
    def is_device_bound(self) -> bool:
        """Return whether the host runs ahead: steps complete ever later after their end there."""
        if len(self.steps) < _MIN_STEPS:
            return False

        steps = self.steps
        behind_ns = self._ends_at(self.graph.time_ns) - steps.ends_ns

        least_ns = MIN_LAG_SHARE * float(np.mean(steps.ends_ns - steps.starts_ns))
        # The host runs ahead if each step adds to the delay, and no step starts from a synced
        # device.
        growth_ns = (behind_ns[-1] - behind_ns[0]) / (len(steps) - 1)
        return bool(growth_ns > least_ns and (behind_ns[1:] > least_ns).all())

    def length_ns(self, times: Int64s) -> int:
        """Return the length of all steps, or of the recording, with the moments of a replay."""
        starts, ends = self.windows_at(times)
        return int((ends - starts).sum())

    @cached_property
    def recorded_ns(self) -> int:
        """Return the recorded length of all steps, or of the recording."""
        return self.length_ns(self.graph.time_ns)

    def removed_ns(self, change: ProgramChange) -> int:
        """Return the time that a change removes, wherever it was spent."""
        events = self.events
        host_calls = covered_by(events, change.calls)

        scaled_ns = 0.0
        for rows, factor in change.scaled:
            scaled_ns += covered_by(events, rows).total_ns * (1 - factor)

        return unite(host_calls, of_pairs(change.host_time)).total_ns + round(scaled_ns)

    def saving(self, change: ProgramChange) -> Saving:
        """Return the time that a change saves. For several changes :meth:`savings` is faster."""
        return self.savings((change,))[0]

    def savings(self, changes: Sequence[ProgramChange]) -> list[Saving]:
        """Return the time that each of some changes saves."""
        # Either replay may save more, as hidden lags move the starts of steps too.
        saved = np.sort(self.recorded_ns - self.lengths_ns(changes), axis=0)
        return [Saving(low, high) for low, high in saved.T.tolist()]

    def lengths_ns(self, changes: Sequence[ProgramChange]) -> Int64s:
        """Return the length of all steps, or of the recording, with each of some changes.

        Returns:
            First with all recorded lags, then with lags hidden where they can be. Shape
            ``(2, changes)``.
        """
        lengths_ns = np.empty((2, len(changes)), dtype=np.int64)

        for hidden, lengths in ((False, lengths_ns[0]), (True, lengths_ns[1])):
            if len(changes) < _MIN_CHANGES:
                times = (self.replay(change, hidden=hidden) for change in changes)
                lengths[:] = [self.length_ns(replayed) for replayed in times]
                continue

            for i in range(0, len(changes), MAX_CHANGES):
                part = slice(i, i + MAX_CHANGES)
                lengths[part] = self._replay_lengths_ns(changes[part], hidden=hidden)

        return lengths_ns

    def _replay_lengths_ns(self, changes: Sequence[ProgramChange], *, hidden: bool) -> Int64s:
        """Replay up to :data:`MAX_CHANGES` changes in one pass, and return the length with each."""
        base, weights = (self.graph.weights(hidden=hidden) for _ in range(2))

        # The weights of one change are reset for the next, as most nodes are never touched.
        changed_nodes = []
        for change in changes:
            self._apply(weights, change)
            touched = distinct(np.concatenate([_NO_ROWS, *weights.touched]))
            changed_nodes.append(
                ChangedNodes(touched, *(column[touched] for column in weights.columns))
            )
            weights.reset(touched, base)

        nodes, first = self._completing_nodes
        # Groups are the steps, then the work before them.
        sizes = np.diff(np.append(first, len(nodes) + np.array([0, len(self._before)])))
        members = np.concatenate((nodes, self._before))
        group = np.repeat(np.arange(len(sizes)), sizes)

        wanted = Wanted(self._starts, members, group, len(sizes))
        starts, latest = replay_all(self.graph, base, changed_nodes, wanted)

        ends = np.maximum.accumulate(latest[:-1], axis=0)
        starts, ends = _build_windows(starts, ends, latest[-1])
        return np.asarray((ends - starts).sum(axis=0))

    def replay(self, change: ProgramChange, *, hidden: bool = False) -> Int64s:
        """Return the moments of all nodes with a change. Shape ``(n,)``."""
        return self.graph.replay(self.weights(change, hidden=hidden))

    def weights(self, change: ProgramChange, *, hidden: bool = False) -> Weights:
        """Return the durations and lags of the graph with a change."""
        return self._apply(self.graph.weights(hidden=hidden), change)

    def _apply(self, weights: Weights, change: ProgramChange) -> Weights:
        """Change durations and lags in place, and return them."""
        n_events = len(self.events)
        if len(change.captured):
            self._capture(weights, marked(change.captured, n_events)[self.graph.row])
        for rows, factor in change.scaled:
            self._rescale_device_work(weights, rows, factor)
        for lane, host_time in self.measure_host_times(change).items():
            self._rescale_host_thread(weights, host_time, self._threads[lane])

        # Time before another thread begins, or after it has ended, belongs to no thread.
        spared = of_pairs(change.host_time)
        if len(spared):
            self._rescale_handovers(weights, HostTime.of([(spared, 0.0)]))

        waits = np.concatenate([rows for rows, factor in change.scaled if not factor] or [_NO_ROWS])
        # A removed call no longer syncs. Removed waits for workers go as well.
        is_call = marked(change.calls, n_events)
        is_wait = marked(np.append(waits, change.calls), n_events)
        for side, edges in enumerate(self.graph.sides):
            nodes = self._released[side]
            row, is_sync = self.graph.row[nodes], edges.kind[nodes] == Edge.SYNC
            released = nodes[np.where(is_sync, is_call[row], is_wait[row])]
            weights.set_lag(side, released, NEVER)
        return weights

    def _rescale_device_work(self, weights: Weights, rows: Rows, factor: float) -> None:
        """Scale the durations of the device work among some rows."""
        device_rows = rows[self._is_device[rows]]
        if not len(device_rows):
            return

        off_host = self._off_host
        scaled = off_host[marked(device_rows, len(self.events))[self.graph.row[off_host]]]
        nodes = scaled[self.graph.kind[scaled] == NodeKind.DEVICE]
        weights.set_dur(nodes, np.round(weights.dur_ns[nodes] * factor))
        if not factor:
            self._remove_latencies(weights, scaled)

    @cached_property
    def _off_host(self) -> Rows:
        """Return the nodes that are not moments on the host: a small part of all."""
        return np.flatnonzero(self.graph.kind != NodeKind.HOST)

    @cached_property
    def _released(self) -> list[Rows]:
        """Return the nodes whose first, and whose second predecessor a change can remove."""
        removable = (Edge.SYNC, Edge.LOADER)
        return [np.flatnonzero(np.isin(edges.kind, removable)) for edges in self.graph.sides]

    @cached_property
    def _threads(self) -> dict[int, slice]:
        """Return the nodes of each host thread."""
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
        """Return which rows are device work. Shape ``(events,)``."""
        return np.isin(self.events.category, DEVICE_WORK)

    def measure_host_times(self, change: ProgramChange) -> dict[int, "HostTime"]:
        """Return the time that host threads spend with a change, if it differs."""
        removed, changes = [change.calls], []
        for rows, factor in change.scaled:
            host_rows = rows[~self._is_device[rows]]
            if factor:
                changes.append((host_rows, factor))
            else:
                removed.append(host_rows)
        changes.append((np.concatenate(removed), 0.0))

        parts_of: dict[int, list[tuple[Intervals, float]]] = {lane: [] for lane in self._threads}
        for rows, factor in changes:
            by_lane = rows[by_number(self.events.lane[rows])]
            row_lane = self.events.lane[by_lane]
            begins = np.flatnonzero(np.diff(row_lane, prepend=NO_ROW))
            rows_of_lanes = np.split(by_lane, begins)[1:]
            for lane, lane_rows in zip(row_lane[begins].tolist(), rows_of_lanes, strict=True):
                if lane in parts_of:
                    parts_of[lane].append((covered_by(self.events, lane_rows), factor))

        # The time that a change spares may be spent on any thread.
        spared = (of_pairs(change.host_time), 0.0)
        times = {
            lane: [part for part in (*parts, spared) if len(part[0])]
            for lane, parts in parts_of.items()
        }
        return {lane: HostTime.of(parts) for lane, parts in times.items() if parts}

    def _remove_latencies(self, weights: Weights, removed: Rows) -> None:
        """Remove the latency of removed device work. The work that follows keeps its latency."""
        for side, edges in enumerate(self.graph.sides):
            nodes = removed[np.isin(edges.kind[removed], _LATENCIES)]
            weights.set_lag(side, nodes, np.minimum(weights.sides[side][nodes], 0))

    def _capture(self, weights: Weights, captured: Mask) -> None:
        """Let device work start with the usual lags."""
        graph = self.graph
        is_captured = captured & (graph.kind != NodeKind.HOST)
        works = np.flatnonzero(is_captured & (graph.kind == NodeKind.DEVICE))
        joins = np.flatnonzero(is_captured & (graph.kind != NodeKind.DEVICE))
        nodes = np.flatnonzero(is_captured)

        weights.set_lag(0, works, weights.first_ns[works] - graph.unexplained_ns[works])
        weights.set_lag(0, joins, graph.first.hidden_lag_ns[joins])
        weights.set_lag(1, nodes, graph.second.hidden_lag_ns[nodes])

    def _rescale_host_thread(self, weights: Weights, host_time: "HostTime", thread: slice) -> None:
        """Scale a thread's recorded lags to the time that it spends with a change."""
        graph = self.graph
        times = graph.time_ns[thread]
        places = host_time.overlapping(times)
        recorded_ns = times[places] - times[places - 1]
        share = host_time.within(times[places - 1], times[places]) / np.maximum(recorded_ns, 1)

        for side, edges in enumerate(graph.sides):
            nodes = places + thread.start
            is_rescaled = np.isin(edges.kind[nodes], _HOST_TIME) & (share != 1)
            nodes = nodes[is_rescaled]
            weights.set_lag(side, nodes, np.round(weights.sides[side][nodes] * share[is_rescaled]))

    def _rescale_handovers(self, weights: Weights, host_time: "HostTime") -> None:
        """Scale the recorded time that passes from one thread to another."""
        graph = self.graph
        for side, edges in enumerate(graph.sides):
            is_handover = (edges.kind == Edge.HANDOVER) & (graph.kind == NodeKind.HOST)
            nodes = np.flatnonzero(is_handover)
            starts, ends = graph.time_ns[edges.before[nodes]], graph.time_ns[nodes]
            share = host_time.within(starts, ends) / np.maximum(ends - starts, 1)
            weights.set_lag(side, nodes, np.round(weights.sides[side][nodes] * share))


def _build_windows(starts: Int64s, ends: Int64s, before_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Return disjoint windows of steps that start and complete at some moments. Shape ``(s, …)``.

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
        """Combine the parts of a thread's time that take another time.

        Args:
            parts: Time, and what it is multiplied by.
        """
        bounds = distinct(
            np.concatenate(
                [side for spent, _ in parts for side in (spent.starts_ns, spent.ends_ns)]
            )
        )

        factor = np.ones(len(bounds) + 1)
        for spent, part_factor in parts:
            factor[1:][inside(spent, bounds)] *= part_factor
        return cls(bounds, factor)

    def overlapping(self, times_ns: Int64s) -> Rows:
        """Return the places of moments before which time changes, since the moment before each.

        Args:
            times_ns: Ascending moments. Shape ``(k,)``.
        """
        # Only bounds of periods that change matter: most moments are outside of them.
        changed = np.flatnonzero(self.factor[1:-1] != 1)
        first = np.searchsorted(times_ns, self.bounds_ns[changed], side="right")
        last = np.searchsorted(times_ns, self.bounds_ns[changed + 1])

        first, last = np.maximum(first, 1), np.minimum(last, len(times_ns) - 1)
        # Neighbouring ranges may share a moment.
        places = expand_ranges(first, np.maximum(last + 1 - first, 0))
        return np.asarray(places[np.diff(places, prepend=NO_ROW) != 0])

    def within(self, starts_ns: Int64s, ends_ns: Int64s) -> Float64s:
        """Return the nanoseconds that the thread spends in some recorded periods.

        Shape of ``starts_ns``.
        """
        return np.asarray(ends_ns - starts_ns - self.saved_ns(ends_ns) + self.saved_ns(starts_ns))

    def saved_ns(self, at_ns: Int64s) -> Float64s:
        """Return the nanoseconds saved before each of some moments."""
        lengths = np.diff(self.bounds_ns) * (1 - self.factor[1:-1])
        before = np.concatenate(([0.0], np.cumsum(lengths)))

        place = np.searchsorted(self.bounds_ns, at_ns, side="right") - 1
        last = np.maximum(place, 0)
        saved = before[last] + (at_ns - self.bounds_ns[last]) * (1 - self.factor[last + 1])
        return np.asarray(np.where(place < 0, 0.0, saved))
