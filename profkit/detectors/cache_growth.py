"""MEM010 cache-growth: PyTorch reserves more and more memory while allocated memory stays the same.

What it finds:
    A snapshot's history in which reserved memory keeps growing after its first quarter, while the
    peak of allocated memory hardly grows; and the reason why free memory is not reused: free blocks
    that are too small, with live blocks between them, or streams and private pools, each with its
    own cache.

Why it matters:
    The GPU fills up although nothing leaks: ``memory_allocated`` stays and ``memory_reserved``
    grows, until an allocation fails with gibibytes "free", or every step frees the cache and
    allocates from the driver again.

How to fix it:
    Against fragmentation set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` or
    ``max_split_size_mb``, whichever the finding recommends, pad batches of changing sizes to a few
    sizes, and allocate long-lived tensors first. Use one side stream instead of many; let CUDA
    graphs share a pool.

Example:
    ::

        for length in lengths:  # always a new size
            kept.append(step(torch.zeros(length, width, device="cuda")))

Use instead:
    ::

        for length in lengths:
            padded = -(-length // 1024) * 1024
            kept.append(step(torch.zeros(padded, width, device="cuda"), length).clone())

Reads:
    The allocator's history (allocations, frees, segments; sizes in bytes), segments and blocks,
    and their stacks.

When to ignore this:
    The history covers only a few steps: a program whose steps grow for another reason, such as
    longer batches, may use the reserved memory later. What other settings would have reserved is
    an estimate, computed as for MEM011.

Source:
    "Memory management" in PyTorch's CUDA semantics; ``c10/cuda/CUDACachingAllocator.cpp``
    (``get_free_block``, ``BlockPool``); pytorch #193400.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from profkit.engine.families.device_memory.messages import (
    main_fragmentation_sites,
    reserved_text,
    retention_text,
    site_locations,
)
from profkit.engine.families.device_memory.settings_messages import (
    fragmentation_evidence,
    suggest_fragmentation_fix,
)
from profkit.index.distinct import distinct
from profkit.index.snapshot.cache_trend import CacheTrend
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.rule import (
    MAX_LINES,
    Context,
    Cost,
    Finding,
    FragmentationSite,
    Int32s,
    Location,
    Rows,
    RuleInfo,
    dataclass,
    format_bytes,
    format_count,
    fragmentation_summary,
    needs,
)

INFO = RuleInfo(
    id="MEM010",
    name="cache-growth",
    title="Reserved memory grows while allocated memory does not",
    severity="warning",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When the growth of a cache is a finding.

    Attributes:
        min_growth_bytes: Minimum growth of reserved memory after the first quarter that is never
            allocated. A new cache grows by less.
        min_growth_share: The same as a share of the peak of reserved memory.
    """

    min_growth_bytes: int = 256 << 20
    min_growth_share: float = 0.2


_SHARE_POOLS: Final = (
    "Use one side stream instead of many, and let CUDA graphs share one pool "
    "(`torch.cuda.graph(g, pool=...)`): each stream and each pool has its own cache."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each device whose cache grows."""
    for memory in ctx.device_memories:
        trend = memory.cache_trend
        if trend is None or not trend.is_growing:
            continue
        min_bytes = thresholds.min_growth_share * memory.peak_reserved_bytes
        if trend.unused_rise_bytes >= max(thresholds.min_growth_bytes, min_bytes):
            yield _build_finding(memory, trend)


def _build_finding(memory: DeviceMemory, trend: CacheTrend) -> Finding:
    # Two causes are possible: if at least half of the growth found free memory in pieces, it is
    # fragmentation, else a cache for each stream and pool.
    replay, requests = memory.replay, memory.driver_requests
    is_later = requests.place >= trend.start
    failed = np.flatnonzero(is_later & requests.is_fragmented)
    failed_bytes, later_bytes = requests.n_bytes[failed].sum(), requests.n_bytes[is_later].sum()
    is_fragmented = int(failed_bytes) * 2 >= int(later_bytes)

    stacks = memory.snapshot.history.stack[replay.rows[requests.place[is_later]]]
    # At the last request that found only pieces, the map shows what was between them.
    place = int(requests.place[failed[-1]]) if len(failed) else replay.end
    segments = memory.segment_map_at(place)
    sites = main_fragmentation_sites(fragmentation_summary(segments, memory.lines))[:MAX_LINES]

    text = (
        f"{reserved_text(memory)}: after the first quarter of the history reserved memory grew by "
        f"{format_bytes(trend.reserved_rise_bytes)} and allocated memory by "
        f"{format_bytes(trend.active_rise_bytes)}."
    )
    cause = (
        _describe_fragmentation(memory, failed, sites) if is_fragmented else _describe_pools(memory)
    )
    return INFO.finding(
        confidence="high" if is_fragmented else "medium",
        message=f"{text} {cause}",
        fix=suggest_fragmentation_fix(memory) if is_fragmented else _SHARE_POOLS,
        locations=_find_locations(memory, sites if is_fragmented else (), stacks),
        n=int(is_later.sum()),
        cost=Cost(bytes=trend.unused_rise_bytes),
        evidence={
            "device": memory.label,
            "reserved_rise_bytes": trend.reserved_rise_bytes,
            "active_rise_bytes": trend.active_rise_bytes,
            "reserved_bytes": memory.peak_reserved_bytes,
            "active_bytes": memory.peak_active_bytes,
            "reserved_if_compact_bytes": requests.compact_bytes,
            "n_fragmented_requests": len(failed),
            "n_pools": len(distinct(requests.pool[is_later])),
            "largest_usable_block_bytes": int(segments.free_bytes.max(initial=0)),
            **(fragmentation_evidence(memory) if is_fragmented else {}),
        },
    )


def _find_locations(
    memory: DeviceMemory, sites: Sequence[FragmentationSite], stacks: Int32s
) -> tuple[Location, ...]:
    """Find the lines whose live blocks fragment the memory, then the lines that allocate more."""
    locations = (*site_locations(sites), *memory.locations(stacks.tolist()))
    return tuple(dict.fromkeys(locations))[:MAX_LINES]


def _describe_fragmentation(
    memory: DeviceMemory, failed: Rows, sites: Sequence[FragmentationSite]
) -> str:
    # Each stream and pool has free blocks of its own, so only those count that could have served
    # the request.
    requests, last = memory.driver_requests, int(failed[-1])
    stream = int(memory.snapshot.history.stream[memory.replay.rows[requests.place[last]]])
    segments = memory.segment_map_at(int(requests.place[last]))
    is_small = bool(requests.is_small_pool[requests.pool[last]])

    largest = segments.largest_usable_block_bytes(stream, is_small=is_small)
    needed = int(requests.needed_bytes[last])
    excluded = ", which `max_split_size` excludes" if largest >= needed else ""
    text = (
        f"{format_count(len(failed))} allocations fit no free block although enough was free: the "
        f"last needed {format_bytes(needed)} with {format_bytes(int(requests.free_bytes[last]))} "
        f"free, the largest free block {format_bytes(largest)}{excluded}."
    )
    return f"{text} {retention_text(sites)}" if sites else text


def _describe_pools(memory: DeviceMemory) -> str:
    requests = memory.driver_requests
    n_pools = len(distinct(requests.pool))
    return (
        f"The allocations came from {format_count(n_pools)} pools (streams, private pools, small "
        "and large blocks), and one pool cannot use the free memory of another."
    )
