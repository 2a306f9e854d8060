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

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

import numpy as np

from profkit.engine.families.collectives.gradients import (
    reduced_after_backward,
    reduced_by_hooks,
    reduced_one_by_one,
)
from profkit.engine.families.collectives.messages import describe_program
from profkit.engine.families.collectives.waits import (
    CollectiveWaits,
    find_device_waits,
    find_host_waits,
)
from profkit.index.compute.inputs import parse_inputs
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_by, intersect, union
from profkit.index.ranks.delays import ELEMENT_BYTES
from profkit.rule import (
    MISSING,
    NO_ROW,
    Context,
    Finding,
    Int32s,
    Int64s,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    format_bytes,
    format_ns,
    in_windows,
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

_BUCKET_BYTES: Final = 25 << 20
"""The default of ``bucket_cap_mb``."""
_GRADIENT_BYTES: Final = 4
_LATENCY_QUANTILE: Final = 0.1
"""The shortest all-reduces neither wait for another rank nor transfer much."""
_FACTORS: Final = 200
"""Kernels are scaled by multiples of this fraction."""


@dataclass(frozen=True)
class Thresholds:
    """When all-reduces are too many and too small.

    Attributes:
        min_calls_count: Minimum number per step: a few more than needed cost nothing.
        min_excess_count: Minimum ratio of their number to the number of buckets of 25 MiB.
        max_small_bytes: Maximum of the median size: below 1 MiB, the size of the first bucket of
            DDP, latency is most of the time.
        max_small_ns: Maximum of the median time where sizes are unknown, about the latency of NCCL
            between GPUs of several hosts.
        warning_share: Share of the steps that a fix can save from which it is a warning: from one
            percent on, a change is worth the edit.
    """

    min_calls_count: int = 8
    min_excess_count: int = 3
    max_small_bytes: int = 1 << 20
    max_small_ns: int = 50_000
    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all-reduces on a device, and one for those on host threads."""
    if ctx.trace.world_size == 1:
        return
    for waits in (find_device_waits(ctx), find_host_waits(ctx)):
        if waits is not None:
            yield from _find_small_reductions(ctx, waits, thresholds)


def _find_small_reductions(
    ctx: Context, waits: CollectiveWaits, thresholds: Thresholds
) -> Iterator[Finding]:
    is_of_gradients = reduced_by_hooks(ctx, waits)
    # A thread of the host runs one after the other while the loop waits: exposed-communication.
    if waits.device is not None:
        is_of_gradients |= reduced_after_backward(ctx, waits)
    is_of_gradients |= reduced_one_by_one(ctx, waits)
    places = np.flatnonzero(is_of_gradients)
    places = places[in_windows(ctx, waits.starter[places].astype(np.intp))]
    n_per_step = len(places) / len(ctx.steps)
    if n_per_step <= thresholds.min_calls_count:
        return

    # Without sizes, short times stand for small reductions, and one bucket may be enough.
    n_bytes = _find_sizes(ctx, waits, places)
    dur_ns = ctx.events.dur_ns[waits.rows[places]]
    if n_bytes is None:
        needed, is_small = 1, np.median(dur_ns) <= thresholds.max_small_ns
    else:
        # DDP's first bucket is smaller, so that it is reduced early: one more than the bytes fill.
        needed = 1 + -(-int(n_bytes.sum()) // len(ctx.steps) // _BUCKET_BYTES)
        is_small = np.median(n_bytes) <= thresholds.max_small_bytes

    if is_small and n_per_step >= thresholds.min_excess_count * needed:
        typical = (
            f"most of them take less than {format_ns(float(np.median(dur_ns)))}"
            if n_bytes is None
            else f"most of them are at most {format_bytes(int(np.median(n_bytes)))}"
        )
        yield _build_finding(ctx, thresholds, waits, places, needed / n_per_step, typical)


def _find_sizes(ctx: Context, waits: CollectiveWaits, places: Rows) -> Int64s | None:
    """Find the bytes of each all-reduce, or None if not recorded. Shape of ``places``."""
    events = ctx.events
    rows = waits.rows[places]
    count, kind = events.n_in.at(rows), events.element_type.at(rows)
    if (count == MISSING).any() or (kind == MISSING).any():
        n_bytes = _find_input_bytes(ctx, waits.starter[places])
        return n_bytes if n_bytes.all() else None
    width = [ELEMENT_BYTES.get(events.names[number], 0) for number in kind.tolist()]
    return np.asarray(count * np.array(width))


def _find_input_bytes(ctx: Context, rows: Int32s) -> Int64s:
    """Find the bytes of operators' tensors by their recorded shapes, or 0. Shape of ``rows``."""
    events = ctx.events
    texts = np.column_stack((events.input_dims.at(rows), events.input_types.at(rows)))
    texts[rows == NO_ROW] = MISSING
    different, number = np.unique(texts, axis=0, return_inverse=True)
    n_bytes = [_count_bytes(events.names, *pair) for pair in different.tolist()]
    return np.asarray(np.array(n_bytes)[number.ravel()])


def _count_bytes(names: Sequence[str], dims: int, types: int) -> int:
    """Return the bytes of the tensors with some shapes and types, as numbers of their names."""
    if MISSING in {dims, types}:
        return 0
    inputs = parse_inputs(names[dims], names[types], "")
    tensors = () if inputs is None else inputs.tensors
    # Of a list of tensors torch may not record the type: gradients have no more than this.
    return sum(prod(shape) * (width or _GRADIENT_BYTES) for shape, width in tensors)


def _build_finding(
    ctx: Context,
    thresholds: Thresholds,
    waits: CollectiveWaits,
    places: Rows,
    kept_share: float,
    typical: str,
) -> Finding:
    """Build the finding of all-reduces that fewer could replace.

    Args:
        places: The all-reduces, as places in ``waits``.
        kept_share: Share of their time that as many as are needed would take.
        typical: Their typical size or time, as a clause.
    """
    rows, starter = waits.rows[places].astype(np.intp), waits.starter[places]
    ops = distinct(starter[starter != NO_ROW]).astype(np.intp)
    change = _merge(ctx, waits, rows, ops, kept_share)
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
            f"{times_per_step(ctx, len(rows)).replace('times', 'all-reduces')}; {typical}. They "
            f"take {time_per_step(ctx, covered_by(ctx.events, rows).total_ns)}{of_gpu}."
        ),
        fix=(
            "Leave `bucket_cap_mb` of `DistributedDataParallel` at 25 MiB, or raise it."
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
