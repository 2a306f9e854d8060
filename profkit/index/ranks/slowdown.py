"""What differences between the ranks of a job cost: by all of them, by rank, by stage."""

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.ranks.activity import RankActivity
from profkit.index.ranks.delays import Delays
from profkit.index.ranks.job_joins import build_job_replay
from profkit.index.ranks.job_replay import JobReplay, RankChange
from profkit.index.ranks.matching import Matches
from profkit.model.events import MISSING
from profkit.model.job import Slowdown, SlowRanks

_MIN_MATCHED: Final = 0.8
"""The share of calls below which too much of what ranks wait for is not known."""
_MAX_CANDIDATES: Final = 8
"""Ranks that are replayed: the latest ones and the ones with the most own time, in turn."""
_MAX_STAGES: Final = 16
_MIN_SHARE: Final = 0.01
"""Ranks below it explain nothing."""
_MIN_SAVING: Final = 0.001
"""The share of the job's time below which the ranks do not differ."""


@dataclass(frozen=True)
class WhatIfRanks:
    """A job's replays. Times are nanoseconds over all steps that were replayed.

    Attributes:
        matches: The collectives of the job.
        delays: Who is late in them.
        activities: When the ranks of the job wait.
    """

    matches: Matches
    delays: Delays
    activities: Sequence[RankActivity]

    @cached_property
    def replay(self) -> JobReplay:
        """Return the graph of the job."""
        return build_job_replay(self.matches, self.activities)

    @property
    def is_known(self) -> bool:
        """Return whether enough of what the ranks wait for is known."""
        share = self.matches.matched_share
        return share is not None and share >= _MIN_MATCHED and self.actual_ns > 0

    @cached_property
    def candidates(self) -> list[int]:
        """Return the ranks, by index, that are late the most, or have the most own time."""
        is_certain = self.delays.is_certain
        late = np.bincount(
            self.matches.calls.member[self.delays.last[is_certain]],
            weights=self.delays.delay_ns[is_certain],
            minlength=self.replay.n_ranks,
        )

        # Take from both orders in turn.
        orders = [np.argsort(-ns, kind="stable") for ns in (late, self.replay.totals_ns)]
        ranks = [int(rank) for pair in zip(*orders, strict=True) for rank in pair]
        return list(dict.fromkeys(ranks))[:_MAX_CANDIDATES]

    @property
    def comparable(self) -> list[int]:
        """Return the candidates without ranks that are a stage of their own, with other work."""
        stages = {ranks[0] for ranks in self.stages if len(ranks) == 1}
        return [rank for rank in self.candidates if rank not in stages]

    @cached_property
    def stages(self) -> list[list[int]]:
        """Return the ranks, by index, of each stage of the pipelines; empty without.

        A pipeline is a chain of ranks that send to the next rank and back.
        """
        calls = self.matches.calls
        peers = calls.peers
        pairs = {(a, b) for a, b in np.unique(peers[:, peers[0] != MISSING], axis=1).T.tolist()}

        both_ways = {pair for pair in pairs if pair[::-1] in pairs}
        chains = _find_connected(both_ways)

        place = {rank: i for chain in chains for i, rank in enumerate(chain)}
        size = max(map(len, chains), default=0)
        is_chain = all(abs(place[a] - place[b]) in {1, size - 1} for a, b in both_ways)
        if not chains or not is_chain or {len(chain) for chain in chains} != {size}:
            return []

        index = {rank.rank: i for i, rank in enumerate(calls.ranks)}
        stages = [[index[chain[i]] for chain in chains if chain[i] in index] for i in range(size)]
        return stages if size <= _MAX_STAGES and all(stages) else []

    @cached_property
    def _lengths_ns(self) -> dict[RankChange, float]:
        """Return the job's length with each change."""
        every = tuple(range(self.replay.n_ranks))
        changes = [
            RankChange(idle=True),
            RankChange(),
            RankChange(every, transfers=True),
            RankChange(every),
            *(RankChange((rank,)) for rank in self.candidates),
            *(RankChange(medians=(rank,)) for rank in self.candidates),
            *(RankChange(tuple(ranks)) for ranks in self.stages),
        ]
        lengths = self.replay.lengths_ns(changes).tolist()
        return dict(zip(changes, lengths, strict=True))

    @property
    def recorded_ns(self) -> float:
        """Return what the job took."""
        return self._lengths_ns[RankChange(idle=True)]

    @property
    def actual_ns(self) -> float:
        """Return what the job took without idle time that the recording does not explain."""
        return self._lengths_ns[RankChange()]

    @property
    def ideal_ns(self) -> float:
        """Return what the job would take with even ranks and usual transfers.

        See :class:`~profkit.model.job.Slowdown`.
        """
        return self._lengths_ns[RankChange(tuple(range(self.replay.n_ranks)), transfers=True)]

    @property
    def even_ns(self) -> float:
        """Return what the job would take if all ranks had equally much own time."""
        return self._lengths_ns[RankChange(tuple(range(self.replay.n_ranks)))]

    def saving_ns(self, ranks: Sequence[int]) -> float:
        """Return what the job would save if some ranks took the mean of all ranks."""
        return self.actual_ns - self._lengths_ns[RankChange(tuple(ranks))]

    def saving_at_median_ns(self, rank: int) -> float:
        """Return what the job would save if a candidate kept up with its peers' median."""
        return self.actual_ns - self._lengths_ns[RankChange(medians=(rank,))]

    def saving_with(self, change: RankChange) -> float:
        """Return what the job would save with any other change."""
        return self.actual_ns - float(self.replay.lengths_ns([change])[0])

    def summarize(self, core_wait_share: float = 0.0) -> Slowdown | None:
        """Return the figures of a report, or None where too little is known.

        Args:
            core_wait_share: Share of its time for which a rank had no core: equal ranks would have
                to wait for one, too.
        """
        if not self.is_known:
            return None

        n_steps = max(1, self.replay.n_steps)
        ideal_ns = min(self.actual_ns, self.ideal_ns + core_wait_share * self.actual_ns)
        possible_ns = self.actual_ns - ideal_ns
        differ = possible_ns >= _MIN_SAVING * self.actual_ns
        candidates = [self._slow_ranks((rank,), None) for rank in self.candidates if differ]
        stages = [self._slow_ranks(ranks, i) for i, ranks in enumerate(self.stages) if differ]

        return Slowdown(
            n_steps=self.replay.n_steps,
            recorded_ns=round(self.recorded_ns / n_steps),
            actual_ns=round(self.actual_ns / n_steps),
            ideal_ns=round(ideal_ns / n_steps),
            ratio=round(self.actual_ns / max(ideal_ns, 1.0), 4),
            unexplained_share=round(max(0.0, 1 - self.actual_ns / self.recorded_ns), 4),
            ranks=tuple(
                sorted(
                    (slow for slow in candidates if slow.share >= _MIN_SHARE),
                    key=lambda slow: (-slow.saving_ns, slow.ranks),
                )
            ),
            stages=tuple(stages),
        )

    def _slow_ranks(self, ranks: Sequence[int], stage: int | None) -> SlowRanks:
        """Return what some ranks cost, per step and as a share of all that is possible."""
        saving_ns = self.saving_ns(ranks)
        possible_ns = self.actual_ns - self.ideal_ns
        return SlowRanks(
            tuple(self.matches.calls.ranks[rank].rank for rank in ranks),
            stage,
            round(saving_ns / max(1, self.replay.n_steps)),
            round(saving_ns / possible_ns, 4) if possible_ns > 0 else 0.0,
        )


def _find_connected(pairs: set[tuple[int, int]]) -> list[list[int]]:
    """Find the numbers that pairs connect, ascending."""
    neighbors: dict[int, set[int]] = defaultdict(set)
    for first, second in pairs:
        neighbors[first].add(second)

    # Depth-first search from each number that no search before has reached.
    groups, seen = [], set[int]()
    for number in sorted(neighbors):
        group, waiting = set[int](), [number]
        while waiting:
            neighbor = waiting.pop()
            if neighbor not in seen:
                seen.add(neighbor)
                group.add(neighbor)
                waiting += neighbors[neighbor]
        if group:
            groups.append(sorted(group))
    return groups
