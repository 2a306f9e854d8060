"""MEM009 host-growth: every step keeps more host memory that no tensor owns.

What it finds:
    Objects of Python that outlive their step and pile up: NumPy arrays, bytes, texts, dicts, lists
    of numbers; or, where nobody is seen to hold it, memory of the process that grows by itself.

Why it matters:
    A process that grows ends when the machine has no more memory, and the system stops it without
    a word. Loader workers copy what the main process has grown by.

How to fix it:
    Empty the container once its values are used, write them to disk as they come, keep sums and
    means instead of every value. Which line makes objects of Python's own is told with
    ``profkit run --tracemalloc`` alone.

Example:
    ::

        predictions.append(output.detach().cpu().numpy())

Use instead:
    ::

        correct += (output.argmax(1) == labels).sum().item()

Reads:
    What was watched of the running program: objects that survive steps and the memory of the
    process (``bytes`` in bytes), the line that made them, who holds them.

When it is wrong:
    A program that collects its results on purpose, and has memory for all of them, is meant to
    grow. Memory that nobody is seen to hold may be a library's own cache.

Source:
    ``/proc/[pid]/statm`` in proc(5) (resident pages); pytorch/pytorch#13246 (objects that loader
    workers copy).
"""

from collections.abc import Iterator

from profkit.engine.context import Context
from profkit.engine.detector import Needs, RuleInfo
from profkit.engine.growth_finding import GrowthThresholds, growth_findings
from profkit.engine.growth_words import code, how_fast, own_name, told
from profkit.model.finding import Finding
from profkit.model.live import Growth

INFO = RuleInfo(
    id="MEM009",
    name="host-growth",
    title="Host memory grows with every step",
    severity="warning",
    needs=frozenset({Needs.LIVE}),
    since="0.1.0",
)


Thresholds = GrowthThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each holder or line of host memory."""
    return growth_findings(INFO, ctx, thresholds, message=_message, fix=_fix)


def _message(growth: Growth) -> str:
    if growth.n:
        return told(growth)
    return f"{how_fast(growth)}, and no object of Python is seen to hold it."


def _fix(growth: Growth) -> str:
    name = own_name(growth)
    if not name:
        return (
            "See which library takes it: leave out a part of the step at a time, until the growth "
            "stops."
        )
    return (
        f"Empty {code(name)} once its values are used, write them to disk as they come, or keep "
        "a sum or mean instead of every value."
    )
