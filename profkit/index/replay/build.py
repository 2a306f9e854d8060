"""Builds the dependency graph of a recording."""

import numpy as np

from profkit.index.device.syncs import Syncs
from profkit.index.distinct import marked, used
from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import Steps
from profkit.index.launches import Launches
from profkit.index.replay.edges import EdgeTable
from profkit.index.replay.graph import NEVER, ORIGIN, DependencyGraph, Edge
from profkit.index.replay.moments import (
    READY_BATCH_NS,
    Moments,
    Threads,
    Tie,
    add_handovers,
    add_launches,
    add_loader,
)
from profkit.index.replay.nodes import Nodes
from profkit.index.replay.waits import (
    EXPLAINED_NS,
    SKEW_NS,
    Lags,
    Waits,
    add_unrecorded_work,
    find_waits,
    measure_lags,
)
from profkit.index.replay.work import DeviceWork, build_device_work
from profkit.index.runtime_calls import WAIT_EVENT, names_matching
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask
from profkit.model.torch_names import FRAMING


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
    work = build_device_work(events, launches)
    waits = find_waits(events, syncs, work)
    lags = measure_lags(events, work, waits)
    extended = add_unrecorded_work(events, work, waits, syncs, lags, ignored)
    if extended is not work:
        work = extended
        waits = find_waits(events, syncs, work)

    threads = Threads.of(events, tree, launches, syncs.rows, steps)
    first_ns, last_ns = threads.extents_ns(events)
    host = Moments()
    host.add(first_ns, threads.lanes, NO_ROW, Tie.BEGINS)
    host.add(last_ns, threads.lanes, NO_ROW, Tie.THREAD_ENDS)
    host.add(steps.starts_ns, events.lane[steps.rows], steps.rows, Tie.BEGINS)
    completed = host.add(steps.ends_ns, events.lane[steps.rows], steps.rows, Tie.STEP_ENDS)

    launched = add_launches(host, events, work)
    host.add(waits.start_ns, events.lane[waits.rows], waits.rows, Tie.WAITS)
    returned = host.add(waits.end_ns, events.lane[waits.rows], waits.rows, Tie.RETURNS)

    handovers = add_handovers(host, events, threads)
    batches = add_loader(host, events)

    nodes = Nodes.of(events, host, work, waits, returned, handovers.after)
    paused, fetched = nodes.of_moment[handovers.after], nodes.of_moment[batches.after]
    returned, launched = nodes.of_moment[returned], nodes.of_moment[launched]

    edges = EdgeTable(nodes)
    edges.add_several(nodes.of_moment[handovers.before], paused, Edge.HANDOVER, handovers.lag_ns)
    edges.add(nodes.of_moment[batches.before], fetched, Edge.LOADER, batches.lag_ns)
    is_device_alone = not _has_host_events(events, threads.rows, work)
    if is_device_alone:
        completed = nodes.of_moment[completed]
        paused = np.concatenate((paused, completed))
        edges.add(nodes.of_work(_find_ended_last(work, steps.ends_ns)), completed, Edge.SYNC, 0)

    waited = waits.released_ns(work) > waits.start_ns
    # The least that a thread spends before a node that waits for something else.
    least_ns = np.full(len(nodes.lane), -NEVER)
    least_ns[returned[waited]] = lags.call[waited]
    least_ns[paused] = 0
    least_ns[fetched] = READY_BATCH_NS

    _connect_threads(nodes, edges, least_ns, paused, fetched)
    _connect_waits(nodes, edges, waits, returned, lags)
    _connect_devices(nodes, edges, launched, work, lags)

    awaited = nodes.of_work(_find_event_waits(events, work, lags, is_device_alone=is_device_alone))
    edges.add(awaited, nodes.works, Edge.EVENT, lags.stream)
    return edges.build_graph(threads.main)


def _connect_threads(
    nodes: Nodes, edges: EdgeTable, least_ns: Int64s, paused: Int32s, fetched: Int32s
) -> None:
    """Connect the moments of each thread: it goes on, or begins when it did.

    A thread that waited for another one begins after that instead.

    Args:
        least_ns: The least that a thread spends before each node.
    """
    before, after = nodes.hosts[:-1], nodes.hosts[1:]
    same = nodes.lane[before] == nodes.lane[after]
    starts = np.concatenate((nodes.hosts[:1], after[~same]))
    starts = starts[~marked(paused, len(nodes.lane))[starts]]
    before, after = before[same], after[same]

    spent = np.minimum(least_ns[after], nodes.time_ns[after] - nodes.time_ns[before])
    is_fetch = marked(fetched, len(nodes.lane))[after]
    for kind, is_kind in ((Edge.HOST, ~is_fetch), (Edge.FETCH, is_fetch)):
        if is_kind.any():
            edges.add(before[is_kind], after[is_kind], kind, spent[is_kind])

    edges.add(np.full_like(starts, ORIGIN), starts, Edge.ORIGIN, nodes.time_ns[starts])


def _connect_waits(
    nodes: Nodes, edges: EdgeTable, waits: Waits, returned: Int32s, lags: Lags
) -> None:
    """Let blocking calls return after the work that they wait for, joined over streams."""
    # A wait for a device waits for each stream, and for all that the wait before it joined.
    joined = np.full(len(waits.rows) + 1, NO_ROW, dtype=np.int32)  # the last entry is for NO_ROW
    joined[waits.of_streams] = nodes.joins
    wait, work = waits.added
    edges.add_several(nodes.of_work(work), joined[wait], Edge.JOIN, 0)
    edges.add(joined[waits.before[waits.of_streams]], nodes.joins, Edge.JOIN, 0)

    ended = np.where(joined[:-1] == NO_ROW, nodes.of_work(waits.work), joined[:-1])
    lag = np.minimum(lags.sync, nodes.time_ns[returned] - nodes.time_ns[ended])
    edges.add(ended, returned, Edge.SYNC, lag)


