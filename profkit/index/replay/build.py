"""Builds the dependency graph of a recording."""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.index.device.syncs import Syncs
from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import Steps, data_waits
from profkit.index.intervals import distinct
from profkit.index.launches import Launches
from profkit.index.replay.graph import NEVER, ORIGIN, DependencyGraph, Edge, Edges, NodeKind
from profkit.index.replay.waits import (
    EXPLAINED_NS,
    SKEW_NS,
    Lags,
    Waits,
    find_waits,
    typical_lags,
    with_unrecorded_work,
)
from profkit.index.replay.work import DeviceWork, device_work
from profkit.index.runtime_calls import WAIT_EVENT, names_matching
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import FRAMING, MARKS, WORKER_DATA_WAIT

READY_BATCH_NS: Final = 1_000_000
"""Fetching a batch that a worker process has finished takes less than this."""
_LATENCIES: Final = (Edge.LAUNCH, Edge.STREAM, Edge.EVENT, Edge.SYNC)
"""Edges whose lag is a latency: what it is longer than usual, the node would also have after
another predecessor."""
_NO_NODES: Final = np.zeros(0, dtype=np.int32)


def build_graph(
    events: EventTable,
    tree: CallTree,
    launches: Launches,
    syncs: Syncs,
    steps: Steps,
    ignored: Mask,
) -> DependencyGraph:
    """Build the graph.

    Args:
        ignored: Blocking calls that may take long without device work, such as the profiler's own.
            Shape of ``syncs.rows``.
    """
    work = device_work(events, launches)
    waits = find_waits(events, syncs, work)
    lags = typical_lags(events, work, waits, syncs)
    extended = with_unrecorded_work(events, work, waits, syncs, lags, ignored)
    if extended is not work:
        work = extended
        waits = find_waits(events, syncs, work)
    lanes = _lanes(events, tree, launches, syncs, steps)
    of_lanes = tree.rows[np.isin(events.lane[tree.rows], lanes)]
    main = _main_lane(events, of_lanes, steps)
    host, edges = _Moments(), _EdgeList()
    first, last = _extents(events, of_lanes)
    host.add(first[lanes], lanes, NO_ROW, 4)
    host.add(last[lanes], lanes, NO_ROW, 9)
    host.add(steps.starts_ns, events.lane[steps.rows], steps.rows, 4)
    completed = host.add(steps.ends_ns, events.lane[steps.rows], steps.rows, 3)
    launch = _add_launches(host, events, work)
    host.add(waits.start_ns, events.lane[waits.rows], waits.rows, 6)
    returned = host.add(waits.end_ns, events.lane[waits.rows], waits.rows, 2)
    paused = _add_handovers(host, edges, events, of_lanes, lanes, main)
    fetched = _add_loader(host, edges, events)
    nodes = _Nodes.of(events, host, work, waits, returned, paused)
    device_alone = not _has_host_events(events, of_lanes, work)
    if device_alone:
        paused = np.concatenate((paused, completed))
        edges.add(nodes.of_work(_ended_last(work, steps.ends_ns)), completed, Edge.SYNC, 0)
    _connect_threads(nodes, edges, returned, waits, work, lags, paused, fetched)
    awaited = _event_waits(events, work, lags, device_alone=device_alone)
    _connect_devices(nodes, edges, launch, work, lags, awaited)
    return _graph(nodes, edges, main)


@dataclass
class _Moments:
    """Moments on host threads, before they are ordered.

    Moments at one time follow ``order``: what ends precedes what begins.
    """

    time_ns: list[Int64s] = field(default_factory=list)
    lane: list[Int32s] = field(default_factory=list)
    row: list[Int32s] = field(default_factory=list)
    order: list[Int32s] = field(default_factory=list)
    count: int = 0

    def add(
        self, time_ns: Int64s, lane: Int32s | int, row: Int32s | Rows | int, order: int
    ) -> Int32s:
        """Add moments; returns their nodes."""
        self.time_ns.append(np.asarray(time_ns, dtype=np.int64))
        for column, value in ((self.lane, lane), (self.row, row), (self.order, order)):
            column.append(np.broadcast_to(np.asarray(value, dtype=np.int32), len(time_ns)))
        self.count += len(time_ns)
        return np.arange(self.count - len(time_ns) + 1, self.count + 1, dtype=np.int32)


