"""SYN005 scaler-sync: a gradient scaler makes the host wait before each step of the optimizer.

What it finds:
    Reads by ``GradScaler.step``: whether any gradient is infinite or not a number. They are counted
    where the recording shows that the host waited.

Why it matters:
    The scaler leaves out the optimizer's step if a gradient is not finite. To decide that, the host
    waits until the backward pass has finished on the GPU, which is then idle until the host has
    launched the optimizer's kernels. One wait per step is a small part of long steps. The cost is
    what the steps take less in a replay of the recording without the reads.

How to fix it:
    Use an optimizer with ``fused=True``: the scaler passes it the result of its check, and the
    optimizer decides on the GPU. Or use bfloat16 on GPUs that compute in it (Ampere and newer):
    its range is that of float32, so it needs no scaler.

Example:
    ::

        optimizer = torch.optim.AdamW(model.parameters())
        scaler.scale(loss).backward()
        scaler.step(optimizer)

Use instead:
    ::

        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)

Reads:
    Operators (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), synchronizing runtime calls and
    copies within them, GPU busy time in nanoseconds, source lines.

When to ignore this:
    The wait is a small part of the step, and the optimizer has no fused implementation.

Source:
    ``torch/amp/grad_scaler.py`` (``_maybe_opt_step``, and ``step`` for optimizers with
    ``_step_supports_amp_scaling``); "Automatic Mixed Precision" among PyTorch's recipes.
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.reads import ReadKind, read_findings
from profkit.rule import Context, Finding, RuleInfo, WaitThresholds, lacks_bfloat16, needs

INFO = RuleInfo(
    id="SYN005",
    name="scaler-sync",
    title="Host blocked by a gradient scaler",
    severity="note",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)

Thresholds = WaitThresholds

_FUSED: Final = (
    "Use an optimizer with `fused=True`, which decides on the GPU whether to leave out its step"
)


def detect(ctx: Context, thresholds: WaitThresholds) -> Iterator[Finding]:
    """Yield a finding for each line whose gradient scaler blocks the host."""
    # NVIDIA GPUs before Ampere have no arithmetic in bfloat16.
    without = "" if lacks_bfloat16(ctx) else ", or bfloat16, which needs no scaler"
    yield from read_findings(
        ctx,
        INFO,
        thresholds,
        ReadKind.SCALER,
        lambda _: ("`GradScaler.step()`", f"{_FUSED}{without}."),
    )
