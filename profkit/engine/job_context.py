"""Everything that a rule over ranks can read of a job, computed on first use."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.wording import format_per_step
from profkit.index.host.steps import divide_by_steps
from profkit.index.intervals import covered_within
from profkit.index.ranks.activity import RankActivity
from profkit.index.ranks.blocked import BlockedCollective, find_blocked
from profkit.index.ranks.calls import CollectiveCalls
from profkit.index.ranks.delays import Delays, find_delays
from profkit.index.ranks.disagreements import Disagreement, find_disagreements
from profkit.index.ranks.flight import PackedRecord, records_by_rank, with_records
from profkit.index.ranks.job_calls import RankCalls
from profkit.index.ranks.job_replay import JobReplay
from profkit.index.ranks.matching import Matches, match_collectives
from profkit.index.ranks.run_lateness import (
    MIN_RUN_STEPS,
    RunLateness,
    find_run_lateness,
    list_run_times,
)
from profkit.index.ranks.slow_stage import SlowStage, find_slow_stage
from profkit.index.ranks.slowdown import WhatIfRanks
from profkit.model.events import Float64s, Int64s, Rows
from profkit.model.finding import Basis, Cost
from profkit.model.flight_record import FlightRecord, RankFailure, RankSteps
from profkit.model.location import Location
from profkit.model.rank_lanes import OwnTime
from profkit.model.report import Report
from profkit.packed import Packed
from profkit.readers.remote import is_url
from profkit.units import format_share


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
class PlaceTime:
    """How long a rank takes for something.

    Attributes:
        where: Such as `` at train.py:12`` or `` in `slow data` ``, with a leading space.
        ns: Per step.
        location: The source line, or None.
        is_data: Whether it prepares batches, or waits for them.
        may_be_unlisted: Whether it is listed from some time on: a rank that does not list it may
            spend less there.
        n_ops: Calls of operators at the line, in all recorded steps.
        error_ns: Standard error of ``ns`` of a place that few samples tell.
    """

    where: str
    ns: int
    location: Location | None = None
    is_data: bool = False
    may_be_unlisted: bool = False
    n_ops: int = 0
    error_ns: int = 0


@dataclass(frozen=True)
class RankReport:
    """Report on one rank, with its collectives. The reports of all ranks are in memory together.

    Attributes:
        path: Its recording.
        start_ns: Nanoseconds since 1970 of its first event.
        end_ns: Nanoseconds since 1970 of its last event.
        world_size: Number of ranks of its job, or None.
        rank: Its number in the job.
        host: The machine, or None where it is not known.
        has_trace: Whether there is a trace, and not only a dump of the FlightRecorder.
        packed_calls: Its collectives.
        packed_time: The parts of its time, for the timeline; None without a trace.
        packed_activity: When it waits for its collectives; None without a trace.
        packed_places: Where it spends its time, as far as that is known; empty without a trace.
        packed_report: The report without the figures that are shown of a job's lowest rank alone.
        whole: All of the report, or None.
        choice: The rules that are to run over the job.
        flights: What torch's FlightRecorder kept of this rank.
    """

    path: str
    start_ns: int
    end_ns: int
    world_size: int | None
    rank: int
    host: str | None
    has_trace: bool
    packed_calls: Packed[CollectiveCalls]
    packed_time: Packed[OwnTime | None]
    packed_activity: Packed[RankActivity | None]
    packed_places: Packed[tuple[PlaceTime, ...]]
    packed_report: Packed[Report]
    whole: Report | None
    choice: RuleChoice = RuleChoice()
    flights: tuple[PackedRecord, ...] = ()

    @property
    def calls(self) -> RankCalls:
        """Collectives of the rank."""
        return RankCalls(self.rank, self.host, self.packed_calls.value)

    @property
    def time(self) -> OwnTime | None:
        """Parts of the rank's time, for the timeline; None without a trace."""
        return self.packed_time.value

    @property
    def activity(self) -> RankActivity | None:
        """Times at which the rank waits for its collectives; None without a trace."""
        return self.packed_activity.value

    @property
    def places(self) -> tuple[PlaceTime, ...]:
        """Known places where the rank spends its time; empty without a trace."""
        return self.packed_places.value

    @property
    def report(self) -> Report:
        """Report of the rank, whole or without the figures shown of a job's lowest rank alone."""
        return self.whole or self.packed_report.value


