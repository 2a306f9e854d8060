"""MEM004 growing-container: every step adds tensors to something that is never emptied.

What it finds:
    Tensors that outlive their step without a graph behind them that would explain it: in a list or
    dict, an attribute of an object or class, a closure, a queue that nobody drains, generators that
    were started and never finished, groups of parameters that are added in every step.

Why it matters:
    Memory that grows with every step ends in an out-of-memory error, hours later. A tensor that
    is a small part of a large one (a row, a slice) keeps all of its storage.

How to fix it:
    Empty the container once its values are used; keep only the last ones; write them to disk. Of a
    part of a large tensor keep a ``.clone()``.

Example:
    ::

        outputs.append(batch_output.detach())

Use instead:
    ::

        outputs = collections.deque(maxlen=100)
        outputs.append(batch_output.detach())

Reads:
    What was watched of the running program: tensors that survive steps (``bytes`` in bytes, each
    storage once), the line that made them, who holds them.

When to ignore this:
    A program that collects its predictions on purpose, and has memory for all of them, is meant to
    grow. Something that fills more slowly than the program was watched looks as if it had no end.

Source:
    "My model reports cuda runtime error: out of memory" in PyTorch's FAQ: "Don't hold onto tensors
    and variables you don't need"; "Tensor Views" in PyTorch's documentation (a view shares its
    base's storage).
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.causes import main_chain
from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import (
    holder_name,
    leak_message,
    quoted,
    sentences,
    storage_ratio,
)
from profkit.model.finding import Finding
from profkit.model.live_memory import Leak

INFO = RuleInfo(
    id="MEM004",
    name="growing-container",
    title="Tensors pile up with every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

_FIXES: Final = {
    "thread": (
        "Nothing takes from {0} as fast as it is filled: give the queue a `maxsize`, so that "
        "`put` waits, or empty it."
    ),
    "generator": (
        "They are variables of generators or coroutines that have begun and never end: run what "
        "{0} holds to its end, or `close()` it."
    ),
    "context": (
        "Save tensors by `ctx.save_for_backward`, which lets go of them after `backward()`; what "
        "is set on `ctx` stays as long as the graph."
    ),
    "optimizer": (
        "Make the optimizer and its groups once, before the loop: {0} keeps the state of every "
        "parameter that it was ever given."
    ),
}
"""What to do about a holder of some kind; ``{0}`` is its name."""


Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line or holder whose tensors pile up."""
    return leak_findings(INFO, ctx, thresholds, message=_message, fix=_fix)


def _message(growth: Leak) -> str:
    times = storage_ratio(growth)
    part = f"Each is a part of a storage {times} times as large, and keeps all of it."
    return sentences(leak_message(growth), part if times else "")


def _fix(growth: Leak) -> str:
    if storage_ratio(growth):
        return "Keep a `.clone()` of the part, so that the rest of the storage can go."
    chain, name = main_chain(growth), holder_name(growth)
    what = quoted(name) if name else "what holds them"
    if chain is not None and chain.kind in _FIXES:
        return _FIXES[chain.kind].format(what)
    last = "keep the last ones alone (`collections.deque(maxlen=100)`)"
    if chain is not None and chain.container.lower().endswith("dict"):
        last = "drop its oldest entry when a new one comes"
    away = "" if growth.device == "cpu" else ", or move them to the host with `.cpu()`"
    return f"Empty {what} once its tensors are used, or {last}{away}."
