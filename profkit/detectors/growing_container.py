"""MEM004 growing-container: every step adds tensors to a container that is never emptied.

What it finds:
    Tensors that outlive their step, not because of an autograd graph: in a list or dict, an
    attribute of an object or class, a closure, a queue that nothing reads, generators that never
    finish, parameter groups that are added in every step.

Why it matters:
    Memory that grows with every step ends in an out-of-memory error hours later. A small view of a
    large tensor (a row, a slice) retains the whole storage.

How to fix it:
    Clear the container after its values are used; keep only the last ones; write them to disk.
    Store a ``.detach().clone()`` of a view of a large tensor.

Example:
    ::

        outputs.append(batch_output.detach())

Use instead:
    ::

        outputs = collections.deque(maxlen=100)
        outputs.append(batch_output.detach())

Reads:
    Monitored memory: tensors that outlive their step (``bytes`` in bytes, each storage once),
    their allocation sites and holders.

When to ignore this:
    The program collects its predictions on purpose and has memory for all of them. A ``deque`` with
    ``maxlen`` that will take less than a gibibyte is not reported, whether it was full or not.

Source:
    "My model reports cuda runtime error: out of memory" in PyTorch's FAQ: "Don't hold onto tensors
    and variables you don't need"; "Tensor Views" in PyTorch's documentation (a view shares its
    base's storage).
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.leaks.causes import main_chain
from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import (
    holder_name,
    leak_message,
    library_fix,
    limit_fix,
    quoted,
    quoted_holder,
    sentences,
    storage_ratio,
)
from profkit.rule import CYCLE, NUMBERED, TEE, Chain, Context, Finding, Leak, RuleInfo, needs

INFO = RuleInfo(
    id="MEM004",
    name="growing-container",
    title="Tensors accumulate with every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

_PARAMETER: Final = ".Parameter"
_BASE: Final = "._base"
"""In the parts of a chain, the tensor that a view is of."""
_IN_C: Final = "a callback in C"
"""In the parts of a chain, what a C library calls back, such as ``atexit``."""
_ARROW: Final = " → "
"""In the parts of a chain, before a new name that is reached through the one before."""
_IN_CLOSURE: Final = " in the closure of "
"""In the parts of a chain, before the function that closes over a variable."""
_EXIT_STACK: Final = "._exit_callbacks"
"""Where a ``contextlib.ExitStack`` keeps what it calls when it is closed."""
_GROUPS: Final = ".param_groups"
"""At the end of a chain's name, the groups of an optimizer."""
_FIXES: Final = {
    "queue": (
        "Read {0} as fast as it is filled (does its reader still run?), or give it a `maxsize`, so "
        "that `put` waits for the reader."
    ),
    "executor": (
        "Wait for earlier results before more is submitted (a `threading.BoundedSemaphore`, or "
        "`concurrent.futures.wait`): {0} is filled faster than it is worked off."
    ),
    "thread": (
        "Delete {0} after use: what a thread or context variable refers to lives as long as the "
        "thread."
    ),
    "generator": (
        "Run the generators or coroutines in {0} to their end, or `close()` them: the tensors are "
        "their local variables."
    ),
    "context": (
        "Save tensors with `ctx.save_for_backward`, which frees them after `backward()`; "
        "attributes of `ctx` live as long as the graph."
    ),
    "optimizer": (
        "Create the optimizer and its groups once before the loop: {0} keeps the state of every "
        "parameter that was ever added."
    ),
    _GROUPS: (
        "Add the groups to {0} once before the loop, or remove those that are no longer trained: "
        "it keeps each parameter that was ever added, with its gradient."
    ),
}
"""Fixes by kind of holder, or by the end of its name; ``{0}`` is its name."""

Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line or holder whose tensors accumulate."""
    return leak_findings(INFO, ctx, thresholds, message=_build_message, fix=_suggest_fix)


def _build_message(leak: Leak) -> str:
    ratio = storage_ratio(leak)
    what = "a number" if _is_number(leak) else "a view"
    view = f"Each is {what} that retains a storage {ratio} times as large."
    return sentences(leak_message(leak), view if ratio else "")


def _is_number(leak: Leak) -> bool:
    """Tell whether each tensor is one number, such as a loss.

    Source: ``mse_loss_out`` in ``aten/src/ATen/native/Loss.cpp``, which reduces the losses of all
    elements into their own buffer.
    """
    return leak.shape is not None and leak.shape.is_scalar


def _suggest_fix(leak: Leak) -> str:
    # `.clone()` alone would retain the graph of a loss, too.
    if storage_ratio(leak) and _is_number(leak):
        return (
            "Store the number itself, by `.item()`, or by `.detach().clone()` where that would "
            "wait for a GPU."
        )
    if storage_ratio(leak):
        return "Store a `.detach().clone()` of the view, so that the rest of the storage is freed."
    # From the most specific fix to the one that always fits.
    specific = library_fix(leak) or limit_fix(leak) or _suggest_holder_fix(leak)
    if specific:
        return specific

    if leak.type.endswith(_PARAMETER):
        return (
            f"Create the modules once before the loop, or drop those that are no longer used: "
            f"{quoted_holder(leak, 'what holds them')} keeps each with its gradients."
        )

    chain = main_chain(leak)
    if chain is not None and not chain.container and not chain.is_entry and holder_name(leak):
        return _suggest_attribute_fix(leak, chain)
    return _suggest_container_fix(leak, chain)


def _suggest_container_fix(leak: Leak, chain: Chain | None) -> str:
    """Suggest what always fits a container: to empty it, or to store less in it."""
    limit = "keep only the last ones (`collections.deque(maxlen=100)`)"
    # No dict has a maximum length.
    if chain is not None and chain.container.lower().endswith("dict"):
        limit = "remove the oldest entry for each new one"
    move = "" if leak.device == "cpu" else ", or move them to the host with `.cpu()`"
    holder = quoted_holder(leak, "the container")
    if chain is not None and _BASE in chain.parts:
        return (
            f"Store a `.detach().clone()` of each view in {holder} that is smaller than its tensor,"
            f" so that the rest is freed; or {limit}{move}."
        )
    return f"Clear {holder} after its tensors are used, or {limit}{move}."


def _suggest_attribute_fix(leak: Leak, chain: Chain) -> str:
    """Suggest what to do about an object that is no container, or about attributes of one."""
    if chain.name.endswith(NUMBERED):
        return (
            f"Store the latest value under one name, or the last ones in a "
            f"`collections.deque(maxlen=100)`: each step adds an attribute {quoted(chain.name)}."
        )
    return f"Create what {quoted(chain.name)} is anew, or release what it refers to after use."


def _suggest_holder_fix(leak: Leak) -> str:
    """Suggest the fix for a particular kind of holder; return "" for any other kind."""
    chain, holder = main_chain(leak), quoted_holder(leak, "the container")

    of_library = "" if chain is None else _suggest_library_type_fix(leak, chain)
    if of_library:
        return of_library
    if leak.is_enlarged:
        return (
            f"Keep only the last part of {quoted_holder(leak, 'the tensor')}, or start it anew for "
            "each sequence or epoch. If all of it is needed, collect the parts in a list and call "
            "`torch.cat` once after the loop: it is copied into a longer one each time."
        )
    if chain is not None and _is_variable_of_threads(chain, leak):
        return (
            f"Let the threads end whose calls have the variable {holder}, or pass its values to a "
            "few threads through a `queue.Queue` with a `maxsize`."
        )
    if chain is None or _is_around_optimizer(chain):
        return ""

    variable = _find_closed_over(chain)
    if variable:
        return (
            f"Let the functions in {holder} close over what they need of {quoted(variable)} (a "
            "number, a text), or call and drop each in its own step: a closure keeps the tensor."
        )
    is_of_groups = chain.name.endswith(_GROUPS)
    return _FIXES.get(_GROUPS if is_of_groups else chain.kind, "").format(holder)


def _suggest_library_type_fix(leak: Leak, chain: Chain) -> str:
    """Suggest the fix for a chain through a type of a library; return "" for any other chain."""
    holder = quoted(chain.name) if holder_name(leak) else "the container"

    if any(CYCLE in part for part in chain.parts):
        return (
            f"Iterate over the source of {holder} anew in each epoch, as with `while True: yield "
            f"from loader`: `{CYCLE}` saves every item of the first pass."
        )
    if any(TEE in part for part in chain.parts):
        # The iterator that is behind holds the items, and any of them may be that one.
        names = sorted({quoted(chain.name) for chain in leak.chains if chain.name})
        iterators = f" ({' and '.join(names)})" if names else ""
        return (
            f"Advance all iterators of `itertools.tee`{iterators} equally, delete the one that is "
            "no longer used, or make its source anew for each: an item is kept until each has "
            "passed it."
        )
    if any(_IN_C in part for part in chain.parts):
        return (
            "Register the callback once, before the loop: its arguments are kept until the program "
            "ends, or until it is unregistered."
        )
    if chain.name.endswith(_EXIT_STACK):
        stack = quoted(chain.name.removesuffix(_EXIT_STACK))
        return f"Open {stack} within the loop: it keeps its callbacks until it is closed."
    if _is_optimizer_history(chain):
        return f"Lower the optimizer's `history_size`: {holder} keeps tensors of that many steps."
    return ""


def _find_closed_over(chain: Chain) -> str:
    """Return the variable that functions in a container close over; "" without such functions."""
    scopes = [place for place, part in enumerate(chain.parts) if part.startswith(_IN_CLOSURE)]
    before = chain.parts[: scopes[-1]] if scopes else ()
    names = [part.removeprefix(_ARROW) for part in before if part.startswith(_ARROW)]
    variable = names[-1] if names else ""

    # A container that functions share is one that can be cleared.
    is_of_container = bool(chain.container) and not chain.name.startswith(variable)
    return variable if chain.kind == "closure" and is_of_container else ""


def _is_variable_of_threads(chain: Chain, leak: Leak) -> bool:
    """Tell whether many tensors are one variable of a function, which runs in many threads."""
    is_variable = chain.kind == "frame" and not chain.is_entry and chain.name == chain.parts[0]
    has_thread = any(holder.kind == "thread" for holder in leak.chains)
    return is_variable and leak.n > 1 and has_thread


def _is_around_optimizer(chain: Chain) -> bool:
    """Tell whether a container grows whose entries have an optimizer beside other attributes."""
    attributes = [part for part in chain.parts if part in {".state", ".param_groups"}]
    if chain.kind != "optimizer" or not attributes or attributes[0] in chain.name:
        return False
    before = chain.parts[chain.parts.index(attributes[0]) - 1]
    return before.startswith(".") and not chain.name.endswith(before)


def _is_optimizer_history(chain: Chain) -> bool:
    """Tell whether a list or deque within one parameter's state grows, as in L-BFGS."""
    return (
        chain.kind == "optimizer"
        and ".state" in chain.name
        and chain.container.rpartition(".")[2] in {"list", "deque"}
    )