def _connect_devices(
    nodes: Nodes, edges: EdgeTable, launched: Int32s, work: DeviceWork, lags: Lags
) -> None:
    """Let work follow its launch and the work before it on its stream."""
    edges.add(nodes.of_work(work.previous), nodes.works, Edge.STREAM, lags.stream)

    # What may be unrecorded work may also be the latency of the launch that follows.
    late = (work.previous != NO_ROW) & work.may_be_lag[work.previous]
    lag = np.where(late, work.start_ns - work.launched_ns, lags.launch)
    edges.add(launched, nodes.works, Edge.LAUNCH, lag)

    unknown = nodes.works[work.launch == NO_ROW]
    edges.add(np.full_like(unknown, ORIGIN), unknown, Edge.ORIGIN, 0)


def _has_host_events(events: EventTable, rows: Int32s, work: DeviceWork) -> bool:
    """Tell whether the recording has host activity.

    If not, with device work alone, steps last until the work that ran in them has ended.

    Args:
        rows: Host rows of the threads in question.
    """
    is_mark = events.category[rows] == Category.ANNOTATION
    is_mark |= names_matching(events, FRAMING)[events.name[rows]]
    return bool((events.dur_ns[rows[~is_mark]] > 0).any() or (work.launch != NO_ROW).any())


def _find_ended_last(work: DeviceWork, before_ns: Int64s) -> Int32s:
    """Return the position of the work that ended last before some moments, or :data:`NO_ROW`."""
    order = np.argsort(work.end_ns, kind="stable")
    place = np.searchsorted(work.end_ns[order], before_ns, side="right") - 1
    return np.append(order, NO_ROW)[place].astype(np.int32)


def _find_event_waits(
    events: EventTable, work: DeviceWork, lags: Lags, *, is_device_alone: bool
) -> Int32s:
    """Find the work on another stream that each work waited for, or :data:`NO_ROW`.

    Kineto does not write which stream waits for which event. So it is the work that ended last
    before, among work launched earlier, if the launch is the first one of its thread after
    ``StreamWaitEvent``, or if nothing else explains why it started that late.

    Args:
        is_device_alone: Whether the recording has device work only. Then nothing else explains it,
            and the times of some profilers overlap a little.
    """
    if len(work.streams()) < 2:  # noqa: PLR2004  (no other stream)
        return np.full(len(work), NO_ROW, dtype=np.int32)

    # Kineto has no events of streams: a late start without another reason is a wait for one.
    previous = work.previous
    has_previous = previous != NO_ROW
    ready = np.where(has_previous, work.end_ns[previous], NEVER) + lags.stream
    ready = np.maximum(ready, work.launched_ns + lags.launch)

    is_called = _follows_wait_event(events, work)
    is_late = work.start_ns - ready > SKEW_NS
    within_ns = EXPLAINED_NS if is_device_alone else lags.stream
    candidate = _find_latest_elsewhere(work, is_called | is_late, within_ns)

    latest_ns = np.where(candidate == NO_ROW, NEVER, work.end_ns[candidate])
    late = is_late & (latest_ns > ready)
    late &= (work.start_ns - latest_ns <= EXPLAINED_NS) | is_device_alone
    return np.where(is_called | late, candidate, NO_ROW).astype(np.int32)


def _follows_wait_event(events: EventTable, work: DeviceWork) -> Mask:
    """Tell for each work whether its launch is its thread's first after ``StreamWaitEvent``."""
    rows = WAIT_EVENT.rows(events)
    is_first = np.zeros(len(work), dtype=np.bool_)
    launched = np.flatnonzero(work.launch != NO_ROW)
    lane = events.lane[work.launch[launched]]
    order = np.lexsort((work.launched_ns[launched], lane))
    launched, lane = launched[order], lane[order]

    for thread in used(events.lane[rows]).tolist():
        calls = rows[events.lane[rows] == thread]
        first, last = np.searchsorted(lane, (thread, thread + 1))
        after = work.launched_ns[launched[first:last]]
        place = np.searchsorted(after, events.ts_ns[calls] + events.dur_ns[calls])
        is_first[launched[first:last][place[place < len(after)]]] = True
    return is_first


def _find_latest_elsewhere(work: DeviceWork, wanted: Mask, within_ns: int) -> Int32s:
    """Find for some work the work on another stream that ended last before it started.

    Only work that was launched earlier counts.

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
    latest = np.full(len(work), NO_ROW, dtype=np.int32)
    issued_ns = np.where(work.launch == NO_ROW, work.start_ns, work.launched_ns)
    open_works = np.flatnonzero(wanted)

    # Each pass looks one place further back for the work that is still without a match.
    while len(open_works):
        place = ended[open_works]
        is_same_stream = stream[place] == work.stream[open_works]
        place = np.where((place >= 0) & is_same_stream, elsewhere[place], place)
        open_works, place = open_works[place >= 0], place[place >= 0]
        candidate = order[place]
        fits = work.start_ns[candidate] < work.start_ns[open_works]
        fits &= work.launched_ns[candidate] <= issued_ns[open_works]
        latest[open_works[fits]] = candidate[fits]
        # Launched later, or shorter than the lag and begun later: look further back.
        open_works, place = open_works[~fits], place[~fits]
        ended[open_works] = place - 1
    return latest
