"""The overhead budget of monitoring, and the time spent so far.

The budget is counted in CPU time of this thread, so that a busy machine does not make a sample seem
expensive; the overhead reported at the end is the time that the program waited.
"""

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import field
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.model.live_memory import MonitoringCost

Work = Literal[
    "first",
    "full",
    "missed",
    "young",
    "graphs",
    "heap",
    "own",
    "evaluate",
    "inspection",
    "containers",
    "host",
    "lines",
    "collector",
    "classify",
    "workers",
    "sites",
]
"""Kinds of work: the search for what existed before; scans over all objects; the same for tensors
that were missed while the heap rises; scans over young objects; the graph walk of a sample; reading
the heap's size; reading how much of it is the monitor's own; looking whether the latest samples
rise; an inspection; a scan of the lengths of containers; a scan of host objects; an evaluation of
traced allocations; a scan before a garbage collection; a classification of all samples; measuring a
loader worker; sampling allocation sites until one that grows rarely was seen."""

OVERDUE: Final = 1.3
"""At this multiple of the last measured step the next one is due regardless of its cost: what fills
up and stops, or is cleared now and then, looks like a leak if measuring ends early."""
_SCANS: Final[tuple[Work, ...]] = ("first", "inspection", "containers", "host")
"""Kinds of work, besides full samples, that scan all objects."""
_SECOND_NS: Final = 1e9
_WEIGHT: Final = 0.3
"""Weight of the newest value in a running mean."""


_LIMITS: Final[dict[Work, tuple[float, float]]] = {
    "first": (0.022, 0.015),
    "full": (0.0, 0.003),
    "missed": (1.0, 0.01),
    "young": (0.006, 0.007),
    "graphs": (0.004, 0.004),
    "heap": (0.004, 0.004),
    "own": (0.008, 0.002),
    "evaluate": (0.004, 0.005),
    "inspection": (1.5, 0.02),
    "containers": (1.0, 0.02),
    "host": (3.0, 0.04),
    "lines": (0.5, 0.01),
    "collector": (0.005, 0.003),
    "classify": (0.008, 0.003),
    "workers": (0.15, 0.01),
    "sites": (1.0, 0.02),
}
"""By kind of work the seconds that are always allowed, and the share of the time."""


@dataclass(frozen=True)
class Budget:
    """What monitoring may cost: for each kind of work the larger of an amount and a share.

    Attributes:
        free_s: Seconds that are always allowed, of the processor on which costs were measured.
        share: Share of the time since the first step.
    """

    free_s: dict[Work, float] = field(
        default_factory=lambda: {work: free_s for work, (free_s, _) in _LIMITS.items()}
    )
    share: dict[Work, float] = field(
        default_factory=lambda: {work: share for work, (_, share) in _LIMITS.items()}
    )


@dataclass
class _Spent:
    """The cost of one kind of work so far.

    Attributes:
        n: How often it was done.
        next_ns: CPU time that it is expected to take next.
    """

    n: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0
    next_ns: float = 0.0


@dataclass(frozen=True)
class BudgetSpent:
    """What monitors of one program have spent of its budget.

    Attributes:
        began_ns: When the first one began, by ``time.perf_counter_ns``; 0 if none has.
        cpu_ns: CPU time by kind of work.
    """

    began_ns: int = 0
    cpu_ns: dict[Work, int] = field(default_factory=dict)


