"""Everything derived from a snapshot for one device, computed on first use."""

from collections.abc import Iterable
from dataclasses import field, replace
from functools import cached_property

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocator.settings import AllocatorSettings, parse_settings
from profkit.index.snapshot.block_lifetimes import BlockLifetimes, find_block_lifetimes
from profkit.index.snapshot.cache_flushes import Flushes, find_cache_flushes
from profkit.index.snapshot.cache_trend import CacheTrend, measure_cache_trend
from profkit.index.snapshot.driver_requests import DriverRequests, find_driver_requests
from profkit.index.snapshot.live_blocks import (
    LiveBlocks,
    LiveBlockSites,
    find_live_blocks,
    group_by_site,
)
from profkit.index.snapshot.oom_analysis import AllocationFailure, find_allocation_failures
from profkit.index.snapshot.replay import DeviceReplay, compute_common_levels, driver_figures
from profkit.index.snapshot.segment_map import (
    SegmentMap,
    build_final_segment_map,
    build_segment_map_at,
)
from profkit.index.snapshot.stack_lines import StackLines, find_stack_lines
from profkit.index.snapshot.what_if import WhatIf, build_recorded_history
from profkit.index.sums import sum_by_key
from profkit.model.device_bytes import DeviceBytes
from profkit.model.events import NO_ROW, Int64s
from profkit.model.location import Location
from profkit.model.snapshot import MemorySnapshot


