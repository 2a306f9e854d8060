"""COM005 uneven-ranks: ranks have unequal work.

What it finds:
    Jobs that would be faster if all ranks spent equally much time of their own, which is all time
    in which they do not wait for a collective: computing, launching, loading. Either some ranks, or
    a stage of a pipeline, have more than the others in all steps, or which rank has the most
    changes from one collective to the next. A single rank that all others wait for is reported by
    straggling-rank.

Why it matters:
    The ranks with less work wait for those with more. The cost is what the job takes less in a
    replay in which each rank has the mean of all ranks: those that start the same collectives in
    the same order between each two of them, other ranks in all.

How to fix it:
    Give the ranks equally much to compute. Stages of a pipeline: move layers from the longest stage
    to the others; the last one has the loss and the output layer besides. Ranks with other data:
    sort samples by length into batches with equally many tokens, pack short ones together, or bound
    the tokens of a batch instead of its samples. Experts: balance the tokens that the router sends
    to each rank.

Example:
    ::

        batch_sampler = BatchSampler(DistributedSampler(data), batch_size=32, drop_last=True)

Use instead:
    ::

        batch_sampler = TokenBatchSampler(DistributedSampler(data), max_tokens=32 * 1024)

Reads:
    The collectives of all ranks (start and end in nanoseconds on corrected clocks) and other
    kernels.

When to ignore this:
    Ranks with other hardware have unequal times with equal work. A layer that cannot be divided may
    leave a stage of a pipeline longer than the others.

Source:
    "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), which
    finds unequal stages and sequences of unequal length to be the most frequent causes.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.collectives.pipelines import (
    find_stage_place,
    list_numbers,
    measure_even_saving,
    measure_waits_for,
    name_stage,
)
from profkit.index.ranks.slow_stage import SlowStage
from profkit.rule import Finding, JobContext, RuleInfo, dataclass, needs, the_ranks

INFO = RuleInfo(
    id="COM005",
    name="uneven-ranks",
    title="Ranks have unequal work",
    severity="warning",
    needs=(needs.WHAT_IF_RANKS,),
    since="0.1.0",
    no_example="It takes several processes with unequal work.",
)

_MAX_SINGLE_SHARE: Final = 0.5
"""Share of the cost from which a single rank is the cause."""


@dataclass(frozen=True)
class Thresholds:
    """When the work is unequal.

    Attributes:
        min_saving_share: Minimum share of the job's time that it costs: ranks with equal work
            differ by a few percent.
        min_excess_share: Minimum work of a rank beyond the mean of all ranks, for it to be named:
            a fifth, as for the longest rank in other tools.
        min_run_share: Minimum share of a step that ranks wait for the one with the most to compute
            in the whole run, which tells smaller differences from chance.
        min_stage_share: Minimum share of the job's time that a stage of a pipeline costs, which
            takes a fifth longer than the others in most steps.
    """

    min_saving_share: float = 0.1
    min_excess_share: float = 0.2
    min_run_share: float = 0.05
    min_stage_share: float = 0.03


def detect(job: JobContext, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the job would be faster with equal work."""
    run, what_if = job.run_lateness, job.what_if
    if run is not None:
        # All steps of the run tell chance from work; in a few recorded steps nothing does.
        uneven_ns = run.uneven_ns
        if uneven_ns >= thresholds.min_run_share * run.step_ns:
            yield _report_changing_work(job, uneven_ns)
        return

    slow, saving_ns = job.slow_stage, what_if.actual_ns - what_if.even_ns
    # A single slow rank is reported by straggling-rank. Replayed, not by its work: a rank with more
    # work need not be the one that others wait for.
    by_one = max((what_if.saving_ns((rank,)) for rank in what_if.comparable), default=0.0)
    if by_one > _MAX_SINGLE_SHARE * saving_ns:
        return

    if slow is not None:
        stage_ns = measure_even_saving(job, slow)
        is_worth_it = stage_ns >= thresholds.min_stage_share * what_if.actual_ns
        # A stage that is late for another cause than work is reported by straggling-rank.
        if is_worth_it and slow.has_more_work is not False:
            yield _report_stage(job, slow, stage_ns)
        return

    if saving_ns < thresholds.min_saving_share * what_if.actual_ns:
        return

    work_ns = job.replay.totals_ns
    excess = work_ns / work_ns.mean() - 1
    longest = np.flatnonzero(excess >= thresholds.min_excess_share).tolist()
    numbers = [job.ranks[rank].rank for rank in longest]
    # The ranks above the mean are a stage only if they are all of its ranks and no others.
    stage = next((i for i, ranks in enumerate(what_if.stages) if {*ranks} == {*longest}), -1)

    yield INFO.finding(
        confidence="high" if job.replay.n_steps > 1 else "medium",
        message=_build_message(job, numbers, stage, saving_ns),
        fix=_suggest_fix(job, numbers, stage),
        n=max(1, job.replay.n_steps),
        cost=job.cost(saving_ns, "replay"),
        ranks=tuple(numbers),
        evidence={
            "longest_own_ns": round(float(work_ns.max())),
            "mean_own_ns": round(float(work_ns.mean())),
            "stage": None if stage < 0 else stage,
        },
    )


