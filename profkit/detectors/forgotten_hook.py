"""MEM005 forgotten-hook: hooks keep tensors in every step, or are added in every step.

What it finds:
    Tensors that outlive their step because a hook of a module, a tensor or an optimizer holds
    them: a hook that is registered again in every step and never removed, with its closure; or one
    hook that puts what it sees into a list.

Why it matters:
    A hook lives as long as what it is registered on. Registered in the loop, each step adds one,
    all of them run, so steps get slower too, and each keeps what its closure captured. A hook that
    stores outputs stores their autograd graphs with them.

How to fix it:
    Register a hook once, before the loop; or keep the handle and ``remove()`` it in the same step.
    Let a hook store ``.detach()``ed values, and empty its list in every step.

Example:
    ::

        for batch in loader:
            network.fc.register_forward_hook(lambda m, i, o: seen.append(o))

Use instead:
    ::

        handle = network.fc.register_forward_hook(lambda m, i, o: seen.append(o.detach()))
        for batch in loader:
            ...
            seen.clear()
        handle.remove()

Reads:
    What was watched of the running program: tensors that survive steps (``bytes`` in bytes), the
    line that made them, who holds them.

When to ignore this:
    A hook that gathers statistics on purpose, over a run that ends, is meant to keep them.

Source:
    ``torch.nn.Module.register_forward_hook`` in PyTorch's documentation (the handle's
    ``remove()``); pytorch/pytorch#28647 (memory kept by lambdas in modules).
"""

from collections.abc import Iterator

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.causes import main_chain
from profkit.engine.families.leaks.findings import UnintendedLeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import holder_name, leak_message, quoted
from profkit.model.finding import Finding
from profkit.model.live_memory import Leak

INFO = RuleInfo(
    id="MEM005",
    name="forgotten-hook",
    title="A hook keeps tensors of every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)


Thresholds = UnintendedLeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each hook or line of hooks."""
    return leak_findings(INFO, ctx, thresholds, message=leak_message, fix=_fix)


def _fix(growth: Leak) -> str:
    chain = main_chain(growth)
    if chain is not None and "_hooks" in holder_name(growth).rsplit(".", 1)[-1]:
        return (
            "Register the hook once, before the loop; or keep its handle, and call "
            "`handle.remove()` at the end of the step."
        )
    what = quoted(holder_name(growth)) if chain is not None else "what the hook fills"
    return (
        f"Let the hook keep `.detach()`ed values, empty {what} in every step, and remove the hook "
        "with `handle.remove()` when it is done."
    )
