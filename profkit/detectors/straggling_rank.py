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

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.collectives.extra_time import find_extra_time
from profkit.engine.families.collectives.pipelines import (
    find_stage_place,
    list_numbers,
    measure_removal_saving,
    measure_waits_for,
    name_stage,
)
from profkit.index.ranks.matching import SYNCHRONIZING
from profkit.index.ranks.run_lateness import RunLateness, Turn
from profkit.index.ranks.slow_stage import SlowStage
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
    the_ranks,
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
_MAX_TURNS: Final = 6
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
        min_run_share: Minimum share of a step by which it is late in the whole run, which tells
            smaller differences from chance than a few recorded steps do.
    """

    min_last_share: float = 0.5
    min_saving_share: float = 0.05
    min_steady_share: float = 0.7
    min_run_share: float = 0.03


def detect(job: JobContext, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each rank that makes the others wait."""
    run = job.run_lateness
    if run is not None:
        yield from _judge_run(job, run, thresholds)
        return

    what_if, slow = job.what_if, job.slow_stage
    if slow is not None and slow.has_more_work is False:
        saving_ns = measure_removal_saving(job, slow)
        if saving_ns >= thresholds.min_run_share * what_if.actual_ns:
            yield _build_stage(job, slow, saving_ns)
        return

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
            often = f"the last to start {format_count(len(last))} of {counted(n, 'collective')}"
            yield _build_finding(job, rank, last, often, saving_ns)


