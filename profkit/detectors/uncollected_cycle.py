"""MEM006 uncollected-cycle: unreachable tensors in reference cycles are not freed.

What it finds:
    Tensors that are unreachable but not freed, because objects that refer to each other in a cycle
    retain them: an object and its callback, a recursive closure, an exception and the frame that
    caught it, a parameter and its gradient's graph.

Why it matters:
    Only Python's garbage collector frees a cycle, and it is triggered by the number of objects and
    not by their bytes: a few objects may retain gigabytes on a GPU. After ``gc.disable()`` or
    ``gc.freeze()`` they are never freed. PyTorch's allocator knows nothing of cycles and runs out
    of memory. A cycle through autograd is worse: ``backward(create_graph=True)`` leaves gradients
    whose graphs refer back to their parameters through C++ objects that the collector does not
    see, so that no collection ever frees them.

How to fix it:
    Break the cycle: refer back with ``weakref.ref``, delete the reference after use, and store no
    exception in a local variable. Where that is impossible, call ``gc.collect()`` every N steps.
    Compute gradients that need a graph with ``torch.autograd.grad``, which leaves none in
    ``.grad``.

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
    Monitored memory: tensors in unreachable cycles (``bytes`` in bytes), the objects of the cycle,
    the tensors' allocation sites; of a cycle through autograd the line that created the gradient.

When to ignore this:
    The collector was about to run: a program that was monitored between two rare collections may
    be reported, although its garbage is freed later.

Source:
    ``gc`` in Python's documentation (thresholds count objects); pytorch/pytorch#50185 (the
    allocator does not know of garbage); pytorch/pytorch#20199. ``torch.autograd.backward`` in
    PyTorch's documentation, and its warning: "Using backward() with create_graph=True will create a
    reference cycle between the parameter and its gradient which can cause a memory leak".
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import (
    growth_text,
    leak_clause,
    leak_location,
    objects_text,
    quoted,
)
from profkit.rule import Context, Finding, Leak, RuleInfo, at, needs

INFO = RuleInfo(
    id="MEM006",
    name="uncollected-cycle",
    title="Tensors retained by reference cycles",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

_GENERIC_TYPES: Final = frozenset(
    {"dict", "list", "tuple", "set", "cell", "function", "method", "frame"}
)
"""Types that do not identify the owner of a cycle."""
_FUNCTION: Final = "function "
_CELL: Final = "cell "
_GRAPH: Final = ".grad_fn"
_GRADIENT: Final = ".grad"
_INPUT_GRADIENT: Final = "Tensor.grad"
"""The gradient of a tensor that is no parameter, and so in no optimizer."""

Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each kind of cycle."""
    return leak_findings(INFO, ctx, thresholds, message=_build_message, fix=_suggest_fix)


def _build_message(leak: Leak) -> str:
    cycle = f": {quoted(' -> '.join(leak.cycle))}" if leak.cycle else ""
    if _is_of_autograd(leak):
        return (
            f"{growth_text(leak)}: {objects_text(leak)}. An autograd reference cycle created"
            f"{at(leak_location(leak))} retains them, which no garbage collection can free{cycle}."
        )
    return (
        f"{leak_clause(leak)}. They are unreachable, but in a reference cycle that only the "
        f"garbage collector can free{cycle}."
    )


def _suggest_fix(leak: Leak) -> str:
    if _is_of_autograd(leak):
        return _suggest_autograd_fix(leak)
    functions = _name_closures(leak)
    if functions:
        return (
            f"Break the cycle of {functions}: make each a module-level function or a method and "
            "pass its arguments, or set its name to None after use; `gc.collect()` frees the cycle."
        )

    # Types such as dict are part of any cycle, and tell nothing about it.
    first = next((name for name in leak.cycle if not _is_generic(name)), "")
    owner = f" of {quoted(first)}" if first else ""
    return (
        f"Break the cycle{owner}: refer back with `weakref.ref`, or set the reference to None "
        "after use; `gc.collect()` frees the cycle."
    )


def _suggest_autograd_fix(leak: Leak) -> str:
    # After `backward(create_graph=True)` a parameter and its gradient's graph refer to each other.
    if _INPUT_GRADIENT in leak.cycle:
        return (
            "Set `.grad` of the inputs that require gradients to None after use, as `zero_grad()` "
            "clears those of parameters only; or compute the gradients with `torch.autograd.grad("
            "loss, tensors, create_graph=True)`, which leaves none in `.grad`."
        )

    if any(name.endswith(_GRADIENT) for name in leak.cycle):
        return (
            "Compute the gradients with `torch.autograd.grad(loss, parameters, "
            "create_graph=True)`, which leaves none in `.grad`, or call "
            "`zero_grad(set_to_none=True)` after use."
        )

    # Any other cycle goes through the `ctx` of a function.
    return (
        "Save inputs and outputs with `ctx.save_for_backward`, and store nothing on `ctx` that is "
        "computed from the output."
    )


def _is_of_autograd(leak: Leak) -> bool:
    """Tell whether a cycle goes through an autograd graph, which the collector does not see."""
    return any(name.endswith(_GRAPH) for name in leak.cycle)


def _name_closures(leak: Leak) -> str:
    """Name the functions of a cycle that consists of closures; return "" for any other cycle."""
    # The first element is repeated at the end of a cycle.
    functions = [name for name in leak.cycle[:-1] if name.startswith(_FUNCTION)]
    n_cells = sum(name.startswith(_CELL) for name in leak.cycle)
    if not functions or len(functions) + n_cells != len(leak.cycle[:-1]):
        return ""
    names = [quoted(name.removeprefix(_FUNCTION)) for name in functions]
    if len(names) == 1:
        return f"{names[0]}, which refers to itself through its closure"
    return (
        f"{', '.join(names[:-1])} and {names[-1]}, which refer to each other through their closures"
    )


def _is_generic(name: str) -> bool:
    return name in _GENERIC_TYPES or name.startswith((_FUNCTION, _CELL))
