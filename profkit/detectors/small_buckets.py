"""COM010 small-buckets: gradients are reduced in many small pieces.

What it finds:
    Training of several ranks in which each step reduces gradients with many more all-reduces than
    their size needs in buckets of 25 MiB: by ``DistributedDataParallel`` with a small
    ``bucket_cap_mb``, by a loop over the parameters, or by a compiled backward pass that reduces
    each gradient.

Why it matters:
    A small all-reduce takes as long as its latency, whatever its size, and the host launches each.
    The cost is an estimate: what the steps take less in a replay in which all but as many as are
    needed lose that latency, for which the shortest tenth of them stands, and the host's time.

How to fix it:
    Leave ``bucket_cap_mb`` at its default, or raise it. In place of a loop over parameters use
    ``DistributedDataParallel``, or reduce one flat tensor of all gradients.

Example:
    ::

        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

Use instead:
    ::

        model = DistributedDataParallel(model, device_ids=[local_rank])

Reads:
    All-reduces on a device or on host threads that hooks of gradients start, the backward pass for
    each gradient, or the program after the backward pass (``ts_ns`` and ``dur_ns`` in nanoseconds),
    their numbers of elements and types where they were recorded, the operators that start them.

When to ignore this:
    Small buckets start earlier, which pays where the last all-reduce of a step is exposed and the
    others are hidden. Without sizes, which PyTorch records since 2.3, short all-reduces count as
    small.

Source:
    ``DistributedDataParallel`` in PyTorch's documentation (``bucket_cap_mb``), and "PyTorch
    Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2.3, on
    bucketing.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.collectives.buckets import (
    LARGER_BUCKETS,
    BucketThresholds,
    SmallReductions,
    find_small_reductions,
)
from profkit.engine.families.collectives.messages import describe_program
from profkit.engine.families.collectives.waits import (
    CollectiveWaits,
    find_device_waits,
    find_host_waits,
)
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_by, intersect, union
from profkit.rule import (
    NO_ROW,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    known_locations,
    measure_saving,
    needs,
    time_per_step,
    times_per_step,
)

INFO = RuleInfo(
    id="COM010",
    name="small-buckets",
    title="Gradients are reduced in many small pieces",
    severity="warning",
    needs=(needs.OPERATORS, needs.STEPS),
    since="0.1.0",
)

_LATENCY_QUANTILE: Final = 0.1
"""The shortest all-reduces neither wait for another rank nor transfer much."""
_FACTORS: Final = 200
"""Kernels are scaled by multiples of this fraction."""


Thresholds = BucketThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all-reduces on a device, and one for those on host threads."""
    if ctx.trace.world_size == 1:
        return
    for waits in (find_device_waits(ctx), find_host_waits(ctx)):
        if waits is None:
            continue
        small = find_small_reductions(ctx, waits, thresholds)
        if small is not None:
            yield _build_finding(ctx, thresholds, waits, small)


def _build_finding(
    ctx: Context,
    thresholds: Thresholds,
    waits: CollectiveWaits,
    small: SmallReductions,
) -> Finding:
    """Build the finding of all-reduces that fewer could replace."""
    rows, starter = waits.rows[small.places].astype(np.intp), waits.starter[small.places]
    ops = distinct(starter[starter != NO_ROW]).astype(np.intp)
    change = _merge(ctx, waits, rows, ops, small.kept_share)
    saving = measure_saving(ctx, change, "estimate")
    lines = ctx.costliest_lines(ops, 1)
    is_ddp = describe_program(ctx).is_ddp
    of_gpu = "" if waits.device is None else " of the GPU"

    return saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"Gradients are reduced{at_first(lines)} by "
            f"{times_per_step(ctx, len(rows)).replace('times', 'all-reduces')}; {small.typical}. "
            f"They take {time_per_step(ctx, covered_by(ctx.events, rows).total_ns)}{of_gpu}."
        ),
        fix=(
            LARGER_BUCKETS
            if is_ddp
            else "Wrap the model in `DistributedDataParallel`, which reduces gradients in buckets "
            "of 25 MiB, or reduce one flat tensor of all gradients."
        ),
        locations=known_locations(*lines),
        rows=rows,
    )


def _merge(
    ctx: Context, waits: CollectiveWaits, rows: Rows, ops: Rows, kept_share: float
) -> ProgramChange:
    """Return the change that some all-reduces become few: bytes are transferred as before.

    Args:
        rows: The all-reduces.
        ops: The operators that start them.
        kept_share: Share of them that is left.
    """
    dur_ns = np.maximum(ctx.events.dur_ns[rows], 1)
    latency_ns = float(np.quantile(dur_ns, _LATENCY_QUANTILE))
    saved_ns = np.minimum(dur_ns, latency_ns) * (1 - kept_share)
    if waits.device is None:
        ends_ns = ctx.events.end_ns[rows]
        spared = union(ends_ns - saved_ns.astype(np.int64), ends_ns)
        return ProgramChange(host_time=intersect(waits.waited, spared).pairs())

    factors = np.round((1 - saved_ns / dur_ns) * _FACTORS).astype(np.int64)
    scaled = tuple((rows[factors == n], n / _FACTORS) for n in distinct(factors).tolist())
    return ProgramChange(scaled=(*scaled, (ops, kept_share)))
