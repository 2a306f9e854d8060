"""MEM009 host-growth: every step keeps more host memory that no tensor owns.

What it finds:
    Objects of Python that outlive their step and pile up: NumPy arrays, bytes, texts, dicts, lists
    of numbers; or, where nobody is seen to hold it, memory of the process that grows by itself.
    Also the memory of a loader's workers, each of which is a process of its own: what a dataset
    keeps as objects of Python is copied into each of them, page by page, as they read it.

Why it matters:
    A process that grows ends when the machine has no more memory, and the system stops it without
    a word. With eight loader workers a dataset of lists and dicts may be there nine times.

How to fix it:
    Empty the container once its values are used, write them to disk as they come, keep sums and
    means instead of every value. Which line makes objects of Python's own is told with
    ``profkit run --tracemalloc`` alone. Let a dataset keep its samples in NumPy arrays or tensors:
    a few large objects, whose values have no reference counts, instead of millions of small ones.

Example:
    ::

        predictions.append(output.detach().cpu().numpy())

Use instead:
    ::

        correct += (output.argmax(1) == labels).sum().item()

Reads:
    What was watched of the running program: objects that survive steps and the memory of the
    process (``bytes`` in bytes), the line that made them, who holds them. Of a loader's workers
    one is read now and then: the pages that it shares with no other process.

When to ignore this:
    A program that collects its results on purpose, and has memory for all of them, is meant to
    grow. Memory that nobody is seen to hold may be a library's own cache.
    Workers stop growing once each has copied, or read into its cache, all that it will ever need.

Source:
    ``/proc/[pid]/statm`` and ``smaps_rollup`` in proc(5) (resident and private pages);
    pytorch/pytorch#13246 (objects that loader workers copy).
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import growth_text, holder_name, leak_message, quoted
from profkit.engine.wording import counted
from profkit.model.finding import Finding
from profkit.model.live_memory import Leak
from profkit.units import format_bytes, format_count, format_share

INFO = RuleInfo(
    id="MEM009",
    name="host-growth",
    title="Host memory grows with every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

_MOST: Final = 0.5
"""What is at least this share of the growth is told as its cause."""

_ALL: Final = format_share(1.0)

Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each holder or line of host memory."""
    return leak_findings(INFO, ctx, thresholds, message=_message, fix=_fix)


def _message(growth: Leak) -> str:
    if growth.kind == "workers":
        return _of_workers(growth)
    if growth.n:
        return leak_message(growth)
    return f"{growth_text(growth)}, and no object of Python is seen to hold it."


def _of_workers(growth: Leak) -> str:
    first, last = format_count(growth.first_step), format_count(growth.last_step)
    amount = f"{'about ' if growth.n > 1 else ''}{format_bytes(growth.per_step_bytes)}"
    whose = counted(growth.n, "loader worker")
    seen = ", as one of them shows" if growth.n > 1 else ""
    said = f"Each step from {first} to {last} adds {amount} to the memory of {whose}{seen}"
    if growth.copied_share >= _MOST:
        share = format_share(growth.copied_share)
        share = "all" if share == _ALL else f"at least {share}"
        return f"{said}; {share} of it is copies of what the main process holds."
    if growth.made_share >= _MOST:
        return f"{said}: the workers themselves keep something of each sample."
    return (
        f"{said}. Whether these are copies of what the main process holds or something that the "
        "workers keep themselves can't be told: they may keep it where that process had freed "
        "memory."
    )


def _fix(growth: Leak) -> str:
    if growth.kind == "workers":
        return _fix_of_workers(growth)
    name = holder_name(growth)
    if not name:
        return (
            "See which library takes it: leave out a part of the step at a time, until the growth "
            "stops."
        )
    return (
        f"Empty {quoted(name)} once its values are used, write them to disk as they come, or keep "
        "a sum or mean instead of every value."
    )


def _fix_of_workers(growth: Leak) -> str:
    bound = (
        "Find what the dataset keeps in `__getitem__`, such as a cache, and bound it; each worker "
        "has its own."
    )
    arrays = (
        "Keep the dataset's samples in NumPy arrays or tensors (texts as one array of bytes and "
        "their offsets) instead of lists and dicts: to read an object of Python is to write its "
        "reference count, which copies its page into each worker."
    )
    if growth.copied_share >= _MOST:
        return arrays
    if growth.made_share >= _MOST:
        return bound
    return f"{bound} If it keeps nothing there: {arrays[0].lower()}{arrays[1:]}"
