"""MEM009 host-growth: every step retains more host memory outside tensors.

What it finds:
    Python objects that outlive their step and accumulate, or one that becomes larger: NumPy arrays,
    pandas frames, buffers, strings, dicts, lists of numbers. Native memory: what a library
    allocates and no Python object owns. Also the memory of loader workers, each of which is a
    process: Python objects of a dataset are copied into each of them, page by page, as they are
    read.

Why it matters:
    When the machine has no more memory, the operating system kills the process without a message.
    With eight loader workers a dataset of lists and dicts may be in memory nine times.

How to fix it:
    Clear the container after its values are used, write them to disk, or keep sums and means
    instead of every value. Allocation sites of Python objects come from a few steps in which all
    allocations are traced, or from all steps with ``profkit run --tracemalloc``. Store a dataset's
    samples in NumPy arrays or tensors: a few large objects, whose values have no reference counts,
    instead of millions of small ones.

Example:
    ::

        predictions.append(output.detach().cpu().numpy())

Use instead:
    ::

        correct += (output.argmax(1) == labels).sum().item()

Reads:
    Monitored memory: the bytes and blocks that C's and Python's allocators have allocated
    (``bytes`` in bytes), beyond tensors and graphs; the sizes of all objects at some steps,
    allocation sites and holders. Growth is native if neither these objects nor the traced
    allocations are 30 % of it, or if operators allocate half of it. For this the heap is measured
    at each line and operator of a few steps.
    Of a loader's workers one is sampled: the pages that it shares with no other process. What its
    data set adds to is read in the source of the data set's class.

When to ignore this:
    The program collects its results on purpose and has memory for all of them. Growth without a
    holder may be a library's cache. One with a plan for each new shape of a tensor is a note, as it
    grows no more once it is full.
    Workers stop growing once each has copied, or cached, all that it needs.

Source:
    ``mallinfo2(3)`` and ``sys.getallocatedblocks`` (allocated memory); ``sys.getsizeof``;
    ``tracemalloc``; ``ONEDNN_PRIMITIVE_CACHE_CAPACITY`` in oneDNN's developer guide;
    ``LRU_CACHE_CAPACITY`` in ``ideep/lru_cache.hpp`` (pytorch/pytorch#29893, #98688);
    ``/proc/[pid]/statm`` and ``smaps_rollup`` in proc(5) (resident and private
    pages); pytorch/pytorch#13246 (objects that loader workers copy).
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.host_messages import MAIN_SHARE, host_message
from profkit.engine.families.leaks.messages import (
    holder_name,
    leak_location,
    library_fix,
    limit_fix,
    quoted,
    storage_ratio,
)
from profkit.rule import (
    Context,
    Cost,
    Finding,
    Leak,
    RuleInfo,
    at,
    dataclass,
    format_bytes,
    needs,
    regex,
)

_COMPILES: Final = regex(r"\bjit\.(trace|script|freeze)\w*\(|\btorch\.compile\(|\bmake_fx\(")
_STREAMS: Final = frozenset({"_io.BytesIO", "_io.StringIO"})
_WITHOUT_MEAN: Final = frozenset({"bytes", "bytearray", "str", "memoryview"})
"""Types of which no sum or mean can be kept."""

INFO = RuleInfo(
    id="MEM009",
    name="host-growth",
    title="Host memory grows with every step",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds(LeakThresholds):
    """When growth of host memory is a finding.

    Attributes:
        min_unexplained_step_bytes: Minimum growth per step of which nothing more is known. Less
            than 64 KiB may be what a library sets up in its first steps.
    """

    min_unexplained_step_bytes: int = 64 << 10


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each holder or line of host memory, and one if neither is known."""
    yield from leak_findings(INFO, ctx, thresholds, message=host_message, fix=_suggest_fix)

    unexplained = ctx.live.unexplained_per_step_bytes if ctx.live is not None else None
    if unexplained is not None and unexplained >= thresholds.min_unexplained_step_bytes:
        yield _build_unexplained(unexplained)


