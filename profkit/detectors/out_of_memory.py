"""MEM017 out-of-memory: an allocation failed, and what filled the GPU.

What it finds:
    Allocations that failed, as recorded in a snapshot's history: the requested size, what the
    driver had free, what PyTorch had allocated and what was free but fragmented, and the lines with
    the most memory at that moment.

Why it matters:
    The error names the last allocation, and rarely the tensors that filled the GPU. The GPU may be
    full; or much of its memory is free in blocks that are too small; or another program or a
    library uses it.

How to fix it:
    By bytes: use a smaller batch, ``torch.utils.checkpoint`` or ``torch.autocast`` for activations;
    compute a large tensor in chunks; use an optimizer with less state, or sharding, for parameters
    and state; set ``expandable_segments`` or ``max_split_size_mb`` against fragmentation: the
    finding names the setting with which the allocation would have succeeded, if there is one.

Example:
    ::

        loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())

Use instead:
    ::

        logits = model(x).flatten(0, 1)
        parts = zip(logits.split(4096), y.flatten().split(4096))
        loss = sum(F.cross_entropy(a.float(), b, reduction="sum") for a, b in parts) / y.numel()

Reads:
    The allocator's history (allocations and frees, sizes in bytes), the driver's free bytes at the
    failed allocation, segments and blocks, and their stacks.

When to ignore this:
    A program that searches for the largest batch catches the error on purpose. Some figures are
    estimates: a snapshot does not contain the GPU's total memory, so the share of other programs
    is a difference; for blocks that were freed before the snapshot the history has the requested
    size; whether a setting would have helped is simulated with the allocator's rules, which must
    reproduce the recorded history.

Source:
    ``c10/cuda/CUDACachingAllocator.cpp`` (``malloc``: cached segments are freed before an
    allocation fails); "Memory management" in PyTorch's CUDA semantics (``expandable_segments``,
    ``max_split_size_mb``).
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.device_memory.messages import site_locations
from profkit.engine.families.device_memory.oom_messages import describe_oom, suggest_oom_fix
from profkit.engine.families.device_memory.settings_messages import fitting_setting_evidence
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.oom_analysis import AllocationFailure
from profkit.rule import (
    MAX_EVENT_IDS,
    MAX_LINES,
    Context,
    Cost,
    Finding,
    Location,
    RuleInfo,
    allocation_sites,
    dataclass,
    needs,
)

INFO = RuleInfo(
    id="MEM017",
    name="out-of-memory",
    title="Out of GPU memory",
    severity="error",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """None: an allocation succeeds or fails."""


_LINES_TO_SUM: Final = 1000


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line and device with a failed allocation."""
    for memory in ctx.device_memories:
        # A program that retries with less fails several times at one line.
        by_line: dict[Location | None, list[AllocationFailure]] = {}
        for failure in memory.allocation_failures:
            line = next(iter(memory.locations([failure.stack])), None)
            by_line.setdefault(line, []).append(failure)
        for line, failures in by_line.items():
            yield _build_finding(memory, line, failures)


def _build_finding(
    memory: DeviceMemory, line: Location | None, failures: list[AllocationFailure]
) -> Finding:
    worst = max(failures, key=lambda failure: failure.missing_bytes or 0)
    sites = allocation_sites(memory.sites_at(worst.place), memory.lines, _LINES_TO_SUM)
    location = line or Location()
    # The line that failed, then the lines that filled the memory, where the fix mostly is.
    locations = (*([line] if line else []), *site_locations(sites[:MAX_LINES]))

    # A program that continues has caught the error, such as one that searches for a batch size.
    continued = bool((memory.replay.alloc > failures[-1].place).any())
    return INFO.finding(
        severity="warning" if continued else "error",
        confidence="high" if worst.device_free_bytes is not None else "medium",
        message=describe_oom(memory, location, worst, sites, len(failures)),
        fix=suggest_oom_fix(memory, location, worst, sites),
        locations=tuple(dict.fromkeys(locations)),
        n=len(failures),
        cost=Cost(bytes=worst.missing_bytes or worst.requested_bytes),
        evidence={
            "device": memory.label,
            "reason": worst.reason,
            "requested_bytes": worst.requested_bytes,
            "device_free_bytes": worst.device_free_bytes,
            "missing_bytes": worst.missing_bytes,
            "reserved_bytes": worst.reserved_bytes,
            "active_bytes": worst.active_bytes,
            "unreleasable_bytes": worst.unreleasable_bytes,
            "largest_usable_block_bytes": worst.largest_usable_block_bytes,
            "outside_bytes": worst.outside_bytes,
            "continued": continued,
            "entries": [failure.place for failure in failures[:MAX_EVENT_IDS]],
            **fitting_setting_evidence(memory, worst),
        },
    )
