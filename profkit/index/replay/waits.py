"""What blocking calls wait for, and device work that only they show."""

from dataclasses import fields
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.columns import Columns
from profkit.index.device.launch_moments import LAUNCH_NS
from profkit.index.device.syncs import SyncKind, Syncs
from profkit.index.distinct import are_among, common, numbered, used
from profkit.index.intervals import EMPTY, Intervals, covered_by, cut_at, subtract, union, unite
from profkit.index.replay.graph import NEVER
from profkit.index.replay.work import DeviceWork
from profkit.index.runtime_calls import DEVICE_SYNC, EVENT_SYNC, EXPLICIT_SYNC, GRAPH_LAUNCH
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows

SKEW_NS: Final = 5_000
"""By how much the clocks of host and device may differ, so that a call appears to return before
the work that it waits for has ended."""
EXPLAINED_NS: Final = 20_000
"""A longer lag than this needs a cause: launching, switching and returning take less."""
_MAX_LOADING_NS: Final = 100_000_000
"""Loading the code of one kernel after its launch takes milliseconds."""
MAX_RETURN_NS: Final = 200_000
"""A wait that sleeps instead of polling returns within this time."""


@dataclass(frozen=True)
class Waits:
    """What blocking calls wait for.

    A wait for a device waits for work on several streams: the work in ``added``, and the work of
    the wait before it on its thread.

    Attributes:
        rows: The calls. Shape ``(k,)``.
        start_ns: Shape ``(k,)``.
        end_ns: Shape ``(k,)``.
        copy: Position of the copy that each waits for, or :data:`NO_ROW`. Shape ``(k,)``.
        work: Of the work that each waits for, the one that ended last: its position, or
            :data:`NO_ROW`. Shape ``(k,)``.
        before: Of a wait for several streams, the one before it on its thread; otherwise
            :data:`NO_ROW`. Shape ``(k,)``.
        added: Work that a wait for several streams waits for, and the one before it did not:
            the wait's number and the work's position. Shape ``(2, a)``.
    """

    rows: Rows
    start_ns: Int64s
    end_ns: Int64s
    copy: Int32s
    work: Int32s
    before: Int32s
    added: Int32s

    def released_ns(self, work: DeviceWork) -> Int64s:
        """Return when the last work that each call waits for has ended. Shape ``(k,)``."""
        if not len(work):
            return np.full(len(self.rows), NEVER)
        return np.where(self.work == NO_ROW, NEVER, work.end_ns[self.work])

    @property
    def of_streams(self) -> Int32s:
        """Return the numbers of the waits for several streams, ascending."""
        return used(self.added[0]).astype(np.int32)


def find_waits(events: EventTable, syncs: Syncs, work: DeviceWork) -> Waits:
    """Find what each blocking call waits for.

    A blocking copy waits for itself. A wait for a device waits for all work launched before. A wait
    for a stream waits for the last work launched on it, and a wait for an event for work launched
    before. The recording has neither events nor streams of waits: the work that ended last before
    the call returned is taken.
    """
    starts_ns, ends_ns = events.ts_ns[syncs.rows], events.end_ns[syncs.rows]
    none = np.full(len(starts_ns), NO_ROW, dtype=np.int32)
    nothing = np.zeros((2, 0), dtype=np.int32)
    if not len(work) or not len(starts_ns):
        return Waits(syncs.rows, starts_ns, ends_ns, none, none, none, nothing)

    copy = _find_positions(events, work.rows, syncs.copy)
    is_own_copy = (copy != NO_ROW) & (work.end_ns[copy] <= ends_ns + SKEW_NS)
    of_device = are_among(syncs.rows, DEVICE_SYNC.rows(events)) & ~is_own_copy
    is_any = of_device | are_among(syncs.rows, EVENT_SYNC.rows(events))
    is_searched = ~is_own_copy
    last_work = _find_last_ended(work, ends_ns + SKEW_NS, starts_ns, is_any, is_searched)
    last_work = np.where(is_own_copy, copy, last_work).astype(np.int32)

    before, added = none, nothing
    if work.stream[-1]:
        before, added = _assign_to_waits(
            work, events.lane[syncs.rows], starts_ns, ends_ns + SKEW_NS, of_device
        )
    return Waits(syncs.rows, starts_ns, ends_ns, copy, last_work, before, added)


