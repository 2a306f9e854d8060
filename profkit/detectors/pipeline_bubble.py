"""COM006 pipeline-bubble: stages of a pipeline wait for each other.

What it finds:
    Ranks that send to each other in a chain, to the next stage and back, and wait for what they
    receive for a large part of the step, because there are few micro-batches for so many stages.

Why it matters:
    The last stage cannot begin before the first micro-batch has passed all others, and the first
    one has nothing to do while the last gradients come back. With ``p`` equal stages and ``m``
    micro-batches per step that is ``(p - 1) / (m + p - 1)`` of it. The cost is the time that ranks
    wait for what they receive, on average, as far as they would with equal stages: an upper bound,
    since more micro-batches make it shorter, but not nothing.

How to fix it:
    Split the batch into more micro-batches, at least four times as many as stages. Give each rank
    several stages (``ScheduleInterleaved1F1B``), or split the backward pass so that it fills the
    gaps (``ScheduleZBVZeroBubble``). Use fewer stages if memory allows.

Example:
    ::

        schedule = Schedule1F1B(stage, n_microbatches=4)

Use instead:
    ::

        schedule = Schedule1F1B(stage, n_microbatches=16)

Reads:
    The sends and receives of all ranks (source, target, start and end in nanoseconds on corrected
    clocks), their other collectives and kernels.

When to ignore this:
    More micro-batches are smaller ones, which may not use the GPU well, or change the size of the
    batch.

Source:
    "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC 2021),
    section 2.2, for the share; ``torch.distributed.pipelining`` in PyTorch's documentation.
"""

from collections.abc import Iterator

import numpy as np

from profkit.engine.families.collectives.pipelines import (
    count_steps,
    measure_stage_cost,
    measure_waits,
)
from profkit.rule import Finding, JobContext, RuleInfo, counted, dataclass, format_share, needs

INFO = RuleInfo(
    id="COM006",
    name="pipeline-bubble",
    title="Stages of a pipeline wait for each other",
    severity="warning",
    needs=(needs.WHAT_IF_RANKS,),
    since="0.1.0",
    no_example="It takes a process for each stage of a pipeline.",
)


@dataclass(frozen=True)
class Thresholds:
    """When waiting in a pipeline is a finding.

    Attributes:
        min_bubble_share: Minimum share of the step that ranks wait, and that equal stages would
            wait: with four times as many micro-batches as stages it is less.
    """

    min_bubble_share: float = 0.2


def detect(job: JobContext, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the pipelines of a job have too few micro-batches."""
    what_if, n_steps = job.what_if, job.replay.n_steps
    n_stages = len(what_if.stages)
    if n_stages < 2 or not n_steps:  # noqa: PLR2004  (no pipeline)
        return

    # The idle share with equal stages: (stages - 1) / (micro-batches + stages - 1).
    n = _count_micro_batches(job)
    expected = (n_stages - 1) / (n + n_stages - 1)

    # The cost of unequal ranks is reported by other rules.
    even_ns = what_if.even_ns - float(job.replay.totals_ns.mean())
    bubble_ns = max(0.0, min(measure_waits(job, range(len(job.ranks))), even_ns))
    share = bubble_ns / what_if.recorded_ns
    if not n or min(share, expected) < thresholds.min_bubble_share:
        return

    # Where a slow stage costs more, what the others wait for is its finding, not micro-batches'.
    if job.slow_stage is not None and measure_stage_cost(job, job.slow_stage) >= bubble_ns:
        return

    yield INFO.finding(
        confidence="high",
        message=(
            f"Stages of the pipeline wait for each other for {job.time_with_share(bubble_ns)}: "
            f"with {counted(n_stages, 'stage')} and "
            f"{counted(n, 'micro-batch', 'micro-batches')} per step, equal ones would for "
            f"{format_share(expected)}."
        ),
        fix=(
            f"Split the batch into {4 * n_stages} micro-batches or more, or use an interleaved or "
            "zero-bubble schedule of `torch.distributed.pipelining`."
        ),
        n=n_steps,
        cost=job.cost(bubble_ns, "upper-bound"),
        evidence={"n_stages": n_stages, "n_micro_batches": n, "expected_share": expected},
    )


def _count_micro_batches(job: JobContext) -> int:
    """Count the micro-batches that the last stage receives per step."""
    calls, stages = job.matches.calls, job.what_if.stages
    number = [recorded.rank for recorded in job.ranks]
    before, last = (np.array([number[rank] for rank in stages[i]]) for i in (-2, -1))
    is_between = np.isin(calls.peers[0], before) & np.isin(calls.peers[1], last)
    n = int((is_between & calls.is_kind(("receive",))).sum())
    return round(n / len(last) / max(1, count_steps(job)))
