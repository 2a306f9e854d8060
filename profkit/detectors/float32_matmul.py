"""KER002 float32-matmul: matrix products run in full float32 on CUDA cores, not on tensor cores.

What it finds:
    Kernels of cuBLAS, cuDNN and CUTLASS that multiply matrices, or convolve, in full float32 on the
    CUDA cores of a GPU whose tensor cores support TF32: NVIDIA GPUs since Ampere (compute
    capability 8.0). If other products of the recording use TF32, it is allowed, and the library
    has chosen float32 for the rest: those are not reported.

Why it matters:
    TF32 has float32's range and accumulates in float32, but rounds the inputs to 10 bits of
    mantissa instead of 23. Tensor cores multiply it 8 times as fast as float32 on an A100, 7.4
    times on an H100 or H200, nearly 15 times on a B200. Since version 1.12 PyTorch does not use it
    for matrix products by default. On these GPUs the cost is an estimate: what the steps take less
    in a replay of the recording with kernels 7.4 times as fast. On GPUs of compute capability 8.6,
    8.7, 8.9, 11 and 12 the ratio is one or two, depending on the board: there the cost is an upper
    bound, a replay without these kernels, and the finding is a note.

How to fix it:
    Call ``torch.set_float32_matmul_precision("high")`` once before the first product; in newer
    versions also ``torch.backends.cuda.matmul.fp32_precision = "tf32"``. Faster still is
    ``torch.autocast("cuda", dtype=torch.bfloat16)`` around the forward pass and the loss: products
    in bfloat16 are twice as fast again, and activations take half the memory, but bfloat16 has
    only 7 bits of mantissa.

Example:
    ::

        for x, y in loader:
            loss = loss_fn(model(x), y)

Use instead:
    ::

        torch.set_float32_matmul_precision("high")
        for x, y in loader:
            loss = loss_fn(model(x), y)

Reads:
    Kernels (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the operators that launched them,
    the GPUs' compute capability and busy time in nanoseconds, source lines.

When to ignore this:
    The result needs float32, as in solvers, simulations and some losses. Matmuls with few rows
    are limited by memory bandwidth, and TF32 does not make them faster. Convolutions may use TF32
    by default; where none of many does, cuDNN may have chosen float32 itself, and the confidence
    is low. Kernels whose names do not tell their precision are not found.

Source:
    "TensorFloat-32 (TF32) on Ampere (and later) devices" in PyTorch's CUDA semantics;
    ``torch.set_float32_matmul_precision``; ``ATen/Context.h`` (``allow_tf32_cudnn``); peak rates
    without sparsity from NVIDIA's data sheets and architecture papers on A100 (156 and 19.5
    TFLOPS), H100 (494.7 and 66.9), B200 (1,100 and 75), GA102 (GeForce RTX 3090: 35.6 and 35.6,
    A40: 74.8 and 37.4); pytorch/pytorch issues 67384 and 153195 on the default.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.frameworks import Trainer, find_trainer
from profkit.index.device.matmul_precision import Matmuls, float32_matmuls
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_by, covered_within
from profkit.rule import (
    Context,
    Finding,
    Mask,
    ProgramChange,
    RuleInfo,
    at_first,
    busy_ns,
    dataclass,
    find_costliest_lines,
    in_windows,
    measure_saving,
    needs,
    time_with_busy_share,
    times_per_step,
    windows,
)

INFO = RuleInfo(
    id="KER002",
    name="float32-matmul",
    title="Matrix products in float32 on CUDA cores",
    severity="warning",
    needs=(needs.DEVICE_WORK, needs.COMPUTE_CAPABILITY),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When products in float32 are a finding.

    Attributes:
        min_kernel_ns: Shorter kernels do not count: in 10 microseconds CUDA cores multiply
            matrices of some 400 rows, with which tensor cores are hardly faster.
        min_layer_kernels_count: Minimum kernels per step of convolutions or recurrent layers. For
            a few layers cuDNN may have found float32 faster each time; for many it has not.
        min_busy_share: Minimum share of the GPU's busy time. With less to save, precision is not
            worth giving up.
        warning_share: Share of the steps that a fix can save from which it is a warning.
    """

    min_kernel_ns: int = 10_000
    min_layer_kernels_count: int = 10
    min_busy_share: float = 0.05
    warning_share: float = 0.01


