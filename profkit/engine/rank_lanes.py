"""What each rank of a job did when, on one clock and bounded in size."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, get_args

import numpy as np

from profkit.engine.context import Context
from profkit.engine.figures.summary import time_parts
from profkit.engine.job_context import JobContext
from profkit.index.intervals import union
from profkit.index.level_of_detail import coarser, joined, stacked, within_rows
from profkit.index.ranks.delays import Delays
from profkit.index.ranks.matching import Matches
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Int32s, Int64s
from profkit.model.job import Lateness
from profkit.model.rank_lanes import CallState, JobLanes, LaneSite, OwnTime, RankClock, RankLane
from profkit.model.step_summary import StepSummary
from profkit.model.timeline import Slices
from profkit.packed import Packed

MAX_SLICES: Final = 2_000
"""Slices of a rank's own time, and of its collectives: more than a screen has pixels."""
_MAX_ROWS: Final = 4
"""Rows of collectives that a rank runs at the same time; the last one has all further ones."""
_STATES: Final[tuple[CallState, ...]] = get_args(CallState)
_WHY: Final[tuple[Lateness, ...]] = get_args(Lateness)


def split_rank_time(ctx: Context, steps: tuple[StepSummary, ...]) -> OwnTime:
    """Split a rank's time over its whole recording into parts, except for communication."""
    events = ctx.events
    whole = union(events.ts_ns.min(keepdims=True), events.end_ns.max(keepdims=True))
    parts = {kind: times for kind, times in time_parts(ctx, whole).items() if len(times)}

    # Collectives have slices of their own.
    parts.pop("communication", None)

    n = [len(times) for times in parts.values()]
    none = np.zeros(0, dtype=np.int64)
    slices = _in_one_row(
        np.concatenate([none, *(times.starts_ns for times in parts.values())]),
        np.concatenate([none, *(times.ends_ns for times in parts.values())]),
        np.repeat(np.arange(len(n), dtype=np.int32), n),
    )

    return OwnTime(
        start_ns=ctx.trace.base_ns,
        kinds=tuple(parts),
        n=tuple(n),
        total_ns=tuple(times.total_ns for times in parts.values()),
        slices=bounded(slices, MAX_SLICES),
        steps=tuple((step.time_start_ns, step.time_start_ns + step.time_ns) for step in steps),
    )


def _in_one_row(starts_ns: Int64s, ends_ns: Int64s, site: Int32s) -> Slices:
    """Sort slices by start, without empty ones. Shape ``(k,)`` each."""
    order = np.lexsort((ends_ns, starts_ns))
    order = order[ends_ns[order] > starts_ns[order]]
    starts, ends = starts_ns[order], ends_ns[order]

    n, row = np.ones(len(order), dtype=np.int64), np.zeros(len(order), dtype=np.int32)
    event = np.full(len(row), NO_ROW, dtype=np.int32)
    return Slices(row, starts, ends, ends - starts, n, ends - starts, site[order], event)


