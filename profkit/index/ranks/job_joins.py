"""Builds the replay of a job: its ranks' joins of collectives, waits for them, and own work."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.columns import Columns
from profkit.index.intervals import (
    Intervals,
    clip,
    covered_before,
    covered_within,
    cut_at,
    of_pairs,
    subtract,
    unite,
)
from profkit.index.ranks.activity import OVERLAP_NS, RankActivity
from profkit.index.ranks.collectives import late_end_ns
from profkit.index.ranks.job_replay import JobReplay
from profkit.index.ranks.matching import MIN_TOLERANCE_NS, Matches, number_rows
from profkit.model.events import Int32s, Int64s, Mask, Rows

MAX_JOINS: Final = 200_000
"""Joins that are replayed: of longer recordings as many steps from the beginning as have these."""
_MIN_AGREEING: Final = 0.8
"""The share of its occurrences in which a kernel has to end on all ranks at once to be a wait."""
_MAX_SPREAD: Final = 0.05
"""By how much of the difference of their starts these ends may differ."""


@dataclass(frozen=True)
class _Joins(Columns):
    """Where ranks join collectives, rank by rank. Shape ``(n,)`` each.

    Attributes:
        member: Index of the rank.
        starts_ns: By the rank's own clock.
        ends_ns: By the rank's own clock.
        common_ns: The start on the common clock.
        common_ends_ns: The end on the common clock.
        collective: The number of the collective.
        what: The same number for collectives of the same kind, use and size.
        is_send: Whether the rank only sends.
        on_host: Whether a thread of the host runs it.
    """

    member: Int32s
    starts_ns: Int64s
    ends_ns: Int64s
    common_ns: Int64s
    common_ends_ns: Int64s
    collective: Int64s
    what: Int64s
    is_send: Mask
    on_host: Mask

    @classmethod
    def concatenate(cls, parts: "Sequence[_Joins]") -> "_Joins":
        """Concatenate some joins."""
        names = cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def build_job_replay(matches: Matches, activities: Sequence[RankActivity]) -> JobReplay:
    """Build the graph of a job.

    Args:
        activities: Of the ranks of ``matches``.
    """
    joins, unmarked = _build_joins(matches, activities)
    windows, n_steps = _choose_windows(activities, joins)
    window_starts = np.array([begin for begin, _ in windows])
    begins = matches.clocks.corrected(matches.calls.clock, window_starts)

    ranks: list[_RankMoments] = []
    n_before = 0
    by_rank = np.lexsort((joins.starts_ns, joins.member))
    bounds = np.searchsorted(joins.member[by_rank], np.arange(len(windows) + 1))
    for rank, (begin, end) in enumerate(windows):
        rows = by_rank[bounds[rank] : bounds[rank + 1]]
        rows = rows[(joins.starts_ns[rows] >= begin) & (joins.starts_ns[rows] < end)]
        recorded = clip(unite(activities[rank].waits, unmarked[rank]), begin, end)
        idle = activities[rank].idle
        ranks.append(_order_moments(joins.select(rows), recorded, idle, begin, end, n_before))
        n_before += len(rows)

    # A transfer lasts from the last join of any rank to the end on the rank of the join.
    joins = _Joins.concatenate([rank.joins for rank in ranks])
    _, collective = np.unique(joins.collective, return_inverse=True)
    collective = collective.reshape(-1).astype(np.int64)
    latest = np.full(int(collective.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, collective, joins.common_ns)

    join = np.concatenate([rank.join for rank in ranks])
    first = np.concatenate(([0], np.cumsum([len(rank.join) for rank in ranks])))
    ends_piece = join >= 0
    ends_piece[first[1:] - 1] = True

    awaited = itertools.chain.from_iterable(rank.awaited for rank in ranks)
    return JobReplay(
        begins_ns=(begins - begins.min()).astype(np.float64),
        n_steps=n_steps,
        first=first,
        own_ns=np.concatenate([rank.own_ns for rank in ranks]).astype(np.float64),
        idle_ns=np.concatenate([rank.idle_ns for rank in ranks]).astype(np.float64),
        piece=np.cumsum(ends_piece) - ends_piece,
        join=join,
        awaited={
            moment: awaited_joins for moment, awaited_joins in enumerate(awaited) if awaited_joins
        },
        collective=collective,
        matched=joins.collective,
        what=joins.what,
        transfer_ns=(joins.common_ends_ns - latest[collective]).astype(np.float64),
    )


@dataclass(frozen=True)
class _RankMoments:
    """The moments of one rank, as in :class:`JobReplay`."""

    joins: _Joins
    join: Rows
    own_ns: Int64s
    idle_ns: Int64s
    awaited: list[list[int]]


def _order_moments(
    joins: _Joins, recorded: Intervals, idle: Intervals, begin: int, end: int, n_before: int
) -> _RankMoments:
    """Order the moments of a rank.

    Args:
        joins: Its joins, by start.
        recorded: When it waits.
        idle: When it does nothing for unknown reasons.
        begin: Where its window starts.
        end: Where its window ends.
        n_before: Number of joins of the ranks before it.
    """
    # A collective that starts during a wait has waited for one that ended before.
    parts = cut_at(recorded, joins.starts_ns)
    joins = _shorten_to_work(joins, parts)
    waited, after = _find_waits(parts, joins)

    n_joins = len(joins.member)
    # Moments are the joins, the ends of waits, and the end of the window.
    at_ns = np.concatenate((joins.starts_ns, waited.ends_ns, [end]))
    # What starts when a wait ends comes after it.
    order = np.lexsort((np.repeat([1, 0, 2], [n_joins, len(waited), 1]), at_ns))

    elapsed = np.concatenate(([begin], at_ns[order]))
    unknown = covered_within(subtract(idle, waited), elapsed[:-1], elapsed[1:])

    return _RankMoments(
        joins,
        np.where(order < n_joins, order + n_before, -1),
        np.diff(elapsed - covered_before(waited, elapsed)) - unknown,
        unknown,
        [
            [n_before + join for join in after[i - n_joins]]
            if n_joins <= i < n_joins + len(waited)
            else []
            for i in order.tolist()
        ],
    )


def _build_joins(
    matches: Matches, activities: Sequence[RankActivity]
) -> tuple[_Joins, list[Intervals]]:
    """Build all joins of the job, and the waits of each rank in kernels that are not marked."""
    calls = matches.calls
    n_calls = len(calls)
    collective = len(matches.first) + np.arange(n_calls)
    collective[matches.members] = np.repeat(np.arange(len(matches.first)), matches.sizes)
    uses = {
        use: i for i, use in enumerate(dict.fromkeys(group.description for group in calls.groups))
    }
    use = np.array([*(uses[group.description] for group in calls.groups), 0])[calls.group]
    what = number_rows([calls.kind, use, calls.column("n_in")])

    columns = [
        [
            calls.member,
            calls.column("start_ns"),
            calls.column("end_ns"),
            matches.start_ns,
            matches.end_ns,
            collective,
            what,
            calls.is_kind(("send",)),
            ~calls.column("on_device").astype(np.bool_),
        ]
    ]

    unmarked = [Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))] * len(calls.ranks)

    # Unmarked kernels are joins of collectives of their own kind, numbered after all others.
    next_what, next_collective = int(what.max(initial=-1)) + 1, len(matches.first) + n_calls
    for starts, ends in _find_unmarked(matches, activities):
        n_times = starts.shape[1]
        for rank, (begin, end) in enumerate(zip(starts, ends, strict=True)):
            clock = np.repeat(calls.clock[rank : rank + 1], n_times)
            columns.append(
                [
                    np.full(n_times, rank),
                    begin,
                    end,
                    matches.clocks.corrected(clock, begin),
                    matches.clocks.corrected(clock, end),
                    next_collective + np.arange(n_times),
                    np.full(n_times, next_what),
                    *np.zeros((2, n_times), dtype=np.bool_),
                ]
            )
            pairs = tuple(zip(begin.tolist(), end.tolist(), strict=True))
            unmarked[rank] = unite(unmarked[rank], of_pairs(pairs))
        next_what, next_collective = next_what + 1, next_collective + n_times

    return _Joins(*(np.concatenate(column) for column in zip(*columns, strict=True))), unmarked


def _find_unmarked(
    matches: Matches, activities: Sequence[RankActivity]
) -> list[tuple[Int64s, Int64s]]:
    """Find kernels that wait for all ranks without being marked as collectives.

    They start at different times, and end on all ranks at once.

    Returns:
        Starts and ends of each on each rank's clock. Shape ``(ranks, times)``.
    """
    counts = [Counter(activity.kernels.names) for activity in activities]
    waits = []
    for name, n_times in sorted(counts[0].items()):
        if any(count[name] != n_times for count in counts):
            continue

        starts, ends = np.empty((2, len(activities), n_times), dtype=np.int64)
        for rank, activity in enumerate(activities):
            kernels = activity.kernels
            is_named = np.array([kernel_name == name for kernel_name in kernels.names])
            starts[rank], ends[rank] = kernels.starts_ns[is_named], kernels.ends_ns[is_named]

        clock = np.repeat(matches.calls.clock, n_times)
        start_spread, end_spread = (
            np.ptp(matches.clocks.corrected(clock, ns.reshape(-1)).reshape(ns.shape), axis=0)
            for ns in (starts, ends)
        )
        agree = end_spread <= np.maximum(MIN_TOLERANCE_NS, _MAX_SPREAD * start_spread)
        differ = start_spread * _MAX_SPREAD > np.minimum(end_spread, MIN_TOLERANCE_NS)
        if (agree & differ).mean() >= _MIN_AGREEING:
            waits.append((starts, ends))
    return waits


def _choose_windows(
    activities: Sequence[RankActivity], joins: _Joins
) -> tuple[list[tuple[int, int]], int]:
    """Choose the windows from the first to the last step that all ranks have, by their own clocks.

    Without such steps they last from the first to the last event of each rank.

    Returns:
        The windows, and the number of steps in them.
    """
    common = set(activities[0].steps).intersection(*(rank.steps for rank in activities[1:]))
    if not common:
        return [(rank.start_ns, rank.end_ns + 1) for rank in activities], 0

    common_steps = [
        [i for i, name in enumerate(rank.steps) if name in common] for rank in activities
    ]
    n_steps = min(map(len, common_steps))
    while True:
        windows = [
            (int(rank.step_starts_ns[steps[0]]), int(rank.step_ends_ns[steps[n_steps - 1]]))
            for rank, steps in zip(activities, common_steps, strict=True)
        ]

        within = np.array(windows)[joins.member]
        is_inside = (joins.starts_ns >= within[:, 0]) & (joins.starts_ns < within[:, 1])
        n_joins = int(is_inside.sum())
        if n_joins <= MAX_JOINS or n_steps == 1:
            return windows, n_steps

        # Steps have similar numbers of joins, so that few rounds are needed.
        n_steps = max(1, min(n_steps - 1, n_steps * MAX_JOINS // n_joins))


def _shorten_to_work(joins: _Joins, waits: Intervals) -> _Joins:
    """Shorten joins that seem to end after the start of work that waits for them."""
    # Recorded ends are late by rounding, or by a thread that waits for a core.
    place = np.searchsorted(waits.ends_ns, joins.ends_ns, side="left") - 1
    work_starts = np.append(waits.ends_ns, 0)[place]
    over_ns = np.where(place >= 0, joins.ends_ns - work_starts, 0)

    waited_ns = work_starts - joins.starts_ns
    allowed = np.where(joins.on_host, np.maximum(OVERLAP_NS, late_end_ns(waited_ns)), OVERLAP_NS)
    over_ns[(over_ns > allowed) | (waited_ns <= 0)] = 0

    return replace(
        joins, ends_ns=joins.ends_ns - over_ns, common_ends_ns=joins.common_ends_ns - over_ns
    )


def _find_waits(parts: Intervals, joins: _Joins) -> tuple[Intervals, list[list[int]]]:
    """Find the waits of a rank that end with a collective, and the joins that each waits for."""
    # A wait without a collective that ends in it is the rank's own time.
    by_end = np.argsort(joins.ends_ns, kind="stable")
    ends = joins.ends_ns[by_end]
    place = np.searchsorted(ends, parts.ends_ns, side="right")
    last = np.append(ends, np.iinfo(np.int64).min)[place - 1]

    ends_with_join = (place > 0) & (last > parts.starts_ns)
    awaited, before = [], 0
    for until in place[ends_with_join].tolist():
        ended = by_end[before:until]
        # A send is waited for only if nothing else is.
        awaited.append(ended[~joins.is_send[ended] | (ended == ended[-1])].tolist())
        before = until

    return Intervals(parts.starts_ns[ends_with_join], last[ends_with_join]), awaited