def _find_positions(events: EventTable, rows: Rows, wanted: Int32s) -> Int32s:
    """Return the position of each wanted row among some rows, or :data:`NO_ROW`.

    Shape of ``wanted``.
    """
    position = np.full(len(events) + 1, NO_ROW, dtype=np.int32)
    position[rows] = np.arange(len(rows), dtype=np.int32)
    position[NO_ROW] = NO_ROW
    return position[wanted]


def _find_last_ended(
    work: DeviceWork, before_ns: Int64s, launched_by_ns: Int64s, is_any: Mask, wanted: Mask
) -> Int32s:
    """Find the work that ended last by one moment, among the work launched by another.

    Args:
        before_ns: Shape ``(k,)``.
        launched_by_ns: Shape ``(k,)``.
        is_any: Whether it may be any work. If not, nothing launched by then ended later on the same
            stream: a stream is waited for to its end. Shape ``(k,)``.
        wanted: Whether to search. Shape ``(k,)``.

    Returns:
        Positions, or :data:`NO_ROW`. Shape ``(k,)``.
    """
    # Mostly it is simply the work that ended last.
    order = len(work) - 1 - np.argsort(work.all_ended_ns[::-1], kind="stable")
    place = np.searchsorted(work.all_ended_ns[order], before_ns, side="right") - 1
    latest = order[place]

    is_newest = work.next_launched_ns[latest] > launched_by_ns
    is_match = (work.all_launched_ns[latest] <= launched_by_ns) & (is_any | is_newest)
    last_work = np.where(is_match & (place >= 0), latest, NO_ROW).astype(np.int32)

    open_calls = np.flatnonzero(wanted & ~is_match & (place >= 0))
    last_ns = np.full(len(open_calls), NEVER)
    if not len(open_calls):
        return last_work

    # Calls without a match so far take the latest end over all streams.
    for stream, last, is_newest in work.latest_ended(
        before_ns[open_calls], launched_by_ns[open_calls]
    ):
        ends = work.end_ns[stream][np.maximum(last, 0)]
        is_later = (last != NO_ROW) & (ends > last_ns) & (is_newest | is_any[open_calls])
        last_work[open_calls[is_later]], last_ns[is_later] = (
            last[is_later] + stream.start,
            ends[is_later],
        )
    return last_work


def _assign_to_waits(
    work: DeviceWork, lane: Int32s, start_ns: Int64s, end_ns: Int64s, of_device: Mask
) -> tuple[Int32s, Int32s]:
    """Return ``before`` and ``added`` of :class:`Waits`, for waits for several streams.

    Work belongs to the first wait of each thread for which it had been launched and had ended.
    """
    before = np.full(len(lane), NO_ROW, dtype=np.int32)
    added = [np.zeros((2, 0), dtype=np.int32)]
    waits = np.flatnonzero(of_device).astype(np.int32)

    for thread in used(lane[waits]).tolist():
        thread_waits = waits[lane[waits] == thread]
        thread_waits = thread_waits[np.argsort(start_ns[thread_waits], kind="stable")]
        before[thread_waits[1:]] = thread_waits[:-1]

        # Of each stream the last work is enough: the work before it ends earlier.
        ends = np.maximum.accumulate(end_ns[thread_waits])
        first = np.searchsorted(ends, work.all_ended_ns)
        first = np.maximum(first, np.searchsorted(start_ns[thread_waits], work.all_launched_ns))
        is_last = np.append((first[1:] != first[:-1]) | (work.stream[1:] != work.stream[:-1]), True)
        last = np.flatnonzero(is_last & (first < len(thread_waits)))
        added.append(np.stack((thread_waits[first[last]], last.astype(np.int32))))
    return before, np.concatenate(added, axis=1)


