"""Finds the calls of all ranks that are the same collective.

What identifies a collective depends on the version of torch: an id, or a number in the process
group, or only the order of calls within a step. A candidate becomes a match if kind, type and sizes
agree and, on corrected clocks, all calls run at once and end together. What fails is counted as
unmatched with the reason, and is in no figure.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.index.distinct import distinct
from profkit.index.ranges import expand_ranges, find_runs
from profkit.index.ranks.calls import POINT_TO_POINT
from profkit.index.ranks.clocks import Clocks, EndDifferences, compare_clocks
from profkit.index.ranks.job_calls import NO_TEXT, JobCalls, RankCalls
from profkit.index.sums import median_by_key
from profkit.index.trend import MAD_TO_SIGMA
from profkit.model.events import MISSING, Int32s, Int64s, Mask, Rows

SYNCHRONIZING: Final = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "barrier")
"""Kinds that end on no rank before all have joined."""
EVEN: Final = ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "barrier")
"""Kinds whose sizes are the same on all ranks."""
MIN_TOLERANCE_NS: Final = 50_000
"""By how much ends may differ in any case: less than the clocks of GPUs on one host do."""
_MAX_ERRORS: Final = 3
"""By how many sigmas of its group the end of a call may differ."""
_NEGLIGIBLE: Final = 0.01
"""The share of the shortest call by which its end may differ if ids say that it is the same
collective: the time that ranks wait is longer."""
_NEAR_NS: Final = 2_000_000
"""How far apart ends may be to be taken for the same collective where nothing identifies it."""
_ENOUGH: Final = 0.8
"""The share of calls in order that have to agree; otherwise calls are missing in between."""


class Unmatched(IntEnum):
    """Why a call is not matched."""

    NOT_RECORDED = 1
    """No other rank of its group was recorded."""
    NO_COUNTERPART = 2
    """A recorded rank of its group has no call that could be it."""
    DIFFERENT = 3
    """Kind, type or sizes differ."""
    ENDS_APART = 4
    """The calls do not run at once, or end at different times."""
    UNKNOWN_PEER = 5
    """A send or receive of which the other rank is not recorded."""


@dataclass(frozen=True)
class Matches:
    """The matched collectives, by start.

    Attributes:
        calls: All calls of the job.
        first: Where the calls of each collective begin in ``members``. Shape ``(m,)``.
        members: Rows of ``calls``, collective by collective, by rank.
        unmatched: An :class:`Unmatched` value, or 0, of each call. Calls of groups of one rank have
            0. Shape ``(n,)``.
        clocks: The clocks of the hosts.
        start_ns: Start of each call on the common clock. Shape ``(n,)``.
        end_ns: Shape ``(n,)``.
    """

    calls: JobCalls
    first: Rows
    members: Rows
    unmatched: Int32s
    clocks: Clocks
    start_ns: Int64s
    end_ns: Int64s

    @cached_property
    def sizes(self) -> Rows:
        """Return how many calls each collective has. Shape ``(m,)``."""
        return np.diff(np.append(self.first, len(self.members)))

    def calls_of(self, collectives: Rows) -> Rows:
        """Return rows of the calls of some collectives, one after the other."""
        return self.members[expand_ranges(self.first[collectives], self.sizes[collectives])]

    @property
    def n_calls(self) -> int:
        """Number of calls with other ranks."""
        return len(self.members) + int((self.unmatched != 0).sum())

    @property
    def matched_share(self) -> float | None:
        """Return the matched share of the calls with other ranks, or None without any."""
        return len(self.members) / self.n_calls if self.n_calls else None


def match_collectives(ranks: Iterable[RankCalls]) -> Matches:
    """Match the collectives of some ranks of one job.

    Args:
        ranks: Ascending.
    """
    calls = JobCalls.of(ranks)
    clock = calls.clock[calls.member]
    ends = calls.column("end_ns")
    group_sizes = np.array([group.size or 0 for group in calls.groups] + [0])[calls.group]
    is_alone = (group_sizes == 1) | (len(calls.ranks) < 2)  # noqa: PLR2004  (nothing to match)
    is_lost = ~is_alone & (calls.n_expected == 1)

    key, is_certain = _number_candidates(calls)
    # Without ids nothing tells which send belongs to which receive: ranks may send at once.
    is_unknown = ~is_alone & ~is_lost & ~is_certain & ~calls.is_pair
    is_unknown &= calls.is_kind(POINT_TO_POINT)
    is_matchable = ~is_alone & ~is_lost & ~is_unknown

    candidates = _Candidates.of(calls, key, is_matchable)
    clocks = _compare_clocks(calls, candidates, clock, ends)

    ends = clocks.corrected(clock, ends)
    starts = clocks.corrected(clock, calls.column("start_ns"))
    # The order of calls depends on clocks that agree, so it is checked after their correction.
    key = _rematch_by_ends(calls, key, is_matchable & ~is_certain, starts, ends)
    candidates = _Candidates.of(calls, key, is_matchable)
    reason = candidates.find_reasons(calls, is_certain, starts, ends)

    unmatched = np.where(is_lost, Unmatched.NOT_RECORDED, 0).astype(np.int32)
    unmatched[is_unknown] = Unmatched.UNKNOWN_PEER
    unmatched[candidates.rows] = np.repeat(reason, candidates.sizes)

    stays = np.repeat(reason == 0, candidates.sizes)
    sizes = candidates.sizes[reason == 0]
    members = candidates.rows[stays]
    first = np.cumsum(sizes) - sizes

    order = np.argsort(np.minimum.reduceat(starts[members], first) if len(first) else first)
    members, sizes = members[expand_ranges(first[order], sizes[order])], sizes[order]
    return Matches(calls, np.cumsum(sizes) - sizes, members, unmatched, clocks, starts, ends)


def _number_candidates(calls: JobCalls) -> tuple[Int32s, Mask]:
    """Number the calls, with the same number for calls that may be one collective.

    Returns:
        The numbers, and whether ids identify the collective, not only its order. Shape ``(n,)``.
    """
    ids, seq = calls.comms_id, calls.column("seq")
    is_pair = calls.is_pair

    # Some backends write the same number for all.
    seq = np.where(_is_constant(calls, seq), MISSING, seq)

    has_id = (ids != NO_TEXT) & ~is_pair
    has_seq = ~has_id & (seq != MISSING) & ~is_pair
    level = np.select([is_pair, has_id, has_seq], [0, 1, 2], 3)
    in_order = ~has_id & ~has_seq

    number = number_rows(
        [
            level.astype(np.int8),
            np.where(has_id, ids, calls.group),
            np.where(is_pair, calls.peers[0], np.where(has_seq, seq, 0)),
            np.where(is_pair, calls.peers[1], np.where(in_order, 0, calls.kind)),
            np.where(in_order, calls.column("step"), 0),
        ]
    )
    return number_rows([number, _count_earlier(calls, number)]), ~in_order


def _is_constant(calls: JobCalls, seq: Int64s) -> Mask:
    """Return whether all calls of a group on a rank have the same number. Shape ``(n,)``."""
    group_of_rank = number_rows([calls.member, calls.group])
    order = np.argsort(group_of_rank, kind="stable")
    begins, n_calls = find_runs(group_of_rank[order])
    if not len(begins):
        return np.zeros(len(seq), dtype=np.bool_)

    low = np.minimum.reduceat(seq[order], begins)
    high = np.maximum.reduceat(seq[order], begins)
    return np.asarray(((low == high) & (n_calls > 1))[group_of_rank])


def number_rows(columns: Sequence[npt.NDArray[Any]]) -> Int32s:
    """Number the rows of some columns among the distinct rows, ascending. Shape ``(n,)``.

    The numbers are the inverse of ``np.unique`` on axis 1, without its copies of the whole table.
    """
    order = np.lexsort(columns[::-1])
    is_new = np.zeros(len(order), dtype=np.bool_)
    for column in columns:
        ordered = column[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.cumsum(is_new, dtype=np.int32)
    return number


def _count_earlier(calls: JobCalls, number: Int32s) -> Int32s:
    """Count the earlier calls of the same number by the host of the same rank. Shape ``(n,)``."""
    # The order of the host's calls is the same on all ranks. Kernels may differ in order.
    issued, start = calls.column("issued_ns"), calls.column("start_ns")
    order = np.lexsort((start, np.where(issued == MISSING, start, issued), calls.member, number))
    is_new = np.diff(number[order], prepend=-1) != 0
    is_new |= np.diff(calls.member[order], prepend=-1) != 0

    place = np.arange(len(order), dtype=np.int32)
    n_earlier = np.empty(len(order), dtype=np.int32)
    n_earlier[order] = place - np.maximum.accumulate(np.where(is_new, place, 0))
    return n_earlier


@dataclass(frozen=True)
class _Candidates:
    """Calls that may be the same collective.

    Attributes:
        rows: Rows of the job's calls, candidate by candidate, by rank.
        sizes: How many calls each candidate has. Shape ``(m,)``.
    """

    rows: Rows
    sizes: Rows

    @classmethod
    def of(cls, calls: JobCalls, key: Int32s, wanted: Mask) -> "_Candidates":
        """Group the wanted calls by key."""
        rows = np.flatnonzero(wanted)
        rows = rows[np.lexsort((calls.member[rows], key[rows]))]
        return cls(rows, find_runs(key[rows])[1])

    @property
    def first(self) -> Rows:
        """Return where the calls of each begin in ``rows``. Shape ``(m,)``."""
        return np.asarray(np.cumsum(self.sizes) - self.sizes)

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the largest value minus the smallest of each candidate. Shape ``(m,)``.

        Args:
            values: Of all calls. Shape ``(n,)``.
        """
        if not len(self.rows):
            return values[:0]
        grouped, first = values[self.rows], self.first
        return np.asarray(np.maximum.reduceat(grouped, first) - np.minimum.reduceat(grouped, first))

    def find_reasons(
        self, calls: JobCalls, is_certain: Mask, starts_ns: Int64s, ends_ns: Int64s
    ) -> Int32s:
        """Return an :class:`Unmatched` value, or 0 for a match. Shape ``(m,)``.

        Args:
            is_certain: Whether ids identify the collective of each call. Shape ``(n,)``.
            starts_ns: On the common clock. Shape ``(n,)``.
            ends_ns: Shape ``(n,)``.
        """
        reason = np.zeros(len(self.sizes), dtype=np.int32)
        if not len(reason):
            return reason

        leader = self.rows[self.first]
        is_pair = calls.is_pair[leader]

        # Calls of one collective run at once.
        spread = self.spread(ends_ns)
        latest = np.maximum.reduceat(starts_ns[self.rows], self.first)
        earliest = np.minimum.reduceat(ends_ns[self.rows], self.first)
        is_concurrent = latest < earliest + MIN_TOLERANCE_NS

        series = number_rows([calls.group[leader], calls.kind[leader], is_pair])
        # A send may end before the data has arrived, a broadcast on its root before others begin.
        ends_once = calls.is_kind(SYNCHRONIZING)[leader] | (~is_certain[leader] & ~is_pair)
        may_differ = ~ends_once & ~is_pair

        shortest = np.minimum.reduceat((ends_ns - starts_ns)[self.rows], self.first)
        negligible = np.where(is_certain[leader], _NEGLIGIBLE * shortest, 0)
        allowed = _allowed_ns(spread, series, ends_once & is_concurrent & (self.sizes > 1))
        # A thread of the host can wait for a core, however long, before it sees its call end.
        on_host = ~calls.column("on_device")[leader].astype(np.bool_)
        ends_once &= ~(on_host & is_certain[leader])
        is_concurrent[ends_once] &= (spread <= np.maximum(allowed, negligible))[ends_once]

        reason[~is_concurrent & ~may_differ] = Unmatched.ENDS_APART

        differs = (self.spread(calls.kind) != 0) & ~is_pair
        differs |= self.spread(calls.element_type) != 0
        is_even = calls.is_kind(EVEN)[leader] | is_pair
        n_in, n_out = calls.column("n_in"), calls.column("n_out")
        differs |= is_even & ((self.spread(n_in) != 0) | (self.spread(n_out) != 0))
        reason[differs] = Unmatched.DIFFERENT

        expected = np.maximum(calls.n_expected[leader], 2)
        reason[self.sizes < expected] = Unmatched.NO_COUNTERPART
        return reason