@dataclass
class _EdgeList:
    """Edges of all nodes: before, after, kind, and the lag that is usual for this kind."""

    before: list[Int32s] = field(default_factory=list)
    after: list[Int32s] = field(default_factory=list)
    kind: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    usual_ns: list[Int64s] = field(default_factory=list)

    def add(self, before: Int32s, after: Int32s, kind: Edge, usual_ns: Int64s | int) -> None:
        """Add edges; those from :data:`NO_ROW` are left out."""
        has = before != NO_ROW
        self.before.append(before[has])
        self.after.append(after[has])
        self.kind.append(np.full(int(has.sum()), kind, dtype=np.uint8))
        usual = np.broadcast_to(np.asarray(usual_ns, dtype=np.int64), before.shape)
        self.usual_ns.append(usual[has])


@dataclass
class _Nodes:
    """The origin, the host's moments, the ends of device work, and of what devices are waited for.

    ``key_ns`` and ``rank`` order them so that each follows its predecessors.
    """

    time_ns: Int64s
    dur_ns: Int64s
    issued_ns: Int64s
    may_be_lag: Mask
    kind: npt.NDArray[np.uint8]
    row: Int32s
    lane: Int32s
    key_ns: Int64s
    rank: Int64s
    n_host: int
    sequence: Int32s
    """The host's nodes by thread, then time."""

    @classmethod
    def of(
        cls,
        events: EventTable,
        host: _Moments,
        work: DeviceWork,
        waits: Waits,
        returned: Int32s,
        paused: Int32s,
    ) -> "_Nodes":
        n_host = host.count + 1
        issued = np.where(work.launch == NO_ROW, work.launched_ns, events.ts_ns[work.launch])
        times = np.concatenate(host.time_ns)
        lanes = np.concatenate(host.lane)
        sequence = np.lexsort((np.concatenate(host.order), times, lanes)).astype(np.int32) + 1
        of_streams = waits.of_streams
        n = n_host + len(work) + len(of_streams)
        kind = np.full(n, NodeKind.DEVICE, dtype=np.uint8)
        kind[:n_host] = NodeKind.HOST
        kind[n_host : n_host + len(work)][work.rows == NO_ROW] = NodeKind.UNRECORDED
        kind[n_host + len(work) :] = NodeKind.JOIN
        begun = np.maximum(work.start_ns, work.launched_ns)
        for stream in work.streams():
            begun[stream] = np.maximum.accumulate(begun[stream])
        first = min(0, int(times.min(initial=0)), int(begun.min(initial=0)))
        rank = 2 * np.arange(n, dtype=np.int64)
        rank[_at_once(sequence, times, lanes, paused)] = 2 * np.arange(1, n_host)
        rank[n_host + len(work) :] = rank[returned[of_streams]] - 1
        ended = waits.released_ns(work)[of_streams]
        none, nothing = np.full(n - n_host, NO_ROW), np.zeros(n_host, dtype=np.int64)
        return cls(
            time_ns=np.concatenate(([0], times, work.end_ns, ended)),
            dur_ns=np.concatenate((nothing, work.end_ns - work.start_ns, 0 * ended)),
            issued_ns=np.concatenate(([0], times, issued, ended)),
            may_be_lag=np.concatenate((nothing > 0, work.may_be_lag, ended > -NEVER)),
            kind=kind,
            row=np.concatenate(
                ([NO_ROW], *host.row, work.rows, waits.rows[of_streams]), dtype=np.int32
            ),
            lane=np.concatenate(([NO_ROW], lanes, none)).astype(np.int32),
            key_ns=np.concatenate(([first], times, begun, waits.end_ns[of_streams])),
            rank=rank,
            n_host=n_host,
            sequence=sequence,
        )

    def of_work(self, positions: Int32s) -> Int32s:
        """The nodes of some device work, :data:`NO_ROW` for no work."""
        return np.where(positions == NO_ROW, NO_ROW, positions + self.n_host).astype(np.int32)


