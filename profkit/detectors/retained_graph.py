"""MEM003 retained-graph: tensors that outlive their step retain its autograd graph.

What it finds:
    Tensors that outlive their step together with their autograd graph: a list of losses, a running
    sum, a hidden state that is passed from step to step. The tensors may be single numbers; what
    grows is the graph behind them.

Why it matters:
    The output of a network refers to the graph of all operators that computed it, and each of them
    refers to what it saved for the backward pass: activations, inputs, masks. One retained number
    at the end retains all of it. ``backward()`` frees the saved tensors, but the nodes remain, at
    about 768 bytes each.

How to fix it:
    ``.detach()`` what is stored, and read the numbers later: ``.item()`` in every step waits for a
    GPU. Compute what is never trained under ``torch.no_grad()``. Detach a state that is passed to
    the next step.

Example:
    ::

        losses.append(loss)
        total = total + loss
        output, hidden = network(batch, hidden)

Use instead:
    ::

        losses.append(loss.detach())
        total = total + loss.detach()
        output, hidden = network(batch, hidden.detach())

Reads:
    Monitored memory: tensors that outlive their step and their graphs (``bytes``, ``saved_bytes``
    in bytes), their allocation sites and holders.

When to ignore this:
    The program runs backward through many steps on purpose. If it does so every few dozen steps,
    the graphs are freed in between and are not reported.

Source:
    "My model reports cuda runtime error: out of memory" in PyTorch's FAQ: "Don't accumulate
    history across your training loop"; "How autograd encodes the history" in PyTorch's notes on
    autograd mechanics (saved tensors).
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.leaks.causes import main_chain, saved_share
from profkit.engine.families.leaks.detach_fix import assigned_name, is_accumulation, without_graph
from profkit.engine.families.leaks.findings import (
    LeakThresholds,
    UnintendedLeakThresholds,
    leak_findings,
)
from profkit.engine.families.leaks.messages import (
    holder_name,
    in_holder,
    leak_message,
    quoted,
    sentences,
    storage_ratio,
    values_sentence,
)
from profkit.rule import Chain, Context, Finding, Leak, RuleInfo, needs, regex

INFO = RuleInfo(
    id="MEM003",
    name="retained-graph",
    title="Autograd graph retained across steps",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

_NAME: Final = regex(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
"""A variable or its attribute, such as ``self.state``."""

_INDEX: Final = regex(r"\[\d+\]")
_SAVED_SHARE: Final = 0.2
"""Share of a leak that is saved for a backward pass which never came."""
_UNDER_NO_GRAD: Final = (
    "If nothing trains with it, compute it under `torch.no_grad()`, which builds no graph."
)
_INFERENCE_STEPS: Final = frozenset({"module", "loader"})
"""What ends a step in a program without an optimizer."""

Thresholds = UnintendedLeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line or holder whose tensors retain graphs."""
    is_inference = ctx.live is not None and ctx.live.step_definition in _INFERENCE_STEPS
    fix = _suggest_inference_fix if is_inference else _suggest_fix
    return leak_findings(INFO, ctx, thresholds, message=leak_message, fix=fix)


def _suggest_inference_fix(leak: Leak) -> str:
    """Suggest what to do in a program without an optimizer."""
    if not _is_unused(leak):
        return _suggest_fix(leak)
    return sentences(
        "Run the loop under `torch.no_grad()`, or `torch.inference_mode()`: it trains nothing.",
        values_sentence(leak, LeakThresholds.min_step_bytes),
    )


def _is_unused(leak: Leak) -> bool:
    """Return whether no backward pass has freed what the graph saves."""
    return saved_share(leak) >= _SAVED_SHARE


def _is_tuple(chain: Chain) -> bool:
    """Tell whether a variable is a tuple of tensors, such as the two states of an LSTM."""
    # Of what can grow, the chain has the type.
    entries = chain.parts[1:] if not chain.scope else chain.parts[1:-1]
    is_entry = bool(entries) and _INDEX.fullmatch(entries[-1]) is not None
    return is_entry and not chain.container and _NAME.fullmatch(chain.name) is not None


def _suggest_fix(leak: Leak) -> str:
    # The program's own line, changed, is the clearest fix. A detached number retains its storage,
    # which may be as large as a batch.
    is_scalar = leak.shape is not None and leak.shape.is_scalar
    # On a GPU each `.item()` waits, and another rule would object to the fix.
    is_cheap = leak.device == "cpu" or bool(storage_ratio(leak))
    is_number = is_cheap and (is_scalar or is_accumulation(leak.code))
    line = without_graph(leak.code, is_number=is_number)
    unless_trained = _UNDER_NO_GRAD if _is_unused(leak) else ""
    values = "" if is_number else values_sentence(leak, LeakThresholds.min_step_bytes)
    if line is not None:
        # Code that is cut cannot be copied.
        code = line.replace("`", "'")
        return sentences(f"Write `{code}`, which stores only the value.", unless_trained, values)

    name, chain = holder_name(leak), main_chain(leak)
    is_variable = chain is not None and _NAME.fullmatch(chain.name) and not chain.is_entry
    # The state of a recurrent network is needed as a tensor, so its value cannot be read instead.
    if leak.kind == "graph" and is_variable and not is_scalar:
        return f"Detach the state between steps: {quoted(f'{name} = {name}.detach()')}."
    if leak.kind == "graph" and chain is not None and _is_tuple(chain):
        detached = f"{name} = tuple(state.detach() for state in {name})"
        return f"Detach the states between steps: {quoted(detached)}."

    variable = assigned_name(leak.code)
    method = "item" if is_number and is_scalar else "detach"
    if variable is not None:
        place = in_holder(leak) if name != variable else ""
        fix = f"Store {quoted(f'{variable}.{method}()')}{place} instead of {quoted(variable)}."
    else:
        fix = f"Store `.{method}()` of each tensor{in_holder(leak)}."
    return sentences(fix, unless_trained, values)