def _allowed_ns(spread_ns: Int64s, series: Int32s, usual: Mask) -> Int64s:
    """Return by how much the ends of each candidate may differ, from the median of its series.

    Args:
        series: The number of the series of each. Shape of the result.
        usual: Which candidates the medians are computed from.
    """
    median = median_by_key(int(series.max()) + 1, series[usual], spread_ns[usual])
    sigma = np.round(MAD_TO_SIGMA * median).astype(np.int64)
    return np.asarray(np.maximum(MIN_TOLERANCE_NS, _MAX_ERRORS * sigma)[series])


def _compare_clocks(
    calls: JobCalls, candidates: _Candidates, clock: Int32s, ends_ns: Int64s
) -> Clocks:
    """Compare the clocks by collectives that end everywhere at once, else by sends and receives."""
    n = int(calls.clock.max(initial=-1)) + 1
    leader = np.repeat(candidates.rows[candidates.first], candidates.sizes)
    member = candidates.rows
    is_pair = calls.is_pair
    by_trust = []
    for is_kind in (calls.is_kind(SYNCHRONIZING), is_pair):
        is_usable = is_kind[leader] & (clock[leader] != clock[member])

        first, second = leader[is_usable], member[is_usable]
        # A pair of clocks is compared in one direction.
        swap = clock[first] > clock[second]
        first, second = np.where(swap, second, first), np.where(swap, first, second)
        by_trust.append(
            EndDifferences(
                clock[first], clock[second], ends_ns[first] - ends_ns[second], ends_ns[first]
            )
        )
    return compare_clocks(n, *by_trust)


