"""COM003 desynchronized-collectives: ranks of a group call different collectives.

What it finds:
    A process group of which some ranks call a collective of another kind, element type or size than
    the others, or another number of them. Where torch numbers the collectives of a group, it is the
    first number that is of different calls; otherwise the first step in which the ranks call
    different ones. Of a job that hangs, dumps of torch's FlightRecorder tell which ranks wait in
    which collective, and which have not called it.

Why it matters:
    The ranks of a group have to call the same collectives in the same order. NCCL does not check
    that: it waits until the watchdog ends the job, or mixes up the data of different tensors.

How to fix it:
    Let all ranks take the same branch: a collective must not depend on the rank, on the data of the
    rank or on an exception. Give all ranks equally many batches (``drop_last=True``, or
    ``with Join([model])``), and send sizes before tensors that differ in size.
    ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` checks each collective before it runs.

Example:
    ::

        if dist.get_rank() == 0:
            dist.all_reduce(loss)
            log(loss)

Use instead:
    ::

        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            log(loss)

Reads:
    Kind, element type, number of elements, process group and number of the collectives of all
    ranks, and when the host called them; dumps of the FlightRecorder (``/tmp/nccl_trace_rank_*``,
    or those that profkit writes beside traces and at the end of a run), with their Python frames.

When to ignore this:
    Recordings without process groups are not judged, nor are sizes of all-to-alls, gathers and
    scatters, which may differ. Where torch does not number collectives, events that the profiler
    lost look like calls that were not made. Dumps of a job that did not hang, taken at different
    moments, may show a rank that has not come yet.

Source:
    ``torch.distributed`` in PyTorch's documentation (its debugging section, and
    ``torch.distributed.algorithms.Join``); "Collective Communication Functions" in NVIDIA's
    documentation of NCCL, which require the same count and type on all ranks; "Flight Recorder for
    Debugging Stuck Jobs" in PyTorch's tutorials.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

from profkit.engine.families.collectives import blocked
from profkit.index.ranks.blocked import BlockedCollective
from profkit.index.ranks.disagreements import CollectiveCall, Disagreement
from profkit.rule import (
    Finding,
    JobContext,
    RuleInfo,
    counted,
    dataclass,
    format_count,
    needs,
    the_group,
    the_ranks,
    visible,
)

INFO = RuleInfo(
    id="COM003",
    name="desynchronized-collectives",
    title="Ranks call different collectives",
    severity="error",
    needs=(needs.RANKS,),
    since="0.1.0",
    no_example="A program that does this hangs.",
)

_MAX_CALLS: Final = 3


@dataclass(frozen=True)
class Thresholds:
    """No settings: each disagreement is an error."""


def detect(job: JobContext, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each group whose ranks disagree."""
    for disagreement in job.disagreements:
        yield INFO.finding(
            # Without torch's numbers a call that the profiler lost looks like one that was not
            # made.
            confidence="medium" if disagreement.number is None else "high",
            message=_build_message(disagreement),
            fix=blocked.FIXES["different"],
            n=disagreement.n,
            ranks=disagreement.ranks,
            evidence={
                "group": disagreement.group.name,
                "number": disagreement.number,
                "step": disagreement.step,
                "calls": [_describe_call(call) for call, _ in disagreement.calls],
                "ranks": [" ".join(map(str, ranks)) for _, ranks in disagreement.calls],
            },
        )

    yield from _report_blocked(job, {reported.group.name for reported in job.disagreements})


def _report_blocked(job: JobContext, reported: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for the first collective of each set of ranks that others wait for.

    Args:
        reported: Names of groups that have a finding.
    """
    # Later collectives are blocked by the first one, so they have no finding of their own.
    by_cause: dict[tuple[str, tuple[int, ...]], list[BlockedCollective]] = defaultdict(list)
    for collective in job.blocked:
        if collective.group.name not in reported:
            by_cause[collective.reason, collective.absent].append(collective)

    records = {rank: record.about for rank, record in job.last_records.items()}
    for (reason, absent), (first, *later) in by_cause.items():
        # That a rank which failed calls no further collective is reported by failed-rank.
        if reason == "absent" and set(absent) <= set(job.failed_first):
            continue

        # A rank without the call may just be slow, as long as torch's timeout has not passed.
        is_late = reason in {"absent", "waiting"} and first.waited_ns is None
        has_timed_out = any(call.has_timed_out for call in first.called.values())
        yield INFO.finding(
            severity="warning" if reason == "waiting" else "error",
            confidence="medium" if is_late and not has_timed_out else "high",
            message=blocked.describe(first, records),
            fix=blocked.FIXES[reason],
            locations=blocked.find_locations(first),
            n=1 + len(later),
            ranks=tuple(sorted({*first.called, *absent})),
            evidence=blocked.collect_evidence(first, later),
        )


def _build_message(disagreement: Disagreement) -> str:
    unit, number = "collective", disagreement.number
    if number is None:
        # Where torch numbers no collectives, the first step that differs is known.
        unit, number = "step", disagreement.step
    more = f" They disagree on {counted(disagreement.n, unit)}." if disagreement.n > 1 else ""

    calls = [f"{the_ranks(ranks)}: {_describe_call(call)}" for call, ranks in disagreement.calls]
    if len(calls) > _MAX_CALLS:
        calls = [*calls[:_MAX_CALLS], "…"]
    group = the_group(disagreement.group, disagreement.ranks)
    return f"Ranks of {group} disagree on {unit} {number}: {'; '.join(calls)}.{more}"


def _describe_call(call: CollectiveCall) -> str:
    """``all-reduce of 1,000 Float``."""
    if not call.kind:
        return "no further collective"
    n = "" if call.n_elements is None else f"{format_count(call.n_elements)} "
    of = f"{n}{visible(call.element_type)}".strip()
    return f"{call.kind} of {of}" if of else call.kind