def _report_stage(job: JobContext, slow: SlowStage, saving_ns: float) -> Finding:
    """Build the finding on a stage of a pipeline that has more work than the others."""
    n_steps = max(1, job.replay.n_steps)
    place = find_stage_place(job, slow)
    waited_ns = measure_waits_for(job, slow)
    where = "" if place is None else f" What takes longer is{place.where}."

    return INFO.finding(
        confidence="high" if job.replay.n_steps > 1 else "medium",
        message=(
            f"{name_stage(job, slow)} works for {job.time_per_step(slow.own_ns * n_steps)}, "
            f"{slow.own_ns / max(1.0, slow.mean_ns):.1f} times the mean of all stages: the others "
            f"wait for {job.time_with_share(waited_ns)}, and equal stages would save "
            f"{job.time_with_share(saving_ns)}.{where}"
        ),
        fix=f"Move layers from stage {slow.stage} of the pipeline to the other stages.",
        locations=() if place is None or place.location is None else (place.location,),
        n=n_steps,
        cost=job.cost(saving_ns, "replay"),
        ranks=tuple(list_numbers(job, slow)),
        evidence={
            "longest_own_ns": round(slow.own_ns * n_steps),
            "mean_own_ns": round(slow.mean_ns * n_steps),
            "stage": slow.stage,
            "bubble_ns": round(waited_ns),
        },
    )


def _report_changing_work(job: JobContext, uneven_ns: float) -> Finding:
    """Build the finding on ranks of which another one has the most work in each step."""
    saving_ns = uneven_ns * max(1, job.replay.n_steps)
    return INFO.finding(
        confidence="high",
        message=(
            "Ranks have unequally much to compute in a step, each of them sometimes most, as with "
            f"batches of different sizes: that costs {job.time_with_share(saving_ns)}."
        ),
        fix=_suggest_fix(job, [], -1),
        n=max(1, job.replay.n_steps),
        cost=job.cost(saving_ns, "measured"),
        evidence={"is_changing": True},
    )


def _suggest_fix(job: JobContext, numbers: list[int], stage: int) -> str:
    if stage >= 0:
        return f"Move layers from stage {stage} of the pipeline to the other stages."
    if numbers:
        return "Give these ranks less to compute: fewer samples or tokens, layers or experts."
    if job.what_if.stages:
        return "Give all stages and all micro-batches equally much to compute."
    return (
        "Give all ranks batches with equally many tokens: sort samples by length, or pack short "
        "ones together."
    )


def _build_message(job: JobContext, numbers: list[int], stage: int, saving_ns: float) -> str:
    work_ns, costs = job.replay.totals_ns, job.time_with_share(saving_ns)
    if not numbers:
        return (
            "Ranks take unequally long from one collective to the next, each of them sometimes: "
            f"that costs {costs}."
        )

    index = [i for i, recorded in enumerate(job.ranks) if recorded.rank in numbers]
    mean_ns = float(work_ns[index].mean())
    ranks = the_ranks(numbers)
    subject = f"Stage {stage} ({ranks})" if stage >= 0 else ranks.capitalize()
    verb = "works" if stage >= 0 or len(numbers) == 1 else "work"
    return (
        f"{subject} {verb} for {job.time_per_step(mean_ns)}, {mean_ns / work_ns.mean():.1f} times "
        f"the mean of all ranks: that costs {costs}."
    )