def _at_once(sequence: Int32s, time_ns: Int64s, lane: Int32s, paused: Int32s) -> Int32s:
    """The host's nodes by time; of one moment those last whose thread waited for another one.

    Args:
        time_ns: Of every node but the origin.
        lane: Of every node but the origin.
        paused: The nodes at which a thread goes on after it waited for another.
    """
    own, lanes = time_ns[sequence - 1], lane[sequence - 1]
    moment = np.cumsum((np.diff(own, prepend=NEVER) != 0) | (np.diff(lanes, prepend=NO_ROW) != 0))
    of_node = np.empty(len(sequence) + 1, dtype=np.int64)
    of_node[sequence] = moment
    is_late = np.zeros(int(moment.max(initial=0)) + 1, dtype=np.bool_)
    is_late[of_node[paused]] = True
    return sequence[np.lexsort((is_late[moment], own))]


def _lanes(
    events: EventTable, tree: CallTree, launches: Launches, syncs: Syncs, steps: Steps
) -> Int32s:
    """Host threads that run operators, launch work or wait for it."""
    ops = tree.rows[events.category[tree.rows] == Category.OP]
    launch = launches.launch[launches.launch != NO_ROW]
    used = np.concatenate((ops, launch, syncs.rows, steps.rows))
    return np.unique(events.lane[used]).astype(np.int32)


def _main_lane(events: EventTable, rows: Int32s, steps: Steps) -> int:
    """The thread of the steps, of the loader and the optimizer, or else the longest one.

    Args:
        rows: Host rows of the threads in question.
    """
    marks = names_matching(events.names, MARKS)[events.name]
    for marked in (steps.rows, rows[marks[rows]]):
        if len(marked):
            return int(np.bincount(events.lane[marked]).argmax())
    first, last = _extents(events, rows)
    return int(np.argmax(last - first)) if len(rows) else NO_ROW


def _has_host_events(events: EventTable, rows: Int32s, work: DeviceWork) -> bool:
    """Whether it is recorded what the host did.

    If not, with device work alone, steps last until the work that ran in them has ended.

    Args:
        rows: Host rows of the threads in question.
    """
    is_mark = events.category[rows] == Category.ANNOTATION
    is_mark |= names_matching(events.names, FRAMING)[events.name[rows]]
    return bool((events.dur_ns[rows[~is_mark]] > 0).any() or (work.launch != NO_ROW).any())


def _ended_last(work: DeviceWork, before_ns: Int64s) -> Int32s:
    """The work that ended last before some moments: its position, or :data:`NO_ROW`."""
    order = np.argsort(work.end_ns, kind="stable")
    place = np.searchsorted(work.end_ns[order], before_ns, side="right") - 1
    return np.append(order, NO_ROW)[place].astype(np.int32)


def _extents(events: EventTable, rows: Int32s) -> tuple[Int64s, Int64s]:
    """Where each thread begins and ends. Shape ``(lanes,)`` each; 0 for threads without rows."""
    first = np.full(len(events.lanes), -NEVER)
    last = np.full(len(events.lanes), NEVER)
    np.minimum.at(first, events.lane[rows], events.ts_ns[rows])
    np.maximum.at(last, events.lane[rows], events.ts_ns[rows] + events.dur_ns[rows])
    return np.where(first > last, 0, first), np.where(first > last, 0, last)


def _add_launches(host: _Moments, events: EventTable, work: DeviceWork) -> Int32s:
    """The node that launches each work, or :data:`NO_ROW`. A graph's kernels share one."""
    launched = np.flatnonzero(work.launch != NO_ROW)
    order = np.lexsort((work.launched_ns[launched], work.launch[launched]))
    launched = launched[order]
    calls, at_ns = work.launch[launched], work.launched_ns[launched]
    is_new = (np.diff(calls, prepend=NO_ROW) != 0) | (np.diff(at_ns, prepend=NEVER) != 0)
    nodes = host.add(at_ns[is_new], events.lane[calls[is_new]], calls[is_new], 5)
    found = np.full(len(work), NO_ROW, dtype=np.int32)
    found[launched] = nodes[np.cumsum(is_new) - 1]
    return found


