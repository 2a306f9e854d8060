"""MEM006 uncollected-cycle: tensors in reference cycles wait for the garbage collector.

What it finds:
    Tensors that nothing can reach any more and that are not freed, because they hang on objects
    that refer to each other in a circle: an object and its callback, a recursive closure, an
    exception and the frame that caught it, a parameter and its gradient's graph.

Why it matters:
    Only Python's garbage collector frees a cycle, and it runs by the number of objects, not by
    their bytes: a few objects may keep gigabytes on a device. With ``gc.disable()`` or
    ``gc.freeze()`` they stay for ever. PyTorch's allocator knows nothing of cycles and runs out of
    memory that nobody uses. A circle of autograd's own is worse: `backward(create_graph=True)`
    leaves gradients whose graphs lead back to their parameters, by links that the collector does
    not see, so that no collection ever frees them.

How to fix it:
    Break the circle: refer back by ``weakref.ref``, delete the reference when done, leave no
    exception in a local variable. Where that cannot be, call ``gc.collect()`` every so many steps.
    Take gradients that need a graph by ``torch.autograd.grad``, which leaves none in ``.grad``.

Example:
    ::

        class Trainer:
            def __init__(self, network):
                self.callback = Callback(trainer=self)

        loss.backward(create_graph=True)
        penalty = sum(p.grad.square().sum() for p in copied.parameters())

Use instead:
    ::

        class Trainer:
            def __init__(self, network):
                self.callback = Callback(trainer=weakref.proxy(self))

        slopes = torch.autograd.grad(loss, copied.parameters(), create_graph=True)
        penalty = sum(slope.square().sum() for slope in slopes)

Reads:
    What was watched of the running program: tensors in unreachable cycles (``bytes`` in bytes),
    what the cycle goes through, the line that made the tensors; of a circle of autograd's own the
    line that made the gradient.

When to ignore this:
    The collector may be about to run: a program whose garbage goes up and down is not told of, one
    that was watched between two rare collections may be.

Source:
    ``gc`` in Python's documentation (thresholds count objects); pytorch/pytorch#50185 (the
    allocator does not know of garbage); pytorch/pytorch#20199. ``torch.autograd.backward`` in
    PyTorch's documentation, and its warning: "Using backward() with create_graph=True will create a
    reference cycle between the parameter and its gradient which can cause a memory leak".
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import (
    growth_text,
    leak_clause,
    leak_location,
    objects_text,
    quoted,
)
from profkit.engine.wording import at
from profkit.model.finding import Finding
from profkit.model.live_memory import Leak

INFO = RuleInfo(
    id="MEM006",
    name="uncollected-cycle",
    title="Tensors wait in reference cycles",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

_PLAIN: Final = frozenset({"dict", "list", "tuple", "set", "cell", "function", "method", "frame"})
"""Types that say nothing of whose cycle it is."""
_FUNCTION: Final = "function "
_CELL: Final = "cell "
_GRAPH: Final = ".grad_fn"
_GRADIENT: Final = ".grad"


Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each kind of cycle."""
    return leak_findings(INFO, ctx, thresholds, message=_message, fix=_fix)


def _message(growth: Leak) -> str:
    cycle = f": {quoted(' -> '.join(growth.cycle))}" if growth.cycle else ""
    if _is_of_autograd(growth):
        return (
            f"{growth_text(growth)}: {objects_text(growth)}. They hang on a ring{at(leak_location(growth))} that "
            "autograd has closed, which nothing can reach and no garbage collector sees"
            f"{cycle}."
        )
    return (
        f"{leak_clause(growth)}. Nothing can reach them; they hang on a reference cycle, which only "
        f"the garbage collector can free{cycle}."
    )


def _fix(growth: Leak) -> str:
    if _is_of_autograd(growth):
        return _fix_of_autograd(growth)
    functions = _holding_each_other(growth)
    if functions:
        return (
            f"Break the cycle of {functions}: move what calls itself out to the module, or into a "
            "method, and pass it what it needs; or set its name to None when it is done. Until "
            "then `gc.collect()` every so many steps frees it."
        )
    first = next((name for name in growth.cycle if not _is_plain(name)), "")
    whose = f" of {quoted(first)}" if first else ""
    return (
        f"Break the cycle{whose}: refer back by `weakref.ref`, or set the reference to None when "
        "it is done. Until then `gc.collect()` every so many steps frees it, if the collector was "
        "turned off or is too late."
    )


def _fix_of_autograd(growth: Leak) -> str:
    if any(name.endswith(_GRADIENT) for name in growth.cycle):
        return (
            "Take the gradients by `torch.autograd.grad(loss, parameters, create_graph=True)`, "
            "which leaves none in `.grad`; or set `.grad` of each parameter to None when it is "
            "done (`zero_grad(set_to_none=True)`)."
        )
    return (
        "Keep nothing on the `ctx` of an operator that is computed from its output: save inputs "
        "and outputs by `ctx.save_for_backward`, and delete anything else when it is done."
    )


def _is_of_autograd(growth: Leak) -> bool:
    """Whether a cycle goes through a graph: what waits for the collector does not."""
    return any(name.endswith(_GRAPH) for name in growth.cycle)


def _holding_each_other(growth: Leak) -> str:
    """The functions of a cycle that is made of closures alone, in code; else empty."""
    functions = [name for name in growth.cycle[:-1] if name.startswith(_FUNCTION)]
    n_cells = sum(name.startswith(_CELL) for name in growth.cycle)
    if not functions or len(functions) + n_cells != len(growth.cycle[:-1]):
        return ""
    names = [quoted(name.removeprefix(_FUNCTION)) for name in functions]
    if len(names) == 1:
        return f"{names[0]}, which its own closure holds"
    return f"{', '.join(names[:-1])} and {names[-1]}, which hold each other by their closures"


def _is_plain(name: str) -> bool:
    return name in _PLAIN or name.startswith((_FUNCTION, _CELL))
