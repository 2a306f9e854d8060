"""The stage that slows down a pipeline, and how long stages wait for each other."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from profkit.engine.families.collectives.extra_time import find_extra_time
from profkit.engine.job_context import JobContext, PlaceTime
from profkit.engine.wording import the_ranks
from profkit.index.intervals import union
from profkit.index.ranks.job_replay import RankChange
from profkit.index.ranks.slow_stage import SlowStage

_MIN_EXPLAINED: Final = 0.5
"""Share of the extra time that a line has to explain."""


def count_steps(job: JobContext) -> int:
    """Count the steps that every rank recorded."""
    return min(len(recorded.report.summary.steps) for recorded in job.ranks)


def name_stage(job: JobContext, slow: SlowStage) -> str:
    """``Stage 1 (rank 1)``."""
    return f"Stage {slow.stage} ({the_ranks(list_numbers(job, slow))})"


def list_numbers(job: JobContext, slow: SlowStage) -> list[int]:
    """List the ranks of a stage by number."""
    return [job.ranks[rank].rank for rank in slow.ranks]


def find_stage_place(job: JobContext, slow: SlowStage) -> PlaceTime | None:
    """Find the line where a slow stage spends more time than the others, or None."""
    longest = max(slow.ranks, key=lambda rank: float(job.replay.totals_ns[rank]))
    least_ns = _MIN_EXPLAINED * slow.excess_ns
    return find_extra_time(job, longest, least_ns, computes=slow.has_more_work)


def measure_even_saving(job: JobContext, slow: SlowStage) -> float:
    """Return what equal stages would save, over all replayed steps."""
    what_if = job.what_if
    # The replay has disturbances that equal stages would have as well: the work bounds it.
    most_ns = (slow.own_ns - slow.mean_ns) * max(1, job.replay.n_steps)
    return max(0.0, min(what_if.actual_ns - what_if.even_ns, most_ns))


def measure_removal_saving(job: JobContext, slow: SlowStage) -> float:
    """Return what the job saves if a stage takes no longer than the others, over all steps."""
    ranks = slow.ranks
    # A stage of several ranks has no peer of one rank to keep up with, but the mean of all.
    change = RankChange(medians=ranks) if len(ranks) == 1 else RankChange(ranks=ranks)
    most_ns = slow.excess_ns * max(1, job.replay.n_steps)
    return max(0.0, min(job.what_if.saving_with(change), most_ns))


def measure_stage_cost(job: JobContext, slow: SlowStage) -> float:
    """Return what the job saves without what makes a stage slow, over all replayed steps."""
    measure = measure_removal_saving if slow.has_more_work is False else measure_even_saving
    return measure(job, slow)


def measure_waits(job: JobContext, ranks: Sequence[int]) -> float:
    """Return how long ranks wait to receive, on average, over all replayed steps.

    Args:
        ranks: By index.
    """
    matches, waits = job.matches, job.delays.wait_ns
    calls, rows = matches.calls, matches.members
    is_receive = calls.is_kind(("receive",))[rows]

    total = 0
    for rank in ranks:
        is_of_rank = is_receive & (calls.member[rows] == rank)
        # A rank may wait for the next stage and the one before at once.
        begins = matches.start_ns[rows[is_of_rank]]
        total += union(begins, begins + waits[is_of_rank]).total_ns

    # Ranks may have recorded more steps than the replay has.
    return total / max(1, len(ranks)) * job.replay.n_steps / max(1, count_steps(job))


def measure_waits_for(job: JobContext, slow: SlowStage) -> float:
    """Return how long the ranks of the other stages wait, on average, over all steps."""
    others = np.setdiff1d(np.arange(len(job.ranks)), slow.ranks)
    return measure_waits(job, others.tolist())
