"""COM004 straggling-rank: one rank makes the others wait.

What it finds:
    A rank that is the last to start most of the collectives in which ranks wait for each other, and
    without which the job would be faster. Ranks are compared on corrected clocks, and a rank is the
    last only if it is so by more than the clocks' error.

Why it matters:
    A collective ends on no rank before all have started it: what one rank takes longer, all do. The
    cost is what the job takes less in a replay in which the rank takes the median time of the other
    ranks with the same collectives, from each collective to the next.

How to fix it:
    Look at what the message names: why the rank is late, and where it spends more time than the
    others. A host that is late does work that others do not (logging, checkpoints, evaluation on
    rank 0); a rank that computes longer has more work, or its device is throttled: compare
    ``nvidia-smi -q -d CLOCK,TEMPERATURE`` on that host. Data that comes late is loaded from slower
    storage, or by too few workers.

Example:
    ::

        if rank == 0:
            save(model.state_dict())
        loss.backward()

Use instead:
    ::

        if rank == 0:
            saving = dcp.async_save(model.state_dict())
        loss.backward()

Reads:
    The collectives of all ranks (kind, process group, start and end in nanoseconds, the launch on
    the host), other kernels, the waits for data, and the regions, lines and findings of each rank.

When to ignore this:
    A rank may be late in the recorded steps alone, such as when it writes a checkpoint. Where few
    collectives are matched, or one rank of a pipeline stage is recorded, nothing is found. Time in
    which other programs had the rank's core is not counted.

Source:
    "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), for the
    replay; ``dcp.async_save`` in PyTorch's documentation of distributed checkpoints.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.collectives.extra_time import find_extra_time
from profkit.index.ranks.matching import SYNCHRONIZING
from profkit.rule import (
    Finding,
    JobContext,
    Lateness,
    Mask,
    PlaceTime,
    RuleInfo,
    counted,
    dataclass,
    format_count,
    needs,
)

INFO = RuleInfo(
    id="COM004",
    name="straggling-rank",
    title="One rank makes the others wait",
    severity="warning",
    needs=(needs.WHAT_IF_RANKS,),
    since="0.1.0",
    no_example="It takes several processes, of which one is slower.",
)

_WHY: Final[dict[Lateness, str]] = {
    "host": ", since its host is late",
    "data": ", since it waits for data",
    "compute": ", since it computes longer",
    "unknown": "",
}
_FIX: Final[dict[Lateness, str]] = {
    "host": (
        "Remove work that only this rank does on the host, such as logging or checkpoints, or move "
        "it to a thread; check what else runs on its cores."
    ),
    "data": (
        "Give this rank more loader workers (`num_workers`) or data as near as that of the others."
    ),
    "compute": "Give all ranks equally much work.",
    "unknown": "Compare what this rank does between two collectives with the other ranks.",
}
_USUAL: Final = 0.5
"""Part of the mean extra time that a step has to have to be like the others."""
_CHECK_GPU: Final = (
    " If they have it, check the clocks and the temperature of this GPU "
    "(`nvidia-smi -q -d CLOCK,TEMPERATURE`)."
)
_MIN_EXPLAINED: Final = 0.5
"""Share of the delay that a line has to explain."""


@dataclass(frozen=True)
class Thresholds:
    """When a rank is a straggler.

    Attributes:
        min_last_share: Minimum share of the collectives that it is the last to start: where ranks
            take turns, none is the cause.
        min_saving_share: Minimum share of the job's time that it costs; ranks differ by a few
            percent on the same hardware.
        min_steady_share: Minimum share of the steps in which it takes at least half of its usual
            extra time: in a few steps, some rank is always the last by chance.
    """

    min_last_share: float = 0.5
    min_saving_share: float = 0.05
    min_steady_share: float = 0.7


def detect(job: JobContext, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each rank that makes the others wait."""
    what_if = job.what_if
    for rank in what_if.comparable:
        # Not at the fastest rank's time: ranks differ a little on the same hardware.
        saving_ns = what_if.saving_at_median_ns(rank)
        # Programs that take its cores for a while are not the rank's fault.
        saving_ns -= job.extra_core_wait_share(rank) * what_if.actual_ns
        if saving_ns < thresholds.min_saving_share * what_if.actual_ns:
            continue
        if _find_steady_share(job, rank) < thresholds.min_steady_share:
            continue

        # The replay tells what the rank costs; being last tells that the others wait for it.
        last = _find_last_started(job, rank)
        n = _count_joined(job, rank)
        if len(last) >= max(1, thresholds.min_last_share * n):
            yield _build_finding(job, rank, last, n, saving_ns)


