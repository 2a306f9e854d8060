"""What watching may cost, and what it has cost.

The budget is counted in the processor's time of this thread, so that a busy machine does not make
a look seem dear; what is reported in the end is the time that the program waited.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from profkit.model.live_memory import MonitoringCost

Work = Literal["first", "full", "look", "graphs", "closer", "host", "collector", "judge", "workers"]
"""Kinds of work: the first look; another one through all objects; one through the young ones; a
walk over graphs within it; a closer look; one at the host's objects; one before a collection;
a judgement of all looks; a reading of a loader's worker."""

_SECOND_NS: Final = 1e9
_WEIGHT: Final = 0.3
"""Of the newest figure in a running mean."""


@dataclass(frozen=True)
class Budget:
    """What watching may cost: so many seconds in any case, and a share of the time watched.

    Attributes:
        free_s: Seconds by kind of work.
        share: The share of the time since the first step, where that is more, by kind of work.
    """

    free_s: dict[Work, float] = field(
        default_factory=lambda: {
            "full": 0.0, "look": 0.08, "graphs": 0.1, "closer": 1.5, "host": 2.5,
            "collector": 0.02, "judge": 0.04, "workers": 0.15,
        }
    )  # fmt: skip
    share: dict[Work, float] = field(
        default_factory=lambda: {
            "full": 0.005, "look": 0.015, "graphs": 0.01, "closer": 0.04, "host": 0.04,
            "collector": 0.005, "judge": 0.005, "workers": 0.01,
        }
    )  # fmt: skip


@dataclass
class _Spent:
    """What one kind of work has cost.

    Attributes:
        n: How often it was done.
        wall_ns: The time that it took.
        cpu_ns: The processor's time.
        next_ns: What it is likely to take the next time.
    """

    n: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0
    next_ns: float = 0.0


class Clock:
    """Keeps the time that watching takes, and says what else is within the budget.

    Args:
        budget: What watching may cost.

    Attributes:
        began_unix_us: When the first work was, in microseconds since 1970; 0 before.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self.began_unix_us = 0
        self._began_ns = 0
        self._spent: dict[Work, _Spent] = {}
        self._sampled_ns = 0
        self._pace_ns: float | None = None
        self._step = 0
        self._step_ns = 0

    def monitored_ns(self) -> int:
        """Time since the first work; 0 before."""
        return time.perf_counter_ns() - self._began_ns if self._began_ns else 0

    def affords(self, work: Work, likely_ns: float = 0.0) -> bool:
        """Whether doing something once more is likely to stay within the budget.

        Args:
            likely_ns: What it is likely to take, where that is known; else the first may take
                whatever it takes.
        """
        spent = self._spent.get(work, _Spent())
        free_ns = self._budget.free_s.get(work, 0.0) * _SECOND_NS
        allowed_ns = max(free_ns, self._budget.share.get(work, 0.0) * self.monitored_ns())
        next_ns = max(spent.next_ns, likely_ns)
        return (spent.n == 0 and not likely_ns) or spent.cpu_ns + next_ns <= allowed_ns

    def is_within_share(self, work: Work) -> bool:
        """Whether something has cost no more than its share, and nothing of what is free."""
        spent = self._spent.get(work, _Spent())
        return spent.cpu_ns <= self._budget.share[work] * self.monitored_ns()

    @contextlib.contextmanager
    def spending(self, work: Work) -> Iterator[None]:
        """Keep the time of what is done while this is open.

        Args:
            work: What is done.
        """
        if not self._began_ns:
            self._began_ns, self.began_unix_us = time.perf_counter_ns(), time.time_ns() // 1000
        spent = self._spent.setdefault(work, _Spent())
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        try:
            yield
        finally:
            took_ns = time.thread_time_ns() - cpu_ns
            spent.n += 1
            spent.cpu_ns += took_ns
            spent.wall_ns += time.perf_counter_ns() - wall_ns
            more_ns = took_ns - spent.next_ns
            spent.next_ns = took_ns if spent.n == 1 else spent.next_ns + _WEIGHT * more_ns

    def step_begins(self, step: int) -> None:
        """The program goes on after a boundary at which there was something to do."""
        self._step, self._step_ns = step, time.perf_counter_ns()

    def step_ended(self, step: int, *, sampled: bool) -> None:
        """It has come to the next such boundary.

        Args:
            step: The step that has ended.
            sampled: Whether lines were sampled meanwhile; what it took longer is their cost.
        """
        took_ns = (time.perf_counter_ns() - self._step_ns) / max(step - self._step, 1)
        if not sampled:
            pace_ns = took_ns if self._pace_ns is None else self._pace_ns
            self._pace_ns = pace_ns + _WEIGHT * (took_ns - pace_ns)
        elif self._pace_ns is not None:
            self._sampled_ns += max(round(took_ns - self._pace_ns), 0)

    def cost(self) -> MonitoringCost:
        """What it all has cost. A walk over graphs is a part of its look."""
        total_ns = self._sampled_ns + sum(spent.wall_ns for spent in self._spent.values())
        n = {work: spent.n for work, spent in self._spent.items()}
        n_all = n.get("first", 0) + n.get("full", 0)
        return MonitoringCost(
            total_ns=total_ns,
            n_samples=n_all + n.get("look", 0),
            n_tensor_scans=n_all + n.get("closer", 0) + n.get("host", 0),
            share=total_ns / self.monitored_ns() if self._began_ns else 0.0,
        )
