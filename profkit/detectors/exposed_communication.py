"""COM001 exposed-communication: collectives run while nothing is computed.

What it finds:
    Steps of a distributed job in which collectives (all-reduce, all-gather, all-to-all and so on)
    run while nothing is computed. Where a GPU runs the collective, as with NCCL, that is time in
    which its communication kernels run and no other kernel does. Where host threads run it (gloo,
    MPI), it is time in which the collective runs, no GPU and no operator on the host computes, and
    the program continues only when the collective is done.

Why it matters:
    A collective that overlaps with computation costs almost nothing; an exposed one makes the step
    longer by all of its duration, and the more ranks, the longer. Collectives during which the
    host had simply launched nothing else are left out, since shorter ones would not help. The cost
    is what the steps take less in a replay of the recording in which the others take no time. It is
    an upper bound: to hide a collective, there must be enough computation beside it.

How to fix it:
    Overlap the all-reduce of gradients with the backward pass, as ``DistributedDataParallel`` does;
    use NCCL for tensors on a GPU; send fewer bytes; compute more between two collectives. Start
    other collectives early with ``async_op=True``, and wait where the result is needed.

Example:
    ::

        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

Use instead:
    ::

        model = DistributedDataParallel(model, device_ids=[local_rank])
        ...
        loss.backward()

Reads:
    Communication kernels and other kernels, their launches, annotations of gloo and MPI, operators
    (all ``ts_ns`` and ``dur_ns`` in nanoseconds), source lines.

When to ignore this:
    A slower rank is the cause: a collective lasts until the last rank has joined, and the trace of
    one rank cannot tell that from the transfer. The report over the ranks of a job can: it says how
    much of the time is waiting for other ranks, and how much transfer, which alone is the cost
    there. Inference that splits layers over GPUs communicates by design; it gets a note. Python
    that runs in parallel to a collective on the host and calls no operator is taken for a wait.
    Where the host polls for NCCL (``TORCH_NCCL_BLOCKING_WAIT``), less is found.

Source:
    "Distributed Data Parallel" in PyTorch's notes (gradient bucketing and overlap);
    ``torch.distributed`` in PyTorch's documentation (which backend to use, ``async_op``);
    ``torch/csrc/distributed/c10d/Work.cpp`` and ``ProcessGroupGloo.cpp``;
    ``communication_analysis.py`` of Holistic Trace Analysis for the share that overlaps, and
    ``torch_tb_profiler``, which reports it from a tenth of the step on.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.engine.families.collectives.messages import (
    DistributedProgram,
    describe_program,
    suggest_collective_fix,
)
from profkit.engine.families.collectives.waits import (
    CollectiveSite,
    CollectiveWaits,
    find_collective_sites,
    find_device_waits,
    find_host_waits,
)
from profkit.index.intervals import (
    Intervals,
    covered_within,
    inside,
    intersect,
    of_pairs,
    subtract,
    union,
)
from profkit.index.ranks.collectives import device_collectives
from profkit.index.ranks.data_parallel import data_parallel_calls
from profkit.rule import (
    MAX_LINES,
    NO_ROW,
    Category,
    Confidence,
    Context,
    Cost,
    Finding,
    JobContext,
    Need,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    dataclass,
    event_ids,
    format_ns,
    known_locations,
    needs,
    reaches_share,
    time_with_share,
    times_per_step,
    windows,
)

DEVICE_COLLECTIVES: Final = Need(
    name="device work of collectives",
    reason="Collectives of a GPU were started, but no work of a GPU was recorded.",
    remedy="Record with `ProfilerActivity.CUDA`.",
    is_met=lambda ctx: ctx.has_device_work or not len(device_collectives(ctx.events)),
)

INFO = RuleInfo(
    id="COM001",
    name="exposed-communication",
    title="Exposed communication",
    severity="warning",
    needs=(needs.OPERATORS, DEVICE_COLLECTIVES),
    since="0.1.0",
)

_MAX_UNMATCHED_SHARE: Final = 0.01
"""Share of the exposed time of unmatched calls from which the message names it."""
_NEARLY_ALL: Final = 0.95
"""With so much of the exposed time, the part that is waited for needs no sentence."""
_OF_ONE_RANK: Final = (
    "Waiting for slower ranks is included: the trace of one rank cannot tell it from the transfer."
)


@dataclass(frozen=True)
class Thresholds:
    """When waiting for collectives is a finding.

    Attributes:
        min_step_share: Minimum share of a step that is exposed communication. Any distributed job
            has some of it, such as the end of the last bucket, below a tenth.
        min_steps_share: Minimum share of such steps: a rank may be late once, such as when
            recording begins.
        warning_share: Share of the steps that could be saved, if all communication were hidden,
            from which it is a warning: where the host is the bottleneck, nothing is lost.
    """

    min_step_share: float = 0.1
    min_steps_share: float = 0.5
    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for collectives on a device, and one for collectives on host threads."""
    if ctx.trace.world_size == 1:
        return

    # Copies of DataParallel between the GPUs of one process are reported by data-parallel.
    by_devices = None if len(data_parallel_calls(ctx.events, ctx.tree)) else find_device_waits(ctx)
    for waits in (by_devices, find_host_waits(ctx)):
        if waits is not None and _is_frequent(ctx, waits, thresholds):
            yield _build_finding(ctx, waits, describe_program(ctx), thresholds)


