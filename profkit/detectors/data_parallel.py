"""COM002 data-parallel: a model is wrapped in ``nn.DataParallel``.

What it finds:
    Calls of ``torch.nn.DataParallel`` in a program that uses a device: by the name that its
    ``forward`` gives itself in a recording, or by its Python frames. On a CPU alone it does nothing
    but call the module, so there is nothing to find.

Why it matters:
    On several devices it copies the whole model to each of them in every step, hands out inputs,
    gathers outputs on the first device and adds up gradients there; one process launches the work
    of all devices, by threads that wait for each other. On one device it goes through all
    parameters and inputs in each call, for nothing. A device suffers from that as far as it has
    nothing else to compute: in each step the smaller of the two times is the cost.

How to fix it:
    On one device call the module itself. On several start one process a device, and use
    ``DistributedDataParallel``: it copies the model once, and sends gradients while the backward
    pass is at work. PyTorch recommends it for a single machine too.

Example:
    ::

        model = nn.DataParallel(model)
        for x, y in loader:
            loss = loss_fn(model(x), y)

Use instead:
    ::

        # torchrun --nproc-per-node=4 train.py
        model = DistributedDataParallel(model, device_ids=[local_rank])
        for x, y in loader:
            loss = loss_fn(model(x), y)

Reads:
    The annotation ``DataParallel.forward``, operators and launches in and after it, device work
    (all ``ts_ns`` and ``dur_ns`` in nanoseconds), the user's lines.

When to ignore this:
    What threads lose that wait for each other is not in the cost, nor what the first device does
    alone with the outputs of all; what the host does early while devices still have work is in it
    up to the time in which they have none. A subclass with a ``forward`` of its own has no such
    name in the recording.

Source:
    ``torch.nn.DataParallel`` in PyTorch's documentation (its warning), and "Use
    nn.parallel.DistributedDataParallel instead of multiprocessing or nn.DataParallel" in PyTorch's
    CUDA semantics; ``torch/nn/parallel/data_parallel.py`` and ``torch/csrc/cuda/comm.cpp``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.costly_lines import costliest_lines
from profkit.engine.detector import RuleInfo
from profkit.engine.families.collectives.messages import distributed_program
from profkit.engine.windows import event_ids, in_windows, windows, windows_ns
from profkit.engine.wording import at, known_locations, time_per_step, times_per_step
from profkit.index.device.idle import BlockingCost, blocking_cost
from profkit.index.intervals import Intervals, complement, covered_by, unite
from profkit.index.ranks.data_parallel import (
    DataParallelOverhead,
    data_parallel_calls,
    data_parallel_overhead,
)
from profkit.model.finding import Finding
from profkit.units import format_count

INFO = RuleInfo(
    id="COM002",
    name="data-parallel",
    title="A model is wrapped in DataParallel",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)

MAX_LINES = 3


@dataclass(frozen=True)
class Thresholds:
    """When it is a warning.

    Attributes:
        warning_share: Share of the steps that can be given back from which it is a warning: one
            percent is where a change pays for the edit. Below it is a note: what it costs shows
            on a faster device.
    """

    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding if a model is called by way of ``DataParallel``."""
    calls = data_parallel_calls(ctx.events, ctx.tree)
    calls = calls[in_windows(ctx, calls)]
    if not len(calls):
        return
    wrapper = data_parallel_overhead(ctx.events, ctx.tree, ctx.launches, calls)
    busy = covered_by(ctx.events, wrapper.work)
    cost = blocking_cost(unite(wrapper.on_host, busy), _nothing_else(ctx, wrapper), *windows(ctx))
    lines = costliest_lines(ctx, calls, ctx.events.dur_ns[calls], MAX_LINES)
    yield INFO.finding(
        severity=(
            "warning" if cost.saving_ns >= thresholds.warning_share * windows_ns(ctx) else "note"
        ),
        confidence="high",
        message=_message(ctx, wrapper, busy, cost, at(lines[0])),
        fix=_fix(wrapper.n_devices, trains=distributed_program(ctx).trains),
        locations=known_locations(*lines),
        n=len(calls),
        cost=ctx.cost(cost.saving_ns, basis="upper-bound"),
        evidence={
            "n_devices": wrapper.n_devices,
            "host_ns": wrapper.on_host.total_ns,
            "device_ns": busy.total_ns,
            "nothing_else_ns": cost.idle_ns,
            "events": event_ids(ctx, calls),
        },
        claims=cost.claims,
    )


def _nothing_else(ctx: Context, wrapper: DataParallelOverhead) -> Intervals:
    """Time in which no device does anything but what the wrapper asks for."""
    work = ctx.launches.work
    starts, ends = windows(ctx)
    others = covered_by(ctx.events, work[~np.isin(work, wrapper.work)])
    return complement(others, int(starts.min()), int(ends.max()))


def _message(
    ctx: Context, wrapper: DataParallelOverhead, busy: Intervals, cost: BlockingCost, place: str
) -> str:
    often = times_per_step(ctx, len(wrapper.calls))
    on_host = time_per_step(ctx, wrapper.on_host.total_ns)
    idle = time_per_step(ctx, cost.idle_ns)
    if wrapper.n_devices <= 1:
        return (
            f"`DataParallel` around the model called{place} runs it on one GPU, {often}: to go "
            f"through parameters and inputs takes the host {on_host}, for nothing; the GPU was "
            f"idle for {idle}."
        )
    return (
        f"`DataParallel` around the model called{place} copies it to "
        f"{format_count(wrapper.n_devices)} GPUs {often}: taking apart and putting together takes "
        f"the host {on_host} and the GPUs {time_per_step(ctx, busy.total_ns)}; for {idle} they "
        "compute nothing."
    )


def _fix(n_devices: int, *, trains: bool) -> str:
    if n_devices <= 1:
        return (
            "Call the module itself: take `DataParallel(...)` away from around it, or use "
            "`model.module`, which is what it wraps."
        )
    start = f"Start one process a GPU, `torchrun --nproc-per-node={n_devices}`"
    if trains:
        return (
            f"{start}, and wrap the model in `DistributedDataParallel(model, device_ids="
            "[local_rank])`: it copies parameters once, and sends gradients while the backward "
            "pass is at work."
        )
    return f"{start}, and give each its share of the data: they have nothing to exchange."
