"""What differences between the ranks of a job cost: by all of them, by rank, by stage."""

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.ranks.activity import RankActivity
from profkit.index.ranks.delays import Delays
from profkit.index.ranks.job_replay import JobReplay, RankChange, job_replay
from profkit.index.ranks.matching import Matches
from profkit.model.events import MISSING
from profkit.model.job import Slowdown, SlowRanks

_MIN_MATCHED: Final = 0.8
"""The share of calls below which too much of what ranks wait for is not known."""
_MAX_CANDIDATES: Final = 8
"""The latest ranks, and those with the most own time, of which as many are replayed."""
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
        activities: Of its ranks.
    """

    matches: Matches
    delays: Delays
    activities: Sequence[RankActivity]

    @cached_property
    def replay(self) -> JobReplay:
        """The graph of the job."""
        return job_replay(self.matches, self.activities)

    @property
    def is_known(self) -> bool:
        """Whether enough of what the ranks wait for is known."""
        share = self.matches.matched_share
        return share is not None and share >= _MIN_MATCHED and self.actual_ns > 0

    @cached_property
    def candidates(self) -> list[int]:
        """The ranks, by index, that are late the most, or have the most own time."""
        late = np.bincount(
            self.matches.calls.member[self.delays.last[self.delays.is_certain]],
            weights=self.delays.delay_ns[self.delays.is_certain],
            minlength=self.replay.n_ranks,
        )
        orders = [np.argsort(-each, kind="stable") for each in (late, self.replay.totals_ns)]
        found = [int(rank) for pair in zip(*orders, strict=True) for rank in pair]
        return list(dict.fromkeys(found))[:_MAX_CANDIDATES]

    @cached_property
    def stages(self) -> list[list[int]]:
        """The ranks, by index, of each stage of the pipelines; empty without.

        A pipeline is a chain of ranks that send to the next one and back.
        """
        calls = self.matches.calls
        peers = calls.peers
        pairs = {(a, b) for a, b in np.unique(peers[:, peers[0] != MISSING], axis=1).T.tolist()}
        both_ways = {pair for pair in pairs if pair[::-1] in pairs}
        chains = _connected(both_ways)
        place = {rank: i for chain in chains for i, rank in enumerate(chain)}
        size = max(map(len, chains), default=0)
        is_chain = all(abs(place[a] - place[b]) in {1, size - 1} for a, b in both_ways)
        if not chains or not is_chain or {len(chain) for chain in chains} != {size}:
            return []
        index = {each.rank: i for i, each in enumerate(calls.ranks)}
        stages = [[index[chain[i]] for chain in chains if chain[i] in index] for i in range(size)]
        return stages if size <= _MAX_STAGES and all(stages) else []

    @cached_property
    def _lengths_ns(self) -> dict[RankChange, float]:
        """The job's length with each change."""
        every = tuple(range(self.replay.n_ranks))
        changes = [
            RankChange(idle=True), RankChange(), RankChange(every, transfers=True),
            RankChange(every), *(RankChange((rank,)) for rank in self.candidates),
            *(RankChange(medians=(rank,)) for rank in self.candidates),
            *(RankChange(tuple(ranks)) for ranks in self.stages),
        ]  # fmt: skip
        lengths = self.replay.lengths_ns(changes).tolist()
        return dict(zip(changes, lengths, strict=True))

    @property
    def recorded_ns(self) -> float:
        """What the job took."""
        return self._lengths_ns[RankChange(idle=True)]

    @property
    def actual_ns(self) -> float:
        """The same without idle time for which the recording has no reason."""
        return self._lengths_ns[RankChange()]

    @property
    def ideal_ns(self) -> float:
        """As in :class:`~profkit.model.job.Slowdown`."""
        return self._lengths_ns[RankChange(tuple(range(self.replay.n_ranks)), transfers=True)]

    @property
    def even_ns(self) -> float:
        """What the job would take if all ranks had equally much own time."""
        return self._lengths_ns[RankChange(tuple(range(self.replay.n_ranks)))]

    def saving_ns(self, ranks: Sequence[int]) -> float:
        """What the job would take less if some ranks took the mean of all ranks."""
        return self.actual_ns - self._lengths_ns[RankChange(tuple(ranks))]

    def saving_at_median_ns(self, rank: int) -> float:
        """What the job would take less if a candidate kept up with the median of the others."""
        return self.actual_ns - self._lengths_ns[RankChange(medians=(rank,))]

    def saving_with(self, change: RankChange) -> float:
        """What the job would take less with a change that is not among the usual ones."""
        return self.actual_ns - float(self.replay.lengths_ns([change])[0])

    def summary(self) -> Slowdown | None:
        """The figures of a report, or None where too little is known."""
        if not self.is_known:
            return None
        n = max(1, self.replay.n_steps)
        possible_ns = self.actual_ns - self.ideal_ns
        numbers = [each.rank for each in self.matches.calls.ranks]

        def slow(ranks: Sequence[int], stage: int | None) -> SlowRanks:
            saving_ns = self.saving_ns(ranks)
            named = tuple(numbers[rank] for rank in ranks)
            share = round(saving_ns / possible_ns, 4) if possible_ns > 0 else 0.0
            return SlowRanks(named, stage, round(saving_ns / n), share)

        differ = possible_ns >= _MIN_SAVING * self.actual_ns
        ranks = [slow((rank,), None) for rank in self.candidates if differ]
        stages = [slow(each, i) for i, each in enumerate(self.stages) if differ]
        return Slowdown(
            n_steps=self.replay.n_steps,
            recorded_ns=round(self.recorded_ns / n),
            actual_ns=round(self.actual_ns / n),
            ideal_ns=round(self.ideal_ns / n),
            ratio=round(self.actual_ns / max(self.ideal_ns, 1.0), 4),
            unexplained_share=round(max(0.0, 1 - self.actual_ns / self.recorded_ns), 4),
            ranks=tuple(
                sorted(
                    (each for each in ranks if each.share >= _MIN_SHARE),
                    key=lambda each: (-each.saving_ns, each.ranks),
                )
            ),
            stages=tuple(stages),
        )


def _connected(pairs: set[tuple[int, int]]) -> list[list[int]]:
    """Numbers that are connected by pairs, each ascending."""
    neighbors: dict[int, set[int]] = defaultdict(set)
    for one, other in pairs:
        neighbors[one].add(other)
    found, seen = [], set[int]()
    for number in sorted(neighbors):
        group, waiting = set[int](), [number]
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen.add(each)
                group.add(each)
                waiting += neighbors[each]
        if group:
            found.append(sorted(group))
    return found