@dataclass(frozen=True)
class Lags:
    """Usual lags in nanoseconds: medians of where nothing else was waited for.

    Attributes:
        launch: From a launch to the start of its work.
        stream: Between two works of a stream.
        sync: From the end of the work to the return of each blocking call: the median of the calls
            of the same name. Shape ``(k,)``.
        call: What each blocking call takes if it need not wait: the median of the calls of the same
            name, at least ``sync``; a copy always waits. Shape ``(k,)``.
        submit: From the start of a blocking call to the start of its copy on a stream without work:
            the median of the calls of the same name. Shape ``(k,)``.
    """

    launch: int
    stream: int
    sync: Int64s
    call: Int64s
    submit: Int64s


def measure_lags(events: EventTable, work: DeviceWork, waits: Waits) -> Lags:
    """Measure the usual lags of a recording."""
    before = work.previous
    ready = np.where(before == NO_ROW, NEVER, work.end_ns[before])
    has_launch = work.launched_ns != NEVER
    is_unqueued = has_launch & (ready < work.launched_ns)
    is_queued = has_launch & (before != NO_ROW) & (work.launched_ns + EXPLAINED_NS < ready)

    # Work that began after another stream's work ended may have waited for that.
    ends = np.sort(work.end_ns, kind="stable")  # mostly they are in order
    n_ended = np.searchsorted(ends, work.start_ns, side="right")
    is_certain = is_queued & (n_ended == np.searchsorted(ends, ready, side="right"))
    is_queued = is_certain if is_certain.any() else is_queued

    released = waits.released_ns(work)
    waited = released > waits.start_ns
    may_be_free = are_among(waits.rows, EXPLICIT_SYNC.rows(events))
    copy = waits.copy
    begun = np.maximum(ready[copy], waits.start_ns) if len(work) else waits.start_ns

    names, name_of = numbered(events.name[waits.rows].astype(np.int64))
    returned, called, submitted = np.zeros((3, len(names)), dtype=np.int64)
    for name in range(len(names)):
        of_name = name_of == name

        returns = (waits.end_ns - released)[of_name & waited]
        returned[name] = _median(returns, LAUNCH_NS, MAX_RETURN_NS)
        durations = (waits.end_ns - waits.start_ns)[of_name & ~waited & may_be_free]
        called[name] = max(_median(durations, 0, MAX_RETURN_NS), returned[name])

        copies = (copy != NO_ROW) & of_name
        submit = work.start_ns[copy[copies]] - begun[copies]
        submitted[name] = _median(submit, LAUNCH_NS, MAX_RETURN_NS)

    return Lags(
        launch=_median(work.start_ns[is_unqueued] - work.launched_ns[is_unqueued], LAUNCH_NS),
        stream=_median(work.start_ns[is_queued] - ready[is_queued], 1_000),
        sync=returned[name_of],
        call=called[name_of],
        submit=submitted[name_of],
    )


def _median(lags: Int64s, default: int, limit: int = EXPLAINED_NS) -> int:
    """Return the median of the lags up to a limit, as longer lags have another cause."""
    usual = lags[lags <= limit]
    return max(int(np.median(usual)), 0) if len(usual) else default


@dataclass(frozen=True)
class _Holes(Columns):
    """Time in which devices worked on something that the recording does not show.

    Attributes:
        time: When.
        stream: Number of the stream that was delayed. Shape of ``time``.
        launch: The call that launched it at the latest. Shape of ``time``.
        issued_ns: When that was. Shape of ``time``.
        may_be_lag: Whether it may also be a latency of the launch that follows. Shape of ``time``.
    """

    time: Intervals
    stream: Int32s
    launch: Int32s
    issued_ns: Int64s
    may_be_lag: Mask


