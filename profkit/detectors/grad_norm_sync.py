"""SYN006 grad-norm-sync: clipping gradients makes the host wait to test their norm.

What it finds:
    ``clip_grad_norm_`` with ``error_if_nonfinite=True``: a condition on whether the norm that was
    just computed is infinite or not a number. It is counted where the recording shows that the host
    waited. A norm that the program reads itself, such as for a log, is one of item-sync.

Why it matters:
    The norm is known once the backward pass has finished on the GPU. The host waits for it, and the
    GPU is then idle until the host has launched the clipping and the optimizer's step. One wait per
    step is a small part of long steps. The cost is what the steps take less in a replay of the
    recording without the condition.

How to fix it:
    Leave ``error_if_nonfinite`` at ``False``, the default, and test the norm every 100 steps.

Example:
    ::

        norm = clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)

Use instead:
    ::

        norm = clip_grad_norm_(model.parameters(), 1.0)
        if step % 100 == 0 and not norm.isfinite():
            raise RuntimeError("gradients are not finite")

Reads:
    Operators (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), synchronizing runtime calls and
    copies within them, GPU busy time in nanoseconds, source lines.

When to ignore this:
    The wait is a small part of the step, and an error in the step where it occurs is worth it.

Source:
    ``torch.nn.utils.clip_grad_norm_`` in PyTorch's documentation; ``torch/nn/utils/clip_grad.py``
    (``_clip_grads_with_norm_`` and the test before it).
"""

from collections.abc import Iterator

from profkit.engine.families.reads import ReadKind, read_findings
from profkit.rule import Context, Finding, RuleInfo, WaitThresholds, needs

INFO = RuleInfo(
    id="SYN006",
    name="grad-norm-sync",
    title="Host blocked by a test of the gradients' norm",
    severity="note",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)

Thresholds = WaitThresholds


def detect(ctx: Context, thresholds: WaitThresholds) -> Iterator[Finding]:
    """Yield a finding for each line that blocks the host to test the norm of gradients."""
    # Computing the norm does not wait: only the condition on it is read by the host.
    read = "The test for a finite norm of the gradients"
    fix = (
        "Call `clip_grad_norm_` without `error_if_nonfinite=True`, and test the norm that it "
        "returns every 100 steps."
    )
    yield from read_findings(ctx, INFO, thresholds, ReadKind.NORM, lambda _: (read, fix))