def _add_handovers(
    host: _Moments, edges: _EdgeList, events: EventTable, rows: Int32s, lanes: Int32s, main: int
) -> Int32s:
    """Find where the main thread waits for others, such as for the backward pass or for replicas.

    While it waits nothing begins or ends on it, and others are active most of that time: one of
    them, or several that are active only while it waits. Those of them that overlap form a group.
    The first group follows the main thread, each other one the group before it, and the main thread
    goes on after the last group.

    Returns:
        The nodes at which a thread goes on after it waited for another.
    """
    active = _active_in_pauses(events, rows, lanes, main)
    if not len(active.lane):
        return _NO_NODES
    reached_ns = np.concatenate(([NEVER], np.maximum.accumulate(active.last_ns)[:-1]))
    leads = np.flatnonzero(active.first_ns >= reached_ns)
    sizes = np.diff(np.append(leads, len(active.lane)))
    group = np.repeat(np.arange(len(leads)), sizes)
    ended_ns = np.maximum.reduceat(active.last_ns, leads)
    begin_ns, end_ns = active.begin_ns, active.end_ns
    is_first = (np.diff(begin_ns[leads], prepend=NEVER) != 0)[group]
    is_last = np.append(begin_ns[leads[1:]] != begin_ns[leads[:-1]], True)[group]
    # At one moment the main thread first goes on and then waits; the other way round there.
    begun = host.add(active.first_ns, active.lane, NO_ROW, 3)
    done = host.add(active.last_ns, active.lane, NO_ROW, 2)
    waiting = host.add(begin_ns[is_first], main, NO_ROW, 7)
    goes_on = host.add(end_ns[is_last], main, NO_ROW, 1)
    lag = active.first_ns - begin_ns
    edges.add(waiting, begun[is_first], Edge.HANDOVER, lag[is_first])
    edges.add(done[is_last], goes_on, Edge.HANDOVER, (end_ns - ended_ns[group])[is_last])
    # Every one of a later group follows all of the group before it.
    after = np.flatnonzero(~is_first)
    n_before = sizes[group[after] - 1]
    nth = np.arange(n_before.sum()) - np.repeat(np.cumsum(n_before) - n_before, n_before)
    before = np.repeat(leads[group[after] - 1], n_before) + nth
    after = np.repeat(after, n_before)
    lag = active.first_ns[after] - ended_ns[group[before]]
    edges.add(done[before], begun[after], Edge.HANDOVER, lag)
    return np.concatenate((begun, goes_on))


@dataclass(frozen=True)
class _Active:
    """Where other threads are active in a pause of the main one, by begin. Shape ``(k,)`` each.

    Attributes:
        lane: The other thread.
        begin_ns: Where the pause begins.
        end_ns: Where the pause ends.
        first_ns: The first moment within the pause at which something on the thread begins or ends.
        last_ns: The last such moment, later than the first.
    """

    lane: Int32s
    begin_ns: Int64s
    end_ns: Int64s
    first_ns: Int64s
    last_ns: Int64s

    def of(self, chosen: Mask | Rows) -> "_Active":
        """Some of them."""
        times = (self.begin_ns, self.end_ns, self.first_ns, self.last_ns)
        return _Active(self.lane[chosen], *(column[chosen] for column in times))


