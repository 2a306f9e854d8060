"""KER011 half-precision-unused: a GPU with tensor cores for float16 multiplies only in others.

What it finds:
    Matrix products and convolutions in float32 or bfloat16 on NVIDIA GPUs of the Volta and Turing
    architectures (compute capability 7.0 to 7.5: V100, T4, GeForce RTX 20), in recordings in which
    nothing runs on tensor cores. Later GPUs have tensor cores for TF32 and bfloat16 too: there it
    is float32-matmul.

Why it matters:
    The tensor cores of these GPUs multiply float16 only, 8 times as fast as the CUDA cores multiply
    float32 (4 times on GeForce) or bfloat16, which they convert to float32. The cost is an
    estimate: what the steps take less in a replay of the recording with these kernels 3 times as
    fast. That is what NVIDIA states for whole training programs, so the kernels themselves may gain
    more. Half of the memory for activations is not in the figure.

How to fix it:
    Run the forward pass and the loss under ``torch.autocast("cuda", dtype=torch.float16)``. Scale
    the loss with ``torch.amp.GradScaler`` in training: gradients below float16's range become zero
    otherwise. bfloat16 has no tensor cores on these GPUs.

Example:
    ::

        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()

Use instead:
    ::

        scaler = torch.amp.GradScaler()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

Reads:
    Kernels (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the operators that launched them,
    the GPUs' names, compute capability and busy time in nanoseconds, source lines.

When to ignore this:
    The program needs float32's range or precision throughout, as solvers and simulations do.
    Kernels whose names do not tell their precision are not found.

Source:
    "Mixed precision" and "Tensor Core" in NVIDIA's "Train With Mixed Precision" guide (8 times the
    arithmetic, up to 3 times the speed of whole models); the white papers on Tesla V100 (15.7 and
    125 TFLOPS) and Turing (GeForce RTX 2080 Ti: 13.4 and 53.8 TFLOPS with float32 accumulation);
    "Automatic Mixed Precision" among PyTorch's recipes.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.frameworks import Trainer, find_trainer
from profkit.index.device.matmul_precision import bfloat16_matmuls, float32_matmuls
from profkit.index.device.occupancy import tensor_core_rows
from profkit.index.device.streams import device_of
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    Category,
    Context,
    DeviceInfo,
    Finding,
    Mask,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    busy_ns,
    dataclass,
    device_time,
    find_costliest_lines,
    from_torch,
    in_windows,
    measure_saving,
    needs,
    regex,
    time_with_busy_share,
    times_per_step,
    torch_names,
)

INFO = RuleInfo(
    id="KER011",
    name="half-precision-unused",
    title="Tensor cores for float16 are not used",
    severity="warning",
    needs=(needs.DEVICE_WORK, needs.COMPUTE_CAPABILITY),
    since="0.1.0",
    no_example="It takes a GPU older than Ampere, and its tests build what one records.",
)


@dataclass(frozen=True)
class Thresholds:
    """When products in float32 are a finding.

    Attributes:
        min_kernel_ns: Shorter kernels do not count: in 10 microseconds CUDA cores multiply
            matrices of some 200 rows, with which tensor cores are hardly faster.
        min_busy_share: Minimum share of the GPU's busy time. With less, a mixed-precision program
            is bound by bandwidth.
        warning_share: Share of the steps that a fix can save from which it is a warning.
    """

    min_kernel_ns: int = 10_000
    min_busy_share: float = 0.1
    warning_share: float = 0.02


# Ampere, which has tensor cores for wider types too, begins with 8.0.
_VOLTA: Final = (7, 0)
_TURING: Final = (7, 5)
_WITH_TENSOR_CORES: Final = regex(r"\bT4|\bRTX\b|\bT40\b|\bT10\b")
"""Boards of compute capability 7.5 that have tensor cores; GeForce GTX 16, MX and T1000 do not."""
_RATIO: Final = 3
_AUTOCAST: Final = '`torch.autocast("cuda", dtype=torch.float16)`'
_OPTION_OF: Final = {
    Trainer.TRANSFORMERS: "Pass `fp16=True` to `TrainingArguments`.",
    Trainer.LIGHTNING: 'Pass `precision="16-mixed"` to `Trainer`.',
}


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all products and convolutions in float32, or all in bfloat16."""
    events = ctx.events
    capable = [number for number, info in ctx.trace.devices.items() if _is_capable(info)]
    kernels = events.kernels
    kernels = kernels[_is_on(ctx, kernels, capable)]

    # A program that uses tensor cores for anything has chosen its precision.
    if not len(kernels) or tensor_core_rows(events, kernels).any():
        return

    # The fixes differ, so the precision in which most of the time is spent decides.
    matmuls, kind = float32_matmuls(events, ctx.launches), "float32"
    halves = bfloat16_matmuls(events, ctx.launches)
    if events.dur_ns[halves.rows].sum() > events.dur_ns[matmuls.rows].sum():
        matmuls, kind = halves, "bfloat16"
    matmuls = matmuls.select(
        _is_on(ctx, matmuls.rows, capable)
        & (events.dur_ns[matmuls.rows] >= thresholds.min_kernel_ns)
        & in_windows(ctx, matmuls.rows)
    )
    rows = matmuls.rows

    spent = device_time(ctx, rows)
    share = spent.total_ns / busy_ns(ctx)
    if share < thresholds.min_busy_share:
        return

    saving = measure_saving(ctx, ProgramChange(scaled=((rows, 1 / _RATIO),)), "estimate")
    # Kernels of a CUDA graph may have no operator, and so no line.
    locations = find_costliest_lines(ctx, matmuls.op, events.dur_ns[rows])

    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"Matrix products and convolutions in {kind}{at_first(locations)}, "
            f"{times_per_step(ctx, len(rows))}, take {time_with_busy_share(ctx, spent.total_ns)}. "
            "Nothing runs on its tensor cores, which multiply float16."
        ),
        fix=_suggest_fix(ctx, kind),
        locations=locations,
        rows=rows,
        evidence={"busy_share": round(share, 4)},
        spans=spent.pairs(),
    )


def _suggest_fix(ctx: Context, kind: str) -> str:
    """Suggest float16 by the option of what runs the steps, and a scaler where gradients are."""
    trainer = find_trainer(ctx)
    if trainer is not None:
        return _OPTION_OF[trainer]

    is_training = rows_named(ctx.events, torch_names.TRAINING, Category.OP, Category.ANNOTATION)
    of_cuda = " (`torch.cuda.amp.GradScaler()` before torch 2.3)"
    scaler = f"`torch.amp.GradScaler()`{of_cuda if from_torch(ctx, '2.3') else ''}"
    if kind == "bfloat16":
        fix = "Use `torch.float16` instead of `torch.bfloat16`, for `torch.autocast` or the model"
        return f"{fix}, and scale the loss by {scaler}." if is_training.any() else f"{fix}."
    if is_training.any():
        return (
            f"Run the forward pass and the loss under {_AUTOCAST}, and scale the loss by {scaler}."
        )
    return f"Run the model under {_AUTOCAST}, or convert it and its inputs once by `.half()`."


def _is_capable(device: DeviceInfo) -> bool:
    """Tell whether a device has tensor cores for float16 and for nothing wider."""
    capability = device.compute_capability
    if capability is None or not _VOLTA <= capability <= _TURING:
        return False
    return capability < _TURING or _WITH_TENSOR_CORES.search(device.name) is not None


def _is_on(ctx: Context, rows: Rows, devices: list[int]) -> Mask:
    """Return which device work ran on one of some devices. Shape of ``rows``."""
    return np.isin(device_of(ctx.events, rows), devices)