_MIN_CAPABILITY: Final = (8, 0)
"""Compute capability of the first GPUs whose tensor cores support TF32."""
_RATIO: Final = 7.4
"""Minimum speed-up of TF32 on tensor cores over float32 on CUDA cores for GPUs of `_FAST_TF32`."""
_FAST_TF32: Final = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
"""Compute capabilities of data-center GPUs."""
_AUTOCAST: Final = '`torch.autocast("cuda", dtype=torch.bfloat16)`'
_AUTOCAST_OF: Final = {
    Trainer.TRANSFORMERS: "`bf16=True` in `TrainingArguments`",
    Trainer.LIGHTNING: '`Trainer(precision="bf16-mixed")`',
}
_ALLOW: Final = '`torch.set_float32_matmul_precision("high")` once at the start'
_ALLOW_CUDNN: Final = (
    "Remove `torch.backends.cudnn.allow_tf32 = False`; if it is not set, cuDNN chose these "
    "kernels: then use"
)
_BFLOAT16: Final = "which has 7 bits of mantissa where float32 has 23."


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for products, and one for convolutions and recurrent layers."""
    kernels = float32_matmuls(ctx.events, ctx.launches)
    for by_cudnn in (False, True):
        of_library = kernels.select(kernels.by_cudnn == by_cudnn)
        avoidable = of_library.select(_is_avoidable(ctx, of_library, thresholds.min_kernel_ns))
        # cuBLAS follows the setting in all products. cuDNN chooses by layer, and may prefer
        # float32.
        min_count = thresholds.min_layer_kernels_count * max(1, len(ctx.steps)) if by_cudnn else 1
        if len(avoidable.rows) >= min_count:
            yield from _build_findings(ctx, thresholds, avoidable, by_cudnn=by_cudnn)


def _is_avoidable(ctx: Context, kernels: Matmuls, min_kernel_ns: int) -> Mask:
    """Return which kernels could run on tensor cores and are long enough to matter."""
    device = ctx.events.device.at(kernels.rows)
    capable = [
        ordinal
        for ordinal, info in ctx.trace.devices.items()
        if info.compute_capability is not None and info.compute_capability >= _MIN_CAPABILITY
    ]

    # Where TF32 runs elsewhere on the device, it is allowed, and these kernels are a choice.
    allowed = distinct(device[kernels.is_tf32])
    return np.asarray(
        np.isin(device, capable)
        & ~np.isin(device, allowed)
        & (ctx.events.dur_ns[kernels.rows] >= min_kernel_ns)
        & in_windows(ctx, kernels.rows)
    )


def _build_findings(
    ctx: Context, thresholds: Thresholds, kernels: Matmuls, *, by_cudnn: bool
) -> Iterator[Finding]:
    events, rows = ctx.events, kernels.rows
    spent = covered_by(events, rows)
    spent_ns = int(covered_within(spent, *windows(ctx)).sum())
    share = spent_ns / busy_ns(ctx)
    if share < thresholds.min_busy_share:
        return

    # A speed-up is known only for products on some GPUs.
    devices = distinct(events.device.at(rows)).tolist()
    capabilities = {ctx.trace.devices[ordinal].compute_capability for ordinal in devices}
    is_fast = capabilities <= _FAST_TF32 and not by_cudnn
    # Without a known ratio the kernels are left out: then the cost is an upper bound.
    change = ProgramChange(scaled=((rows, 1 / _RATIO if is_fast else 0.0),))
    saving = measure_saving(ctx, change, "estimate" if is_fast else "upper-bound")
    is_warning = is_fast and saving.severity(thresholds.warning_share) == "warning"

    locations = find_costliest_lines(ctx, kernels.op, events.dur_ns[rows])
    subject = "cuDNN layers compute" if by_cudnn else "Matrices are multiplied"
    yield saving.finding(
        INFO,
        severity="warning" if is_warning else "note",
        confidence="low" if by_cudnn else "high" if is_fast else "medium",
        message=(
            f"{subject} in full float32{at_first(locations)}, "
            f"{times_per_step(ctx, len(rows))}, on CUDA cores instead of tensor cores. This takes "
            f"{time_with_busy_share(ctx, spent_ns)}."
        ),
        fix=_suggest_fix(ctx, by_cudnn=by_cudnn, is_fast=is_fast),
        locations=locations,
        rows=rows,
        evidence={"kernel_ns": spent_ns, "busy_share": round(share, 4)},
        spans=spent.pairs(),
    )


def _suggest_fix(ctx: Context, *, by_cudnn: bool, is_fast: bool) -> str:
    """Suggest TF32 where it is fast, and bfloat16 by the option of what runs the steps."""
    trainer = find_trainer(ctx)
    autocast = _AUTOCAST if trainer is None else _AUTOCAST_OF[trainer]
    if by_cudnn:
        return f"{_ALLOW_CUDNN} {autocast}, {_BFLOAT16}"
    if not is_fast:
        around = "Run the forward pass under" if trainer is None else "Use"
        return f"{around} {autocast}, {_BFLOAT16}"
    allow = "Pass `tf32=True` to `TrainingArguments`"
    if trainer is not Trainer.TRANSFORMERS:
        allow = f"Call {_ALLOW}"
    return f"{allow} (TF32: 10 bits of mantissa), or use {autocast} (7 bits, half the memory)."
