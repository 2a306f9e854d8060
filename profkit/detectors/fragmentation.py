"""MEM011 fragmentation: much device memory is free, in pieces that no request fits.

What it finds:
    Requests that made PyTorch take more from the driver although enough was free in the same pool,
    in pieces each too short, where that has left a good part of what PyTorch holds unused; and the
    lines whose live blocks hold most of those pieces apart. Also blocks that are much longer than
    what was asked for.

Why it matters:
    A tensor needs its memory in one stretch, and nothing moves the tensors that stand between free
    pieces. What is free in pieces is lost to this program and to all others on the device, until a
    request fails with memory "free".

How to fix it:
    Set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``: segments then grow where they are,
    instead of new ones being begun; or ``max_split_size_mb``, so that short tensors do not split
    long blocks. What each would have reserved is told: the history is played again under it.
    Allocate what lives long before what comes and goes. Pad batches of changing sizes to a few.

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
    The history of the allocator (requests, frees, segments; lengths in bytes), segments and blocks,
    and their stacks.

When to ignore this:
    Of blocks that were freed before the snapshot the history tells what was asked for; what a large
    block was given beyond that, up to 1 MiB, is counted as free. What other settings would have
    reserved is an estimate, told only where the same model, under the settings that were, reserves
    what was recorded, within 1 % at every request. What stood before the history stays as it was.

Source:
    "Memory management" in PyTorch's CUDA semantics; ``c10/cuda/CUDACachingAllocator.cpp``
    (``get_free_block``, ``should_split``, ``try_allocate_expandable_block``); pytorch #193400.
"""

from collections.abc import Iterator
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
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.finding import Cost, Finding
from profkit.model.memory_summary import FragmentationSite
from profkit.units import format_bytes, format_count, format_share

