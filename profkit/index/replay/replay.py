"""Replays of a recording: what its steps would take with some changes."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from profkit.index.host.steps import NO_STEP, Steps
from profkit.index.intervals import covered_by, distinct, inside, of_pairs, unite
from profkit.index.launches import DEVICE_WORK
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
        own = np.flatnonzero((graph.kind == NodeKind.HOST) & np.isin(graph.row, steps.rows))
        number = steps.of(graph.issued_ns)
        launched = np.flatnonzero(np.isin(graph.kind, _WORK) & (number != NO_STEP))
        by_row = np.argsort(steps.rows)
        number[own] = by_row[np.searchsorted(steps.rows[by_row], graph.row[own])]
        nodes = np.concatenate((own, launched)).astype(np.int32)
        nodes = nodes[np.lexsort((-nodes, number[nodes]))]
        return nodes, np.searchsorted(number[nodes], np.arange(len(steps)))

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
    def _begun_after_ns(self) -> int:
        """How long after the first step's start the work is done that was launched before it.

        That is the work on streams of the steps' work; 0 unless the devices are the bottleneck.
        """
        if not self.is_device_bound:
            return 0
        graph, events = self.graph, self.events
        nodes = np.flatnonzero((graph.kind == NodeKind.DEVICE) & (graph.row != NO_ROW))
        stream, starts_ns = events.lane[graph.row[nodes]], events.ts_ns[graph.row[nodes]]
        is_of_steps = graph.issued_ns[nodes] >= self.steps.starts_ns[0]
        first_ns = np.full(len(events.lanes), NEVER)
        first_ns[stream[is_of_steps]] = np.iinfo(np.int64).max
        np.minimum.at(first_ns, stream[is_of_steps], starts_ns[is_of_steps])
        is_earlier = ~is_of_steps & (starts_ns < first_ns[stream])
        begun_ns = int(graph.time_ns[nodes[is_earlier]].max(initial=NEVER))
        return max(0, begun_ns - int(self.steps.starts_ns[0]))

    @cached_property
    def windows(self) -> tuple[Int64s, Int64s]:
        """As :meth:`windows_at`, as recorded."""
        return self.windows_at(self.graph.time_ns)

    def windows_at(self, times: Int64s) -> tuple[Int64s, Int64s]:
        """Start and completion of each step, disjoint; without steps of the recording.

        A step begins at its start, or when the step before is complete if that is later: where the
        host runs ahead, these are the steps of the device. If it is the bottleneck, the first step
        begins when the work is done that was launched before it.

        Args:
            times: The moments of all nodes. Shape ``(n,)``.
        """
        starts, ends = times[self._starts], self._ends_at(times)
        starts[0] += self._begun_after_ns
        starts[1:] = np.maximum(starts[1:], ends[:-1])
        return np.minimum(starts, ends), ends

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
        number = np.searchsorted(first, np.arange(len(nodes)), side="right") - 1
        order = np.lexsort((-nodes, times[nodes], number))
        last = nodes[order[np.append(first[1:], len(nodes)) - 1]]
        at = times[last]
        later = np.concatenate(([True], at[1:] >= np.maximum.accumulate(at)[:-1]))
        place = np.maximum.accumulate(np.where(later, np.arange(len(at)), 0))
        return np.asarray(last[place], dtype=np.int32)

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
        """The time that a change saves."""
        lengths = [self.length_ns(self.replay(change, hidden=hidden)) for hidden in (False, True)]
        low, high = sorted(self.recorded_ns - length for length in lengths)
        return Saving(low, high)

    def replay(self, change: ProgramChange, *, hidden: bool = False) -> Int64s:
        """The moments of all nodes with a change. Shape ``(n,)``."""
        return self.graph.replay(self.weights(change, hidden=hidden))

    def weights(self, change: ProgramChange, *, hidden: bool = False) -> Weights:
        """The durations and lags of the graph with a change."""
        graph, weights = self.graph, self.graph.weights(hidden=hidden)
        if len(change.captured):
            self._capture(weights, change.captured)
        for rows, factor in change.scaled:
            work = rows[self._is_device[rows]]
            is_scaled = np.isin(graph.row, work) & (graph.kind == NodeKind.DEVICE)
            weights.dur_ns[is_scaled] = np.round(weights.dur_ns[is_scaled] * factor)
            if not factor:
                self._remove(weights, work)
        changes = self.host_changes(change)
        for lane in np.unique(graph.lane[graph.lane != NO_ROW]).tolist():
            spent = HostTime.of(self.events, changes, lane)
            if spent is not None:
                self._spend(weights, spent, graph.lane == lane, _HOST_TIME)
        # Time before another thread begins, or after it has ended, is nobody's own.
        between = HostTime.of(self.events, [HostChange(change.calls[:0], change.host_time, 0.0)])
        if between is not None:
            self._spend(weights, between, graph.kind == NodeKind.HOST, (Edge.HANDOVER,))
        waits = changes[-1].rows
        for edges, lags in graph.with_lags(weights):
            of_call = (edges.kind == Edge.SYNC) & np.isin(graph.row, change.calls)
            of_wait = (edges.kind == Edge.LOADER) & np.isin(graph.row, waits)
            lags[of_call | of_wait] = NEVER
        return weights

    @cached_property
    def _is_device(self) -> Mask:
        """Rows of device work. Shape ``(events,)``."""
        return np.isin(self.events.category, DEVICE_WORK)

    def host_changes(self, change: ProgramChange) -> list["HostChange"]:
        """What a change means for the time of host threads; what it removes is the last."""
        removed, found = [change.calls], []
        for rows, factor in change.scaled:
            host = rows[~self._is_device[rows]]
            if factor:
                found.append(HostChange(host, (), factor))
            else:
                removed.append(host)
        return [*found, HostChange(np.unique(np.concatenate(removed)), change.host_time, 0.0)]

    def _remove(self, weights: Weights, work: Rows) -> None:
        """Take the latency of device work that no longer happens; what follows it keeps its own."""
        graph = self.graph
        is_own = np.isin(graph.row, work) & (graph.kind != NodeKind.HOST)
        for edges, lags in graph.with_lags(weights):
            at = is_own & np.isin(edges.kind, _LATENCIES)
            lags[at] = np.minimum(lags[at], 0)

    def _capture(self, weights: Weights, captured: Rows) -> None:
        """Let device work start with the usual lags."""
        graph = self.graph
        is_own = np.isin(graph.row, captured) & (graph.kind != NodeKind.HOST)
        is_first = is_own & (graph.kind == NodeKind.DEVICE)
        weights.first_ns[is_first] -= graph.unexplained_ns[is_first]
        joined = is_own & ~is_first
        weights.first_ns[joined] = graph.first.hidden_lag_ns[joined]
        weights.second_ns[is_own] = graph.second.hidden_lag_ns[is_own]

    def _spend(
        self, weights: Weights, spent: "HostTime", nodes: Mask, kinds: tuple[Edge, ...]
    ) -> None:
        """Spend another time than recorded before some nodes, on edges of some kinds."""
        graph = self.graph
        for edges, lags in graph.with_lags(weights):
            at = np.flatnonzero(nodes & np.isin(edges.kind, kinds))
            starts, ends = graph.time_ns[edges.before[at]], graph.time_ns[at]
            lags[at] = np.round(
                lags[at] * (spent.within(starts, ends) / np.maximum(ends - starts, 1))
            )


@dataclass(frozen=True)
class HostChange:
    """A change of the time that host threads spend.

    Attributes:
        rows: Host rows that take another time.
        pairs: Time, as (start, end) in nanoseconds, that changes on every thread.
        factor: What the time is multiplied by.
    """

    rows: Rows
    pairs: tuple[tuple[int, int], ...]
    factor: float


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
    def of(
        cls, events: EventTable, changes: list[HostChange], lane: int = NO_ROW
    ) -> "HostTime | None":
        """The time of one thread, or between threads; None if nothing changes in it."""
        every = []
        for each in changes:
            own = each.rows[events.lane[each.rows] == lane]
            spent = unite(covered_by(events, own), of_pairs(each.pairs))
            if len(spent):
                every.append((spent, each.factor))
        if not every:
            return None
        sides = [side for spent, _ in every for side in (spent.starts_ns, spent.ends_ns)]
        bounds = distinct(np.concatenate(sides))
        factor = np.ones(len(bounds) + 1)
        for spent, each_factor in every:
            factor[1:][inside(spent, bounds)] *= each_factor
        return cls(bounds, factor)

    def within(self, starts_ns: Int64s, ends_ns: Int64s) -> Float64s:
        """Nanoseconds that the thread spends in some recorded periods. Shape of ``starts_ns``."""
        return np.asarray(ends_ns - starts_ns - self._saved(ends_ns) + self._saved(starts_ns))

    def _saved(self, at_ns: Int64s) -> Float64s:
        """Nanoseconds saved before each of some moments."""
        lengths = np.diff(self.bounds_ns) * (1 - self.factor[1:-1])
        before = np.concatenate(([0.0], np.cumsum(lengths)))
        place = np.searchsorted(self.bounds_ns, at_ns, side="right") - 1
        last = np.maximum(place, 0)
        saved = before[last] + (at_ns - self.bounds_ns[last]) * (1 - self.factor[last + 1])
        return np.asarray(np.where(place < 0, 0.0, saved))
