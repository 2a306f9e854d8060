"""Everything that a rule over ranks can read of a job, computed on first use."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from profkit.index.ranks.delays import Delays, find_delays
from profkit.index.ranks.disagreements import Disagreement, find_disagreements
from profkit.index.ranks.matching import Matches, RankCalls, match_collectives
from profkit.model.finding import Basis, Cost
from profkit.model.rank_lanes import OwnTime
from profkit.model.report import Report


@dataclass(frozen=True)
class RuleChoice:
    """Which rules run, and how.

    Attributes:
        ids: Ids of the rules, or None for all.
        thresholds: By rule name, thresholds that differ from the default.
        strict: Raise if a rule crashes, instead of reporting it as skipped.
    """

    ids: tuple[str, ...] | None = None
    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True)
class RankReport:
    """The report on one rank, with its collectives.

    Attributes:
        path: Its recording.
        start_ns: Nanoseconds since 1970 of its first event.
        end_ns: The same of its last.
        world_size: Number of ranks of its job, or None.
        time: The parts of its time, for the timeline.
        choice: The rules that are to run over the job.
    """

    path: str
    start_ns: int
    end_ns: int
    world_size: int | None
    calls: RankCalls
    time: OwnTime
    report: Report
    choice: RuleChoice = RuleChoice()


@dataclass(frozen=True)
class JobContext:
    """The recorded ranks of a job and the relations between them. Properties are computed once.

    Attributes:
        ranks: Its ranks, ascending, at least two.
    """

    ranks: tuple[RankReport, ...]

    @cached_property
    def path(self) -> str:
        """The folder of its recordings, or the first of them where they have none in common."""
        paths = [each.path for each in self.ranks]
        with contextlib.suppress(ValueError):  # absolute and relative ones, or several drives
            return os.path.commonpath(paths) or paths[0]
        return paths[0]

    @cached_property
    def matches(self) -> Matches:
        """The collectives of the ranks, matched."""
        return match_collectives([each.calls for each in self.ranks])

    @cached_property
    def delays(self) -> Delays:
        """Waiting and transfer of the matched collectives."""
        return find_delays(self.matches)

    @cached_property
    def disagreements(self) -> list[Disagreement]:
        """Groups whose ranks call different collectives."""
        return find_disagreements(self.matches)

    @cached_property
    def n_steps(self) -> int:
        """Steps that all ranks recorded; 0 without."""
        return min(len(each.report.summary.steps) for each in self.ranks)

    def cost(self, ns: int, basis: Basis) -> Cost:
        """A cost in total, and per step where there are steps."""
        per_step_ns = round(ns / self.n_steps) if self.n_steps else None
        return Cost(ns=ns, per_step_ns=per_step_ns, basis=basis)
