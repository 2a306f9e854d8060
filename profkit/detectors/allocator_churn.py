"""MEM002 allocator-churn: device memory is asked of the driver again in later steps.

What it finds:
    ``cudaMalloc`` and ``cudaFree`` (HIP's likewise, and the driver calls behind expandable
    segments) in most of the steps after the first. In a snapshot's history: requests that again and
    again find no room, so that the allocator gives its cache back to the driver and asks anew.

Why it matters:
    PyTorch keeps freed memory and hands it out again without asking the driver. A call of the
    driver takes up to a millisecond, and ``cudaFree`` waits until the device is done. In the first
    step they are how the cache fills; in later ones something empties it, such as
    ``torch.cuda.empty_cache()``, or tensors of ever new sizes find no block that fits. The cost is
    at most the time in these calls and at most the time that the device was idle.

How to fix it:
    Take ``torch.cuda.empty_cache()`` out of the loop: it never lets a program use more memory. For
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
    Runtime and driver calls (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the steps, the
    devices' busy time in nanoseconds, the user's lines; or the frees and allocations of segments in
    a snapshot's history (lengths in bytes) and their stacks.

When to ignore this:
    A program whose inputs grow from step to step needs more memory each time. Libraries with
    allocators of their own may have to call the driver.

Source:
    "Memory management" in PyTorch's CUDA semantics (caching allocator, ``empty_cache``,
    ``expandable_segments``); ``c10/cuda/CUDACachingAllocator.cpp``; ``cudaFree`` in the CUDA
    Runtime API reference.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.device_memory.oom_messages import flush_fix, flush_message
from profkit.engine.needs import Need
from profkit.engine.windows import MAX_EVENT_IDS, costly_wait, event_ids
from profkit.engine.wording import known_locations, time_per_step
from profkit.index.runtime_calls import ALLOCATOR, names_matching
from profkit.index.snapshot.cache_flushes import FlushCause
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.events import Rows
from profkit.model.finding import Cost, Finding
from profkit.units import format_count

DRIVER_CALLS: Final = Need(
    name="driver calls",
    reason="Neither steps with work of a GPU nor the history of its allocator were recorded.",
    remedy="Record steps with `profkit.trace` on a machine with a GPU, or a snapshot with history.",
    is_met=lambda ctx: (len(ctx.steps) > 0 and ctx.has_device_work) or needs.HISTORY.is_met(ctx),
)

INFO = RuleInfo(
    id="MEM002",
    name="allocator-churn",
    title="Device memory is asked of the driver again and again",
    severity="warning",
    needs=(DRIVER_CALLS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When calls of the driver are churn.

    Attributes:
        min_later_steps_count: Steps after the first that must be recorded: the cache may take two
            steps to fill.
        min_steps_share: Share of the later steps with such a call. Now and then a new size needs
            new memory; in half of the steps it is a habit.
        min_wait_share: Share of the steps that must pass in the calls.
        warning_share: Share of the steps that can be given back from which it is a warning.
        min_flushes_count: Times in a snapshot's history that a request found no room. Once or
            twice the largest batch may have come, or the first evaluation.
    """

    min_later_steps_count: int = 2
    min_steps_share: float = 0.5
    min_wait_share: float = 0.001
    warning_share: float = 0.01
    min_flushes_count: int = 3


_DEVICE_MEMORY: Final = re.compile(
    r"^(cuda|hip)(Malloc|Free)(_v\d+)?$|^cuMem(Create|Map|Unmap|Release)$"
)
_GIVES_BACK: Final = re.compile(r"Free|Unmap|Release")
MAX_LINES: Final = 3


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for later steps that call the driver, and for a device without room."""
    if len(ctx.steps) and ctx.has_device_work:
        yield from _in_steps(ctx, thresholds)
    for memory in ctx.device_memories:
        full = np.flatnonzero(memory.flushes.cause == FlushCause.RETRY)
        if len(full) >= thresholds.min_flushes_count:
            yield _for_want_of_room(memory, full)


def _in_steps(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    n_later = len(ctx.steps) - 1
    calls = _calls_in_later_steps(ctx)
    if n_later < thresholds.min_later_steps_count or not len(calls):
        return
    if len(np.unique(ctx.step_of(calls))) < thresholds.min_steps_share * n_later:
        return
    judged = costly_wait(ctx, calls, thresholds.min_wait_share, thresholds.warning_share)
    if judged is None:
        return
    gives_back = names_matching(ctx.events.names, _GIVES_BACK)[ctx.events.name[calls]]
    n_frees = int(gives_back.sum())
    telling = calls[gives_back] if n_frees else calls
    lines = sorted(ctx.by_line(telling), key=lambda each: -int(ctx.events.dur_ns[each[1]].sum()))
    yield INFO.finding(
        severity=judged.severity,
        confidence=judged.confidence,
        message=(
            f"After the first step the program still asks the driver for memory "
            f"{format_count(len(calls) - n_frees)} times and gives it back "
            f"{format_count(n_frees)} times: {time_per_step(ctx, judged.wait.blocked_ns)}."
        ),
        fix=_fix(n_frees),
        locations=known_locations(*(location for location, _ in lines[:MAX_LINES])),
        n=len(calls),
        cost=judged.cost,
        evidence={
            "n_allocations": len(calls) - n_frees,
            "n_frees": n_frees,
            "blocked_ns": judged.wait.blocked_ns,
            "device_idle_ns": judged.wait.idle_ns,
            "events": event_ids(ctx, calls),
        },
        claims=judged.wait.claims,
    )


def _calls_in_later_steps(ctx: Context) -> Rows:
    calls = ALLOCATOR.rows(ctx.events)
    calls = calls[names_matching(ctx.events.names, _DEVICE_MEMORY)[ctx.events.name[calls]]]
    return np.asarray(calls[ctx.step_of(calls) > 0])


def _fix(n_frees: int) -> str:
    if n_frees:
        return (
            "Take `torch.cuda.empty_cache()` out of the loop. If there is none, the device is "
            "nearly full and PyTorch empties its cache to go on: use a smaller batch."
        )
    return (
        "Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or pad the batches to a few "
        "sizes, so that freed blocks fit again."
    )


def _for_want_of_room(memory: DeviceMemory, full: Rows) -> Finding:
    flushes, replay = memory.flushes, memory.replay
    given, again = int(flushes.n_bytes[full].sum()), int(flushes.reallocated_bytes[full].sum())
    following = np.minimum(flushes.last[full] + 1, replay.end - 1)
    return INFO.finding(
        severity="warning",
        confidence="high",
        message=flush_message(memory, full, again),
        fix=flush_fix(memory),
        locations=memory.locations(memory.snapshot.history.stack[replay.rows[following]].tolist())[
            :MAX_LINES
        ],
        n=len(full),
        cost=Cost(bytes=again),
        evidence={
            "device": memory.label,
            "given_back_bytes": given,
            "reallocated_bytes": again,
            "entries": flushes.first[full][:MAX_EVENT_IDS].tolist(),
        },
    )
