"""MEM009 host-growth: every step retains more host memory outside tensors.

What it finds:
    Python objects that outlive their step and accumulate: NumPy arrays, bytes, strings, dicts,
    lists of numbers; or, where no holder is found, growth of the process's memory. Also the memory
    of loader workers, each of which is a process: Python objects of a dataset are copied into each
    of them, page by page, as they are read.

Why it matters:
    When the machine has no more memory, the operating system kills the process without a message.
    With eight loader workers a dataset of lists and dicts may be in memory nine times.

How to fix it:
    Clear the container after its values are used, write them to disk, or keep sums and means
    instead of every value. Allocation sites of Python objects are recorded only with ``profkit run
    --tracemalloc``. Store a dataset's samples in NumPy arrays or tensors: a few large objects,
    whose values have no reference counts, instead of millions of small ones.

Example:
    ::

        predictions.append(output.detach().cpu().numpy())

Use instead:
    ::

        correct += (output.argmax(1) == labels).sum().item()

Reads:
    Monitored memory: objects that outlive their step and the memory of the process (``bytes``
    in bytes), allocation sites and holders. Of a loader's workers one is sampled: the pages that
    it shares with no other process.

When to ignore this:
    The program collects its results on purpose and has memory for all of them. Growth without a
    holder may be a library's cache. Workers stop growing once each has copied, or cached, all that
    it needs.

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

_MAIN_SHARE: Final = 0.5
"""Minimum share of the growth that is reported as its cause."""
_ALL: Final = format_share(1.0)

Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each holder or line of host memory."""
    return leak_findings(INFO, ctx, thresholds, message=_message, fix=_fix)


def _message(leak: Leak) -> str:
    if leak.kind == "workers":
        return _workers_message(leak)
    if leak.n:
        return leak_message(leak)
    return f"{growth_text(leak)}, and no Python object that holds it was found."


def _workers_message(leak: Leak) -> str:
    first, last = format_count(leak.first_step), format_count(leak.last_step)
    amount = f"{'about ' if leak.n > 1 else ''}{format_bytes(leak.per_step_bytes)}"
    whose = counted(leak.n, "loader worker")
    sampled = " (one was sampled)" if leak.n > 1 else ""
    text = f"The memory of {whose}{sampled} grows by {amount} per step (steps {first} to {last})"
    if leak.copied_share >= _MAIN_SHARE:
        share = format_share(leak.copied_share)
        share = "all" if share == _ALL else f"at least {share}"
        return f"{text}. {share.capitalize()} of it is copies of objects of the main process."
    if leak.made_share >= _MAIN_SHARE:
        return f"{text}. The workers retain objects that they create."
    return (
        f"{text}. It may be copies of objects of the main process, or objects that the workers "
        "retain in memory that the main process had freed."
    )


def _fix(leak: Leak) -> str:
    if leak.kind == "workers":
        return _workers_fix(leak)
    name = holder_name(leak)
    if not name:
        return (
            "Leave out one part of the step after another until the growth stops, to find the "
            "library that causes it."
        )
    return (
        f"Clear {quoted(name)} after its values are used, write them to disk, or keep a sum or "
        "mean instead of every value."
    )


def _workers_fix(leak: Leak) -> str:
    limit = (
        "Limit what the dataset stores in `__getitem__`, such as a cache: each worker has its own."
    )
    arrays = (
        "Store the dataset's samples in NumPy arrays or tensors (strings as one array of bytes and "
        "their offsets) instead of lists and dicts: reading a Python object writes its reference "
        "count, which copies its page into each worker."
    )
    if leak.copied_share >= _MAIN_SHARE:
        return arrays
    if leak.made_share >= _MAIN_SHARE:
        return limit
    return f"{limit} If it stores nothing there: {arrays[0].lower()}{arrays[1:]}"