def _find_steady_share(job: JobContext, rank: int) -> float:
    """Find in which share of the steps a rank takes its usual extra time; 1 without steps."""
    extra_ns = job.extra_step_times(rank)
    if not len(extra_ns):
        return 1.0
    return float(np.mean(extra_ns >= _USUAL * max(1.0, float(np.mean(extra_ns)))))


def _is_synchronizing(job: JobContext) -> Mask:
    """Return which matched collectives end on no rank before all have started. Shape ``(m,)``."""
    matches = job.matches
    return matches.calls.is_kind(SYNCHRONIZING)[matches.members[matches.first]]


def _find_last_started(job: JobContext, rank: int) -> list[int]:
    """Find the synchronizing collectives that a rank is the last to start."""
    delays, calls = job.delays, job.matches.calls
    is_last = (calls.member[delays.last] == rank) & delays.is_certain
    last: list[int] = np.flatnonzero(is_last & _is_synchronizing(job)).tolist()
    return last


def _count_joined(job: JobContext, rank: int) -> int:
    """Count the synchronizing collectives that a rank takes part in."""
    matches = job.matches
    is_synchronizing = np.repeat(_is_synchronizing(job), matches.sizes)
    return int((is_synchronizing & (matches.calls.member[matches.members] == rank)).sum())


def _build_finding(
    job: JobContext, rank: int, last: list[int], n: int, saving_ns: float
) -> Finding:
    number, host, delays = job.ranks[rank].rank, job.ranks[rank].host, job.delays
    report = job.ranks[rank].report
    why = _explain(job, last)
    n_steps = max(1, job.replay.n_steps)
    extra = find_extra_time(job, rank, _MIN_EXPLAINED * saving_ns / n_steps)

    return INFO.finding(
        confidence="high" if job.replay.n_steps > 1 else "medium",
        message=_build_message(job, number, len(last), n, saving_ns, why, extra),
        fix=_FIX[why] + (_CHECK_GPU if why == "compute" and report.source.devices else ""),
        locations=(extra.location,) if extra is not None and extra.location is not None else (),
        n=len(last),
        cost=job.cost(saving_ns, "replay"),
        ranks=(number,),
        evidence={
            "rank": number,
            "host": host,
            "why": why,
            "n_last": len(last),
            "n_collectives": n,
            "late_ns": int(delays.delay_ns[last].sum()),
            "extra_ns": None if extra is None else extra.ns,
            "extra_where": None if extra is None else extra.where.strip(),
        },
    )


def _explain(job: JobContext, last: list[int]) -> Lateness:
    """Return the cause of most of the time by which the rank is late."""
    # By time and not by number: one long wait for data outweighs many short launches.
    delay_ns: Counter[Lateness] = Counter()
    for collective in last:
        delay_ns[job.delays.why[collective]] += int(job.delays.delay_ns[collective])
    return delay_ns.most_common(1)[0][0]


def _build_message(
    job: JobContext,
    rank: int,
    n_last: int,
    n: int,
    saving_ns: float,
    why: Lateness,
    extra: PlaceTime | None,
) -> str:
    message = (
        f"Rank {rank} is the last to start {format_count(n_last)} of {counted(n, 'collective')}"
        f"{_WHY[why]}: the job waits for it for {job.time_with_share(saving_ns)}."
    )
    if extra is None:
        return message
    spent = job.time_per_step(extra.ns * max(1, job.replay.n_steps))
    return f"{message} It spends {spent} more than the others{extra.where}."