def _is_frequent(ctx: Context, waits: CollectiveWaits, thresholds: Thresholds) -> bool:
    """Tell whether enough of enough steps is exposed, and not only of the first step."""
    starts, ends = windows(ctx)
    waited_ns = covered_within(waits.waited, starts, ends)
    is_exposed = (waited_ns > 0) & (waited_ns >= thresholds.min_step_share * (ends - starts))
    # In the first step ranks wait for the one that began to record last.
    is_later = bool(is_exposed[1:].any()) or len(is_exposed) == 1
    return is_later and bool(is_exposed.mean() >= thresholds.min_steps_share)


def _find_copies(ctx: Context, waited: Intervals) -> Rows:
    """Find the copies that the host launches while it waits: gloo's, from and to a device."""
    launches, events = ctx.launches, ctx.events
    is_copy = events.category[launches.work] == Category.MEMCPY
    is_launched = (launches.launch != NO_ROW) & inside(waited, events.ts_ns[launches.launch])
    return np.asarray(launches.work[is_copy & is_launched], dtype=np.intp)


def _build_finding(
    ctx: Context, waits: CollectiveWaits, program: DistributedProgram, thresholds: Thresholds
) -> Finding:
    """Build the finding of exposed collectives, on a device or on host threads."""
    sites = find_collective_sites(ctx, waits)
    exposed = waits.rows[waits.share_ns > 0]
    costliest = waits.rows[np.argsort(-waits.share_ns, kind="stable")]
    kinds = waits.by_kind
    confidence: Confidence = "medium" if len(ctx.steps) > 1 else "low"

    if waits.device is None:
        copies = _find_copies(ctx, waits.waited)
        change = ProgramChange(scaled=((copies, 0.0),), host_time=waits.waited.pairs())
    else:
        # Only the time of steps is replayed, and collectives outside of them belong to none.
        is_in_steps = inside(union(*ctx.replay.windows), ctx.events.ts_ns[waits.rows])
        change = ProgramChange(scaled=((waits.rows[is_in_steps].astype(np.intp), 0.0),))

    cost = ctx.time_cost(change, "upper-bound")
    is_costly = reaches_share(ctx, cost.ns, thresholds.warning_share)

    longest = _name_longest(sites, waits.waited.total_ns)
    return INFO.finding(
        severity="warning" if program.trains and is_costly else "note",
        confidence=confidence,
        message=_build_message(ctx, waits, longest, len(exposed)),
        fix=suggest_collective_fix(ctx, waits, program),
        # Lines with less than a tenth of the longest one's time lead away from the cause.
        locations=known_locations(
            *(site.location for site in sites[:MAX_LINES] if 10 * site.ns >= sites[0].ns)
        ),
        n=len(exposed),
        cost=cost,
        evidence={
            "device": waits.device,
            "exposed_ns": waits.exposed_ns,
            "waited_ns": waits.waited.total_ns,
            "longest_wait_ns": int(waits.share_ns.max()),
            "kinds": list(kinds),
            "kinds_ns": list(kinds.values()),
            "events": event_ids(ctx, costliest[: len(exposed)]),
        },
        spans=waits.waited.pairs(),
        change=change,
    )


