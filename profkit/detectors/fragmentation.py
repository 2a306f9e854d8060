"""MEM011 fragmentation: much reserved memory is free, but in blocks that no allocation fits.

What it finds:
    Allocations for which PyTorch reserved more memory although enough was free in the same pool,
    in blocks that were each too small, where much of the reserved memory remained unused; and the
    lines whose live blocks separate most of those free blocks. Also blocks that are much larger
    than the allocation that they serve.

Why it matters:
    A tensor needs contiguous memory, and tensors between free blocks are never moved. Fragmented
    memory is lost to this program and to all others on the GPU, until an allocation fails with
    memory "free".

How to fix it:
    Set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``, so that segments grow in place instead
    of new ones being created; or ``max_split_size_mb``, so that small tensors do not split large
    blocks. The finding says what each would have reserved, from a simulation of the history; its
    cost is what the better one saves, or everything that is lost if neither helps much. Leave the
    other settings of the variable in it: PyTorch takes the default for those that it does not have.
    Newer versions call it ``PYTORCH_ALLOC_CONF``, which torch 2.9 does not read for this setting;
    all versions read ``PYTORCH_CUDA_ALLOC_CONF``.
    Allocate long-lived tensors first. Pad batches of changing sizes to a few sizes.

Example:
    ::

        for batch in loader:  # each batch a little longer than the last
            features.append(model(batch).mean(0))  # a small tensor stays in each large segment

Use instead:
    ::

        features = torch.empty(len(loader), width, device="cuda")
        for i, batch in enumerate(loader):
            features[i] = model(batch).mean(0)

Reads:
    The allocator's history (allocations, frees, segments; sizes in bytes), segments and blocks,
    and their stacks.

When to ignore this:
    The figures are estimates. For blocks that were freed before the snapshot the history has the
    requested size; the rounding of large blocks, up to 1 MiB, is counted as free. What other
    settings would have reserved is stated only where the same simulation with the recorded settings
    reproduces reserved memory within 1 % at every allocation. Blocks allocated before recording
    stay where they are.

Source:
    "Memory management" in PyTorch's CUDA semantics; ``c10/cuda/CUDACachingAllocator.cpp``
    (``get_free_block``, ``should_split``, ``try_allocate_expandable_block``); pytorch #193400.
"""

from collections.abc import Iterator

import numpy as np

from profkit.engine.families.device_memory.messages import (
    main_fragmentation_sites,
    reserved_text,
    retention_text,
    site_locations,
)
from profkit.engine.families.device_memory.settings_messages import (
    fragmentation_cost,
    fragmentation_evidence,
    suggest_fragmentation_fix,
)
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.rule import (
    MAX_EVENT_IDS,
    MAX_LINES,
    Context,
    Cost,
    Finding,
    FragmentationSite,
    RuleInfo,
    dataclass,
    format_bytes,
    format_count,
    format_share,
    fragmentation_summary,
    needs,
)