def add_unrecorded_work(
    events: EventTable, work: DeviceWork, waits: Waits, syncs: Syncs, lags: Lags, ignored: Mask
) -> DeviceWork:
    """Add the work that the recording does not show, but other events prove.

    A device starts work that was launched, and that no work before it on its stream delays, within
    about 20 µs; a blocking call returns within that time after its work. If all devices seem idle
    for longer, they were working on something else, such as the kernels of a graph that were lost.

    Args:
        ignored: Calls that may take long for another reason. Shape ``(k,)``.
    """
    if not len(work):
        return work

    busy = union(work.start_ns, work.end_ns)
    busy = unite(busy, covered_by(events, events.rows_of(Category.OVERHEAD)))

    in_graphs = _find_holes_in_graphs(events, work)
    busy = unite(busy, in_graphs.time)
    pending = _find_holes_before_work(busy, work, lags)
    busy = unite(busy, pending.time)
    is_loading = _are_loading(events, work, pending.time)
    pending = pending.select(~is_loading)
    holes = (in_graphs, pending, _find_holes_in_calls(busy, work, waits, syncs, lags, ignored))
    kinds = [kind for kind in holes if len(kind.time)]
    if not kinds:
        return work

    n_holes = sum(len(kind.time) for kind in kinds)
    return _sort_by_stream(
        DeviceWork(
            np.concatenate((work.rows, np.full(n_holes, NO_ROW))),
            np.concatenate((work.stream, *(kind.stream for kind in kinds))),
            np.concatenate((work.start_ns, *(kind.time.starts_ns for kind in kinds))),
            np.concatenate((work.end_ns, *(kind.time.ends_ns for kind in kinds))),
            np.concatenate((work.launch, *(kind.launch for kind in kinds))),
            np.concatenate((work.launched_ns, *(kind.issued_ns for kind in kinds))),
            np.concatenate((work.may_be_lag, *(kind.may_be_lag for kind in kinds))),
        )
    )


def _find_holes_in_calls(
    busy: Intervals, work: DeviceWork, waits: Waits, syncs: Syncs, lags: Lags, ignored: Mask
) -> _Holes:
    """Find holes in blocking calls.

    Time after a copy does not count, as the host may be moving the data from a staging buffer. A
    copy to the device does not count either: the host first moves the data into one.
    """
    copy = waits.copy
    # A call that blocks without known work waits for work that was not recorded.
    is_counted = ~ignored & (syncs.kind != SyncKind.TO_DEVICE)
    copied = np.minimum(work.start_ns[copy], waits.end_ns)
    stop = np.where(copy != NO_ROW, copied, waits.end_ns - lags.sync)
    calls = union(waits.start_ns[is_counted], stop[is_counted])
    idle = subtract(_select_longer(calls, EXPLAINED_NS + lags.launch), busy)

    # Short calls in a row are not a long call.
    idle = cut_at(idle, common(waits.start_ns[is_counted], stop[is_counted]))

    # On the stream of the delayed work, else of the work that the call waits for.
    next_work = _find_next_work(work, np.arange(len(work), dtype=np.int32), idle.ends_ns)
    late_ns = work.start_ns[next_work] - idle.ends_ns
    is_delayed = (late_ns >= 0) & (work.launched_ns[next_work] < idle.starts_ns)
    is_delayed &= late_ns < EXPLAINED_NS

    by_start = np.argsort(waits.start_ns, kind="stable")
    call = by_start[np.searchsorted(waits.start_ns[by_start], idle.starts_ns, side="right") - 1]
    usual = np.where(is_delayed | (copy[call] == NO_ROW), 0, lags.submit[call])
    is_long = idle.lengths_ns > EXPLAINED_NS + np.maximum(usual, lags.launch)
    delayed = np.where(is_delayed, next_work, np.maximum(waits.work[call], 0))

    return _Holes(
        idle[is_long],
        work.stream[delayed[is_long]],
        waits.rows[call[is_long]].astype(np.int32),
        waits.start_ns[call[is_long]],
        np.zeros(int(is_long.sum()), dtype=np.bool_),
    )


