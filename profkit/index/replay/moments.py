"""Moments on host threads at which a thread launches work, waits, or goes on."""

from dataclasses import field
from enum import IntEnum, auto
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.index.columns import Columns, build_empty
from profkit.index.distinct import by_number, distinct, marked, used
from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import Steps, data_waits
from profkit.index.launches import Launches
from profkit.index.ranges import expand_ranges
from profkit.index.replay.graph import NEVER
from profkit.index.replay.waits import EXPLAINED_NS
from profkit.index.replay.work import DeviceWork
from profkit.index.runtime_calls import names_matching
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Rows
from profkit.model.torch_names import MARKS, WORKER_DATA_WAIT

READY_BATCH_NS: Final = 1_000_000
"""Fetching a batch that a worker process has finished takes less than this on an idle machine."""
READY_BATCH_SHARE: Final = 0.1
"""The same as a share of the time from batch to batch: where workers and operators share the cores,
fetching a finished batch was seen to take 2 to 5 ms."""


class Tie(IntEnum):
    """The order of moments of one thread at one time: what ends precedes what begins."""

    GOES_ON = auto()
    """The main thread goes on after a pause."""
    RETURNS = auto()
    """A wait ends, or the work of another thread."""
    JOINS = auto()
    """Another thread begins to work while the main thread pauses."""
    STEP_ENDS = auto()
    BEGINS = auto()
    """The thread, or a step."""
    LAUNCHES = auto()
    WAITS = auto()
    PAUSES = auto()
    """The main thread waits for other threads."""
    THREAD_ENDS = auto()


@dataclass
class Moments:
    """Moments on host threads, before they are ordered."""

    time_ns: list[Int64s] = field(default_factory=list)
    lane: list[Int32s] = field(default_factory=list)
    row: list[Int32s] = field(default_factory=list)
    tie: list[Tie] = field(default_factory=list)
    count: int = 0

    def add(
        self, time_ns: Int64s, lane: Int32s | int, row: Int32s | Rows | int, tie: Tie
    ) -> Int32s:
        """Add moments, and return their numbers."""
        self.time_ns.append(np.asarray(time_ns, dtype=np.int64))
        for column, value in ((self.lane, lane), (self.row, row)):
            column.append(np.broadcast_to(np.asarray(value, dtype=np.int32), len(time_ns)))
        self.tie.append(tie)
        self.count += len(time_ns)
        return np.arange(self.count - len(time_ns), self.count, dtype=np.int32)

    def sort(self) -> Rows:
        """Sort the numbers of all moments by thread, then time, then tie."""
        lengths = [len(part_ns) for part_ns in self.time_ns]
        numbers = np.split(np.arange(self.count), np.cumsum(lengths))
        parts = sorted(range(len(self.tie)), key=self.tie.__getitem__)

        # Stable sorts by the least significant key first.
        order = np.concatenate([numbers[part] for part in parts])
        order = order[np.argsort(np.concatenate(self.time_ns)[order], kind="stable")]
        return order[by_number(np.concatenate(self.lane)[order])]