def _active_in_pauses(events: EventTable, rows: Int32s, lanes: Int32s, main: int) -> _Active:
    """Where the main thread waits for others."""
    rows = rows[np.argsort(events.lane[rows], kind="stable")]
    place = np.searchsorted(events.lane[rows], np.stack((lanes, lanes + 1)))
    of_lane = {
        lane: rows[first:last]
        for lane, first, last in zip(lanes.tolist(), *place.tolist(), strict=True)
    }
    bounds = _bounds(events, of_lane.pop(main, rows[:0]))
    length = np.diff(bounds)
    columns: list[tuple[npt.NDArray[Any], ...]] = []
    for lane, rows_of_lane in of_lane.items():
        starts = events.ts_ns[rows_of_lane]
        ends = starts + events.dur_ns[rows_of_lane]
        own = np.concatenate((starts, ends))
        after = np.searchsorted(bounds, starts, side="right"), np.searchsorted(bounds, ends)
        gap = np.concatenate(after) - 1
        within = (gap >= 0) & (gap < len(length))
        within[within] = length[gap[within]] > EXPLAINED_NS
        only = np.full(len(own), within.all())[within]
        own, gap = own[within], gap[within]
        order = np.lexsort((own, gap))
        own, gap = own[order], gap[order]
        first = np.flatnonzero(np.diff(gap, prepend=NO_ROW))
        last = np.append(first[1:], len(own))[: len(first)] - 1
        gap = gap[first]
        columns.append((np.full(len(gap), lane), gap, own[first], own[last], only[first]))
    if not columns:
        none = np.zeros(0, dtype=np.int64)
        return _Active(_NO_NODES, none, none, none, none)
    lane, gap, first, last, only = (np.concatenate(each) for each in zip(*columns, strict=True))
    order = np.lexsort((last, first))
    order = order[(last > first)[order]]
    gap, only = gap[order], only[order].astype(np.bool_)
    active = _Active(
        lane[order].astype(np.int32), bounds[gap], bounds[gap + 1], first[order], last[order]
    )
    is_long = 2 * (active.last_ns - active.first_ns) >= length[gap]
    of_pause = is_long | only
    active, gap = active.of(of_pause), gap[of_pause]
    reached = np.concatenate(([NEVER], np.maximum.accumulate(active.last_ns)[:-1]))
    covered = np.maximum(0, active.last_ns - np.maximum(active.first_ns, reached))
    total = np.bincount(gap, weights=covered, minlength=len(length))
    return active.of(2 * total[gap] >= length[gap])


def _bounds(events: EventTable, rows: Int32s) -> Int64s:
    """Every moment at which one of some rows begins or ends, ascending."""
    starts = events.ts_ns[rows]
    return distinct(np.concatenate((starts, starts + events.dur_ns[rows])))


def _add_loader(host: _Moments, edges: _EdgeList, events: EventTable) -> Int32s:
    """Join the waits for batches that worker processes had not finished.

    If the program has to wait for two batches in a row, the workers are the bottleneck: the second
    arrives as long after the first as in the recording, whatever the program does meanwhile. Where
    a batch was ready, the workers may have paused, as they prefetch only a few.

    Returns:
        The nodes at which such a batch arrived.
    """
    waits = data_waits(events)
    waits = waits[names_matching(events.names, WORKER_DATA_WAIT)[events.name[waits]]]
    arrived = [_NO_NODES]
    for lane in np.unique(events.lane[waits]).tolist():
        rows = waits[events.lane[waits] == lane]
        rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
        end = events.ts_ns[rows] + events.dur_ns[rows]
        nodes = host.add(end, lane, rows, 2)
        late = events.dur_ns[rows] > READY_BATCH_NS
        both = np.flatnonzero(late[:-1] & late[1:])
        host.add(events.ts_ns[rows[both + 1]], lane, rows[both + 1], 6)
        edges.add(nodes[both], nodes[both + 1], Edge.LOADER, end[both + 1] - end[both])
        arrived.append(nodes[both + 1])
    return np.concatenate(arrived)