@dataclass(frozen=True)
class DeviceMemory:
    """One device of a snapshot."""

    snapshot: MemorySnapshot
    replay: DeviceReplay
    lines: StackLines
    _live_blocks: dict[int, LiveBlocks] = field(default_factory=dict, repr=False, compare=False)
    _sites: dict[int, LiveBlockSites] = field(default_factory=dict, repr=False, compare=False)

    @property
    def label(self) -> str:
        """Return the device in PyTorch's notation: ``cuda:0``; snapshots have no other kind."""
        return f"cuda:{self.replay.device}"

    @property
    def driver(self) -> DeviceBytes | None:
        """Return the driver's figures of the device when the snapshot was taken, if recorded."""
        return driver_figures(self.snapshot, self.replay.device)

    @cached_property
    def _common(self) -> tuple[Int64s, Int64s]:
        return compute_common_levels(self.snapshot, self.replay)

    @property
    def active_bytes(self) -> Int64s:
        """Return active bytes outside private pools, as :attr:`DeviceReplay.active_bytes`."""
        return self._common[0]

    @property
    def reserved_bytes(self) -> Int64s:
        """Return reserved bytes outside private pools, as :attr:`DeviceReplay.reserved_bytes`."""
        return self._common[1]

    @property
    def peak_active_bytes(self) -> int:
        """Return the peak of :attr:`active_bytes`."""
        return int(self.active_bytes.max())

    @property
    def peak_reserved_bytes(self) -> int:
        """Return the peak of :attr:`reserved_bytes`."""
        return int(self.reserved_bytes.max())

    @cached_property
    def cache_trend(self) -> CacheTrend | None:
        """Return the growth of the cache, or None if the history is too short."""
        return measure_cache_trend(self.active_bytes, self.reserved_bytes)

    @property
    def is_cache_growing(self) -> bool:
        """Return whether the cache keeps growing."""
        return self.cache_trend is not None and self.cache_trend.is_growing

    @cached_property
    def driver_requests(self) -> DriverRequests:
        """Return the requests to the driver."""
        return find_driver_requests(self.snapshot, self.replay)

    @cached_property
    def flushes(self) -> Flushes:
        """Return the cache flushes."""
        return find_cache_flushes(self.snapshot, self.replay)

    @cached_property
    def allocation_failures(self) -> tuple[AllocationFailure, ...]:
        """Return the failed allocations."""
        return find_allocation_failures(self.snapshot, self.replay)

    @cached_property
    def settings(self) -> AllocatorSettings:
        """Return the allocator's settings."""
        settings = parse_settings(self.snapshot.settings)
        is_on_device = self.snapshot.segments.device == self.replay.device
        # Before torch 2.3 snapshots have no settings; segments show whether they are expandable.
        is_expandable = bool(self.snapshot.segments.is_expandable[is_on_device].any())
        return replace(settings, expandable=settings.expandable or is_expandable)

    @cached_property
    def what_if(self) -> WhatIf:
        """Return simulations with other settings."""
        return WhatIf(
            build_recorded_history(
                self.snapshot, self.replay, self.settings, self.flushes, self.allocation_failures
            )
        )

    @cached_property
    def lifetimes(self) -> BlockLifetimes:
        """Return when each block was live."""
        return find_block_lifetimes(self.snapshot, self.replay, self.lines)

    @cached_property
    def segment_map(self) -> SegmentMap:
        """Return the final segment map."""
        return build_final_segment_map(self.snapshot, self.replay.device)

    @cached_property
    def rounding_bytes(self) -> int:
        """Return the bytes by which active blocks exceed the requested sizes at the end."""
        blocks = self.snapshot.blocks
        is_on_device = self.snapshot.segments.device[blocks.segment] == self.replay.device
        requested = blocks.requested_bytes
        # Not every format has requested sizes: 0 or a missing one does not count.
        is_known = is_on_device & blocks.is_active & (requested > 0) & (requested <= blocks.n_bytes)
        return int((blocks.n_bytes[is_known] - requested[is_known]).sum())

    def segment_map_at(self, place: int) -> SegmentMap:
        """Return the segment map before a history entry, or the final one if that is unknown."""
        return build_segment_map_at(self.snapshot, self.replay, place) or self.segment_map

    def live_blocks_at(self, place: int) -> LiveBlocks:
        """Return the live blocks before a history entry, or at the end."""
        if place not in self._live_blocks:
            self._live_blocks[place] = find_live_blocks(self.snapshot, self.replay, place)
        return self._live_blocks[place]

    def sites_at(self, place: int) -> LiveBlockSites:
        """Return the live blocks by source line and use before a history entry, or at the end."""
        if place not in self._sites:
            self._sites[place] = group_by_site(self.live_blocks_at(place), self.lines)
        return self._sites[place]

    def locations(self, stacks: Iterable[int]) -> tuple[Location, ...]:
        """Return the distinct source lines of some stacks, most frequent first."""
        line = self.lines.of(np.fromiter(stacks, np.int32))
        lines, n = np.unique(line[line >= 0], return_counts=True)
        order = np.argsort(-n, kind="stable")
        return tuple(self.lines.location(int(number)) for number in lines[order])

    def bytes_of_line(self, line: int) -> Int64s:
        """Return the bytes that a line of :attr:`LiveBlockSites.line` allocated within the history.

        Before each row and at its end. Shape ``(n+1,)``.
        """
        replay = self.replay
        is_of_line = self.lines.of(self.snapshot.history.stack[replay.rows[replay.alloc]]) == line
        alloc = replay.alloc[is_of_line]
        change = sum_by_key(replay.end + 1, alloc + 1, replay.n_bytes[alloc])
        is_ended = is_of_line & (replay.free != NO_ROW)
        np.subtract.at(change, replay.free[is_ended] + 1, replay.n_bytes[replay.alloc[is_ended]])
        return np.cumsum(change)

    def peak_without(self, line: int) -> int:
        """Return the peak of active bytes without the allocations of one line."""
        return int((self.replay.active_bytes - self.bytes_of_line(line)).max())


def device_memories(
    snapshot: MemorySnapshot, replays: tuple[DeviceReplay, ...]
) -> tuple[DeviceMemory, ...]:
    """Return every device of a snapshot, by ordinal."""
    lines = find_stack_lines(snapshot.stacks)
    return tuple(DeviceMemory(snapshot, replay, lines) for replay in replays)
