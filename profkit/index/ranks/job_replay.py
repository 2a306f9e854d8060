"""Replays a job with changes: what its ranks would take if some of them were like the others.

Each rank alternates between time of its own and waiting. It joins each collective after so much of
its own time; the collective ends on it when all its ranks have joined, plus the transfer; and where
the rank waited in the recording, it waits for the collectives that have ended there. Without
changes, all recorded moments come out again.

A change replaces own times and transfers. Ranks that join the same collectives in the same order
are compared piece by piece, from one join to the next; other ranks, such as the stages of a
pipeline, by all of their own time.

Source: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), which
replaces the times of operators by their average over all ranks, and the times of collectives by
the median of the transfers.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.sums import median_by_key
from profkit.model.events import Float64s, Int64s, Mask, Rows


@dataclass(frozen=True)
class RankChange:
    """What is different in a replay.

    Attributes:
        ranks: Which ranks, by index, take the mean of all ranks instead of their own time.
        medians: Which ranks take the median of their peers, where that is shorter.
        transfers: Whether transfers take the median of transfers of the same kind, use and size.
        links: Matched collectives, by number, whose transfers take that median.
        bandwidths: Matched collectives, and by how much their transfers are faster.
        waits: Whether ranks wait for each other. If not, each goes on as if the others had joined
            when it joins itself.
        idle: Whether ranks are also idle where the recording does not show why.
    """

    ranks: tuple[int, ...] = ()
    medians: tuple[int, ...] = ()
    transfers: bool = False
    links: tuple[int, ...] = ()
    bandwidths: tuple[tuple[tuple[int, ...], float], ...] = ()
    waits: bool = True
    idle: bool = False


@dataclass(frozen=True)
class JobReplay:
    """The common steps of a job as a graph of joins of collectives and waits for them.

    The moments of a rank are its joins, the ends of its waits, and its end, in their order. The
    pieces of a rank are its own times up to each join, and to its end.

    Attributes:
        begins_ns: Where each rank's window starts, from the earliest. Shape ``(ranks,)``.
        n_steps: Number of steps in it; 0 for the whole recording.
        first: Where the moments of each rank begin, and their number. Shape ``(ranks + 1,)``.
        own_ns: Own time before each moment, from the one before it. Shape ``(moments,)``.
        idle_ns: Further time in which the rank does nothing, and the recording does not show why.
            Shape ``(moments,)``.
        piece: The piece of each moment, by rank. Shape ``(moments,)``.
        join: The join of each moment, or -1. Shape ``(moments,)``.
        awaited: Joins whose end is waited for, by moment.
        collective: The number of the collective of each join. Shape ``(joins,)``.
        matched: Its number among the matched ones; larger ones are not matched. Shape ``(joins,)``.
        what: The same number for collectives of the same kind, use and size. Shape ``(joins,)``.
        transfer_ns: From the last rank's join to the end on the join's rank. Shape ``(joins,)``.
    """

    begins_ns: Float64s
    n_steps: int
    first: Rows
    own_ns: Float64s
    idle_ns: Float64s
    piece: Rows
    join: Rows
    awaited: dict[int, list[int]]
    collective: Int64s
    matched: Int64s
    what: Int64s
    transfer_ns: Float64s

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""
        return len(self.begins_ns)

    @cached_property
    def _pieces(self) -> list[slice]:
        """Return the pieces of each rank."""
        ends = [0, *(int(self.piece[end - 1]) + 1 for end in self.first[1:].tolist())]
        return [slice(begin, end) for begin, end in itertools.pairwise(ends)]

    @cached_property
    def _piece_ns(self) -> Float64s:
        """Return own time in each piece. Shape ``(pieces,)``."""
        return np.bincount(self.piece, weights=self.own_ns).astype(np.float64)

    @cached_property
    def totals_ns(self) -> Float64s:
        """Return own time of each rank. Shape ``(ranks,)``."""
        return np.array([self._piece_ns[pieces].sum() for pieces in self._pieces])

    @cached_property
    def classes(self) -> list[list[int]]:
        """Group the ranks that join collectives of the same kinds and sizes in the same order."""
        ranks_by_calls: dict[bytes, list[int]] = defaultdict(list)
        for rank in range(self.n_ranks):
            joins = self.join[self.first[rank] : self.first[rank + 1]]
            ranks_by_calls[self.what[joins[joins >= 0]].tobytes()].append(rank)

        return list(ranks_by_calls.values())

    @cached_property
    def _means(self) -> Float64s:
        """Return each piece if all ranks had equally much own time. Shape ``(pieces,)``."""
        changed = np.empty_like(self._piece_ns)
        usual_ns = self.totals_ns.mean()
        for ranks in self.classes:
            mean = np.mean([self._piece_ns[self._pieces[rank]] for rank in ranks], axis=0)
            factor = usual_ns / mean.sum() if mean.any() else 0.0
            for rank in ranks:
                changed[self._pieces[rank]] = mean * factor
        return changed

    def _medians(self, rank: int) -> Float64s:
        """Return the pieces of a rank, limited to the median over the other ranks of its class."""
        piece_ns = self._piece_ns[self._pieces[rank]]
        peers = next(ranks for ranks in self.classes if rank in ranks)
        peers_ns = [self._piece_ns[self._pieces[peer]] for peer in peers if peer != rank]
        if peers_ns:
            return np.asarray(np.minimum(piece_ns, np.median(peers_ns, axis=0)))

        # Without a peer the rank's total takes the median of the totals.
        usual_ns = np.median(np.delete(self.totals_ns, rank))
        return np.asarray(piece_ns * min(1.0, usual_ns / max(self.totals_ns[rank], 1.0)))

    @cached_property
    def _usual_transfers(self) -> Float64s:
        """Return the median transfer of the same kind, use and size. Shape ``(joins,)``."""
        n = int(self.what.max(initial=-1)) + 1
        return np.asarray(median_by_key(n, self.what, self.transfer_ns)[self.what])

    def _change_own_time(self, change: RankChange) -> Float64s:
        """Return the own time before each moment with a change. Shape ``(moments,)``."""
        changed_ns = self._piece_ns.copy()
        for rank in change.ranks:
            changed_ns[self._pieces[rank]] = self._means[self._pieces[rank]]
        for rank in change.medians:
            changed_ns[self._pieces[rank]] = self._medians(rank)

        factor = np.divide(
            changed_ns, self._piece_ns, out=np.zeros_like(changed_ns), where=self._piece_ns > 0
        )
        changed = self.own_ns * factor[self.piece]

        # A piece without own time has it before its join.
        last = np.flatnonzero(np.diff(self.piece, append=-1))
        changed[last] += np.where(self._piece_ns > 0, 0, changed_ns)
        return np.asarray(changed + self.idle_ns if change.idle else changed)

    def _change_transfers(self, change: RankChange) -> Float64s:
        """Return the transfer of each join with a change. Shape ``(joins,)``."""
        is_changed = change.transfers | np.isin(self.matched, change.links)
        transfer_ns = np.where(is_changed, self._usual_transfers, self.transfer_ns)
        for numbers, factor in change.bandwidths:
            transfer_ns[np.isin(self.matched, numbers)] /= factor
        return transfer_ns

    def lengths_ns(self, changes: Sequence[RankChange]) -> Float64s:
        """Return the time from the latest start of a window to the end of the last rank.

        Returns:
            Shape ``(changes,)``.
        """
        own_ns = np.empty((len(self.own_ns), len(changes)))
        transfers_ns = np.empty((len(self.transfer_ns), len(changes)))
        for i, change in enumerate(changes):
            own_ns[:, i], transfers_ns[:, i] = (
                self._change_own_time(change),
                self._change_transfers(change),
            )

        waits = np.array([change.waits for change in changes])
        ends = _Replay(self, own_ns, transfers_ns, waits).run()
        return np.asarray(ends.max(axis=0) - self.begins_ns.max())


class _Replay:
    """A replay with several changes at once.

    Args:
        own: Own time before each moment. Shape ``(moments, changes)``.
        transfers: Shape ``(joins, changes)``.
        waits: Whether ranks wait for each other. Shape ``(changes,)``.
    """

    def __init__(self, job: JobReplay, own: Float64s, transfers: Float64s, waits: Mask) -> None:
        self._job, self._own, self._transfers = job, own, transfers
        self._waits = None if waits.all() else waits
        self._joined_ns: dict[int, Float64s] = {}
        """When each join was, if it matters."""
        self._now = np.repeat(job.begins_ns[:, None], own.shape[1], axis=1)
        self._join, self._collective = job.join.tolist(), job.collective.tolist()
        self._n_missing = np.bincount(job.collective).tolist()
        self._latest: dict[int, Float64s] = {}
        """When the last rank so far has joined each collective."""
        self._at = job.first[:-1].tolist()
        self._parked: dict[int, list[int]] = defaultdict(list)
        """Ranks that wait for a collective which others have not joined yet."""

    def run(self) -> Float64s:
        """Run all ranks, and return when each is done. Shape ``(ranks, changes)``."""
        ready = list(range(self._job.n_ranks))
        while ready or self._parked:
            if ready:
                ready += self._advance(ready.pop())
            else:
                # Only recordings that contradict themselves let ranks wait in a circle.
                number, ranks = self._parked.popitem()
                self._n_missing[number] = 0
                ready += ranks
        return self._now

    def _advance(self, rank: int) -> list[int]:
        """Advance a rank as far as it can go, and return the ranks that it releases."""
        released: list[int] = []
        now, awaited = self._now[rank], self._job.awaited

        for moment in range(self._at[rank], int(self._job.first[rank + 1])):
            self._at[rank] = moment
            if self._park(rank, awaited.get(moment, ())):
                return released
            now += self._own[moment]
            if (join := self._join[moment]) >= 0:
                released += self._join_collective(self._collective[join], now)
                if self._waits is not None:
                    self._joined_ns[join] = now.copy()

            # A wait ends with the last of its collectives, each after its last join and its
            # transfer.
            for awaited_join in awaited.get(moment, ()):
                begins = self._latest[self._collective[awaited_join]]
                if self._waits is not None:
                    begins = np.where(
                        self._waits, begins, self._joined_ns.get(awaited_join, begins)
                    )
                np.maximum(now, begins + self._transfers[awaited_join], out=now)
        return released

    def _park(self, rank: int, awaited: Sequence[int]) -> bool:
        """Park a rank that has to wait for others to join first, and return whether it has to."""
        for join in awaited:
            if self._n_missing[self._collective[join]] > 0:
                self._parked[self._collective[join]].append(rank)
                return True
        return False

    def _join_collective(self, number: int, now: Float64s) -> list[int]:
        """Let a rank join a collective, and return the ranks that no longer have to wait for it."""
        if number in self._latest:
            np.maximum(self._latest[number], now, out=self._latest[number])
        else:
            self._latest[number] = now.copy()
        self._n_missing[number] -= 1
        return self._parked.pop(number, []) if self._n_missing[number] == 0 else []