@dataclass(frozen=True)
class JobContext:
    """The recorded ranks of a job and the relations between them. Properties are computed once.

    Attributes:
        ranks: Its ranks with a trace or, if none has one, with a dump; ascending.
        flights: What torch's FlightRecorder kept of these and other ranks.
    """

    ranks: tuple[RankReport, ...]
    flights: tuple[PackedRecord, ...] = ()

    @classmethod
    def of(cls, job: Iterable[RankReport]) -> "JobContext":
        """Build the job of some reports, of which several may be of one rank: a trace and dumps."""
        members = sorted(
            job, key=lambda report: (not report.has_trace, report.rank, report.start_ns)
        )
        flights = tuple(flight for report in members for flight in report.flights)

        has_trace = bool(members) and members[0].has_trace
        ranks: dict[int, RankReport] = {}
        # Of several recordings of a rank the first counts.
        for report in members:
            if report.has_trace == has_trace:
                ranks.setdefault(report.rank, report)

        return cls(tuple(ranks.values()), flights)

    @cached_property
    def path(self) -> str:
        """Folder of the recordings, or the first recording if they have no folder in common."""
        paths = [report.path for report in self.ranks]
        if any(map(is_url, paths)):
            # commonpath would make one slash of the two of a URL.
            lists = [path.split("/") for path in paths]
            parts = os.path.commonprefix(lists)  # noqa: RUF071  (of lists)
            return "/".join(parts) or paths[0]

        # Absolute and relative paths, or several drives, have no common path.
        with contextlib.suppress(ValueError):
            return os.path.commonpath(paths) or paths[0]
        return paths[0]

    @cached_property
    def matches(self) -> Matches:
        """Collectives of the ranks, matched."""
        records = records_by_rank(self.flights)
        calls = with_records(
            [report.packed_calls for report in self.ranks],
            [records.get(report.rank, []) for report in self.ranks],
            self.ranks[0].world_size,
        )

        return match_collectives(
            RankCalls(report.rank, report.host, packed.value)
            for report, packed in zip(self.ranks, calls, strict=True)
        )

    @cached_property
    def delays(self) -> Delays:
        """Waiting and transfer of the matched collectives."""
        times = [activity.computed_ns for activity in self._activities]
        is_known = times and len(times) == len(self.ranks)
        return find_delays(self.matches, np.concatenate(times) if is_known else None)

    @cached_property
    def _activities(self) -> list[RankActivity]:
        """Activities of the ranks with a trace."""
        return [activity for report in self.ranks if (activity := report.activity) is not None]

    def common_steps(self, rank: int) -> Rows:
        """Return the places of a rank's steps that all ranks have, by index. Shape ``(s,)``.

        In its further steps it may wait for ranks that write their recording.
        """
        names = self._activities[rank].steps
        return np.flatnonzero([name in self._common_step_names for name in names])

    @cached_property
    def _common_step_names(self) -> set[str]:
        """Names of the steps that all ranks have, compared once and not for each rank."""
        first, *others = (activity.steps for activity in self._activities)
        return set(first).intersection(*others)

    def has_recorded(self, rank: int, first: int, last: int) -> bool:
        """Return whether all recorded steps of a rank are among some steps, numbered from 1."""
        names = [name.rpartition("#")[2] for name in self._activities[rank].steps]
        return bool(names) and all(
            name.isdecimal() and first <= int(name) + 1 <= last for name in names
        )

    def extra_step_times(self, rank: int) -> Int64s:
        """Return how much longer a rank takes itself than the median of the others, by step.

        The time in which it waits for collectives is not its own.

        Returns:
            Nanoseconds for each step that all ranks have, negative where it is faster. Shape
            ``(s,)``.
        """
        own_ns = self._own_step_times
        usual_ns = np.median(np.delete(own_ns, rank, axis=0), axis=0)
        return np.asarray(own_ns[rank] - usual_ns.astype(np.int64))

    @cached_property
    def _own_step_times(self) -> Int64s:
        """Times that ranks take themselves for the steps that all have. Shape ``(ranks, s)``."""
        times = [self._measure_own_steps(rank) for rank in range(len(self.ranks))]
        # Steps of one name are compared in their order, of which a rank may have more.
        n_steps = min(map(len, times))
        return np.array([time[:n_steps] for time in times])

    def _measure_own_steps(self, rank: int) -> Int64s:
        activity, steps = self._activities[rank], self.common_steps(rank)
        starts_ns, ends_ns = activity.step_starts_ns[steps], activity.step_ends_ns[steps]
        return ends_ns - starts_ns - covered_within(activity.waits, starts_ns, ends_ns)

    @property
    def core_wait_shares(self) -> list[float]:
        """Return for how much of its recording each rank had no core; 0 where it is not known."""
        cpus = (rank.report.source.cpu for rank in self.ranks)
        return [0.0 if cpu is None else cpu.delayed_share for cpu in cpus]

    def extra_core_wait_share(self, rank: int) -> float:
        """Return for how much more of its time a rank had no core than the median of the others."""
        shares = self.core_wait_shares
        others = [share for other, share in enumerate(shares) if other != rank]
        return max(0.0, shares[rank] - median(others)) if others else 0.0

    @property
    def replay(self) -> JobReplay:
        """Replay of the ranks' own times and waits with changes."""
        return self.what_if.replay

    @cached_property
    def what_if(self) -> WhatIfRanks:
        """Predictor of the job's time if some ranks were like the others."""
        return WhatIfRanks(self.matches, self.delays, self._activities)

    @cached_property
    def disagreements(self) -> list[Disagreement]:
        """Groups whose ranks call different collectives."""
        return find_disagreements(self.matches)

    @cached_property
    def last_records(self) -> dict[int, PackedRecord]:
        """Last dump of each rank."""
        # A rank that died has written no calls at its end, but perhaps before.
        ordered = sorted(
            (flight for flight in self.flights if not _has_died(flight)),
            key=lambda flight: (flight.about.is_end, flight.about.written_ns or 0),
        )
        # Of several dumps of a rank the last one stays.
        return {flight.about.rank: flight for flight in ordered if flight.about.rank is not None}

    @cached_property
    def failures(self) -> dict[int, RankFailure]:
        """Why the programs of ranks ended early, the causes first, each group by time."""
        records = ((flight.about.rank, flight.about.failure) for flight in self.flights)
        failures = {rank: failure for rank, failure in records if rank is not None and failure}

        # A rank that was killed has said nothing. A rank that says why has mostly seen it.
        def order(rank: int) -> tuple[bool, bool, int]:
            failure = failures[rank]
            return failure.is_consequence, failure.has_died, failure.at_ns

        return {rank: failures[rank] for rank in sorted(failures, key=order)}

    @property
    def failed_first(self) -> tuple[int, ...]:
        """Ranks whose failure has ended the job, as far as is known."""
        own = [rank for rank, failure in self.failures.items() if not failure.is_consequence]
        spoke = [rank for rank in own if not self.failures[rank].has_died]
        # Who fails last of all has its peers killed, and its launcher kills who does not end.
        return tuple(spoke or own)

    @property
    def _end_records(self) -> list[FlightRecord]:
        """What each rank wrote at the end of its program; empty unless all ranks did."""
        # Unpacked anew each time, as all of them together are large.
        records = [self.last_records.get(report.rank) for report in self.ranks]
        ended = [record for record in records if record is not None and record.about.is_end]
        has_all = len(ended) == len(self.ranks) and self.ranks[0].has_trace
        return [record.value for record in ended] if has_all else []

    @cached_property
    def run_lateness(self) -> RunLateness | None:
        """How late the ranks are over the whole run; None where too little of it is known."""
        records = self._end_records
        if not records:
            return None
        offset_ns = self.matches.clocks.offset_ns[self.matches.calls.clock]
        return find_run_lateness(records, offset_ns.tolist())

    @cached_property
    def slow_stage(self) -> SlowStage | None:
        """The stage of a pipeline that the others wait for, or None."""
        if not self.what_if.stages:
            return None

        own_ns = self._own_step_times.astype(np.float64)
        times = [record.steps for record in self._end_records]
        steps = [step for step in times if step is not None]
        if len(steps) < len(self.ranks):
            return find_slow_stage(self.what_if.stages, own_ns)

        run = list_run_times(steps)
        if len(run.steps) < MIN_RUN_STEPS:
            return find_slow_stage(self.what_if.stages, own_ns)
        delayed_ns = [
            self._measure_core_waits(rank, rank_steps)[: own_ns.shape[1]]
            for rank, rank_steps in enumerate(steps)
        ]
        return find_slow_stage(self.what_if.stages, own_ns, np.array(delayed_ns), run.cpu_ns)

    def _measure_core_waits(self, rank: int, steps: RankSteps) -> Float64s:
        """Return for how long a rank had no core in the recorded steps that all ranks have."""
        names = [self._activities[rank].steps[i] for i in self.common_steps(rank).tolist()]
        numbers = [name.rpartition("#")[2] for name in names]
        places = [int(number) - steps.first if number.isdecimal() else -1 for number in numbers]
        known = range(len(steps.delayed_ns))
        return np.array(
            [steps.delayed_ns[place] if place in known else 0 for place in places],
            dtype=np.float64,
        )

    @cached_property
    def blocked(self) -> list[BlockedCollective]:
        """Collectives that ranks are blocked in, by their last dumps."""
        return find_blocked(self.last_records.values())

    def cost(self, ns: float, basis: Basis) -> Cost:
        """Return a cost in the replayed steps, or without steps in the whole recording."""
        per_step_ns = divide_by_steps(ns, self.replay.n_steps)
        return Cost(ns=round(ns), per_step_ns=per_step_ns, basis=basis)

    def time_per_step(self, ns: float) -> str:
        """``1.20 ms per step``; without steps ``1.20 ms``.

        Args:
            ns: Nanoseconds over all replayed steps.
        """
        return format_per_step(ns, self.replay.n_steps)

    def time_with_share(self, ns: float) -> str:
        """``1.20 ms per step (12%)``: a time, and its share of the recorded one."""
        return f"{self.time_per_step(ns)} ({format_share(ns / self.what_if.recorded_ns)})"


def _has_died(flight: PackedRecord) -> bool:
    """Return whether a dump only says that its rank is gone."""
    return flight.about.failure is not None and flight.about.failure.has_died
