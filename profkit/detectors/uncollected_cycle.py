"""MEM006 uncollected-cycle: tensors in reference cycles wait for the garbage collector.

What it finds:
    Tensors that nothing can reach any more and that are not freed, because they hang on objects
    that refer to each other in a circle: an object and its callback, a recursive closure, an
    exception and the frame that caught it.

Why it matters:
    Only Python's garbage collector frees a cycle, and it runs by the number of objects, not by
    their bytes: a few objects may keep gigabytes on a device. With ``gc.disable()`` or
    ``gc.freeze()`` they stay for ever. PyTorch's allocator knows nothing of cycles and runs out of
    memory that nobody uses.

How to fix it:
    Break the circle: refer back by ``weakref.ref``, delete the reference when done, leave no
    exception in a local variable. Where that cannot be, call ``gc.collect()`` every so many steps.

Example:
    ::

        class Trainer:
            def __init__(self, network):
                self.callback = Callback(trainer=self)

Use instead:
    ::

        class Trainer:
            def __init__(self, network):
                self.callback = Callback(trainer=weakref.proxy(self))

Reads:
    What was watched of the running program: tensors in unreachable cycles (``bytes`` in bytes), the
    types along the cycle, the line that made the tensors.

When it is wrong:
    The collector may be about to run: a program whose garbage goes up and down is not told of, one
    that was watched between two rare collections may be.

Source:
    ``gc`` in Python's documentation (thresholds count objects); pytorch/pytorch#50185 (the
    allocator does not know of garbage); pytorch/pytorch#20199.
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.context import Context
from profkit.engine.detector import Needs, RuleInfo
from profkit.engine.growth_finding import GrowthThresholds, growth_findings
from profkit.engine.growth_words import code, what_grows
from profkit.model.finding import Finding
from profkit.model.live import Growth

INFO = RuleInfo(
    id="MEM006",
    name="uncollected-cycle",
    title="Tensors wait in reference cycles",
    severity="warning",
    needs=frozenset({Needs.LIVE}),
    since="0.1.0",
)

_PLAIN: Final = frozenset({"dict", "list", "tuple", "set", "cell", "function", "method", "frame"})
"""Types that say nothing of whose cycle it is."""


Thresholds = GrowthThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each kind of cycle."""
    return growth_findings(INFO, ctx, thresholds, message=_message, fix=_fix)


def _message(growth: Growth) -> str:
    cycle = f": {code(' -> '.join(growth.cycle))}" if growth.cycle else ""
    return (
        f"{what_grows(growth)}. Nothing can reach them; they hang on a reference cycle, which only "
        f"the garbage collector can free{cycle}."
    )


def _fix(growth: Growth) -> str:
    first = next((kind for kind in growth.cycle if kind not in _PLAIN), "")
    whose = f" of {code(first)}" if first else ""
    return (
        f"Break the cycle{whose}: refer back by `weakref.ref`, or set the reference to None when "
        "it is done. Until then `gc.collect()` every so many steps frees it, if the collector was "
        "turned off or is too late."
    )