def _rematch_by_ends(
    calls: JobCalls, key: Int32s, in_order: Mask, starts_ns: Int64s, ends_ns: Int64s
) -> Int32s:
    """Number calls by their ends where their order does not tell which belong together.

    A rank may have calls that other ranks have not, such as calls of other groups in recordings
    that do not name groups.

    Args:
        key: The number of each call by its order. Shape ``(n,)``.
        in_order: Which calls only their order identifies. Shape ``(n,)``.
    """
    key = key.copy()
    series = number_rows([calls.group, *calls.peers])
    candidates = _Candidates.of(calls, key, in_order)
    agrees = candidates.find_reasons(calls, ~in_order, starts_ns, ends_ns) == 0
    rows = candidates.rows[np.repeat(agrees, candidates.sizes)]

    # A series whose order mostly agrees keeps it: a call that differs is a finding.
    n_agreeing = np.bincount(series[rows], minlength=len(series))
    n_calls = np.bincount(series[in_order], minlength=len(series))
    for number in np.flatnonzero(n_agreeing < _ENOUGH * n_calls).tolist():
        # Each call gets a number of its own, and the nearest calls of two ranks then share one.
        is_in_series = in_order & (series == number)
        fresh = int(key.max()) + 1
        key[is_in_series] = np.arange(fresh, fresh + int(is_in_series.sum()))
        for leader_rows, rows in _find_nearest_pairs(calls, np.flatnonzero(is_in_series), ends_ns):
            key[rows] = key[leader_rows]
    return key


