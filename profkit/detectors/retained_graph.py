"""MEM003 retained-graph: every step keeps the autograd graph of a tensor.

What it finds:
    Tensors that outlive their step together with the graph that they came from: a list of losses,
    a running sum, a hidden state that goes from step to step. The tensors themselves may be single
    numbers; what grows is behind them.

Why it matters:
    A tensor that came out of a network holds the graph of all operators that led to it, and each
    of them holds what it saved for the backward pass: activations, inputs, masks. As long as one
    number at the end is kept, all of it is. After ``backward()`` the saved tensors go, but the
    nodes stay, three quarters of a KiB each.

How to fix it:
    Keep numbers: ``.item()``; where tensors are wanted, ``.detach()`` them; compute what is never
    trained under ``torch.no_grad()``. Detach a state that goes into the next step.

Example:
    ::

        losses.append(loss)
        total = total + loss
        output, hidden = network(batch, hidden)

Use instead:
    ::

        losses.append(loss.item())
        total = total + loss.item()
        output, hidden = network(batch, hidden.detach())

Reads:
    What was watched of the running program: tensors that survive steps and the graph behind them
    (``bytes``, ``saved_bytes`` in bytes), the line that made them, who holds them.

When to ignore this:
    A program that runs backward through many steps on purpose keeps their graphs until it does;
    that is no leak if it does so every few dozen steps, and then it is not found.

Source:
    "My model reports cuda runtime error: out of memory" in PyTorch's FAQ: "Don't accumulate
    history across your training loop"; "How autograd encodes the history" in PyTorch's notes on
    autograd mechanics (saved tensors).
"""

import re
from collections.abc import Iterator
from typing import Final

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.causes import is_container_entry, main_chain
from profkit.engine.families.leaks.detach_fix import assigned_name, is_accumulation, without_graph
from profkit.engine.families.leaks.findings import UnintendedLeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import holder_name, is_scalar, leak_message, quoted
from profkit.model.finding import Finding
from profkit.model.live_memory import Leak

INFO = RuleInfo(
    id="MEM003",
    name="retained-graph",
    title="Kept tensors hold their autograd graph",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

_NAME: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
"""A variable, or an attribute of one."""


Thresholds = UnintendedLeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line or holder whose tensors keep graphs."""
    return leak_findings(INFO, ctx, thresholds, message=leak_message, fix=_fix)


def _fix(growth: Leak) -> str:
    name, made = holder_name(growth), assigned_name(growth.code)
    method = "item" if is_scalar(growth) else "detach"
    line = without_graph(growth.code, is_number=is_scalar(growth) or is_accumulation(growth.code))
    if line is not None:
        return f"Write {quoted(line)}: then nothing is kept but the value."
    chain = main_chain(growth)
    is_state = growth.kind == "graph" and chain is not None and not is_container_entry(chain)
    if is_state and _NAME.fullmatch(name) and not is_scalar(growth):
        return f"Cut the graph between the steps: {quoted(f'{name} = {name}.detach()')}."
    if made is not None:
        into = f" in {quoted(name)}" if name and name != made else ""
        return f"Keep {quoted(f'{made}.{method}()')}{into} instead of {quoted(made)}."
    what = f"What {quoted(name)} keeps" if name else "What is kept"
    return (
        f"{what} needs no graph: keep `.item()` of a number and `.detach()` of a tensor, or "
        "compute it under `torch.no_grad()`."
    )