def _connect_threads(
    nodes: _Nodes,
    edges: _EdgeList,
    returned: Int32s,
    waits: Waits,
    work: DeviceWork,
    lags: Lags,
    paused: Int32s,
    fetched: Int32s,
) -> None:
    """Threads go on, and blocking calls return after the work that they wait for."""
    before, after = nodes.sequence[:-1], nodes.sequence[1:]
    same = nodes.lane[before] == nodes.lane[after]
    starts = np.concatenate((nodes.sequence[:1], after[~same]))
    starts = starts[~np.isin(starts, paused)]
    before, after = before[same], after[same]
    # The least that a thread spends before a node that waits for something else.
    least = np.full(nodes.n_host, -NEVER)
    waited = waits.released_ns(work) > waits.start_ns
    least[returned[waited]] = lags.call[waited]
    least[paused] = 0
    least[fetched] = READY_BATCH_NS
    spent = np.minimum(least[after], nodes.time_ns[after] - nodes.time_ns[before])
    is_fetch = np.isin(after, fetched)
    edges.add(before[~is_fetch], after[~is_fetch], Edge.HOST, spent[~is_fetch])
    edges.add(before[is_fetch], after[is_fetch], Edge.FETCH, spent[is_fetch])
    edges.add(np.full_like(starts, ORIGIN), starts, Edge.ORIGIN, nodes.time_ns[starts])
    ended = nodes.of_work(waits.work)
    joined = _join_streams(nodes, edges, waits, len(work))
    ended = np.where(joined == NO_ROW, ended, joined)
    lag = np.minimum(lags.sync, nodes.time_ns[returned] - nodes.time_ns[ended])
    edges.add(ended, returned, Edge.SYNC, lag)


def _join_streams(nodes: _Nodes, edges: _EdgeList, waits: Waits, n_work: int) -> Int32s:
    """Join the work on several streams that each wait for a device waits for.

    Returns:
        The node of each wait at which it has ended, or :data:`NO_ROW`. Shape ``(k,)``.
    """
    of_streams = waits.of_streams
    joined = np.full(len(waits.rows) + 1, NO_ROW, dtype=np.int32)  # the last one is that of NO_ROW
    joined[of_streams] = nodes.n_host + n_work + np.arange(len(of_streams), dtype=np.int32)
    edges.add(nodes.of_work(waits.added[1]), joined[waits.added[0]], Edge.JOIN, 0)
    edges.add(joined[waits.before[of_streams]], joined[of_streams], Edge.JOIN, 0)
    return joined[:-1]


def _connect_devices(
    nodes: _Nodes,
    edges: _EdgeList,
    launch: Int32s,
    work: DeviceWork,
    lags: Lags,
    awaited: Int32s,
) -> None:
    """Work follows its launch, the work before it on its stream, and work on another stream."""
    own = np.arange(nodes.n_host, nodes.n_host + len(work), dtype=np.int32)
    edges.add(nodes.of_work(work.previous), own, Edge.STREAM, lags.stream)
    # What may be unrecorded work may also be the latency of the launch that follows.
    late = (work.previous != NO_ROW) & work.may_be_lag[work.previous]
    lag = np.where(late, work.start_ns - work.launched_ns, lags.launch)
    edges.add(launch, own, Edge.LAUNCH, lag)
    edges.add(nodes.of_work(awaited), own, Edge.EVENT, lags.stream)
    unknown = own[work.launch == NO_ROW]
    edges.add(np.full_like(unknown, ORIGIN), unknown, Edge.ORIGIN, 0)


def _event_waits(events: EventTable, work: DeviceWork, lags: Lags, *, device_alone: bool) -> Int32s:
    """For each work the work on another stream that it waited for, or :data:`NO_ROW`.

    Kineto does not write which stream waits for which event. So it is the work that ended last
    before, of what was launched earlier, if the launch is the first one of its thread after
    ``StreamWaitEvent``, or if nothing else explains why it started that late.

    Args:
        device_alone: Whether the recording has device work alone: then nothing else can explain it,
            and the times of some profilers overlap a little.
    """
    if len(work.streams()) < 2:  # noqa: PLR2004  (no other stream)
        return np.full(len(work), NO_ROW, dtype=np.int32)
    previous = work.previous
    has_previous = previous != NO_ROW
    ready = np.where(has_previous, work.end_ns[previous], NEVER) + lags.stream
    ready = np.maximum(ready, work.launched_ns + lags.launch)
    is_called = _follows_wait_event(events, work)
    is_late = work.start_ns - ready > SKEW_NS
    within_ns = EXPLAINED_NS if device_alone else lags.stream
    found = _latest_elsewhere(work, is_called | is_late, within_ns)
    latest_ns = np.where(found == NO_ROW, NEVER, work.end_ns[found])
    late = is_late & (latest_ns > ready)
    late &= (work.start_ns - latest_ns <= EXPLAINED_NS) | device_alone
    return np.where(is_called | late, found, NO_ROW).astype(np.int32)


