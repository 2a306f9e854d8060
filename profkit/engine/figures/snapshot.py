"""The figures of a snapshot, as defined in ``profkit.model.memory_summary``."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.distinct import distinct
from profkit.index.snapshot.allocation_use import USES
from profkit.index.snapshot.annotated_regions import find_annotated_regions
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.live_blocks import SIZE_CLASSES, LiveBlockSites
from profkit.index.snapshot.oom_analysis import AllocationFailure
from profkit.index.snapshot.replay import (
    DeviceReplay,
    measure_peak_pending_free,
    requested_peak_bytes,
)
from profkit.index.snapshot.segment_map import SegmentMap, find_fragmentation_sites
from profkit.index.snapshot.stack_lines import StackLines
from profkit.index.sums import sum_by_key
from profkit.model.events import MISSING
from profkit.model.memory_summary import (
    AllocationSite,
    FragmentationSite,
    MemoryPoint,
    MemoryUse,
    OomSummary,
    SnapshotDevice,
)
from profkit.model.snapshot import MemorySnapshot, State

MAX_SITES: Final = 20
"""These sites have most of the memory; a hundred more have the last few bytes."""
MAX_SITES_OF_OOM: Final = 8
MAX_FRAGMENTATION_SITES: Final = 10
MAX_REGIONS: Final = 20
MAX_POINTS: Final = 120
"""More points than a terminal has columns."""


def summarize_snapshot(ctx: Context) -> tuple[SnapshotDevice, ...]:
    """Summarize each device."""
    return tuple(map(_summarize_device, ctx.device_memories))


def _summarize_device(memory: DeviceMemory) -> SnapshotDevice:
    snapshot, replay, lines = memory.snapshot, memory.replay, memory.lines
    segments, blocks, history = snapshot.segments, snapshot.blocks, snapshot.history

    is_segment = segments.device == replay.device
    of_device = is_segment[blocks.segment]
    state = blocks.state[of_device]
    n_bytes = blocks.n_bytes[of_device]
    free = n_bytes[state == State.INACTIVE]

    layout = memory.segment_map
    return SnapshotDevice(
        device=memory.label,
        n_segments=int(is_segment.sum()),
        n_blocks=len(state),
        reserved_bytes=int(segments.total_bytes[is_segment].sum()),
        allocated_bytes=int(segments.allocated_bytes[is_segment].sum()),
        active_bytes=int(segments.active_bytes[is_segment].sum()),
        inactive_bytes=int(free.sum()),
        largest_free_block_bytes=int(free.max(initial=0)),
        n_trace_events=len(replay.rows),
        peak_active_bytes=requested_peak_bytes(snapshot, replay),
        peak_reserved_bytes=int(replay.reserved_bytes.max()),
        n_live_from_window=len(replay.live),
        live_from_window_bytes=int(history.n_bytes[replay.rows[replay.live]].sum()),
        n_frees_of_earlier=len(replay.earlier_frees),
        top_sites=allocation_sites(memory.sites_at(replay.end), lines, MAX_SITES),
        peak_sites=allocation_sites(memory.sites_at(replay.peak), lines, MAX_SITES),
        oom=tuple(_summarize_oom(memory, failure) for failure in memory.allocation_failures),
        peak_uses=_summarize_uses(memory.sites_at(replay.peak)),
        rounding_bytes=memory.rounding_bytes,
        releasable_bytes=layout.releasable_bytes,
        unreleasable_bytes=layout.unreleasable_bytes,
        private_free_bytes=int(free.sum()) - layout.releasable_bytes - layout.unreleasable_bytes,
        fragmentation_sites=fragmentation_summary(layout, lines)[:MAX_FRAGMENTATION_SITES],
        timeline=tuple(_sample_timeline(snapshot, replay)),
        regions=find_annotated_regions(snapshot, replay)[:MAX_REGIONS],
        peak_pending_free_bytes=measure_peak_pending_free(snapshot, replay),
        driver=memory.driver,
    )


def allocation_sites(
    sites: LiveBlockSites, lines: StackLines, limit: int
) -> tuple[AllocationSite, ...]:
    """Describe the first sites, up to a limit, as the report does."""
    return tuple(
        AllocationSite(
            location=lines.location(int(sites.line[i])),
            stack=lines.python(int(sites.stack[i])),
            n=int(sites.n[i]),
            bytes=int(sites.n_bytes[i]),
            category=USES[sites.use[i]],
            size_class=SIZE_CLASSES[sites.size_class[i]],
            is_before_recording=bool(sites.is_before_recording[i]),
        )
        for i in range(min(len(sites), limit))
    )


def _summarize_uses(sites: LiveBlockSites) -> tuple[MemoryUse, ...]:
    n = sum_by_key(len(USES), sites.use, sites.n)
    n_bytes = sum_by_key(len(USES), sites.use, sites.n_bytes)
    order = [use for use in np.argsort(-n_bytes, kind="stable").tolist() if n[use]]
    return tuple(MemoryUse(USES[use], int(n[use]), int(n_bytes[use])) for use in order)


def fragmentation_summary(layout: SegmentMap, lines: StackLines) -> tuple[FragmentationSite, ...]:
    """Describe the sites that cause fragmentation, as the report does."""
    sites = find_fragmentation_sites(layout, lines)
    return tuple(
        FragmentationSite(
            location=lines.location(int(sites.line[i])),
            n=int(sites.n[i]),
            bytes=int(sites.n_bytes[i]),
            unreleasable_bytes=int(sites.unreleasable_bytes[i]),
        )
        for i in range(len(sites))
    )


def _summarize_oom(memory: DeviceMemory, failure: AllocationFailure) -> OomSummary:
    return OomSummary(
        bytes=failure.requested_bytes,
        device_free_bytes=failure.device_free_bytes,
        location=next(iter(memory.locations([failure.stack])), None),
        reason=failure.reason,
        missing_bytes=failure.missing_bytes,
        reserved_bytes=failure.reserved_bytes,
        active_bytes=failure.active_bytes,
        largest_usable_block_bytes=failure.largest_usable_block_bytes,
        sites=allocation_sites(memory.sites_at(failure.place), memory.lines, MAX_SITES_OF_OOM),
    )


def _sample_timeline(snapshot: MemorySnapshot, replay: DeviceReplay) -> Iterator[MemoryPoint]:
    """Yield the state before and after the history, and the maximum of each interval between."""
    n = replay.end
    if not n:
        return

    times = snapshot.history.time_us[replay.rows]
    has_times = int(times.min()) != MISSING
    bounds = distinct(np.linspace(1, n, min(n, MAX_POINTS - 1)).astype(np.int64))
    starts = np.array([0, *bounds[:-1].tolist(), n])

    active = np.maximum.reduceat(replay.active_bytes, starts)
    reserved = np.maximum.reduceat(replay.reserved_bytes, starts)

    for i, entry in enumerate([0, *(bounds[1:] - 1).tolist(), n]):
        yield MemoryPoint(
            entry=entry,
            time_us=int(times[max(entry - 1, 0)]) - int(times[0]) if has_times else None,
            active_bytes=int(active[i]),
            reserved_bytes=int(reserved[i]),
        )