def _judge_run(job: JobContext, run: RunLateness, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge the ranks by all steps of the run; the recorded steps tell only why."""
    n_steps = max(1, job.replay.n_steps)
    late = [
        rank for rank in range(len(job.ranks)) if run.is_always_late(rank, thresholds.min_run_share)
    ]
    for rank in late:
        saving_ns = run.saving_ns(rank) * n_steps
        if saving_ns > 0:
            n_late, n_known = format_count(run.count_late(rank)), counted(len(run.steps), "step")
            often = f"the last in {n_late} of {n_known} of the run"
            yield _build_finding(job, rank, _find_last_started(job, rank), often, saving_ns)

    turns = [] if late else run.find_turns(thresholds.min_saving_share)
    waited_ns = sum(turn.late_ns for turn in turns) / len(run.steps)
    if waited_ns >= thresholds.min_saving_share * run.step_ns:
        yield _build_moving(job, run, turns, waited_ns * n_steps)


def _build_moving(
    job: JobContext, run: RunLateness, turns: list[Turn], waited_ns: float
) -> Finding:
    """Build the finding on ranks that make the others wait in turn."""
    numbers = sorted({job.ranks[turn.rank].rank for turn in turns})
    least_ns = _MIN_EXPLAINED * waited_ns / max(1, job.replay.n_steps)
    # The recorded steps show what one of them does in its turn.
    extra = next(
        (
            find_extra_time(job, part.rank, least_ns, computes=run.computes_longer(part))
            for part in turns
            if job.has_recorded(part.rank, part.first, part.last)
        ),
        None,
    )

    told = _list_turns(job, turns)
    where = "" if extra is None else f" What takes longer is{extra.where}."
    return INFO.finding(
        confidence="medium",
        message=(
            f"{the_ranks(numbers).capitalize()} make the others wait in turn ({told}): the job "
            f"waits for {job.time_with_share(waited_ns)}.{where}"
        ),
        fix=(
            "Look at what the rank does in these steps alone: work that ranks take turns with, "
            "such as logging or evaluation, or other programs on its cores."
        ),
        locations=(extra.location,) if extra is not None and extra.location is not None else (),
        n=len(turns),
        cost=job.cost(waited_ns, "measured"),
        ranks=tuple(numbers),
        evidence={
            "turns": told,
            "extra_where": None if extra is None else extra.where.strip(),
        },
    )


def _build_stage(job: JobContext, slow: SlowStage, saving_ns: float) -> Finding:
    """Build the finding on a stage of a pipeline that is late, and has no more work than others."""
    n_steps = max(1, job.replay.n_steps)
    place, waited_ns = find_stage_place(job, slow), measure_waits_for(job, slow)
    why: Lateness = "data" if place is not None and place.is_data else "host"
    where = "" if place is None else f" What takes longer is{place.where}."

    return INFO.finding(
        confidence="high" if place is not None else "medium",
        message=(
            f"{name_stage(job, slow)} takes {job.time_per_step(slow.excess_ns * n_steps)} longer "
            f"than the other stages{_WHY[why]}: they wait for {job.time_with_share(waited_ns)}, "
            f"and the job would take {job.time_with_share(saving_ns)} less.{where}"
        ),
        fix=_FIX[why],
        locations=() if place is None or place.location is None else (place.location,),
        n=n_steps,
        cost=job.cost(saving_ns, "replay"),
        ranks=tuple(list_numbers(job, slow)),
        evidence={
            "stage": slow.stage,
            "why": why,
            "extra_ns": round(slow.excess_ns * n_steps),
            "bubble_ns": round(waited_ns),
            "extra_where": None if place is None else place.where.strip(),
        },
    )


def _list_turns(job: JobContext, turns: list[Turn]) -> str:
    """``rank 0 in steps 11 to 20 and 31 to 40, rank 1 in steps 21 to 30``; the longest turns."""
    by_rank: dict[int, list[str]] = defaultdict(list)
    longest = sorted(turns, key=lambda part: part.first - part.last)[:_MAX_TURNS]
    for part in sorted(longest, key=lambda part: part.first):
        by_rank[job.ranks[part.rank].rank].append(f"{part.first} to {part.last}")

    named = [f"rank {rank} in steps {' and '.join(parts)}" for rank, parts in by_rank.items()]
    more = len(turns) - len(longest)
    return ", ".join([*named, f"and {more} more"] if more else named)


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
    job: JobContext, rank: int, last: list[int], often: str, saving_ns: float
) -> Finding:
    """Build the finding on a rank.

    Args:
        last: The recorded collectives that it is the last to start.
        often: How often it is the last, such as ``the last in 58 of 60 steps of the run``.
    """
    number, host, delays = job.ranks[rank].rank, job.ranks[rank].host, job.delays
    report = job.ranks[rank].report
    run = job.run_lateness
    n_steps = max(1, job.replay.n_steps)
    computes = None if run is None else run.is_late_by_work(rank)
    extra = find_extra_time(job, rank, _MIN_EXPLAINED * saving_ns / n_steps, computes=computes)
    why = _explain(job, last) if run is None else _explain_run(job, run, rank, extra)

    return INFO.finding(
        confidence="high" if job.replay.n_steps > 1 else "medium",
        message=_build_message(job, number, often, saving_ns, why, extra),
        fix=_FIX[why] + (_CHECK_GPU if why == "compute" and report.source.devices else ""),
        locations=(extra.location,) if extra is not None and extra.location is not None else (),
        n=len(last),
        cost=job.cost(saving_ns, "replay" if job.run_lateness is None else "measured"),
        ranks=(number,),
        evidence={
            "rank": number,
            "host": host,
            "why": why,
            "n_last": len(last),
            "n_collectives": _count_joined(job, rank),
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


def _explain_run(job: JobContext, run: RunLateness, rank: int, extra: PlaceTime | None) -> Lateness:
    """Return the cause of most of the time by which a rank is late in its usual step.

    Args:
        extra: The place where it takes longer, if one is known.
    """
    data_ns = [
        float(np.mean([step.data_wait_ns for step in report.report.summary.steps] or [0]))
        for report in job.ranks
    ]
    more_ns = data_ns[rank] - float(np.median(np.delete(data_ns, rank)))
    # Waits are known of the few recorded steps alone, in which any rank may wait longer by chance.
    if more_ns >= run.usual_lateness_ns(rank) / 2 and (extra is None or extra.is_data):
        return "data"
    return "compute" if run.is_late_by_work(rank) else "host"


def _build_message(
    job: JobContext,
    rank: int,
    often: str,
    saving_ns: float,
    why: Lateness,
    extra: PlaceTime | None,
) -> str:
    message = (
        f"Rank {rank} is {often}{_WHY[why]}: "
        f"the job waits for it for {job.time_with_share(saving_ns)}."
    )
    if extra is None:
        return message
    if job.run_lateness is not None:
        # The time there is of recorded steps, and the delay of all: they would not add up.
        return f"{message} It takes longer{extra.where}."
    spent = job.time_per_step(extra.ns * max(1, job.replay.n_steps))
    return f"{message} It spends {spent} more than the others{extra.where}."
