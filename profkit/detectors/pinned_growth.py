"""MEM016 pinned-growth: every step retains more pinned host memory.

What it finds:
    Tensors in pinned (page-locked) memory (``pin_memory()``, ``pin_memory=True`` of a loader) that
    outlive their step and accumulate.

Why it matters:
    Pinned memory cannot be swapped out, so it is taken from every program of the machine, and
    PyTorch caches what is freed. Too much of it slows down the whole machine before it is full.

How to fix it:
    Keep batches only until they are copied to the GPU; reuse a few pinned buffers; store what must
    be kept in pageable memory.

Example:
    ::

        kept.append(batch.pin_memory())

Use instead:
    ::

        buffer.copy_(batch)
        on_device = buffer.to("cuda", non_blocking=True)

Reads:
    Monitored memory: pinned tensors that outlive their step (``bytes`` in bytes), their allocation
    sites and holders.

When to ignore this:
    A data set is stored in pinned memory on purpose: the memory grows only until it is loaded.

Source:
    "Page-Locked Host Memory" in the CUDA C++ Programming Guide ("Page-locked host memory is a
    scarce resource"); "Use pinned memory buffers" in PyTorch's notes on CUDA semantics.
"""

from collections.abc import Iterator

from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import in_holder, leak_message
from profkit.rule import Context, Finding, Leak, RuleInfo, needs

INFO = RuleInfo(
    id="MEM016",
    name="pinned-growth",
    title="Pinned host memory grows with every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line or holder of pinned tensors."""
    return leak_findings(INFO, ctx, thresholds, message=leak_message, fix=_suggest_fix)


def _suggest_fix(leak: Leak) -> str:
    return (
        f"Release the tensors{in_holder(leak)} after their copy to the GPU, or store them in "
        "pageable memory; reuse a few pinned buffers with `copy_`."
    )