def _find_holes_before_work(busy: Intervals, work: DeviceWork, lags: Lags) -> _Holes:
    """Find holes although work was launched and the work before it on its stream had ended."""
    previous = work.previous
    ready = np.where(previous == NO_ROW, NEVER, work.end_ns[previous])
    ready = np.maximum(ready, work.launched_ns)
    has_launch = work.launched_ns != NEVER

    idle = _select_longer(
        union(ready[has_launch], work.start_ns[has_launch]), EXPLAINED_NS + lags.launch
    )
    idle = _select_longer(subtract(idle, busy), EXPLAINED_NS + lags.launch)

    ending = _find_next_work(work, np.arange(len(work), dtype=np.int32), idle.ends_ns)
    is_launched = has_launch[ending] & (work.start_ns[ending] == idle.ends_ns)
    return _build_holes_before(work, ending, idle, may_be_lag=is_launched)


def _are_loading(events: EventTable, work: DeviceWork, holes: Intervals) -> Mask:
    """Tell which holes are the loading of a kernel's code, before its first run in the recording.

    Only where that is the rule: of a recording that lacks work, most holes are before other runs.
    """
    ending = _find_next_work(work, np.arange(len(work), dtype=np.int32), holes.ends_ns)
    by_start = np.argsort(work.start_ns, kind="stable")
    names = events.name[work.rows]
    _, first_runs = np.unique(names[by_start], return_index=True)

    is_loading = np.isin(ending, by_start[first_runs])
    is_loading &= events.category[work.rows[ending]] == Category.KERNEL
    is_loading &= holes.lengths_ns <= _MAX_LOADING_NS
    is_rule = 2 * int(is_loading.sum()) >= len(holes)
    return np.asarray(is_loading if is_rule else np.zeros(len(holes), dtype=np.bool_))


def _find_holes_in_graphs(events: EventTable, work: DeviceWork) -> _Holes:
    """Find holes on a stream between two works of a graph launch, without work of graphs elsewhere.

    Nothing but the graph's own nodes delays them.
    """
    # Nothing outside a graph delays its nodes, so that a gap between them is work.
    of_graph = are_among(work.launch, GRAPH_LAUNCH.rows(events))
    previous = work.previous
    follows = of_graph & (previous != NO_ROW) & (work.launch[previous] == work.launch)

    start, end = work.end_ns[previous[follows]], work.start_ns[follows]
    idle = _select_longer(union(start, end), EXPLAINED_NS)
    busy = union(work.start_ns[of_graph], work.end_ns[of_graph]) if len(idle) else EMPTY
    idle = _select_longer(subtract(idle, busy), EXPLAINED_NS)

    ending = _find_next_work(work, np.flatnonzero(follows).astype(np.int32), idle.ends_ns)
    return _build_holes_before(work, ending, idle, may_be_lag=np.zeros(len(idle), dtype=np.bool_))


def _find_next_work(work: DeviceWork, among: Int32s, at_ns: Int64s) -> Int32s:
    """Find the work that begins first at or after each moment, or else the last work.

    Args:
        among: Positions, in any order. Without positions there may be no moments.
    """
    order = among[np.argsort(work.start_ns[among], kind="stable")]
    place = np.searchsorted(work.start_ns[order], at_ns, side="left")
    return np.asarray(order[np.minimum(place, len(order) - 1)])


def _build_holes_before(
    work: DeviceWork, ending: Int32s, idle: Intervals, *, may_be_lag: Mask
) -> _Holes:
    """Build holes that delayed some work, and were launched with it at the latest."""
    launch, issued_ns = work.launch[ending], work.launched_ns[ending]
    return _Holes(idle, work.stream[ending], launch, issued_ns, may_be_lag)


def _select_longer(intervals: Intervals, than_ns: int) -> Intervals:
    """Select the intervals that are longer than a duration."""
    return intervals[intervals.lengths_ns > than_ns]


def _sort_by_stream(work: DeviceWork) -> DeviceWork:
    order = np.lexsort((work.start_ns, work.stream))
    return DeviceWork(*(getattr(work, column.name)[order] for column in fields(DeviceWork)))