class Clock:
    """Measures the time spent on monitoring and compares it with the budget.

    Args:
        slowness: How many times as long this processor takes as the one of the budget.

    Attributes:
        began_unix_us: Start of the first work, in microseconds since 1970; 0 before.
    """

    def __init__(self, budget: Budget | None = None, slowness: float = 1.0) -> None:
        self._budget = budget or Budget()
        self._slowness = slowness
        self.began_unix_us = 0
        self._began_ns = 0
        self._earlier = BudgetSpent()
        self._spent: dict[Work, _Spent] = {}
        self._sampling_ns = 0
        self._mean_step_ns: float | None = None
        self._step = 0
        self._step_ns = 0

    def follow(self, earlier: BudgetSpent) -> None:
        """Let the budget be that of earlier monitors, with what they have spent of it.

        A program that makes a new optimizer for each epoch may have one monitor after the other.
        """
        self._earlier = earlier

    def budget_spent(self) -> BudgetSpent:
        """Return what was spent, here and in earlier monitors."""
        works = self._spent.keys() | self._earlier.cpu_ns.keys()
        cpu_ns = {work: self._cpu_ns(work) for work in works}
        return BudgetSpent(self._earlier.began_ns or self._began_ns, cpu_ns)

    def monitored_ns(self) -> int:
        """Return the time since the first work; 0 before."""
        return time.perf_counter_ns() - self._began_ns if self._began_ns else 0

    def affords(self, work: Work, expected_ns: float = 0.0) -> bool:
        """Tell whether doing some work once more is expected to stay within the budget.

        Args:
            expected_ns: Expected CPU time, if known; if not, the first time is always allowed.
        """
        spent, spent_ns = self._spent.get(work, _Spent()), self._cpu_ns(work)
        share_ns = self._budget.share.get(work, 0.0) * self._budgeted_ns()
        allowed_ns = max(self._free_ns(work), share_ns)
        next_ns = max(spent.next_ns, expected_ns)

        # What was never done has no known cost: the first time shows it.
        return (not spent_ns and not expected_ns) or spent_ns + next_ns <= allowed_ns

    def affords_one(self, work: Work, at_most_s: float = math.inf) -> bool:
        """Tell whether doing some work once takes no longer than is always allowed of it.

        Whatever was spent on it before: what is done at the end of a run is done only once.

        Args:
            at_most_s: CPU time that it may take even if more is allowed, in seconds.
        """
        spent = self._spent.get(work, _Spent())
        return spent.next_ns <= min(self._free_ns(work), at_most_s * _SECOND_NS)

    def mean_ns(self, work: Work) -> float:
        """Return the mean CPU time of some work so far; 0 if it was never done."""
        spent = self._spent.get(work, _Spent())
        return spent.cpu_ns / max(spent.n, 1)

    def steps_until_afforded(self, work: Work) -> int:
        """Return in how many steps some work is affordable, at the length of the last ones."""
        spent, share = self._spent.get(work, _Spent()), self._budget.share.get(work, 0.0)
        if not self._mean_step_ns or not share or self.affords(work):
            return 0

        # Time that must pass until the share of it has grown to what the work costs.
        missing_ns = (self._cpu_ns(work) + spent.next_ns) / share - self._budgeted_ns()
        return int(min(missing_ns / self._mean_step_ns, sys.maxsize))

    def affords_sites(self) -> bool:
        """Tell whether sampling allocation sites has stayed within the budget."""
        share_ns = self._budget.share.get("sites", 0.0) * self._budgeted_ns()
        return self._sampling_ns <= max(self._free_ns("sites"), share_ns)

    def is_within_share(self, work: Work) -> bool:
        """Tell whether some work has cost no more than its share, ignoring the free seconds."""
        return self._cpu_ns(work) <= self._budget.share[work] * self._budgeted_ns()

    def _cpu_ns(self, work: Work) -> int:
        """Return what some work has cost so far, here and in earlier monitors, in CPU time."""
        return self._spent.get(work, _Spent()).cpu_ns + self._earlier.cpu_ns.get(work, 0)

    def _budgeted_ns(self) -> int:
        """Return the time of whose shares the budget consists; 0 before the first work."""
        began_ns = self._earlier.began_ns or self._began_ns
        return time.perf_counter_ns() - began_ns if began_ns else 0

    def _free_ns(self, work: Work) -> float:
        """Return what is always allowed of some work, in nanoseconds of this processor."""
        return self._budget.free_s.get(work, 0.0) * self._slowness * _SECOND_NS

    @contextlib.contextmanager
    def spending(self, work: Work) -> Iterator[None]:
        """Add the time spent while open to one kind of work."""
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

            # What is expected follows slowly: one time may be an exception.
            more_ns = took_ns - spent.next_ns
            spent.next_ns = took_ns if spent.n == 1 else spent.next_ns + _WEIGHT * more_ns

    def step_begins(self, step: int) -> None:
        """Note that the program continues after a boundary at which work was done."""
        self._step, self._step_ns = step, time.perf_counter_ns()

    def step_ended(self, step: int, *, sites_sampled: bool) -> None:
        """Note that the program has reached the next such boundary.

        Args:
            sites_sampled: Whether allocation sites were sampled since; the additional time is
                overhead.
        """
        took_ns = (time.perf_counter_ns() - self._step_ns) / max(step - self._step, 1)

        # A sampled step takes longer than the mean of others, which is its overhead.
        if not sites_sampled:
            mean_ns = took_ns if self._mean_step_ns is None else self._mean_step_ns
            self._mean_step_ns = mean_ns + _WEIGHT * (took_ns - mean_ns)
        elif self._mean_step_ns is not None:
            self._sampling_ns += max(round(took_ns - self._mean_step_ns), 0)

    def own_ns(self) -> int:
        """Return the time between steps that monitoring has taken so far."""
        return sum(spent.wall_ns for spent in self._spent.values())

    def cost(self) -> MonitoringCost:
        """Return the overhead so far. The graph walk of a sample is not a sample of its own."""
        total_ns = self._sampling_ns + self.own_ns()
        n_done = {work: spent.n for work, spent in self._spent.items()}
        n_full = n_done.get("full", 0) + n_done.get("missed", 0)

        return MonitoringCost(
            total_ns=total_ns,
            n_samples=n_full + n_done.get("young", 0),
            n_tensor_scans=n_full + sum(n_done.get(work, 0) for work in _SCANS),
            share=total_ns / self.monitored_ns() if self._began_ns else 0.0,
        )
