"""MEM016 pinned-growth: every step keeps more page-locked host memory.

What it finds:
    Tensors in page-locked memory (``pin_memory()``, ``pin_memory=True`` of a loader) that outlive
    their step and pile up.

Why it matters:
    Page-locked memory cannot be swapped out, so it is taken from every program of the machine; and
    PyTorch keeps what is freed for the next request. Too much of it makes the whole machine slow
    before it is full.

How to fix it:
    Keep batches only until they are copied to the device; reuse a few page-locked buffers; keep
    what must stay in pageable memory.

Example:
    ::

        kept.append(batch.pin_memory())

Use instead:
    ::

        buffer.copy_(batch)
        on_device = buffer.to("cuda", non_blocking=True)

Reads:
    What was watched of the running program: page-locked tensors that survive steps (their
    ``bytes`` in bytes), the line that made them, who holds them.

When to ignore this:
    A data set that is kept in page-locked memory on purpose fills it once and then stops.

Source:
    "Page-Locked Host Memory" in the CUDA C++ Programming Guide ("Page-locked host memory is a
    scarce resource"); "Use pinned memory buffers" in PyTorch's notes on CUDA semantics.
"""

from collections.abc import Iterator

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import holder_name, leak_message, quoted
from profkit.model.finding import Finding
from profkit.model.live_memory import Leak

INFO = RuleInfo(
    id="MEM016",
    name="pinned-growth",
    title="Page-locked memory grows with every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)


Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line or holder of page-locked tensors."""
    return leak_findings(INFO, ctx, thresholds, message=leak_message, fix=_fix)


def _fix(growth: Leak) -> str:
    name = holder_name(growth)
    what = f" in {quoted(name)}" if name else ""
    return (
        f"Let go of the tensors{what} once they are on the device, or keep them in pageable "
        "memory; fill a few page-locked buffers again and again with `copy_`."
    )
