"""Everything that a rule over ranks can read of a job, computed on first use."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from profkit.index.ranks.blocked import BlockedCollective, find_blocked
from profkit.index.ranks.delays import Delays, find_delays
from profkit.index.ranks.disagreements import Disagreement, find_disagreements
from profkit.index.ranks.flight import joined_record, with_records
from profkit.index.ranks.matching import Matches, RankCalls, match_collectives
from profkit.model.finding import Basis, Cost
from profkit.model.flight_record import FlightRecord
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
        time: The parts of its time, for the timeline; None without a trace.
        choice: The rules that are to run over the job.
        flights: What torch's FlightRecorder kept of this rank.
    """

    path: str
    start_ns: int
    end_ns: int
    world_size: int | None
    calls: RankCalls
    time: OwnTime | None
    report: Report
    choice: RuleChoice = RuleChoice()
    flights: tuple[FlightRecord, ...] = ()

    @property
    def has_trace(self) -> bool:
        """Whether there is a trace, and not only a dump of the FlightRecorder."""
        return self.time is not None


@dataclass(frozen=True)
class JobContext:
    """The recorded ranks of a job and the relations between them. Properties are computed once.

    Attributes:
        ranks: Its ranks, ascending: those with a trace or, if none has one, those with a dump.
        flights: What torch's FlightRecorder kept of these and other ranks.
    """

    ranks: tuple[RankReport, ...]
    flights: tuple[FlightRecord, ...] = ()

    @classmethod
    def of(cls, job: Iterable[RankReport]) -> "JobContext":
        """The job of some reports, of which several may be of one rank: its trace and its dumps."""
        members = sorted(job, key=lambda each: (not each.has_trace, each.calls.rank, each.start_ns))
        flights = tuple(flight for each in members for flight in each.flights)
        has_trace = bool(members) and members[0].has_trace
        ranks: dict[int, RankReport] = {}
        for each in members:
            if each.has_trace == has_trace:
                ranks.setdefault(each.calls.rank, each)
        return cls(tuple(ranks.values()), flights)

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
        calls = [each.calls for each in self.ranks]
        records = [joined_record(each.rank, self.flights) for each in calls]
        completed = with_records([each.calls for each in calls], records, self.ranks[0].world_size)
        return match_collectives(
            [replace(one, calls=own) for one, own in zip(calls, completed, strict=True)]
        )

    @cached_property
    def delays(self) -> Delays:
        """Waiting and transfer of the matched collectives."""
        return find_delays(self.matches)

    @cached_property
    def disagreements(self) -> list[Disagreement]:
        """Groups whose ranks call different collectives."""
        return find_disagreements(self.matches)

    @cached_property
    def last_records(self) -> dict[int, FlightRecord]:
        """The last dump of each rank."""
        ordered = sorted(self.flights, key=lambda each: (each.is_end, each.written_ns or 0))
        return {each.rank: each for each in ordered if each.rank is not None}

    @cached_property
    def blocked(self) -> list[BlockedCollective]:
        """The collectives that ranks are blocked in, by their last dumps."""
        return find_blocked(list(self.last_records.values()))

    @cached_property
    def n_steps(self) -> int:
        """Steps that all ranks recorded; 0 without."""
        return min(len(each.report.summary.steps) for each in self.ranks)

    def cost(self, ns: int, basis: Basis) -> Cost:
        """A cost in total, and per step where there are steps."""
        per_step_ns = round(ns / self.n_steps) if self.n_steps else None
        return Cost(ns=ns, per_step_ns=per_step_ns, basis=basis)
