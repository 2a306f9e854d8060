"""MEM005 forgotten-hook: hooks retain tensors of every step, or are added in every step.

What it finds:
    Tensors that outlive their step because a hook of a module, a tensor or an optimizer retains
    them: a hook that is registered in every step and never removed, with its closure; or a hook
    that appends what it receives to a list.

Why it matters:
    A hook lives as long as the object that it is registered on. Registered in the loop, each step
    adds one: all of them run, so steps become slower, and each retains what its closure captured.
    A hook that stores outputs stores their autograd graphs with them.

How to fix it:
    Register a hook once before the loop, or call ``remove()`` on its handle in the same step. Store
    ``.detach()``ed values in a hook, and clear its list in every step.

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
    Monitored memory: tensors that outlive their step (``bytes`` in bytes), their allocation sites
    and holders.

When to ignore this:
    The hook collects statistics on purpose, over a run that ends.

Source:
    ``torch.nn.Module.register_forward_hook`` in PyTorch's documentation (the handle's
    ``remove()``); pytorch/pytorch#28647 (memory retained by lambdas in modules).
"""

from collections.abc import Iterator

from profkit.engine.families.leaks.causes import main_chain
from profkit.engine.families.leaks.findings import UnintendedLeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import holder_name, leak_message, quoted_holder
from profkit.rule import Context, Finding, Leak, RuleInfo, needs

INFO = RuleInfo(
    id="MEM005",
    name="forgotten-hook",
    title="Hook retains tensors of every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

Thresholds = UnintendedLeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each hook or line of hooks."""
    return leak_findings(INFO, ctx, thresholds, message=leak_message, fix=_suggest_fix)


def _suggest_fix(leak: Leak) -> str:
    chain = main_chain(leak)
    # A module holds its hooks in dicts such as `_forward_hooks`: there it is the hooks themselves
    # that accumulate, elsewhere what a hook stores.
    if chain is not None and "_hooks" in holder_name(leak).rsplit(".", 1)[-1]:
        return (
            "Register the hook once before the loop, or call `handle.remove()` at the end of the "
            "step."
        )
    holder = quoted_holder(leak, "the hook's container")
    return (
        f"Store `.detach()`ed values in the hook, clear {holder} in every step, and call "
        "`handle.remove()` when the hook is no longer needed."
    )