def bounded(slices: Slices, n: int) -> Slices:
    """Merge adjacent short slices until at most ``n`` are left, or one per row."""
    rows = int(slices.row[-1]) + 1 if len(slices) else 0
    resolution_ns = max(1, int(np.ptp(slices.start_ns)) // (n * 64)) if len(slices) > n else 1

    while len(slices) > max(n, rows):
        # Slices that are closer together than the resolution become one.
        slices = coarser(slices, resolution_ns)
        resolution_ns *= 2
    return slices


def build_job_lanes(job: JobContext) -> JobLanes:
    """Build the lanes of all ranks, of which one at a time is in memory."""
    calls, clocks = job.matches.calls, job.matches.clocks
    kinds: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    begins = []

    # A first pass over the packed times finds the kinds and the origin, a second moves the slices.
    for time in _times(job):
        kinds.update(dict(zip(time.kinds, time.n, strict=True)))
        total_ns.update(dict(zip(time.kinds, time.total_ns, strict=True)))
        begins.append(time.start_ns)

    collectives = _Collectives(job.matches, job.delays)
    sites, collectives_begin_ns = collectives.count_sites()
    first_site = {code: i for i, code in enumerate(sites, start=len(kinds))}
    place = {kind: i for i, kind in enumerate(kinds)}

    begins_ns = clocks.corrected(calls.clock, np.array(begins, dtype=np.int64))
    origin_ns = int(min([*begins_ns.tolist(), *collectives_begin_ns]))

    lanes = []
    for number, (report, time) in enumerate(zip(job.ranks, _times(job), strict=True)):
        clock = calls.clock[number]

        # Default arguments bind the values of this rank.
        def moved(
            times_ns: Int64s, clock: np.int32 = clock, start_ns: int = time.start_ns
        ) -> Int64s:
            clock_of_each = np.full(len(times_ns), clock, dtype=np.int32)
            return clocks.corrected(clock_of_each, times_ns + start_ns) - origin_ns

        call_slices = collectives.build_slices(number, origin_ns, first_site)
        time_slices = replace(
            time.slices,
            start_ns=moved(time.slices.start_ns),
            end_ns=moved(time.slices.end_ns),
            site=np.array([place[kind] for kind in time.kinds], dtype=np.int32)[time.slices.site],
        )
        windows = np.array(time.steps, dtype=np.int64).reshape(-1, 2)

        lanes.append(
            RankLane(
                rank=report.rank,
                file=report.path,
                host=report.host,
                clock=RankClock(
                    int(clocks.offset_ns[clock]), float(clocks.drift[clock]), clocks.origin_ns
                ),
                packed_slices=Packed(joined((time_slices, bounded(call_slices, MAX_SLICES)))),
                n=sum(time.n) + len(call_slices),
                steps=tuple(
                    zip(moved(windows[:, 0]).tolist(), moved(windows[:, 1]).tolist(), strict=True)
                ),
            )
        )

    parts = [LaneSite(kind, n=n, total_ns=total_ns[kind]) for kind, n in kinds.items()]
    return JobLanes(origin_ns, tuple(lanes), (*parts, *sites.values()))


def _times(job: JobContext) -> Iterator[OwnTime]:
    """Return the time of each rank, one after the other."""
    return (time for report in job.ranks if (time := report.time) is not None)


class _Collectives:
    """Slices of all collectives; times in nanoseconds since 1970 on the common clock.

    A rank has three slices of a call: its wait until the last rank started, the transfer, and, if
    it was the last rank itself, the time that others waited for it.

    Attributes:
        begins_ns: The first start on each rank that has any.
    """

    def __init__(self, matches: Matches, delays: Delays) -> None:
        calls = matches.calls
        self._matches = matches
        self._wait_ns = np.zeros(len(calls), dtype=np.int64)
        self._wait_ns[matches.members] = delays.wait_ns

        late = delays.last[delays.is_certain]
        by_rank = np.argsort(calls.member[late], kind="stable")
        self._late = late[by_rank]
        self._late_ns = delays.delay_ns[delays.is_certain][by_rank]

        why = [
            _WHY.index(lateness) for lateness in np.array(delays.why)[delays.is_certain].tolist()
        ]
        self._why = np.array(why, dtype=np.int64)[by_rank]

        self._first_late = np.searchsorted(
            calls.member[self._late], np.arange(len(calls.ranks) + 1)
        )
        self._shape = len(_STATES), len(calls.kinds), len(calls.groups), len(_WHY) + 1

    def count_sites(self) -> tuple[dict[int, LaneSite], list[int]]:
        """Return what the slices of all ranks represent, by code, and when each rank's begin."""
        begins_ns: list[int] = []
        n: Counter[int] = Counter()
        total: Counter[int] = Counter()

        for number in range(len(self._matches.calls.ranks)):
            begins, until, code = self._find_slices(number)
            begins_ns += [int(begins.min())] if len(begins) else []

            codes, place = np.unique(code, return_inverse=True)
            ns = sum_by_key(len(codes), place, until - begins)
            n.update(dict(zip(codes.tolist(), np.bincount(place).tolist(), strict=True)))
            total.update(dict(zip(codes.tolist(), ns.tolist(), strict=True)))

        sites = {code: self._site(code, n[code], total[code]) for code in sorted(n)}
        return sites, begins_ns

    def _site(self, code: int, n: int, total_ns: int) -> LaneSite:
        state, kind, group, why = map(int, np.unravel_index(code, self._shape))
        calls = self._matches.calls
        return LaneSite(
            kind=_STATES[state],
            collective=calls.kinds[kind],
            group=calls.groups[group].name or calls.groups[group].description,
            why=_WHY[why] if why < len(_WHY) else None,
            n=n,
            total_ns=total_ns,
        )

    def _find_slices(self, number: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return starts and ends of a rank's slices, and their codes. Shape ``(k,)`` each."""
        matches, calls = self._matches, self._matches.calls
        call_range = slice(calls.first[number], calls.first[number + 1])
        late_range = slice(self._first_late[number], self._first_late[number + 1])
        late = self._late[late_range]

        starts, call_ends = matches.start_ns[call_range], matches.end_ns[call_range]
        joined_ns, last_ns = starts + self._wait_ns[call_range], matches.start_ns[late]

        state = np.where(
            matches.unmatched[call_range] != 0,
            _STATES.index("unmatched"),
            _STATES.index("transfer"),
        )

        begins = np.concatenate((starts, joined_ns, last_ns - self._late_ns[late_range]))
        ends = np.concatenate((joined_ns, call_ends, last_ns))
        n, n_late = len(starts), len(late)

        what = np.concatenate(
            (
                np.full(n, _STATES.index("waiting")),
                state,
                np.full(n_late, _STATES.index("late")),
            )
        )
        reason = np.concatenate((np.full(2 * n, len(_WHY)), self._why[late_range]))

        kind, group = (
            np.concatenate((column[call_range], column[call_range], column[late]))
            for column in (calls.kind, calls.group)
        )

        # A slice's state, kind, group and reason are one number, so that equal slices can be
        # counted.
        code = np.ravel_multi_index((what, kind, group, reason), self._shape)
        is_any = ends > begins
        return begins[is_any], ends[is_any], code[is_any]

    def build_slices(self, number: int, origin_ns: int, site_of: Mapping[int, int]) -> Slices:
        """Return the slices of one rank below the first row, without overlaps within a row.

        Args:
            site_of: Numbers of the sites by code.
        """
        begins, ends, code = self._find_slices(number)

        site = np.array([site_of[slice_code] for slice_code in code.tolist()], dtype=np.int32)
        slices = _in_one_row(begins - origin_ns, ends - origin_ns, site)
        slices = replace(slices, row=stacked(slices.row, slices))
        slices = within_rows(slices.of(np.argsort(slices.row, kind="stable")), _MAX_ROWS)
        return replace(slices, row=slices.row + np.int32(1))
