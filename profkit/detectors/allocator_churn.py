"""MEM002 allocator-churn: GPU memory is freed and re-allocated in later steps.

What it finds:
    ``cudaMalloc`` and ``cudaFree`` (or HIP's, or the driver calls behind expandable segments) in
    most steps after the first. In a snapshot's history: allocations that repeatedly do not fit, so
    that the allocator frees its cache and allocates from the driver again. Where nothing is cached
    at all, it is allocator-off; where new shapes of inputs are the recorded cause, dynamic-shapes.

Why it matters:
    PyTorch caches freed memory and reuses it without calling the driver. A driver call takes up to
    a millisecond, and ``cudaFree`` waits until the GPU has finished. In the first step such calls
    fill the cache. In later steps something empties it, such as ``torch.cuda.empty_cache()``, or
    tensors of changing sizes do not fit the cached blocks. The cost is at most the time in these
    calls and at most the time that the GPU is idle.

How to fix it:
    Remove ``torch.cuda.empty_cache()`` from the loop: it never lets a program use more memory. For
    changing sizes set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``, or pad batches to a few
    sizes.

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
    Runtime and driver calls (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the steps, GPU
    busy time in nanoseconds, source lines; or the segments allocated and freed in a snapshot's
    history (sizes in bytes) and their stacks.

When to ignore this:
    Inputs grow from step to step, so each step needs more memory. Libraries with their own
    allocators may have to call the driver.

Source:
    "Memory management" in PyTorch's CUDA semantics (caching allocator, ``empty_cache``,
    ``expandable_segments``); ``c10/cuda/CUDACachingAllocator.cpp``; ``cudaFree`` in the CUDA
    Runtime API reference.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.device_memory.driver_calls import (
    driver_calls,
    find_growth_by_shapes,
    find_uncached_calls,
)
from profkit.engine.families.device_memory.oom_messages import describe_flushes, suggest_flush_fix
from profkit.index.distinct import distinct
from profkit.index.snapshot.cache_flushes import FlushCause
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.rule import (
    MAX_EVENT_IDS,
    MAX_LINES,
    Context,
    Cost,
    Finding,
    Need,
    Rows,
    RuleInfo,
    WaitThresholds,
    dataclass,
    find_costliest_lines,
    find_costly_wait,
    format_count,
    needs,
    time_per_step,
)

DRIVER_CALLS: Final = Need(
    name="driver calls",
    reason="Neither steps with work of a GPU nor the history of its allocator were recorded.",
    remedy="Record steps with `profkit.trace` on a machine with a GPU, or a snapshot with history.",
    is_met=lambda ctx: (len(ctx.steps) > 0 and ctx.has_device_work) or needs.HISTORY.is_met(ctx),
)

INFO = RuleInfo(
    id="MEM002",
    name="allocator-churn",
    title="GPU memory is freed and re-allocated in every step",
    severity="warning",
    needs=(DRIVER_CALLS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds(WaitThresholds):
    """When driver calls are a finding.

    Attributes:
        min_later_steps_count: Minimum steps after the first: the cache may take two steps to fill.
        min_steps_share: Minimum share of later steps with such a call. Occasionally a new size
            needs new memory.
        min_flushes_count: Minimum times in a snapshot's history that an allocation did not fit.
            Once or twice may be the largest batch, or the first evaluation.
    """

    min_later_steps_count: int = 2
    min_steps_share: float = 0.5
    min_flushes_count: int = 3


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for later steps that call the driver, and for a GPU whose cache is freed."""
    if len(ctx.steps) and ctx.has_device_work:
        yield from _report_steps(ctx, thresholds)
    for memory in ctx.device_memories:
        retries = np.flatnonzero(memory.flushes.cause == FlushCause.RETRY)
        if len(retries) >= thresholds.min_flushes_count:
            yield _report_flushes(memory, retries)


def _report_steps(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    # The first step fills the cache, as in any program.
    n_later = len(ctx.steps) - 1
    in_driver = driver_calls(ctx)
    in_driver = in_driver.select(ctx.step_of(in_driver.rows) > 0)
    calls, is_free, n_frees = in_driver.rows, in_driver.is_free, in_driver.n_frees
    if n_later < thresholds.min_later_steps_count or not len(calls):
        return
    if len(distinct(ctx.step_of(calls))) < thresholds.min_steps_share * n_later:
        return

    # Calls without a cache, and calls for new shapes, are reported by the rules on their causes.
    if find_uncached_calls(ctx) is not None or find_growth_by_shapes(ctx) is not None:
        return
    wait = find_costly_wait(ctx, calls, thresholds)
    if wait is None:
        return

    # Frees lead to the cause: what frees the cache makes later allocations call the driver.
    main_calls = calls[is_free] if n_frees else calls
    yield wait.finding(
        INFO,
        message=(
            f"After the first step the program still allocates CUDA memory "
            f"{format_count(len(calls) - n_frees)} times and frees it {format_count(n_frees)} "
            f"times, which takes {time_per_step(ctx, wait.blocked.total_ns)}."
        ),
        fix=_suggest_fix(n_frees),
        locations=find_costliest_lines(ctx, main_calls),
        rows=calls,
        evidence={"n_allocations": len(calls) - n_frees, "n_frees": n_frees},
    )


def _suggest_fix(n_frees: int) -> str:
    if n_frees:
        return (
            "Remove `torch.cuda.empty_cache()` from the loop. If there is none, the GPU is nearly "
            "full and PyTorch frees its cache to continue: use a smaller batch."
        )
    return (
        "Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or pad batches to a few sizes, so "
        "that cached blocks fit."
    )


def _report_flushes(memory: DeviceMemory, retries: Rows) -> Finding:
    flushes, replay = memory.flushes, memory.replay
    released_bytes = int(flushes.n_bytes[retries].sum())
    reallocated_bytes = int(flushes.reallocated_bytes[retries].sum())

    # The entry after a flush is the allocation that did not fit.
    following = np.minimum(flushes.last[retries] + 1, replay.end - 1)
    stacks = memory.snapshot.history.stack[replay.rows[following]].tolist()

    return INFO.finding(
        confidence="high",
        message=describe_flushes(memory, retries, reallocated_bytes),
        fix=suggest_flush_fix(memory),
        locations=memory.locations(stacks)[:MAX_LINES],
        n=len(retries),
        # Time that a snapshot does not show: the same memory is reserved again and again.
        cost=Cost(),
        evidence={
            "device": memory.label,
            "given_back_bytes": released_bytes,
            "reallocated_bytes": reallocated_bytes,
            "entries": flushes.first[retries][:MAX_EVENT_IDS].tolist(),
        },
    )
