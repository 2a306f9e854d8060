"""MEM008 unbounded-cache: a cache gets a new entry in every step and never lets one go.

What it finds:
    Results that a ``functools.lru_cache(maxsize=None)`` or ``functools.cache`` keeps, or a dict
    that the program calls a cache or memo, when every step adds to it.

Why it matters:
    A cache gives something back only if the same question comes again. One that is asked something
    new in every step only grows. Tensors as arguments make it so: they are compared by identity, so
    each one is a new question, and the cache keeps arguments and results alike.

How to fix it:
    Give the cache a bound; ask it by what repeats, such as a length, instead of a tensor or the
    number of the step; and keep what it needs ``.detach()``ed.

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
    What was watched of the running program: objects that survive steps (``bytes`` in bytes), the
    line that made them, who holds them.

When to ignore this:
    A cache of a data set's samples fills during the first epoch and then stops; watched for less
    than an epoch it looks as if it had no bound.

Source:
    ``functools.lru_cache`` in Python's documentation: "If maxsize is set to None, the LRU feature
    is disabled and the cache can grow without bound"; ``torch.Tensor.__hash__`` (identity).
"""

from collections.abc import Iterator

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.causes import main_chain
from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import holder_name, leak_message, quoted
from profkit.model.finding import Finding
from profkit.model.live_memory import Leak

INFO = RuleInfo(
    id="MEM008",
    name="unbounded-cache",
    title="A cache grows with every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)


Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each cache that grows."""
    return leak_findings(INFO, ctx, thresholds, message=leak_message, fix=_fix)


def _fix(growth: Leak) -> str:
    chain, name = main_chain(growth), holder_name(growth)
    what = quoted(name) if name else "the cache"
    behind = " Keep its tensors `.detach()`ed." if growth.graph and growth.graph.n_nodes else ""
    if chain is not None and chain.kind == "cache":
        return (
            f"Bound {what} (`functools.lru_cache(maxsize=32)`), or ask it by what comes again: a "
            f"tensor or the number of a step as an argument is new every time.{behind}"
        )
    return (
        f"Bound {what}: drop the oldest entry when a new one comes, or empty it every epoch; and "
        f"ask it by what comes again.{behind}"
    )