INFO = RuleInfo(
    id="MEM011",
    name="fragmentation",
    title="Fragmentation of GPU memory",
    severity="note",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When fragmentation is a finding.

    Attributes:
        min_pieces_bytes: Minimum reserved memory beyond the need of the allocations if free memory
            were always contiguous. Half a gibibyte is little on current GPUs.
        min_pieces_share: The same as a share of the peak of reserved memory. About a tenth is
            usual after a first step, whose allocations come in no order.
        warning_share: Share from which it is a warning: half of the reserved memory is lost.
        min_rounding_share: Minimum share of allocated memory that is rounding. With default
            settings it is a few hundredths.
    """

    min_pieces_bytes: int = 512 << 20
    min_pieces_share: float = 0.2
    warning_share: float = 0.5
    min_rounding_share: float = 0.1


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each device with much fragmented memory."""
    for memory in ctx.device_memories:
        reserved = memory.peak_reserved_bytes
        min_bytes = max(thresholds.min_pieces_bytes, thresholds.min_pieces_share * reserved)

        # The peak of active memory is a cheap lower bound of what was needed. A growing cache is
        # reported by cache-growth instead, with its causes.
        if _excess_bytes(memory, 0) >= min_bytes and not memory.is_cache_growing:
            excess = _excess_bytes(memory, memory.driver_requests.compact_bytes)
            if memory.driver_requests.is_fragmented.any() and excess >= min_bytes:
                is_warning = excess >= thresholds.warning_share * reserved
                yield _build_finding(memory, excess, is_warning=is_warning)

        # Rounding wastes memory within blocks, whatever lies between them.
        active = int(memory.replay.active_bytes[-1])
        rounding_share = thresholds.min_rounding_share * active
        if memory.rounding_bytes >= max(thresholds.min_pieces_bytes, rounding_share):
            yield _build_rounding_finding(memory, active)


def _excess_bytes(memory: DeviceMemory, needed_bytes: int) -> int:
    """Return the peak of reserved memory beyond what was needed, active, or there before.

    Memory reserved before the history began served allocations that are not known.
    """
    before = int(memory.reserved_bytes[0])
    return memory.peak_reserved_bytes - max(needed_bytes, memory.peak_active_bytes, before)


def _build_finding(memory: DeviceMemory, excess: int, *, is_warning: bool) -> Finding:
    requests = memory.driver_requests
    failed = np.flatnonzero(requests.is_fragmented)
    # In the message one request stands for all: the largest that no free block fitted.
    largest = int(failed[requests.needed_bytes[failed].argmax()])

    # The live blocks in the way are more to the point than the line that requested memory.
    place = int(requests.place[largest])
    segments = memory.segment_map_at(place)
    sites = fragmentation_summary(segments, memory.lines)
    requesting = memory.locations([int(memory.snapshot.history.stack[memory.replay.rows[place]])])
    locations = (*site_locations(main_fragmentation_sites(sites)), *requesting)

    return INFO.finding(
        severity="warning" if is_warning else "note",
        confidence="medium",
        message=_build_message(memory, excess, largest, sites),
        fix=suggest_fragmentation_fix(memory),
        locations=tuple(dict.fromkeys(locations))[:MAX_LINES],
        n=len(failed),
        cost=fragmentation_cost(memory, excess),
        evidence={
            "device": memory.label,
            "reserved_bytes": memory.peak_reserved_bytes,
            "active_bytes": memory.peak_active_bytes,
            "reserved_if_compact_bytes": requests.compact_bytes,
            "unreleasable_bytes": segments.unreleasable_bytes,
            "n_fragmented_requests": len(failed),
            "n_requests": len(requests.place),
            "largest_fragmented_bytes": int(requests.needed_bytes[largest]),
            "free_bytes": int(requests.free_bytes[largest]),
            "entries": requests.place[failed][:MAX_EVENT_IDS].tolist(),
            **fragmentation_evidence(memory),
        },
    )


def _build_rounding_finding(memory: DeviceMemory, active: int) -> Finding:
    rounding, share = memory.rounding_bytes, format_share(memory.rounding_bytes / active)
    return INFO.finding(
        confidence="high",
        message=(
            f"{format_bytes(rounding)} of the {format_bytes(active)} allocated on {memory.label} "
            f"({share}) is rounding: blocks are larger than requested."
        ),
        fix="Remove `roundup_power2_divisions` from `PYTORCH_CUDA_ALLOC_CONF`, or raise it.",
        cost=Cost(bytes=rounding),
        evidence={"device": memory.label, "rounding_bytes": rounding, "active_bytes": active},
    )


def _build_message(
    memory: DeviceMemory, excess: int, largest: int, sites: tuple[FragmentationSite, ...]
) -> str:
    requests = memory.driver_requests
    n_failed = int(requests.is_fragmented.sum())
    share = format_share(excess / memory.peak_reserved_bytes)
    text = (
        f"{reserved_text(memory)}: about {format_bytes(excess)} ({share}) is due to "
        f"fragmentation. {format_count(n_failed)} of "
        f"{format_count(len(requests.place))} driver requests were made although enough memory was "
        f"free, in blocks that were too small; the largest needed "
        f"{format_bytes(int(requests.needed_bytes[largest]))} with "
        f"{format_bytes(int(requests.free_bytes[largest]))} free in its pool."
    )
    return f"{text} {_describe_cause(memory, largest, sites)}"


def _describe_cause(
    memory: DeviceMemory, largest: int, sites: tuple[FragmentationSite, ...]
) -> str:
    """Describe the live blocks between free ones, or segments that are free but too small."""
    segments = memory.segment_map_at(int(memory.driver_requests.place[largest]))
    unreleasable, releasable = segments.unreleasable_bytes, segments.releasable_bytes
    main = main_fragmentation_sites(sites)[:MAX_LINES]
    if unreleasable < releasable or not main:
        return (
            f"At that time {format_bytes(releasable)} of free memory was in segments without live "
            f"blocks, and {format_bytes(unreleasable)} between live blocks."
        )
    return f"At that time {retention_text(main)}"
