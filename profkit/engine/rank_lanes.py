"""What each rank of a job did when, on one clock and bounded in size."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, get_args

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.figures.summary import time_parts
from profkit.index.intervals import union
from profkit.index.level_of_detail import coarser, joined, stacked, within_rows
from profkit.index.ranks.delays import Delays
from profkit.index.ranks.matching import Matches
from profkit.model.events import Int32s, Int64s, Rows
from profkit.model.job import Lateness
from profkit.model.rank_lanes import CallState, JobLanes, LaneSite, OwnTime, RankClock, RankLane
from profkit.model.report import StepSummary
from profkit.model.timeline import Slices

MAX_SLICES: Final = 2_000
"""Slices of a rank's own time, and of its collectives: more than a screen has pixels."""
_MAX_ROWS: Final = 4
"""Rows of collectives that a rank runs at the same time; the last one has all further ones."""
_STATES: Final[tuple[CallState, ...]] = get_args(CallState)
_WHY: Final[tuple[Lateness, ...]] = get_args(Lateness)


def own_time(ctx: Context, steps: tuple[StepSummary, ...]) -> OwnTime:
    """The parts of a rank's time over its whole recording, except for communication."""
    events = ctx.events
    whole = union(events.ts_ns.min(keepdims=True), events.end_ns.max(keepdims=True))
    parts = {kind: times for kind, times in time_parts(ctx, whole).items() if len(times)}
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
        steps=tuple((each.time_start_ns, each.time_start_ns + each.time_ns) for each in steps),
    )


def _in_one_row(starts_ns: Int64s, ends_ns: Int64s, site: Int32s) -> Slices:
    """Slices by start, without empty ones. Shape ``(k,)`` each."""
    order = np.lexsort((ends_ns, starts_ns))
    order = order[ends_ns[order] > starts_ns[order]]
    starts, ends = starts_ns[order], ends_ns[order]
    n, row = np.ones(len(order), dtype=np.int64), np.zeros(len(order), dtype=np.int32)
    return Slices(row, starts, ends, ends - starts, n, ends - starts, site[order])


