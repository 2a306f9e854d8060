"""MEM010 cache-growth: PyTorch takes ever more of the device for no more that is in use.

What it finds:
    A snapshot's history in which what PyTorch holds of the device rises and rises after its first
    quarter, while the most that is in use at once hardly does; and what keeps it from using again
    what is free: pieces too short and the live blocks between them, or streams and private pools,
    which each have a cache of their own.

Why it matters:
    The device fills although nothing leaks: ``memory_allocated`` stays and ``memory_reserved``
    grows, until a request fails with gibibytes "free", or every step gives the cache back to the
    driver and asks for it anew.

How to fix it:
    Against pieces set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` or
    ``max_split_size_mb``, whichever the finding says would have reserved less, pad batches of ever
    new sizes to a few sizes, and allocate what lives long first. Use one side stream instead of
    many; let CUDA graphs share a pool.

Example:
    ::

        for length in lengths:  # ever new sizes
            kept.append(step(torch.zeros(length, width, device="cuda")))

Use instead:
    ::

        for length in lengths:
            padded = -(-length // 1024) * 1024
            kept.append(step(torch.zeros(padded, width, device="cuda"), length).clone())

Reads:
    The history of the allocator (requests, frees, segments; lengths in bytes), segments and blocks,
    and their stacks.

When to ignore this:
    A history of a few steps only: a program whose steps grow for other reasons, such as longer
    batches, may come to use later what it holds now. What other settings would have reserved is an
    estimate, worked out as for MEM011.

Source:
    "Memory management" in PyTorch's CUDA semantics; ``c10/cuda/CUDACachingAllocator.cpp``
    (``get_free_block``, ``BlockPool``); pytorch #193400.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.device_memory.messages import (
    fragmentation_text,
    listed,
    main_fragmentation_sites,
    site_locations,
)
from profkit.engine.families.device_memory.settings_messages import (
    fragmentation_evidence,
    fragmentation_fix,
)
from profkit.engine.figures.snapshot import fragmentation_summary
from profkit.index.snapshot.cache_trend import CacheTrend
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.events import Int32s, Rows
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.model.memory_summary import FragmentationSite
from profkit.units import format_bytes, format_count

INFO = RuleInfo(
    id="MEM010",
    name="cache-growth",
    title="The cache of device memory grows and grows",
    severity="warning",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When the growth of a cache is a finding.

    Attributes:
        min_growth_bytes: What is reserved more than in the first quarter and never in use. Below
            this a cache settles in.
        min_growth_share: The same as a share of the most that was reserved.
    """

    min_growth_bytes: int = 256 << 20
    min_growth_share: float = 0.2


MAX_LINES: Final = 3


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for each device whose cache grows."""
    for memory in ctx.device_memories:
        trend = memory.cache_trend
        if trend is None or not trend.is_growing:
            continue
        least = thresholds.min_growth_share * int(memory.reserved_bytes.max())
        if trend.unused_rise_bytes >= max(thresholds.min_growth_bytes, least):
            yield _finding(memory, trend)


def _finding(memory: DeviceMemory, trend: CacheTrend) -> Finding:
    replay, requests = memory.replay, memory.driver_requests
    later = requests.place >= trend.start
    forced = np.flatnonzero(later & requests.is_fragmented)
    in_pieces = int(requests.n_bytes[forced].sum()) * 2 >= int(requests.n_bytes[later].sum())
    asking = memory.snapshot.history.stack[replay.rows[requests.place[later]]]
    place = int(requests.place[forced[-1]]) if len(forced) else replay.end
    layout = memory.segment_map_at(place)
    pins = main_fragmentation_sites(fragmentation_summary(layout, memory.lines))[:MAX_LINES]
    text = (
        f"PyTorch came to hold {format_bytes(int(memory.reserved_bytes.max()))} of {memory.label} "
        f"for at most {format_bytes(int(memory.active_bytes.max()))} in use at once: after the "
        f"first quarter of the history it took {format_bytes(trend.reserved_rise_bytes)} more, "
        f"while what is in use rose by {format_bytes(trend.active_rise_bytes)}."
    )
    cause = _pieces(memory, forced, pins) if in_pieces else _pools(memory)
    return INFO.finding(
        severity="warning",
        confidence="high" if in_pieces else "medium",
        message=f"{text} {cause}",
        fix=fragmentation_fix(memory) if in_pieces else (
            "Use one side stream instead of many, and let CUDA graphs share one pool "
            "(`torch.cuda.graph(g, pool=...)`): each stream and each pool has a cache of its own."
        ),
        locations=_locations(memory, pins if in_pieces else (), asking),
        n=int(later.sum()),
        cost=Cost(bytes=trend.unused_rise_bytes),
        evidence={
            "device": memory.label,
            "reserved_rise_bytes": trend.reserved_rise_bytes,
            "active_rise_bytes": trend.active_rise_bytes,
            "reserved_bytes": int(memory.reserved_bytes.max()),
            "active_bytes": int(memory.active_bytes.max()),
            "reserved_in_one_piece_bytes": requests.compact_bytes,
            "n_forced": len(forced),
            "n_pools": len(np.unique(requests.pool[later])),
            "largest_usable_block_bytes": int(layout.free_bytes.max(initial=0)),
            **(fragmentation_evidence(memory) if in_pieces else {}),
        },
    )  # fmt: skip


def _locations(
    memory: DeviceMemory, pins: Sequence[FragmentationSite], asking: Int32s
) -> tuple[Location, ...]:
    """The lines that hold pieces in place first, then those that ask for more."""
    return tuple(dict.fromkeys((*site_locations(pins), *memory.locations(asking.tolist()))))[
        :MAX_LINES
    ]


def _pieces(memory: DeviceMemory, forced: Rows, pins: Sequence[FragmentationSite]) -> str:
    requests, last = memory.driver_requests, int(forced[-1])
    stream = int(memory.snapshot.history.stream[memory.replay.rows[requests.place[last]]])
    layout = memory.segment_map_at(int(requests.place[last]))
    small = bool(requests.is_small_pool[requests.pool[last]])
    longest = layout.largest_usable_block_bytes(stream, is_small=small)
    needed = int(requests.needed_bytes[last])
    barred = ", which `max_split_size` keeps from it" if longest >= needed else ""
    text = (
        f"{format_count(len(forced))} requests found enough free, and none of it fit: the last "
        f"asked for {format_bytes(needed)} with {format_bytes(int(requests.free_bytes[last]))} "
        f"free, the longest piece {format_bytes(longest)}{barred}."
    )
    if not pins:
        return text
    held = format_bytes(sum(pin.unreleasable_bytes for pin in pins))
    return f"{text} {listed([fragmentation_text(pin) for pin in pins])} held {held} in place."


def _pools(memory: DeviceMemory) -> str:
    requests = memory.driver_requests
    n_pools = len(np.unique(requests.pool))
    return (
        f"The requests came from {format_count(n_pools)} pools (streams, private pools, small and "
        f"large requests), and what is free in one is of no use to another."
    )