def _build_unexplained(per_step_bytes: int) -> Finding:
    """Build the finding on growth that ended before what retains it was searched."""
    amount = format_bytes(per_step_bytes)

    return INFO.finding(
        severity="note",
        confidence="low",
        message=(
            f"Host memory grows by {amount} per step. The run was too short "
            "to find out whether Python objects or a library retain it."
        ),
        fix="Run more steps: a search for what grows takes seconds, and is made in long runs only.",
        n=1,
        cost=Cost(per_step_bytes=per_step_bytes, basis="measured"),
    )


def _suggest_fix(leak: Leak) -> str:
    if leak.kind == "workers":
        return _suggest_workers_fix(leak)
    # Native memory with a holder belongs to a Python object, which can be cleared.
    if leak.kind == "native" and not leak.chains:
        return _suggest_native_fix(leak)
    if library_fix(leak) or limit_fix(leak):
        return library_fix(leak) or limit_fix(leak)
    if storage_ratio(leak):
        return "Store a `.copy()` of the view, so that the rest of the array is freed."

    name, place = holder_name(leak), at(leak_location(leak))
    if not name:
        made = f"what is allocated{place}" if place else "what each step adds"
        return f"Release {made} after use, write it to disk, or keep a sum or mean instead."
    return _suggest_holder_fix(leak, quoted(name))


def _suggest_holder_fix(leak: Leak, holder: str) -> str:
    """Suggest what fits the type of objects that a holder of the program retains."""
    if leak.type in _STREAMS:
        return (
            f"Empty {holder} once its contents are used, by `seek(0)` and `truncate()`, or write "
            "to a file instead."
        )

    # One object that is replaced by a longer one, as by `np.concatenate`, has nothing to clear.
    if leak.n == 1:
        return (
            f"Start {holder} anew after use, keep only its last part, or write each part to disk: "
            "it becomes longer with every step."
        )

    less = "keep a sum or mean instead of every value"
    if leak.type in _WITHOUT_MEAN:
        less = "keep only the last ones (`collections.deque(maxlen=100)`)"
    return f"Clear {holder} after its values are used, write them to disk, or {less}."


def _suggest_native_fix(leak: Leak) -> str:
    place = at(leak_location(leak))
    if leak.is_for_new_shapes:
        return (
            "Pad the inputs to a few shapes. Or start Python with "
            "`ONEDNN_PRIMITIVE_CACHE_CAPACITY=64 LRU_CACHE_CAPACITY=64`: oneDNN and torch's use of "
            "it each cache up to 1,024 plans otherwise. A shape without a plan takes longer."
        )

    if _COMPILES.search(leak.code):
        return f"Compile once before the loop: each call{place} creates code that torch keeps."
    if place:
        return f"Free what the library allocates{place}, or update it."
    return (
        "Free what the library allocates, or update it. To find the call, leave out one part "
        "of the step after another until the growth stops."
    )


def _suggest_workers_fix(leak: Leak) -> str:
    # Memory that workers copy is the main process's; memory that they make is their own cache.
    limit = (
        "Limit what the dataset stores in `__getitem__`, such as a cache: each worker has its own."
    )
    arrays = (
        "Store the dataset's samples in NumPy arrays or tensors (strings as one array of bytes and "
        "their offsets) instead of lists and dicts: reading a Python object writes its reference "
        "count, which copies its page into each worker."
    )

    if leak.copied_share >= MAIN_SHARE:
        return arrays
    if limit_fix(leak) or holder_name(leak):
        return limit_fix(leak) or (
            f"Limit {quoted(holder_name(leak))}, or store nothing in it: each worker has its own."
        )
    if leak.made_share >= MAIN_SHARE:
        return limit
    return f"{limit} If it stores nothing there: {arrays[0].lower()}{arrays[1:]}"