def bounded(slices: Slices, n: int) -> Slices:
    """At most so many slices, or one per row: adjacent short ones are merged."""
    rows = int(slices.row[-1]) + 1 if len(slices) else 0
    resolution_ns = max(1, int(np.ptp(slices.start_ns)) // (n * 64)) if len(slices) > n else 1
    while len(slices) > max(n, rows):
        slices = coarser(slices, resolution_ns)
        resolution_ns *= 2
    return slices


def job_lanes(ranks: Sequence[tuple[str, OwnTime]], matches: Matches, delays: Delays) -> JobLanes:
    """The lanes of all ranks.

    Args:
        ranks: The file and the time of each rank of ``matches``.
    """
    calls, clocks = matches.calls, matches.clocks
    kinds = list(dict.fromkeys(kind for _, own in ranks for kind in own.kinds))
    n, total_ns = np.zeros((2, len(kinds)), dtype=np.int64)
    collectives = _Collectives.of(matches, delays)
    begins = [own.start_ns for _, own in ranks]
    begins_ns = clocks.corrected(calls.clock, np.array(begins, dtype=np.int64))
    origin_ns = int(min([*begins_ns.tolist(), *collectives.starts_ns.tolist()]))
    lanes = []
    for number, (file, own) in enumerate(ranks):
        clock = calls.clock[number]

        def moved(
            times_ns: Int64s, clock: np.int32 = clock, start_ns: int = own.start_ns
        ) -> Int64s:
            here = np.full(len(times_ns), clock, dtype=np.int32)
            return clocks.corrected(here, times_ns + start_ns) - origin_ns

        place = np.array([kinds.index(kind) for kind in own.kinds], dtype=np.intp)
        n[place] += own.n
        total_ns[place] += own.total_ns
        further = collectives.of_rank(number, origin_ns, len(kinds))
        first = replace(
            own.slices,
            start_ns=moved(own.slices.start_ns),
            end_ns=moved(own.slices.end_ns),
            site=place[own.slices.site].astype(np.int32),
        )
        windows = np.array(own.steps, dtype=np.int64).reshape(-1, 2)
        lanes.append(
            RankLane(
                rank=calls.ranks[number].rank,
                file=file,
                host=calls.ranks[number].host,
                clock=RankClock(
                    int(clocks.offset_ns[clock]), float(clocks.drift[clock]), clocks.origin_ns
                ),
                slices=joined((first, bounded(further, MAX_SLICES))),
                n=sum(own.n) + len(further),
                steps=tuple(
                    zip(moved(windows[:, 0]).tolist(), moved(windows[:, 1]).tolist(), strict=True)
                ),
            )
        )
    sites = [LaneSite(kind, n=int(n[i]), total_ns=int(total_ns[i])) for i, kind in enumerate(kinds)]
    return JobLanes(origin_ns, tuple(lanes), (*sites, *collectives.sites))


@dataclass(frozen=True)
class _Collectives:
    """The slices of all collectives, by rank; times in nanoseconds since 1970 on the common clock.

    Attributes:
        first: Where the slices of each rank begin, and the end. Shape ``(ranks + 1,)``.
        site: Index into ``sites``. Shape ``(n,)``, like the times.
    """

    first: Rows
    starts_ns: Int64s
    ends_ns: Int64s
    site: Int64s
    sites: tuple[LaneSite, ...]

    @classmethod
    def of(cls, matches: Matches, delays: Delays) -> "_Collectives":
        calls, members = matches.calls, matches.members
        wait_ns = np.zeros(len(calls), dtype=np.int64)
        wait_ns[members] = delays.wait_ns
        late = delays.last[delays.is_certain]
        late_ns = delays.delay_ns[delays.is_certain]
        every, starts, ends = np.arange(len(calls)), matches.start_ns, matches.end_ns
        state = np.where(matches.unmatched != 0, _STATES.index("unmatched"),
                         _STATES.index("transfer"))  # fmt: skip
        why = [_WHY.index(each) for each in np.array(delays.why)[delays.is_certain].tolist()]
        # The slices: until the last rank had started; then; and how long others waited for it.
        row = np.concatenate((every, every, late))
        begins = np.concatenate((starts, starts + wait_ns, starts[late] - late_ns))
        until = np.concatenate((starts + wait_ns, ends, starts[late]))
        what = np.concatenate((
            np.full(len(every), _STATES.index("waiting")), state,
            np.full(len(late), _STATES.index("late")),
        ))  # fmt: skip
        reason = np.concatenate((np.full(2 * len(every), len(_WHY)), np.array(why, dtype=np.int64)))
        known = until > begins
        row, begins, until = row[known], begins[known], until[known]
        order = np.lexsort((until, begins, calls.member[row]))
        keys = np.stack((what[known], calls.kind[row], calls.group[row], reason[known]), axis=1)
        distinct, site = np.unique(keys, axis=0, return_inverse=True)
        site = site.reshape(-1)
        n = np.bincount(site, minlength=len(distinct))
        total = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(total, site, until - begins)
        return cls(
            np.searchsorted(calls.member[row][order], np.arange(len(calls.ranks) + 1)),
            begins[order],
            until[order],
            site[order],
            tuple(
                LaneSite(
                    kind=_STATES[state],
                    collective=calls.kinds[kind],
                    group=calls.groups[group].name or calls.groups[group].description,
                    why=_WHY[why] if why < len(_WHY) else None,
                    n=int(n[i]),
                    total_ns=int(total[i]),
                )
                for i, (state, kind, group, why) in enumerate(distinct.tolist())
            ),
        )

    def of_rank(self, number: int, origin_ns: int, first_site: int) -> Slices:
        """The slices of one rank below the first row, without overlaps within a row."""
        own = slice(self.first[number], self.first[number + 1])
        site = (self.site[own] + first_site).astype(np.int32)
        found = _in_one_row(self.starts_ns[own] - origin_ns, self.ends_ns[own] - origin_ns, site)
        found = replace(found, row=stacked(found.row, found))
        found = within_rows(found.of(np.argsort(found.row, kind="stable")), _MAX_ROWS)
        return replace(found, row=found.row + np.int32(1))