def _follows_wait_event(events: EventTable, work: DeviceWork) -> Mask:
    """Whether the launch of each work is its thread's first after ``StreamWaitEvent``."""
    rows = WAIT_EVENT.rows(events)
    is_first = np.zeros(len(work), dtype=np.bool_)
    launched = np.flatnonzero(work.launch != NO_ROW)
    lane = events.lane[work.launch[launched]]
    order = np.lexsort((work.launched_ns[launched], lane))
    launched, lane = launched[order], lane[order]
    for own in np.unique(events.lane[rows]).tolist():
        calls = rows[events.lane[rows] == own]
        first, last = np.searchsorted(lane, (own, own + 1))
        after = work.launched_ns[launched[first:last]]
        place = np.searchsorted(after, events.ts_ns[calls] + events.dur_ns[calls])
        is_first[launched[first:last][place[place < len(after)]]] = True
    return is_first


def _latest_elsewhere(work: DeviceWork, wanted: Mask, within_ns: int) -> Int32s:
    """For some work the work on another stream that ended last before, and was launched earlier.

    Args:
        wanted: Shape ``(w,)``.
        within_ns: How long after the start of the work it may have ended.

    Returns:
        Positions, or :data:`NO_ROW`. Shape ``(w,)``.
    """
    order = np.lexsort((-work.stream, work.end_ns)).astype(np.int32)
    order = order[~work.may_be_lag[order]]
    stream = work.stream[order]
    begins = np.concatenate(([True], stream[1:] != stream[:-1]))
    # Before each place the last one of another stream.
    elsewhere = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0)) - 1
    ended = np.searchsorted(work.end_ns[order], work.start_ns + within_ns, side="right") - 1
    found = np.full(len(work), NO_ROW, dtype=np.int32)
    issued_ns = np.where(work.launch == NO_ROW, work.start_ns, work.launched_ns)
    rest = np.flatnonzero(wanted)
    while len(rest):
        place = ended[rest]
        is_own = stream[place] == work.stream[rest]
        place = np.where((place >= 0) & is_own, elsewhere[place], place)
        rest, place = rest[place >= 0], place[place >= 0]
        candidate = order[place]
        fits = work.start_ns[candidate] < work.start_ns[rest]
        fits &= work.launched_ns[candidate] <= issued_ns[rest]
        found[rest[fits]] = candidate[fits]
        # Launched later, or shorter than the lag and begun later: look further back.
        rest, place = rest[~fits], place[~fits]
        ended[rest] = place - 1
    return found


