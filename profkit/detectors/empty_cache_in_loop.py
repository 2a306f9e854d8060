"""MEM012 empty-cache-in-loop: the cache is emptied again and again, and filled again each time.

What it finds:
    ``torch.cuda.empty_cache()`` that gives memory back to the driver several times in a snapshot's
    history, where most of it is asked of the driver again before the next time.

Why it matters:
    An emptied cache never lets a program use more memory: what is cached is free for every next
    tensor, and PyTorch empties the cache by itself before it gives a request up. But each segment
    that is given back and asked for again costs two calls of the driver, and freeing one waits
    until the device is done.

How to fix it:
    Take ``torch.cuda.empty_cache()`` out of the loop. It has its place once, between two phases of
    a program, or before another process needs the device.

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
    The frees and allocations of segments in the allocator's history (lengths in bytes), and their
    stacks.

When to ignore this:
    Where another process shares the device and needs the memory in between. Before torch 2.1 the
    history does not tell who gave memory back; then a garbage collection of the allocator
    (``garbage_collection_threshold``) looks the same, and the confidence is lower.

Source:
    "Memory management" in PyTorch's CUDA semantics (``empty_cache``);
    ``c10/cuda/CUDACachingAllocator.cpp`` (``emptyCache``, ``release_cached_blocks``); ``cudaFree``
    in the CUDA Runtime API reference.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.wording import at
from profkit.index.snapshot.cache_flushes import FlushCause
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.events import MISSING, Rows
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.units import format_bytes, format_count, format_times

INFO = RuleInfo(
    id="MEM012",
    name="empty-cache-in-loop",
    title="The cache is emptied in a loop",
    severity="warning",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When emptying the cache is a loop.

    Attributes:
        min_flushes_count: Times that it was emptied and filled again. Once or twice lies between
            phases of a program, such as training and evaluation.
        min_again_share: Share of what was given back that is asked for again before the next time.
        driver_call_ns: About how long a call of the driver takes: a tenth of a millisecond to one.
        warning_share: Share of the time from the first to the last time that all these calls must
            take, by that, to be a warning. An epoch's end of every few minutes is a note.
    """

    min_flushes_count: int = 3
    min_again_share: float = 0.5
    driver_call_ns: int = 500_000
    warning_share: float = 0.01


MAX_ENTRIES = 20


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for each device whose cache is emptied in a loop."""
    for memory in ctx.device_memories:
        flushes = memory.flushes
        again = flushes.reallocated_bytes >= thresholds.min_again_share * flushes.n_bytes
        asked = np.flatnonzero(again & (flushes.cause == FlushCause.EMPTY_CACHE))
        # A request that finds no room is another matter, even where no stack tells of it.
        unknown = np.flatnonzero(again & (flushes.cause == FlushCause.UNKNOWN))
        if not len(asked) and not (flushes.cause == FlushCause.RETRY).any():
            asked = unknown
        if len(asked) >= thresholds.min_flushes_count:
            yield _finding(memory, asked, thresholds)


def _is_rare(memory: DeviceMemory, asked: Rows, thresholds: Thresholds) -> bool:
    """Whether so much time lies between that the calls of the driver hardly matter."""
    flushes, replay = memory.flushes, memory.replay
    times = memory.snapshot.history.time_us[replay.rows]
    first, last = int(times[flushes.first[asked[0]]]), int(times[flushes.last[asked[-1]]])
    if MISSING in (first, last):
        return False
    n_calls = int(flushes.n_calls[asked].sum() + flushes.n_reallocations[asked].sum())
    span_ns = (last - first) * 1000
    return n_calls * thresholds.driver_call_ns < thresholds.warning_share * span_ns


def _finding(memory: DeviceMemory, asked: Rows, thresholds: Thresholds) -> Finding:
    flushes = memory.flushes
    locations = memory.locations(flushes.stack[asked].tolist())
    sure = bool((flushes.cause[asked] == FlushCause.EMPTY_CACHE).all())
    given, again = int(flushes.n_bytes[asked].sum()), int(flushes.reallocated_bytes[asked].sum())
    n_frees, n_allocs = int(flushes.n_calls[asked].sum()), int(flushes.n_reallocations[asked].sum())
    what = f"`torch.cuda.empty_cache()`{at(locations[0] if locations else Location())}"
    return INFO.finding(
        severity="note" if _is_rare(memory, asked, thresholds) else "warning",
        confidence="high" if sure else "medium",
        message=(
            f"{what if sure else 'The allocator'} gave memory of {memory.label} back to the driver "
            f"{format_times(len(asked))}, {format_bytes(given / len(asked))} each time, and "
            f"{format_bytes(again / len(asked))} of it was asked for again before the next: "
            f"{format_count(n_frees)} frees and {format_count(n_allocs)} allocations by the driver."
        ),
        fix=(
            "Take `torch.cuda.empty_cache()` out of the loop: cached memory is free for the next "
            "tensors, and PyTorch empties the cache by itself before it runs out."
        ),
        locations=locations,
        n=len(asked),
        cost=Cost(bytes=again),
        evidence={
            "device": memory.label,
            "given_back_bytes": given,
            "reallocated_bytes": again,
            "n_driver_frees": n_frees,
            "n_driver_allocations": n_allocs,
            "entries": flushes.first[asked][:MAX_ENTRIES].tolist(),
        },
    )
