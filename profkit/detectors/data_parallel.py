"""COM002 data-parallel: a model is wrapped in ``nn.DataParallel``.

What it finds:
    Calls of ``torch.nn.DataParallel`` in a program that uses a GPU: by the annotation of its
    ``forward``, or by its Python frames. On a CPU alone it only calls the module.

Why it matters:
    On several GPUs it copies the whole model to each of them in every step, scatters inputs,
    gathers outputs on the first GPU and sums gradients there; one process launches the work of all
    GPUs from threads that wait for each other. On one GPU it still traverses all parameters and
    inputs in each call. The cost is what the steps take less in a replay of the recording in which
    neither the host nor the GPUs spend this time.

How to fix it:
    On one GPU call the module itself. On several start one process per GPU and use
    ``DistributedDataParallel``: it copies the model once, and overlaps the all-reduce of gradients
    with the backward pass. PyTorch recommends it for a single machine too.

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
    The annotation ``DataParallel.forward``, operators and launches in and after it, kernels and
    copies (all ``ts_ns`` and ``dur_ns`` in nanoseconds), source lines.

When to ignore this:
    The cost is approximate: it leaves out the time that threads wait for each other and what the
    first GPU does alone with all outputs. A subclass with its own ``forward`` is not found.

Source:
    ``torch.nn.DataParallel`` in PyTorch's documentation (its warning), and "Use
    nn.parallel.DistributedDataParallel instead of multiprocessing or nn.DataParallel" in PyTorch's
    CUDA semantics; ``torch/nn/parallel/data_parallel.py`` and ``torch/csrc/cuda/comm.cpp``.
"""

from collections.abc import Iterator

import numpy as np

from profkit.engine.families.collectives.messages import describe_program
from profkit.index.intervals import Intervals, complement, covered_by, unite
from profkit.index.ranks.data_parallel import (
    DataParallelOverhead,
    data_parallel_calls,
    measure_data_parallel,
)
from profkit.rule import (
    Context,
    Finding,
    ProgramChange,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    format_count,
    in_windows,
    measure_saving,
    needs,
    time_per_step,
    times_per_step,
    windows,
)

INFO = RuleInfo(
    id="COM002",
    name="data-parallel",
    title="Model wrapped in DataParallel",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When it is a warning.

    Attributes:
        warning_share: Share of the steps that a fix can save from which it is a warning: from one
            percent on, a change is worth the edit. Below it is a note: a faster GPU may show it.
    """

    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if a model is called through ``DataParallel``."""
    calls = data_parallel_calls(ctx.events, ctx.tree)
    calls = calls[in_windows(ctx, calls)]
    if not len(calls):
        return

    wrapper = measure_data_parallel(ctx.events, ctx.tree, ctx.launches, calls)
    busy = covered_by(ctx.events, wrapper.work)
    idle_ns = _find_idle_time(ctx, wrapper).total_ns
    # Copies, scatters and sums disappear, and the model's own kernels stay where they are.
    change = ProgramChange(scaled=((wrapper.work, 0.0),), host_time=wrapper.on_host.pairs())
    saving = measure_saving(ctx, change)
    locations = find_costliest_lines(ctx, calls)

    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high",
        message=_build_message(ctx, wrapper, busy, idle_ns, at_first(locations)),
        fix=_suggest_fix(wrapper.n_devices, trains=describe_program(ctx).trains),
        locations=locations,
        rows=calls,
        evidence={
            "n_devices": wrapper.n_devices,
            "host_ns": wrapper.on_host.total_ns,
            "device_ns": busy.total_ns,
            "device_idle_otherwise_ns": idle_ns,
        },
        spans=unite(wrapper.on_host, busy).pairs(),
    )


def _find_idle_time(ctx: Context, wrapper: DataParallelOverhead) -> Intervals:
    """Find the time in which no device does work other than the wrapper's."""
    work = ctx.launches.work
    starts, ends = windows(ctx)
    # What the wrapper copies and sums keeps a device busy without advancing the model.
    models_work = covered_by(ctx.events, work[~np.isin(work, wrapper.work)])
    return complement(models_work, int(starts.min()), int(ends.max()))


def _build_message(
    ctx: Context, wrapper: DataParallelOverhead, busy: Intervals, idle_ns: int, place: str
) -> str:
    often = times_per_step(ctx, len(wrapper.calls))
    on_host = time_per_step(ctx, wrapper.on_host.total_ns)
    idle = time_per_step(ctx, idle_ns)

    if wrapper.n_devices <= 1:
        return (
            f"`DataParallel` around the model called{place} runs it on one GPU, {often}, and "
            f"takes the host {on_host} to traverse parameters and inputs for nothing. The GPU is "
            f"idle for {idle}."
        )
    return (
        f"`DataParallel` around the model called{place} copies it to "
        f"{format_count(wrapper.n_devices)} GPUs {often}, which takes the host {on_host} and the "
        f"GPUs {time_per_step(ctx, busy.total_ns)}. They compute nothing else for {idle}."
    )


def _suggest_fix(n_devices: int, *, trains: bool) -> str:
    if n_devices <= 1:
        return (
            "Remove `DataParallel(...)` around the module, or call `model.module`, the module "
            "that it wraps."
        )

    start = f"Start one process per GPU, `torchrun --nproc-per-node={n_devices}`"
    if trains:
        return (
            f"{start}, and wrap the model in `DistributedDataParallel(model, device_ids="
            "[local_rank])`: it copies parameters once, and overlaps the all-reduce of gradients "
            "with the backward pass."
        )
    return f"{start}, and give each its share of the data: inference needs no communication."