def _graph(nodes: _Nodes, edges: _EdgeList, main: int) -> DependencyGraph:
    """Order the nodes, and join predecessors until no node has more than two."""
    before, after = np.concatenate(edges.before), np.concatenate(edges.after)
    kind, usual = np.concatenate(edges.kind), np.concatenate(edges.usual_ns)
    start = nodes.time_ns - nodes.dur_ns
    # Clocks of host and device can differ so much that a predecessor follows: not one, then.
    key, rank = nodes.key_ns, nodes.rank
    follows = (key[before] < key[after]) | (
        (key[before] == key[after]) & (rank[before] < rank[after])
    )
    latest_first = np.lexsort((-(nodes.time_ns[before] + usual), after))
    order = latest_first[follows[latest_first]]
    before, after, kind, usual = before[order], after[order], kind[order], usual[order]
    slack = start[after] - nodes.time_ns[before]
    first = np.flatnonzero(np.diff(after, prepend=NO_ROW))
    count = np.diff(np.append(first, len(after)))
    place = np.arange(len(after)) - np.repeat(first, count)
    hidden = np.where(place == 0, slack, np.minimum(usual, slack))
    late = np.maximum(0, slack[first] - usual[first])
    also = np.where(np.isin(kind[first], _LATENCIES), late, 0)
    kept = np.where(place == 0, slack, np.minimum(slack, usual + np.repeat(also, count)))
    # Without the workers' pace the program would wait as long as in the recording.
    hidden = np.select([kind == Edge.LOADER, kind == Edge.FETCH], [NEVER, slack], hidden)
    n, extra = len(nodes.time_ns), place > 1
    joins = np.arange(n, n + int(extra.sum()), dtype=np.int32)
    table = _Table(n + len(joins))
    columns = (before, kind, kept, hidden)
    table.put(0, after[first], *(column[first] for column in columns))
    table.put(1, after[place == 1], *(column[place == 1] for column in columns))
    table.put(1, joins, *(column[extra] for column in columns))
    table.chain(joins, after[extra])
    key = np.concatenate((key, key[after[extra]]))
    rank = np.concatenate((2 * rank, 2 * rank[after[extra]] - 1))
    order = np.lexsort((np.arange(len(rank)), rank, key)).astype(np.int32)
    unexplained = np.zeros(n, dtype=np.int64)
    unexplained[after[first]] = late

    def column(values: npt.NDArray[Any], of_joins: object) -> npt.NDArray[Any]:
        rest = np.broadcast_to(np.asarray(of_joins, dtype=values.dtype), len(joins))
        return np.asarray(np.concatenate((values, rest))[order])

    return DependencyGraph(
        time_ns=column(nodes.time_ns, start[after[extra]]),
        dur_ns=column(nodes.dur_ns, 0),
        may_be_lag=column(nodes.may_be_lag, 0),
        issued_ns=column(nodes.issued_ns, nodes.issued_ns[after[extra]]),
        kind=column(nodes.kind, NodeKind.JOIN),
        row=column(nodes.row, nodes.row[after[extra]]),
        lane=column(nodes.lane, NO_ROW),
        first=table.edges(0, order),
        second=table.edges(1, order),
        main_lane=main,
        unexplained_ns=column(unexplained, 0),
    )


class _Table:
    """Both predecessors of every node, before the nodes are ordered."""

    def __init__(self, n: int) -> None:
        self.before = np.full((2, n), NO_ROW, dtype=np.int32)
        self.kind = np.zeros((2, n), dtype=np.uint8)
        self.lag = np.full((2, n), NEVER, dtype=np.int64)
        self.hidden = np.full((2, n), NEVER, dtype=np.int64)

    def put(self, column: int, nodes: Int32s, *values: npt.NDArray[Any] | int) -> None:
        """Set the predecessor, kind and lags of some nodes."""
        columns: tuple[npt.NDArray[Any], ...] = (self.before, self.kind, self.lag, self.hidden)
        for each, value in zip(columns, values, strict=True):
            each[column, nodes] = value

    def chain(self, joins: Int32s, targets: Int32s) -> None:
        """Make each join the second predecessor of its target, with the one that it had before.

        Args:
            joins: Nodes that have one more predecessor of their target as their second. Shape
                ``(j,)``.
            targets: Ascending; a node with several joins has them in a row. Shape ``(j,)``.
        """
        opens = np.diff(targets, prepend=NO_ROW) != 0
        for values in (self.before, self.kind, self.lag, self.hidden):
            values[0, joins[opens]] = values[1, targets[opens]]
        self.put(0, joins[~opens], joins[~opens] - 1, Edge.JOIN, 0, 0)
        closes = np.append(opens[1:], True)[: len(joins)]
        self.put(1, targets[closes], joins[closes], Edge.JOIN, 0, 0)

    def edges(self, column: int, order: Int32s) -> Edges:
        """The predecessors in the nodes' new order."""
        number = np.empty(len(order) + 1, dtype=np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        number[NO_ROW] = NO_ROW
        return Edges(
            before=number[self.before[column][order]],
            kind=self.kind[column][order],
            lag_ns=self.lag[column][order],
            hidden_lag_ns=self.hidden[column][order],
        )
