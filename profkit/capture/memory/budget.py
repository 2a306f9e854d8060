"""What watching may cost, and what it has cost."""

import time
from dataclasses import dataclass
from typing import Final

from profkit.model.live import WatchCost

_SECOND_NS: Final = 1e9
_WEIGHT: Final = 0.3
"""Of the newest figure in a running mean."""
_GRAPH_SHARE: Final = 0.5
"""The part of what looks may cost that may go into walking graphs."""


@dataclass(frozen=True)
class Budget:
    """What watching may cost.

    Attributes:
        free_s: Seconds that looks may take in any case.
        share: The share of the time since the first step that they may take, where that is more.
        closer_free_s: The same two for closer looks, which are taken only where growth is seen.
        closer_share: See there.
        collector_share: The same share for what is done before collections.
    """

    free_s: float = 0.06
    share: float = 0.03
    closer_free_s: float = 1.0
    closer_share: float = 0.1
    collector_share: float = 0.01


class Clock:
    """Keeps the time that watching takes, and says what else is within the budget.

    Args:
        budget: What watching may cost.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._began_ns = 0
        self._n_looks = 0
        self._n_closer = 0
        self._first_ns = 0
        self._full_ns = 0
        self._looks_ns = 0
        self._look_ns = 0.0
        self._graphs_ns = 0
        self._graph_ns = 0.0
        self._closer_ns = 0
        self._sampled_ns = 0
        self._collector_ns = 0
        self._pace_ns: float | None = None
        self._step = 0
        self._step_ns = 0

    def begin(self, now_ns: int) -> None:
        """The first step has ended."""
        self._began_ns = now_ns

    def watched_ns(self) -> int:
        """Time since then; 0 before."""
        return time.perf_counter_ns() - self._began_ns if self._began_ns else 0

    def affords_look(self) -> bool:
        """Whether another look is within the budget."""
        return self._looks_ns + self._look_ns <= self._allowed_ns()

    def affords_graphs(self) -> bool:
        """Whether it may walk graphs too."""
        return self._graphs_ns + self._graph_ns <= _GRAPH_SHARE * self._allowed_ns()

    def affords_full(self) -> bool:
        """Whether it may go through all objects once more."""
        return self._full_ns + self._first_ns <= self._budget.share * self.watched_ns()

    def affords_closer(self) -> bool:
        """Whether a closer look is."""
        spent_ns = self._closer_ns + self._sampled_ns
        free_ns = self._budget.closer_free_s * _SECOND_NS
        return spent_ns <= max(free_ns, self._budget.closer_share * self.watched_ns())

    def affords_collector(self) -> bool:
        """Whether the young objects may be looked through before a collection."""
        free_ns = self._budget.free_s * _SECOND_NS
        return self._collector_ns <= max(free_ns, self._budget.collector_share * self.watched_ns())

    def _allowed_ns(self) -> float:
        free_ns = self._budget.free_s * _SECOND_NS
        return max(free_ns, self._budget.share * self.watched_ns())

    def looked_first(self, began_ns: int) -> None:
        """The first look, through all objects, is over; it stands outside the budget."""
        self._n_looks += 1
        self._first_ns = time.perf_counter_ns() - began_ns

    def looked(self, began_ns: int, *, full: bool) -> None:
        """A look is over."""
        took_ns = time.perf_counter_ns() - began_ns
        self._n_looks += 1
        if full:
            self._full_ns += took_ns
        else:
            self._looks_ns += took_ns
            self._look_ns = _mean(self._look_ns, took_ns)

    def walked(self, began_ns: int) -> None:
        """The graphs have been walked, as a part of a look."""
        took_ns = time.perf_counter_ns() - began_ns
        self._graphs_ns += took_ns
        self._graph_ns = _mean(self._graph_ns, took_ns)

    def looked_closer(self, began_ns: int) -> None:
        """A closer look is over."""
        self._n_closer += 1
        self._closer_ns += time.perf_counter_ns() - began_ns

    def went_through_young(self, began_ns: int) -> None:
        """The young objects have been looked through before a collection."""
        self._collector_ns += time.perf_counter_ns() - began_ns

    def step_begins(self, step: int) -> None:
        """The program goes on after a boundary at which there was something to do."""
        self._step, self._step_ns = step, time.perf_counter_ns()

    def step_ended(self, now_ns: int, step: int, *, sampled: bool) -> None:
        """It has come to the next such boundary.

        Args:
            now_ns: Now.
            step: The step that has ended.
            sampled: Whether lines were sampled meanwhile; what it took longer is their cost.
        """
        took_ns = (now_ns - self._step_ns) / max(step - self._step, 1)
        if not sampled:
            self._pace_ns = took_ns if self._pace_ns is None else _mean(self._pace_ns, took_ns)
        elif self._pace_ns is not None:
            self._sampled_ns += max(round(took_ns - self._pace_ns), 0)

    def cost(self, n_full: int) -> WatchCost:
        """What it all has cost.

        Args:
            n_full: How often all objects were gone through for a census.
        """
        total_ns = (
            self._first_ns
            + self._full_ns
            + self._looks_ns
            + self._closer_ns
            + self._sampled_ns
            + self._collector_ns
        )
        watched_ns = self.watched_ns() + self._first_ns
        return WatchCost(
            total_ns=total_ns,
            n_looks=self._n_looks,
            n_censuses=n_full + self._n_closer,
            share=total_ns / watched_ns if watched_ns else 0.0,
        )


def _mean(before: float, newest: float) -> float:
    return newest if not before else before + _WEIGHT * (newest - before)