def _name_longest(sites: list[CollectiveSite], total_ns: int) -> str:
    """Name the collective with most of the exposed time, as far as it is known."""
    if not sites:
        return ""
    first = sites[0]
    rank = "mostly" if 2 * first.ns >= total_ns else "among others"
    region = f" in `{first.region}`" if first.region else ""
    return f", {rank} {first.kind}{at(first.location) or region}"


def _build_message(ctx: Context, waits: CollectiveWaits, longest_site: str, n: int) -> str:
    waited_ns, exposed_ns = waits.waited.total_ns, waits.exposed_ns
    longest = format_ns(int(waits.share_ns.max()))
    subject = "Nothing is computed" if waits.device is None else "The GPU computes nothing"
    place = " on host threads" if waits.device is None else ""
    calls = f"while collectives run{place}, {times_per_step(ctx, n)}{longest_site}"

    # The parts of a step have all of this time, also before anything else has been launched.
    who = "The program waits" if waits.device is None else "Work that is launched waits"
    waited = f". {who} for them {time_with_share(ctx, waited_ns)} of it"
    of_it = "" if waited_ns >= _NEARLY_ALL * exposed_ns else waited
    exposed = time_with_share(ctx, exposed_ns)
    return f"{subject} for {exposed} {calls}{of_it}; the longest wait is {longest}. {_OF_ONE_RANK}"


def over_ranks(job: JobContext, rank: int, finding: Finding) -> Finding:
    """Split a finding's time on a rank into transfer and waiting for others.

    Overlap hides no more than the transfer; the cost of waiting is reported by other rules.

    Args:
        rank: The rank's index.
    """
    matches, recorded = job.matches, job.ranks[rank]
    is_of_rank = matches.calls.member[matches.members] == rank
    rows = matches.members[is_of_rank]
    starts = matches.calls.column("start_ns")[rows] - recorded.start_ns
    ends = matches.calls.column("end_ns")[rows] - recorded.start_ns

    # Outside of the steps that all ranks recorded, nothing tells waiting from transfer.
    exposed, prefix = of_pairs(finding.spans), ""
    n_steps = len(recorded.report.summary.steps)
    common, activity = job.common_steps(rank), recorded.activity
    if activity is not None and 0 < len(common) < n_steps:
        step_starts, step_ends = activity.step_starts_ns[common], activity.step_ends_ns[common]
        common_time = union(step_starts - recorded.start_ns, step_ends - recorded.start_ns)
        exposed = intersect(exposed, common_time)
        n_steps, prefix = len(common), "In the steps that all ranks recorded, "
    n_steps = max(1, n_steps)

    waiting = union(starts, starts + job.delays.wait_ns[is_of_rank])
    wait_ns = intersect(exposed, waiting).total_ns
    transfer_ns = intersect(exposed, subtract(union(starts, ends), waiting)).total_ns
    if not wait_ns + transfer_ns:
        return finding

    # The time of unmatched calls may be either, so it stays in the bound.
    unmatched_ns = exposed.total_ns - wait_ns - transfer_ns
    is_whole = unmatched_ns < _MAX_UNMATCHED_SHARE * exposed.total_ns
    unmatched = "" if is_whole else f", and {format_ns(unmatched_ns / n_steps)} of unmatched calls"
    parts = (
        f"{prefix}{format_ns(wait_ns / n_steps)} of that is waiting for other ranks, "
        f"{format_ns(transfer_ns / n_steps)} transfer{unmatched}."
        if wait_ns or unmatched
        else "None of that is waiting for other ranks."
    )
    return replace(
        finding,
        message=finding.message.replace(_OF_ONE_RANK, parts),
        cost=_limit(finding.cost, transfer_ns + (0 if is_whole else unmatched_ns), n_steps),
        evidence={**finding.evidence, "wait_ns": wait_ns, "transfer_ns": transfer_ns},
    )


def _limit(cost: Cost, ns: int, n_steps: int) -> Cost:
    """Limit a cost to a number of nanoseconds over all steps."""
    if cost.ns is None or cost.ns <= ns:
        return cost
    per_step_ns = None if cost.per_step_ns is None else round(ns / n_steps)
    low_ns, high_ns = (
        None if bound is None else min(bound, ns) for bound in (cost.low_ns, cost.high_ns)
    )
    return replace(cost, ns=ns, per_step_ns=per_step_ns, low_ns=low_ns, high_ns=high_ns)