@dataclass(frozen=True)
class Links:
    """Moments that others wait for.

    Attributes:
        before: Numbers of moments. Shape ``(k,)``.
        after: Shape ``(k,)``.
        lag_ns: From the one to the other in the recording. Shape ``(k,)``.
    """

    before: Int32s
    after: Int32s
    lag_ns: Int64s

    @classmethod
    def of(cls, parts: list[tuple[Int32s, Int32s, Int64s]]) -> "Links":
        """Combine lists of links."""
        no_moments = np.zeros(0, dtype=np.int32)
        columns = zip(*((no_moments, no_moments, no_moments.astype(np.int64)), *parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True)
class Threads:
    """Host threads that run operators, launch work or wait for it.

    Attributes:
        lanes: Shape ``(t,)``.
        rows: Their host rows, thread by thread, in the order of their starts.
        bounds: Where the rows of each thread begin and end. Shape ``(t + 1,)``.
        main: The thread of the steps, of the loader and the optimizer, or else the longest one;
            :data:`NO_ROW` without threads.
    """

    lanes: Int32s
    rows: Int32s
    bounds: Rows
    main: int

    @classmethod
    def of(
        cls, events: EventTable, tree: CallTree, launches: Launches, sync_rows: Rows, steps: Steps
    ) -> "Threads":
        """Find the threads.

        Args:
            sync_rows: Rows of blocking calls.
        """
        # Threads that neither run operators nor launch or wait cannot delay a step.
        is_used = marked(np.concatenate((launches.launch, sync_rows, steps.rows)), len(events))
        is_used[:-1] |= events.category == Category.OP

        lane = events.lane[tree.rows]
        of_lane = marked(lane[is_used[tree.rows]], len(events.lanes))
        rows, lane = tree.rows[of_lane[lane]], lane[of_lane[lane]]
        lanes = np.flatnonzero(of_lane).astype(np.int32)
        bounds = np.append(np.searchsorted(lane, lanes), len(lane))

        marks = names_matching(events, MARKS)[events.name[rows]]
        main = NO_ROW
        if len(steps) or marks.any():
            main = int(np.bincount(events.lane[steps.rows] if len(steps) else lane[marks]).argmax())
        elif len(lanes):
            first_ns, last_ns = _find_extents(events, rows, bounds)
            main = int(lanes[np.argmax(last_ns - first_ns)])

        return cls(lanes, rows, bounds, main)

    def extents_ns(self, events: EventTable) -> tuple[Int64s, Int64s]:
        """Return where each thread begins and ends. Shape ``(t,)`` each."""
        return _find_extents(events, self.rows, self.bounds)

    def rows_by_lane(self) -> dict[int, Int32s]:
        """Return the rows of each thread."""
        parts = np.split(self.rows, self.bounds[1:-1])
        return dict(zip(self.lanes.tolist(), parts, strict=False))


def _find_extents(events: EventTable, rows: Int32s, bounds: Rows) -> tuple[Int64s, Int64s]:
    if not len(rows):
        return events.ts_ns[rows], events.ts_ns[rows]
    return events.ts_ns[rows[bounds[:-1]]], np.maximum.reduceat(events.end_ns[rows], bounds[:-1])


def add_launches(host: Moments, events: EventTable, work: DeviceWork) -> Int32s:
    """Add the moments of launches, and return the moment that launches each work.

    A graph's kernels share one. Work without a launch has :data:`NO_ROW`.
    """
    launched_work = np.flatnonzero(work.launch != NO_ROW)
    order = np.lexsort((work.launched_ns[launched_work], work.launch[launched_work]))
    launched_work = launched_work[order]

    calls, at_ns = work.launch[launched_work], work.launched_ns[launched_work]
    # Work of one launch that starts at the same moment shares a node.
    is_new = (np.diff(calls, prepend=NO_ROW) != 0) | (np.diff(at_ns, prepend=NEVER) != 0)
    moments = host.add(at_ns[is_new], events.lane[calls[is_new]], calls[is_new], Tie.LAUNCHES)
    moment_of_work = np.full(len(work), NO_ROW, dtype=np.int32)
    moment_of_work[launched_work] = moments[np.cumsum(is_new) - 1]
    return moment_of_work


def add_handovers(host: Moments, events: EventTable, threads: Threads) -> Links:
    """Find where the main thread waits for others, such as for the backward pass or for replicas.

    While it waits nothing begins or ends on it, and other threads are active most of that time: a
    single one, or several that are active only while it waits. Threads that overlap form a group.
    The first group follows the main thread, each later group the group before it, and the main
    thread goes on after the last group.

    Returns:
        From where a thread waits for others to where it or they go on.
    """
    active = _find_active_in_pauses(events, threads)
    if not len(active.lane):
        return Links.of([])

    reached_ns = np.concatenate(([NEVER], np.maximum.accumulate(active.last_ns)[:-1]))
    leads = np.flatnonzero(active.first_ns >= reached_ns)
    sizes = np.diff(np.append(leads, len(active.lane)))
    group = np.repeat(np.arange(len(leads)), sizes)
    ended_ns = np.maximum.reduceat(active.last_ns, leads)

    # A pause may have several groups in a row.
    begin_ns, end_ns = active.begin_ns, active.end_ns
    is_first = (np.diff(begin_ns[leads], prepend=NEVER) != 0)[group]
    is_last = np.append(begin_ns[leads[1:]] != begin_ns[leads[:-1]], True)[group]

    # At one moment the main thread first goes on and then waits. Other threads do the reverse.
    begun = host.add(active.first_ns, active.lane, NO_ROW, Tie.JOINS)
    done = host.add(active.last_ns, active.lane, NO_ROW, Tie.RETURNS)
    waiting = host.add(begin_ns[is_first], threads.main, NO_ROW, Tie.PAUSES)
    goes_on = host.add(end_ns[is_last], threads.main, NO_ROW, Tie.GOES_ON)

    # Every thread of a later group follows all threads of the group before it.
    after = np.flatnonzero(~is_first)
    n_before = sizes[group[after] - 1]
    before = expand_ranges(leads[group[after] - 1], n_before)
    after = np.repeat(after, n_before)
    lag = active.first_ns[after] - ended_ns[group[before]]

    return Links.of(
        [
            (waiting, begun[is_first], (active.first_ns - begin_ns)[is_first]),
            (done[is_last], goes_on, (end_ns - ended_ns[group])[is_last]),
            (done[before], begun[after], lag),
        ]
    )


@dataclass(frozen=True)
class _Active(Columns):
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


def _find_active_in_pauses(events: EventTable, threads: Threads) -> _Active:
    """Find where the main thread waits for other threads."""
    rows_by_lane = threads.rows_by_lane()
    main_rows = rows_by_lane.pop(threads.main, threads.rows[:0])
    bounds = distinct(_sides(events, main_rows)) if rows_by_lane else events.ts_ns[:0]
    length = np.diff(bounds)

    columns: list[tuple[npt.NDArray[Any], ...]] = []
    for lane, lane_rows in rows_by_lane.items():
        starts = events.ts_ns[lane_rows]
        ends = starts + events.dur_ns[lane_rows]
        moments = np.concatenate((starts, ends))
        after = np.searchsorted(bounds, starts, side="right"), np.searchsorted(bounds, ends)
        gap = np.concatenate(after) - 1
        within = (gap >= 0) & (gap < len(length))
        within[within] = length[gap[within]] > EXPLAINED_NS
        only = np.full(len(moments), within.all())[within]

        # The first and the last moment of the thread in each pause.
        moments, gap = moments[within], gap[within]
        order = np.lexsort((moments, gap))
        moments, gap = moments[order], gap[order]
        first = np.flatnonzero(np.diff(gap, prepend=NO_ROW))
        last = np.append(first[1:], len(moments))[: len(first)] - 1
        gap = gap[first]
        columns.append((np.full(len(gap), lane), gap, moments[first], moments[last], only[first]))
    if not columns:
        return build_empty(_Active)

    lanes, gap, first, last, only = map(np.concatenate, zip(*columns, strict=True))
    order = np.lexsort((last, first))
    order = order[(last > first)[order]]
    gap, only = gap[order], only[order].astype(np.bool_)
    active = _Active(
        lanes[order].astype(np.int32), bounds[gap], bounds[gap + 1], first[order], last[order]
    )

    # A thread that also works elsewhere is waited for only if it fills half of the pause.
    is_long = 2 * (active.last_ns - active.first_ns) >= length[gap]
    is_partner = is_long | only
    active, gap = active.select(is_partner), gap[is_partner]

    reached = np.concatenate(([NEVER], np.maximum.accumulate(active.last_ns)[:-1]))
    covered = np.maximum(0, active.last_ns - np.maximum(active.first_ns, reached))
    total = np.bincount(gap, weights=covered, minlength=len(length))
    return active.select(2 * total[gap] >= length[gap])


def _sides(events: EventTable, rows: Int32s) -> Int64s:
    """Return the starts of some rows, then their ends. Shape ``(2 r,)``."""
    starts = events.ts_ns[rows]
    return np.concatenate((starts, starts + events.dur_ns[rows]))


def add_loader(host: Moments, events: EventTable) -> Links:
    """Join the waits for batches that worker processes had not finished.

    If the program has to wait for two batches in a row, the workers are the bottleneck. The second
    batch arrives as long after the first as recorded, whatever the program does meanwhile. Where a
    batch was ready, the workers may have paused, as they prefetch only a few.

    Returns:
        From the arrival of a batch to the arrival of the next.
    """
    waits = data_waits(events)
    waits = waits[names_matching(events, WORKER_DATA_WAIT)[events.name[waits]]]

    parts = []
    for lane in used(events.lane[waits]).tolist():
        rows = waits[events.lane[waits] == lane]
        rows = events.sort_by_start(rows)
        end = events.ts_ns[rows] + events.dur_ns[rows]
        arrived = host.add(end, lane, rows, Tie.RETURNS)
        # Only two late batches in a row show the workers' pace.
        waited_ns, paces_ns = events.dur_ns[rows], np.diff(end)
        is_late = waited_ns > READY_BATCH_NS
        is_late_for_pace = waited_ns[1:] > READY_BATCH_SHARE * paces_ns
        both = np.flatnonzero(is_late[:-1] & is_late[1:] & is_late_for_pace)
        host.add(events.ts_ns[rows[both + 1]], lane, rows[both + 1], Tie.WAITS)
        parts.append((arrived[both], arrived[both + 1], end[both + 1] - end[both]))
    return Links.of(parts)
