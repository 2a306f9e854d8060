"""KER006 layout-transposes: convolutions convert their tensors to another memory layout and back.

What it finds:
    Kernels that a convolution launches beside its own to convert between NCHW, PyTorch's default
    layout, and NHWC, which tensor cores and matrix cores need: ``nchwToNhwc`` and ``nhwcToNchw`` of
    cuDNN, ``batched_transpose`` and ``transpose_NCHW2CNHW`` of MIOpen.

Why it matters:
    A transpose computes nothing: it reads and writes the whole tensor, for the input, the weight
    and the output of each convolution, and again in the backward pass. The cost is what the steps
    take less in a replay of the recording without these kernels.

How to fix it:
    Convert the model and its input once: ``model.to(memory_format=torch.channels_last)`` and
    ``x.to(memory_format=torch.channels_last)``; operators pass the layout on. With ROCm before
    version 7 PyTorch also needs the environment variable ``PYTORCH_MIOPEN_SUGGEST_NHWC=1``.

Example:
    ::

        model = resnet50().cuda()
        for x, y in loader:
            loss = loss_fn(model(x.cuda()), y)

Use instead:
    ::

        model = resnet50().cuda().to(memory_format=torch.channels_last)
        for x, y in loader:
            x = x.cuda().to(memory_format=torch.channels_last)
            loss = loss_fn(model(x), y)

Reads:
    Kernels (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the operators that launched them,
    GPU busy time in nanoseconds, source lines.

When to ignore this:
    Most of the network is not convolutions, or its operators are slower in this layout, such as
    grouped convolutions with few channels per group and convolutions on GPUs without matrix cores.

Source:
    "Channels Last Memory Format in PyTorch" among PyTorch's tutorials; "Tensor Layouts In Memory:
    NCHW vs NHWC" in NVIDIA's guide to convolutional layers; ``aten/src/ATen/native/ConvUtils.h``
    (``miopen_conv_use_channels_last``); pull request 187599 of pytorch/pytorch (grouped
    convolutions).
"""

from collections.abc import Iterator
from typing import Final

from profkit.index.runtime_calls import HIP, rows_named
from profkit.rule import (
    Category,
    Context,
    Finding,
    ProgramChange,
    RuleInfo,
    at_first,
    busy_ns,
    dataclass,
    device_time,
    find_costliest_lines,
    launched_in_windows,
    measure_saving,
    needs,
    regex,
    time_with_busy_share,
    times_per_step,
)

INFO = RuleInfo(
    id="KER006",
    name="layout-transposes",
    title="Convolutions convert the memory layout of their tensors",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When conversions of the layout are a finding.

    Attributes:
        min_busy_share: Minimum share of the GPU's busy time that they take. One at the input of a
            network takes less.
        warning_share: Share of the steps without them from which it is a warning.
    """

    min_busy_share: float = 0.03
    warning_share: float = 0.01


# Kernels of cuDNN, then of MIOpen.
_TRANSPOSE: Final = regex(
    r"nchwToNhwc|nhwcToNchw|^batched_transpose_\d|transpose_(NCHW2CNHW|CNHW2NCHW)"
)
_CONVOLUTION: Final = regex(r"^aten::\w*conv")


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all conversions by convolutions."""
    events, launches = ctx.events, ctx.launches
    is_transpose = rows_named(events, _TRANSPOSE, Category.KERNEL)[launches.work]
    is_transpose &= rows_named(events, _CONVOLUTION, Category.OP)[launches.op]
    work, op = launched_in_windows(ctx, is_transpose)

    spent = device_time(ctx, work)
    share = spent.total_ns / busy_ns(ctx)
    if not len(work) or share < thresholds.min_busy_share:
        return

    saving = measure_saving(ctx, ProgramChange(scaled=((work, 0.0),)))
    locations = find_costliest_lines(ctx, op, events.dur_ns[work])
    # PyTorch asks MIOpen for NHWC by default only from ROCm 7 on.
    is_amd = len(HIP.rows(events)) > 0
    variable = ", with `PYTORCH_MIOPEN_SUGGEST_NHWC=1` in the environment before ROCm 7"

    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high",
        message=(
            f"Convolutions{at_first(locations)} convert tensors between NCHW and "
            f"NHWC, {times_per_step(ctx, len(work))}: "
            f"{time_with_busy_share(ctx, spent.total_ns)}."
        ),
        fix=(
            "Convert the model and its input once with `.to(memory_format=torch.channels_last)`"
            f"{variable if is_amd else ''}."
        ),
        locations=locations,
        rows=work,
        evidence={
            "busy_share": round(share, 4),
            "transposes_ns": int(events.dur_ns[work].sum()),
        },
        spans=spent.pairs(),
    )