def _find_nearest_pairs(
    calls: JobCalls, rows: Rows, ends_ns: Int64s
) -> Iterator[tuple[Rows, Rows]]:
    """Find pairs of calls of one kind whose ends are nearest to each other in both directions.

    Yields:
        Rows of the rank with the most calls, and of another rank. Shape ``(k,)`` each.
    """
    is_pair = calls.is_pair
    kind = np.where(is_pair, -1, calls.kind)[rows]
    for number in distinct(kind).tolist():
        kind_rows = rows[kind == number]
        kind_rows = kind_rows[np.argsort(ends_ns[kind_rows], kind="stable")]
        member = calls.member[kind_rows]
        leader = int(np.bincount(member).argmax())
        leader_rows = kind_rows[member == leader]

        for peer in distinct(member[member != leader]).tolist():
            peer_rows = kind_rows[member == peer]
            forth = _find_nearest(ends_ns[peer_rows], ends_ns[leader_rows])
            back = _find_nearest(ends_ns[leader_rows], ends_ns[peer_rows])
            is_mutual = back[forth] == np.arange(len(leader_rows))
            is_mutual &= np.abs(ends_ns[peer_rows[forth]] - ends_ns[leader_rows]) <= _NEAR_NS
            yield leader_rows[is_mutual], peer_rows[forth[is_mutual]]


def _find_nearest(among_ns: Int64s, times_ns: Int64s) -> Rows:
    """Find the index of the nearest of some ascending moments to each time.

    Shape of ``times_ns``.
    """
    after = np.clip(np.searchsorted(among_ns, times_ns), 1, max(len(among_ns) - 1, 1))
    after = np.minimum(after, len(among_ns) - 1)
    before = np.maximum(after - 1, 0)

    is_before = times_ns - among_ns[before] <= among_ns[after] - times_ns
    return np.asarray(np.where(is_before, before, after))
