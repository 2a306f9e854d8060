"""MEM008 unbounded-cache: every step adds an entry to a cache that has no limit.

What it finds:
    Results in a ``functools.lru_cache(maxsize=None)`` or ``functools.cache``, or in a dict that
    the program calls a cache or memo, when every step adds an entry.

Why it matters:
    A cache is useful only if its keys repeat. If every step has a new key, the cache only grows.
    Tensors as arguments cause that: they are compared by identity, so each one is a new key, and
    the cache retains arguments and results.

How to fix it:
    Give the cache a limit; use keys that repeat, such as a length, instead of a tensor or the
    number of the step; and ``.detach()`` its values.

Example:
    ::

        @functools.lru_cache(maxsize=None)
        def mask(lengths):
            ...

Use instead:
    ::

        @functools.lru_cache(maxsize=32)
        def mask(longest):
            ...

Reads:
    Monitored memory: objects that outlive their step (``bytes`` in bytes), their allocation sites
    and holders.

When to ignore this:
    A cache of a data set's samples is full after the first epoch; monitored for less than an
    epoch, it appears to have no limit.

Source:
    ``functools.lru_cache`` in Python's documentation: "If maxsize is set to None, the LRU feature
    is disabled and the cache can grow without bound"; ``torch.Tensor.__hash__`` (identity).
"""

from collections.abc import Iterator

from profkit.engine.families.leaks.causes import main_chain
from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import (
    leak_message,
    library_fix,
    limit_fix,
    quoted_holder,
)
from profkit.rule import Context, Finding, Leak, RuleInfo, needs

INFO = RuleInfo(
    id="MEM008",
    name="unbounded-cache",
    title="Cache without a limit grows with every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each cache that grows."""
    return leak_findings(INFO, ctx, thresholds, message=leak_message, fix=_suggest_fix)


def _suggest_fix(leak: Leak) -> str:
    if library_fix(leak) or limit_fix(leak):
        return library_fix(leak) or limit_fix(leak)

    chain, holder = main_chain(leak), quoted_holder(leak, "the cache")
    # A cached result with its graph holds the activations behind it as well.
    detach = " Store its tensors `.detach()`ed." if leak.graph and leak.graph.n_nodes else ""
    if chain is not None and chain.kind == "cache":
        return (
            f"Limit {holder} (`functools.lru_cache(maxsize=32)`), or pass arguments that repeat: a "
            f"tensor or the number of a step is a new key every time.{detach}"
        )
    return (
        f"Limit {holder}: remove the oldest entry for each new one, or clear it every epoch, and "
        f"use keys that repeat.{detach}"
    )
