"""MEM017 out-of-memory: a request found no room on the device, and what filled it.

What it finds:
    Requests that PyTorch could not meet, as the snapshot's history has them: what was asked for,
    what the driver had left, what of PyTorch's own memory was in use and what was free in pieces,
    and the lines that held the most at that moment.

Why it matters:
    The error names the request that came last, and seldom the tensors that filled the device. It
    may be full indeed; or much of it lies free in pieces between live blocks, none of them long
    enough; or it never was PyTorch's, but another program's or a library's.

How to fix it:
    In the order of bytes: use a smaller batch, ``torch.utils.checkpoint`` or ``torch.autocast``
    for activations; compute in chunks what asks for one large tensor; an optimizer with less state
    or sharding for parameters and state; ``expandable_segments`` or ``max_split_size_mb`` for what
    is free in pieces: the one with which the request would have fitted, if there is one.

Example:
    ::

        loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())

Use instead:
    ::

        logits = model(x).flatten(0, 1)
        parts = zip(logits.split(4096), y.flatten().split(4096))
        loss = sum(F.cross_entropy(a.float(), b, reduction="sum") for a, b in parts) / y.numel()

Reads:
    The history of the allocator (requests and frees, lengths in bytes), the driver's free bytes at
    the failed request, segments and blocks, and their stacks.

When to ignore this:
    How much the device has in all is not in a snapshot: what other programs and libraries hold can
    only be told by what is missing from that. Of blocks that were freed before the snapshot was
    taken the history tells what was asked for, and not what they took. Whether a request would have
    fitted under another setting is an estimate: the history is played again by the allocator's
    rules, which must come to what was recorded under the settings that were.

Source:
    ``c10/cuda/CUDACachingAllocator.cpp`` (``malloc``: cached segments are freed before a request
    is given up); "Memory management" in PyTorch's CUDA semantics (``expandable_segments``,
    ``max_split_size_mb``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.device_memory.messages import site_locations
from profkit.engine.families.device_memory.oom_messages import oom_fix, oom_message
from profkit.engine.families.device_memory.settings_messages import fitting_setting_evidence
from profkit.engine.figures.snapshot import allocation_sites
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.oom_analysis import AllocationFailure
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location

INFO = RuleInfo(
    id="MEM017",
    name="out-of-memory",
    title="The device ran out of memory",
    severity="error",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """There is nothing to weigh: a request was met, or it was not."""


MAX_LINES: Final = 3
_LINES_TO_SUM: Final = 1000


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for each line of each device whose request was not met."""
    for memory in ctx.device_memories:
        by_line: dict[Location | None, list[AllocationFailure]] = {}
        for shortage in memory.allocation_failures:
            line = next(iter(memory.locations([shortage.stack])), None)
            by_line.setdefault(line, []).append(shortage)
        for line, shortages in by_line.items():
            yield _finding(memory, line, shortages)


def _finding(
    memory: DeviceMemory, line: Location | None, shortages: list[AllocationFailure]
) -> Finding:
    told = max(shortages, key=lambda each: each.missing_bytes or 0)
    went_on = bool((memory.replay.alloc > shortages[-1].place).any())
    sites = allocation_sites(memory.sites_at(told.place), memory.lines, _LINES_TO_SUM)
    asked_at = line or Location()
    return INFO.finding(
        # A program that goes on has caught the error, as those do that look for the largest batch.
        severity="warning" if went_on else "error",
        confidence="high" if told.device_free_bytes is not None else "medium",
        message=oom_message(memory, asked_at, told, sites, len(shortages)),
        fix=oom_fix(memory, asked_at, told, sites),
        locations=tuple(
            dict.fromkeys((*([line] if line else []), *site_locations(sites[:MAX_LINES])))
        ),
        n=len(shortages),
        cost=Cost(bytes=told.missing_bytes or told.requested_bytes),
        evidence={
            "device": memory.label,
            "reason": told.reason,
            "requested_bytes": told.requested_bytes,
            "device_free_bytes": told.device_free_bytes,
            "missing_bytes": told.missing_bytes,
            "reserved_bytes": told.reserved_bytes,
            "active_bytes": told.active_bytes,
            "unreleasable_bytes": told.unreleasable_bytes,
            "largest_usable_block_bytes": told.largest_usable_block_bytes,
            "outside_bytes": told.outside_bytes,
            "went_on": went_on,
            "entries": [each.place for each in shortages[:20]],
            **fitting_setting_evidence(memory, told),
        },
    )
