"""MEM012 empty-cache-in-loop: the CUDA cache is emptied repeatedly, and refilled each time.

What it finds:
    ``torch.cuda.empty_cache()`` that frees cached memory several times in a snapshot's history,
    where most of it is allocated from the driver again before the next call.

Why it matters:
    An emptied cache never lets a program use more memory: cached memory is free for every next
    tensor, and PyTorch empties the cache itself before an allocation fails. But each segment that
    is freed and re-allocated costs two driver calls, and freeing waits until the GPU has finished.

How to fix it:
    Remove ``torch.cuda.empty_cache()`` from the loop. Call it once between two phases of a program,
    or before another process needs the GPU.

Example:
    ::

        for batch in loader:
            train_step(batch)
            torch.cuda.empty_cache()

Use instead:
    ::

        for batch in loader:
            train_step(batch)

Reads:
    Segments allocated and freed in the allocator's history (sizes in bytes), and their stacks.

When to ignore this:
    Another process shares the GPU and needs the memory in between. Before torch 2.1 the history
    does not tell who freed memory: a garbage collection of the allocator
    (``garbage_collection_threshold``) looks the same, and the confidence is lower.

Source:
    "Memory management" in PyTorch's CUDA semantics (``empty_cache``);
    ``c10/cuda/CUDACachingAllocator.cpp`` (``emptyCache``, ``release_cached_blocks``); ``cudaFree``
    in the CUDA Runtime API reference.
"""

from collections.abc import Iterator

import numpy as np

from profkit.index.snapshot.cache_flushes import FlushCause
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.rule import (
    MAX_EVENT_IDS,
    MISSING,
    Context,
    Cost,
    Finding,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    format_bytes,
    format_count,
    format_times,
    needs,
)

INFO = RuleInfo(
    id="MEM012",
    name="empty-cache-in-loop",
    title="Cache of GPU memory emptied in a loop",
    severity="warning",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When emptying the cache is a finding.

    Attributes:
        min_flushes_count: Minimum times that the cache was emptied and refilled. Once or twice is
            between phases of a program, such as training and evaluation.
        min_again_share: Minimum share of the freed memory that is re-allocated before the next
            time.
        driver_call_ns: Assumed duration of a driver call: they take 0.1 to 1 ms.
        warning_share: Share of the time from the first to the last flush that these calls take
            from which it is a warning. Once per epoch of a few minutes is a note.
    """

    min_flushes_count: int = 3
    min_again_share: float = 0.5
    driver_call_ns: int = 500_000
    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each device whose cache is emptied in a loop."""
    for memory in ctx.device_memories:
        flushes = memory.flushes
        refilled = flushes.reallocated_bytes >= thresholds.min_again_share * flushes.n_bytes
        rows = np.flatnonzero(refilled & (flushes.cause == FlushCause.EMPTY_CACHE))

        # Flushes after a failed allocation are reported by allocator-churn, even without a stack.
        if not len(rows) and not (flushes.cause == FlushCause.RETRY).any():
            rows = np.flatnonzero(refilled & (flushes.cause == FlushCause.UNKNOWN))
        if len(rows) >= thresholds.min_flushes_count:
            yield _build_finding(memory, rows, thresholds)


def _is_rare(memory: DeviceMemory, rows: Rows, thresholds: Thresholds) -> bool:
    """Tell whether the driver calls take a small share of the time between them."""
    flushes, replay = memory.flushes, memory.replay
    times = memory.snapshot.history.time_us[replay.rows]
    first, last = int(times[flushes.first[rows[0]]]), int(times[flushes.last[rows[-1]]])
    # Older versions of torch write no times: then nothing shows that the calls are rare.
    if MISSING in (first, last):
        return False
    # A history has moments and no durations, so the time of a call is assumed.
    n_calls = int(flushes.n_calls[rows].sum() + flushes.n_reallocations[rows].sum())
    span_ns = (last - first) * 1000
    return n_calls * thresholds.driver_call_ns < thresholds.warning_share * span_ns


def _build_finding(memory: DeviceMemory, rows: Rows, thresholds: Thresholds) -> Finding:
    flushes, n = memory.flushes, len(rows)
    freed_bytes = int(flushes.n_bytes[rows].sum())
    reallocated_bytes = int(flushes.reallocated_bytes[rows].sum())
    n_frees, n_allocs = int(flushes.n_calls[rows].sum()), int(flushes.n_reallocations[rows].sum())

    locations = memory.locations(flushes.stack[rows].tolist())
    is_called = bool((flushes.cause[rows] == FlushCause.EMPTY_CACHE).all())
    call = f"`torch.cuda.empty_cache()`{at_first(locations)}"
    return INFO.finding(
        severity="note" if _is_rare(memory, rows, thresholds) else "warning",
        confidence="high" if is_called else "medium",
        message=(
            f"{call if is_called else 'The allocator'} freed {format_bytes(freed_bytes / n)} of "
            f"cached memory on {memory.label} {format_times(n)}, and "
            f"{format_bytes(reallocated_bytes / n)} of it was re-allocated each time. This cost "
            f"{format_count(n_frees)} frees and {format_count(n_allocs)} allocations by the driver."
        ),
        fix=(
            "Remove `torch.cuda.empty_cache()` from the loop: cached memory is free for the next "
            "tensors, and PyTorch empties the cache itself before it runs out of memory."
        ),
        locations=locations,
        n=n,
        # The same memory each time: the sum would exceed what the device has.
        cost=Cost(bytes=reallocated_bytes // n),
        evidence={
            "device": memory.label,
            "freed_bytes": freed_bytes,
            "reallocated_bytes": reallocated_bytes,
            "n_driver_frees": n_frees,
            "n_driver_allocations": n_allocs,
            "entries": flushes.first[rows][:MAX_EVENT_IDS].tolist(),
        },
    )
