"""COM001 exposed-communication: nothing is computed while ranks exchange data.

What it finds:
    Steps of a distributed job that pass in exchanges between ranks (all-reduce, all-gather,
    all-to-all and so on) while nothing is computed. Where a device runs the exchange, as with
    NCCL, that is time in which its communication kernels run and no other kernel does. Where
    threads of the host run it (gloo, MPI), it is time in which the exchange runs, neither a device
    nor an operator on the host computes, and work goes on only when the exchange is done.

Why it matters:
    An exchange beside computation costs next to nothing; one alone makes the step longer by all of
    its length, and the more ranks, the longer. Exchanges during which the host had simply launched
    nothing else are left out, since shorter ones would not help there: the cost is the rest, the
    most that can be given back.

How to fix it:
    Send gradients while the backward pass is still at work, which ``DistributedDataParallel`` does;
    exchange tensors of a GPU by NCCL; send fewer bytes; compute more between two exchanges. Other
    exchanges are started early with ``async_op=True``, and awaited where the result is needed.

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
    (all ``ts_ns`` and ``dur_ns`` in nanoseconds), the user's lines.

When to ignore this:
    An exchange also lasts while a slower rank is waited for, and the recording of one rank cannot
    tell that from the transfer: compare the ranks. Inference that splits layers over devices
    exchanges between them by design; it gets a note. Python that runs beside an exchange on the
    host and calls no operator looks like a wait for it. Where the host itself polls for NCCL
    (``TORCH_NCCL_BLOCKING_WAIT``), it looks late, and less is found.

Source:
    "Distributed Data Parallel" in PyTorch's notes (gradient bucketing and overlap);
    ``torch.distributed`` in PyTorch's documentation (which backend to use, ``async_op``);
    ``torch/csrc/distributed/c10d/Work.cpp`` and ``ProcessGroupGloo.cpp``;
    ``communication_analysis.py`` of Holistic Trace Analysis for the share that overlaps, and
    ``torch_tb_profiler``, which speaks from a tenth of the step on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.collectives.messages import (
    DistributedProgram,
    collective_fix,
    distributed_program,
)
from profkit.engine.families.collectives.waits import (
    CollectiveSite,
    CollectiveWaits,
    collective_sites,
    waits_of_devices,
    waits_of_host,
)
from profkit.engine.needs import Need
from profkit.engine.windows import event_ids, windows, windows_ns
from profkit.engine.wording import at, known_locations, time_per_step, times_per_step
from profkit.index.intervals import covered_within
from profkit.index.ranks.collectives import device_collectives
from profkit.index.ranks.data_parallel import data_parallel_calls
from profkit.model.finding import Confidence, Finding
from profkit.units import format_ns, format_share

DEVICE_COLLECTIVES: Final = Need(
    name="device work of collectives",
    reason="Collectives of a GPU were started, but no work of a GPU was recorded.",
    remedy="Record with `ProfilerActivity.CUDA`.",
    is_met=lambda ctx: ctx.has_device_work or not len(device_collectives(ctx.events)),
)

INFO = RuleInfo(
    id="COM001",
    name="exposed-communication",
    title="Nothing is computed while ranks exchange data",
    severity="warning",
    needs=(needs.OPERATORS, DEVICE_COLLECTIVES),
    since="0.1.0",
)

MAX_LINES = 3


@dataclass(frozen=True)
class Thresholds:
    """When waiting for exchanges is a finding.

    Attributes:
        min_step_share: Share of a step that must be waited. What is below a tenth is the end of
            the last bucket and other small change of any distributed job.
        min_steps_share: Share of the steps in which that must be so: a rank may be late once, such
            as when it begins to record.
    """

    min_step_share: float = 0.1
    min_steps_share: float = 0.5


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for exchanges that a device runs, and one for those that the host runs."""
    if ctx.trace.world_size == 1:
        return
    # What DataParallel sends between the devices of one process is another rule's matter.
    by_devices = None if len(data_parallel_calls(ctx.events, ctx.tree)) else waits_of_devices(ctx)
    for waits in (by_devices, waits_of_host(ctx)):
        if waits is not None and _is_habit(ctx, waits, thresholds):
            yield _finding(ctx, waits, distributed_program(ctx))


def _is_habit(ctx: Context, waits: CollectiveWaits, thresholds: Thresholds) -> bool:
    """Whether enough of enough steps is waited, and not of the first alone."""
    starts, ends = windows(ctx)
    waited_ns = covered_within(waits.waited, starts, ends)
    hit = (waited_ns > 0) & (waited_ns >= thresholds.min_step_share * (ends - starts))
    later = bool(hit[1:].any()) or len(hit) == 1
    return later and bool(hit.mean() >= thresholds.min_steps_share)


def _finding(ctx: Context, waits: CollectiveWaits, program: DistributedProgram) -> Finding:
    lines = collective_sites(ctx, waits)
    counted = waits.rows[waits.share_ns > 0]
    costliest = waits.rows[np.argsort(-waits.share_ns, kind="stable")]
    kinds = waits.by_kind
    confidence: Confidence = "medium" if len(ctx.steps) > 1 else "low"
    return INFO.finding(
        severity="warning" if program.trains else "note",
        confidence=confidence,
        message=_message(ctx, waits, _mostly(lines, waits.waited.total_ns), len(counted)),
        fix=collective_fix(ctx, waits, program),
        locations=known_locations(
            *(line.location for line in lines[:MAX_LINES] if 10 * line.ns >= lines[0].ns)
        ),
        n=len(counted),
        cost=ctx.cost(waits.waited.total_ns, basis="upper-bound"),
        evidence={
            "device": waits.device,
            "exposed_ns": waits.exposed_ns,
            "waited_ns": waits.waited.total_ns,
            "longest_wait_ns": int(waits.share_ns.max()),
            "kinds": list(kinds),
            "kinds_ns": list(kinds.values()),
            "events": event_ids(ctx, costliest[: len(counted)]),
        },
        claims=waits.waited.pairs(),
    )


def _mostly(lines: list[CollectiveSite], total_ns: int) -> str:
    """What most of the waiting was for, as far as it is known."""
    if not lines:
        return ""
    first = lines[0]
    word = "mostly" if 2 * first.ns >= total_ns else "among others"
    region = f" in `{first.region}`" if first.region else ""
    return f", {word} for {first.kind}{at(first.location) or region}"


def _message(ctx: Context, waits: CollectiveWaits, mostly: str, n: int) -> str:
    total_ns = waits.waited.total_ns
    share = format_share(total_ns / windows_ns(ctx))
    longest = format_ns(int(waits.share_ns.max()))
    who = "nothing is computed" if waits.device is None else "the GPU computes nothing"
    how = "threads of the host exchange data" if waits.device is None else "it exchanges data"
    return (
        f"For {time_per_step(ctx, total_ns)} ({share}) {who} while {how} with other ranks: "
        f"{times_per_step(ctx, n)}{mostly}; the longest wait is {longest}. Waiting for slower ranks is "
        "in it, which the recording of one rank cannot tell from the transfer."
    )
