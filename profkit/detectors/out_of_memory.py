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
    or sharding for parameters and state; ``expandable_segments`` for what is free in pieces.

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

When it is wrong:
    How much the device has in all is not in a snapshot: what other programs and libraries hold can
    only be told by what is missing from that. Of blocks that were freed before the snapshot was
    taken the history tells what was asked for, and not what they took.

Source:
    ``c10/cuda/CUDACachingAllocator.cpp`` (``malloc``: cached segments are freed before a request
    is given up); "Memory management" in PyTorch's CUDA semantics (``expandable_segments``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from profkit.engine.context import Context
from profkit.engine.detector import Needs, RuleInfo
from profkit.engine.memory_words import EXPANDABLE, held, is_expandable, line_of, lines_of, listed
from profkit.engine.snapshot_summary import allocation_sites
from profkit.index.device_memory import DeviceMemory
from profkit.index.shortage import Shortage
from profkit.model.finding import Cost, Finding
from profkit.model.memory_summary import AllocationSite
from profkit.model.where import Location
from profkit.units import format_bytes, format_times

INFO = RuleInfo(
    id="MEM017",
    name="out-of-memory",
    title="The device ran out of memory",
    severity="error",
    needs=frozenset({Needs.SNAPSHOT, Needs.HISTORY}),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """There is nothing to weigh: a request was met, or it was not."""


MAX_LINES: Final = 3
_LINES_TO_SUM: Final = 1000
_ADVICE: Final = {
    "activation": "activations: use a smaller batch, `torch.utils.checkpoint` or `torch.autocast`",
    "parameter": "parameters: keep them in bfloat16, or shard them",
    "gradient": "gradients: use a smaller batch, or `zero_grad(set_to_none=True)` before it",
    "optimizer-state": "optimizer state: use an optimizer with less of it, or shard it",
    "input": "inputs: move a batch to the device when its turn comes",
    "workspace": "workspaces: use a smaller batch",
    "communication": "communication: use smaller buckets",
}


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for each line of each device whose request was not met."""
    for memory in ctx.device_memories:
        by_line: dict[Location | None, list[Shortage]] = {}
        for shortage in memory.shortages:
            line = next(iter(memory.locations([shortage.stack])), None)
            by_line.setdefault(line, []).append(shortage)
        for line, shortages in by_line.items():
            yield _finding(memory, line, shortages)


def _finding(memory: DeviceMemory, line: Location | None, shortages: list[Shortage]) -> Finding:
    told = max(shortages, key=lambda each: each.missing_bytes or 0)
    went_on = bool((memory.replay.alloc > shortages[-1].place).any())
    sites = allocation_sites(memory.sites_at(told.place), memory.lines, _LINES_TO_SUM)
    asked_at = line or Location()
    return INFO.finding(
        # A program that goes on has caught the error, as those do that look for the largest batch.
        severity="warning" if went_on else "error",
        confidence="high" if told.device_free_bytes is not None else "medium",
        message=_message(memory, asked_at, told, sites, len(shortages)),
        fix=_fix(memory, asked_at, told, sites),
        locations=tuple(dict.fromkeys((*([line] if line else []), *lines_of(sites[:MAX_LINES])))),
        n=len(shortages),
        cost=Cost(bytes=told.missing_bytes or told.asked_bytes),
        evidence={
            "device": memory.label,
            "reason": told.reason,
            "asked_bytes": told.asked_bytes,
            "device_free_bytes": told.device_free_bytes,
            "missing_bytes": told.missing_bytes,
            "reserved_bytes": told.reserved_bytes,
            "active_bytes": told.active_bytes,
            "in_pieces_bytes": told.in_pieces_bytes,
            "largest_hole_bytes": told.largest_hole_bytes,
            "went_on": went_on,
            "entries": [each.place for each in shortages[:20]],
        },
    )


def _message(
    memory: DeviceMemory, line: Location, told: Shortage, sites: tuple[AllocationSite, ...], n: int
) -> str:
    where = f" asked for at {line.place}" if line.file else ""
    often = f", {format_times(n)}" if n > 1 else ""
    in_use = f"{format_bytes(told.active_bytes)} of PyTorch's {format_bytes(told.reserved_bytes)}"
    parts = [f"{memory.label} had no room for {format_bytes(told.asked_bytes)}{where}{often}."]
    free = told.device_free_bytes
    if told.reason == "limit":
        parts.append(
            f"The driver had {format_bytes(free or 0)} left, which is enough: a limit of the "
            f"program's own was reached, or memory was given back a moment too late. {in_use} were "
            f"in use."
        )
        return " ".join(parts)
    full = "The device is full" if told.reason == "exhaustion" else "The memory is in pieces"
    left = "" if free is None else f", and the driver had {format_bytes(free)} left"
    lacked = f", {format_bytes(told.missing_bytes)} too little" if told.missing_bytes else ""
    parts.append(f"{full}: {in_use} were in use{left}{lacked}.")
    if told.in_pieces_bytes:
        longest = told.largest_hole_bytes
        of_them = "" if longest is None else f", the longest fit for it {format_bytes(longest)}"
        enough = " In one piece they would have been enough." if told.fits_in_one_piece else ""
        parts.append(f"{format_bytes(told.in_pieces_bytes)} lay free in pieces{of_them}.{enough}")
    if sites:
        parts.append(f"Most was held by {listed([held(each) for each in sites[:MAX_LINES]])}.")
    if free is not None:
        known = format_bytes(told.reserved_bytes + free)
        parts.append(
            f"If the device has more than these {known}, the rest is other programs' or libraries'."
        )
    return " ".join(parts)


def _fix(
    memory: DeviceMemory, line: Location, told: Shortage, sites: tuple[AllocationSite, ...]
) -> str:
    if told.reason == "limit":
        return (
            "Raise `torch.cuda.set_per_process_memory_fraction` if the program sets it, and see "
            "with `nvidia-smi` what else uses the device."
        )
    by_use: dict[str, int] = {}
    for site in sites:
        by_use[site.category] = by_use.get(site.category, 0) + site.bytes
    ways = [(n_bytes, _ADVICE[use]) for use, n_bytes in by_use.items() if use in _ADVICE]
    ways.extend(
        (site.bytes, f"{line_of(site.location)}: see whether all of it is needed at once")
        for site in sites
        if site.category == "unknown" and site.location.file is not None
    )
    if line.file:
        ways.append((told.asked_bytes, f"{line.place}: compute in chunks what it asks for at once"))
    if told.in_pieces_bytes and not is_expandable(memory):
        ways.append((told.in_pieces_bytes, f"free in pieces: set `{EXPANDABLE}`"))
    ways.sort(key=lambda each: -each[0])
    if not ways:
        return "Use a smaller batch, and record the history with stacks to see what holds memory."
    chosen = "; ".join(f"{format_bytes(n_bytes)} {way}" for n_bytes, way in ways[:MAX_LINES])
    return f"In the order of bytes: {chosen}."