INFO = RuleInfo(
    id="MEM011",
    name="fragmentation",
    title="Much memory is free in pieces that nothing fits",
    severity="note",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When memory in pieces is a finding.

    Attributes:
        min_pieces_bytes: What is reserved beyond what requests would need if free memory always
            were in one piece. Half a gibibyte is nothing on devices of today.
        min_pieces_share: The same as a share of the most that was reserved. A tenth or so is the
            usual price of a first step, whose requests come in no order.
        warning_share: Share from which it is a warning: as much is lost as is used.
        min_rounding_share: Share of what is in use that is rounding alone. Without settings of the
            program's own it is a few hundredths.
    """

    min_pieces_bytes: int = 512 << 20
    min_pieces_share: float = 0.2
    warning_share: float = 0.5
    min_rounding_share: float = 0.1


MAX_LINES: Final = 3
MAX_ENTRIES: Final = 20


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for each device with much memory in pieces."""
    for memory in ctx.device_memories:
        most = int(memory.reserved_bytes.max())
        least = max(thresholds.min_pieces_bytes, thresholds.min_pieces_share * most)
        # What is in use at once bounds what would do from below, and costs nothing to know. Where
        # the cache grows on and on that is told instead, with its causes, by the rule for it.
        if _beyond(memory, 0) >= least and not memory.is_cache_growing:
            pieces = _beyond(memory, memory.driver_requests.compact_bytes)
            if memory.driver_requests.is_fragmented.any() and pieces >= least:
                warns = pieces >= thresholds.warning_share * most
                yield _finding(memory, most, pieces, warns=warns)
        active = int(memory.replay.active_bytes[-1])
        rounding_share = thresholds.min_rounding_share * active
        if memory.rounding_bytes >= max(thresholds.min_pieces_bytes, rounding_share):
            yield _rounding(memory, active)


def _beyond(memory: DeviceMemory, would_do_bytes: int) -> int:
    """The most that was reserved, less what would do, what was in use, and what was there before.

    What was reserved before the history began was for requests that are not known.
    """
    in_use, before = int(memory.active_bytes.max()), int(memory.reserved_bytes[0])
    return int(memory.reserved_bytes.max()) - max(would_do_bytes, in_use, before)


def _finding(memory: DeviceMemory, most: int, pieces: int, *, warns: bool) -> Finding:
    requests = memory.driver_requests
    forced = np.flatnonzero(requests.is_fragmented)
    worst = int(forced[requests.needed_bytes[forced].argmax()])
    place = int(requests.place[worst])
    pins = fragmentation_summary(memory.segment_map_at(place), memory.lines)
    asking = memory.locations([int(memory.snapshot.history.stack[memory.replay.rows[place]])])
    return INFO.finding(
        severity="warning" if warns else "note",
        confidence="medium",
        message=_message(memory, most, pieces, worst, pins),
        fix=fragmentation_fix(memory),
        locations=tuple(dict.fromkeys((*site_locations(main_fragmentation_sites(pins)), *asking)))[
            :MAX_LINES
        ],
        n=len(forced),
        cost=Cost(bytes=pieces, basis="estimate"),
        evidence={
            "device": memory.label,
            "reserved_bytes": most,
            "active_bytes": int(memory.active_bytes.max()),
            "reserved_in_one_piece_bytes": requests.compact_bytes,
            "unreleasable_bytes": memory.segment_map_at(place).unreleasable_bytes,
            "n_forced": len(forced),
            "n_requests": len(requests.place),
            "largest_forced_bytes": int(requests.needed_bytes[worst]),
            "free_then_bytes": int(requests.free_bytes[worst]),
            "entries": requests.place[forced][:MAX_ENTRIES].tolist(),
            **fragmentation_evidence(memory),
        },
    )


def _rounding(memory: DeviceMemory, active: int) -> Finding:
    lost = memory.rounding_bytes
    return INFO.finding(
        severity="note",
        confidence="high",
        message=(
            f"{format_bytes(lost)} of the {format_bytes(active)} in use on {memory.label} "
            f"({format_share(lost / active)}) is rounding: blocks are that much longer than what "
            f"was asked for."
        ),
        fix="Take `roundup_power2_divisions` out of `PYTORCH_CUDA_ALLOC_CONF`, or raise it.",
        cost=Cost(bytes=lost),
        evidence={"device": memory.label, "rounding_bytes": lost, "active_bytes": active},
    )


def _message(
    memory: DeviceMemory, most: int, pieces: int, worst: int, pins: tuple[FragmentationSite, ...]
) -> str:
    requests = memory.driver_requests
    n_forced = int(requests.is_fragmented.sum())
    text = (
        f"PyTorch came to hold {format_bytes(most)} of {memory.label} for at most "
        f"{format_bytes(int(memory.active_bytes.max()))} in use at once: about "
        f"{format_bytes(pieces)} ({format_share(pieces / most)}) only because free memory was in "
        f"pieces. {format_count(n_forced)} of {format_count(len(requests.place))} requests to the "
        f"driver found enough free, but not in one piece; the largest asked for "
        f"{format_bytes(int(requests.needed_bytes[worst]))} with "
        f"{format_bytes(int(requests.free_bytes[worst]))} free in its pool."
    )
    return f"{text} {_what_holds_it(memory, worst, pins)}"


def _what_holds_it(memory: DeviceMemory, worst: int, pins: tuple[FragmentationSite, ...]) -> str:
    """Live blocks that stand between the pieces; or none do, and segments are too short."""
    layout = memory.segment_map_at(int(memory.driver_requests.place[worst]))
    held, whole = layout.unreleasable_bytes, layout.releasable_bytes
    known = main_fragmentation_sites(pins)[:MAX_LINES]
    if held < whole or not known:
        return (
            f"Then {format_bytes(whole)} of all that was free lay in whole segments, and "
            f"{format_bytes(held)} between live blocks."
        )
    by_lines = format_bytes(sum(site.unreleasable_bytes for site in known))
    return f"{listed([fragmentation_text(site) for site in known])} held {by_lines} in place then."
