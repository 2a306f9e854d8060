"""Everything derived from a snapshot for one device, computed on first use."""

from collections.abc import Iterable
from dataclasses import field, replace
from functools import cached_property

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocator.settings import AllocatorSettings, settings_of
from profkit.index.snapshot.block_lifetimes import BlockLifetimes, block_lifetimes
from profkit.index.snapshot.cache_flushes import Flushes, cache_flushes
from profkit.index.snapshot.cache_trend import CacheTrend, cache_trend
from profkit.index.snapshot.driver_requests import DriverRequests, driver_requests
from profkit.index.snapshot.live_blocks import (
    LiveBlocks,
    LiveBlockSites,
    group_by_site,
    live_blocks_at,
)
from profkit.index.snapshot.oom_analysis import AllocationFailure, allocation_failures
from profkit.index.snapshot.replay import DeviceReplay, common_levels
from profkit.index.snapshot.segment_map import SegmentMap, final_segment_map, segment_map_at
from profkit.index.snapshot.stack_lines import StackLines, stack_lines
from profkit.index.snapshot.what_if import WhatIf, recorded_history
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
        """The device in PyTorch's notation: ``cuda:0``; snapshots have no other kind."""
        return f"cuda:{self.replay.device}"

    @property
    def driver(self) -> DeviceBytes | None:
        """The driver's figures of the device when the snapshot was taken, if recorded."""
        own = (each for each in self.snapshot.driver if each.device == self.replay.device)
        return next(own, None)

    @cached_property
    def _common(self) -> tuple[Int64s, Int64s]:
        return common_levels(self.snapshot, self.replay)

    @property
    def active_bytes(self) -> Int64s:
        """Active bytes outside private pools, as :attr:`DeviceReplay.active_bytes`."""
        return self._common[0]

    @property
    def reserved_bytes(self) -> Int64s:
        """Reserved bytes outside private pools, as :attr:`DeviceReplay.reserved_bytes`."""
        return self._common[1]

    @cached_property
    def cache_trend(self) -> CacheTrend | None:
        """Growth of the cache; None where the history is too short."""
        return cache_trend(self.active_bytes, self.reserved_bytes)

    @property
    def is_cache_growing(self) -> bool:
        """Whether the cache keeps growing."""
        return self.cache_trend is not None and self.cache_trend.is_growing

    @cached_property
    def driver_requests(self) -> DriverRequests:
        """Requests to the driver."""
        return driver_requests(self.snapshot, self.replay)

    @cached_property
    def flushes(self) -> Flushes:
        """Cache flushes."""
        return cache_flushes(self.snapshot, self.replay)

    @cached_property
    def allocation_failures(self) -> tuple[AllocationFailure, ...]:
        """Failed allocations."""
        return allocation_failures(self.snapshot, self.replay)

    @cached_property
    def settings(self) -> AllocatorSettings:
        """The allocator's settings."""
        settings = settings_of(self.snapshot.settings)
        here = self.snapshot.segments.device == self.replay.device
        # Before torch 2.3 snapshots have no settings; segments show whether they are expandable.
        is_expandable = bool(self.snapshot.segments.is_expandable[here].any())
        return replace(settings, expandable=settings.expandable or is_expandable)

    @cached_property
    def what_if(self) -> WhatIf:
        """Simulations with other settings."""
        return WhatIf(
            recorded_history(
                self.snapshot, self.replay, self.settings, self.flushes, self.allocation_failures
            )
        )

    @cached_property
    def lifetimes(self) -> BlockLifetimes:
        """When each block was live."""
        return block_lifetimes(self.snapshot, self.replay, self.lines)

    @cached_property
    def segment_map(self) -> SegmentMap:
        """The final segment map."""
        return final_segment_map(self.snapshot, self.replay.device)

    @cached_property
    def rounding_bytes(self) -> int:
        """Bytes by which active blocks exceed the requested sizes at the end."""
        blocks = self.snapshot.blocks
        here = self.snapshot.segments.device[blocks.segment] == self.replay.device
        requested = blocks.requested_bytes
        # Not every format has requested sizes: 0 or missing is none.
        known = here & blocks.is_active & (requested > 0) & (requested <= blocks.n_bytes)
        return int((blocks.n_bytes[known] - requested[known]).sum())

    def segment_map_at(self, place: int) -> SegmentMap:
        """The segment map before a history entry; the final one if it cannot be reconstructed."""
        return segment_map_at(self.snapshot, self.replay, place) or self.segment_map

    def live_blocks_at(self, place: int) -> LiveBlocks:
        """Live blocks before a history entry, or at the end."""
        if place not in self._live_blocks:
            self._live_blocks[place] = live_blocks_at(self.snapshot, self.replay, place)
        return self._live_blocks[place]

    def sites_at(self, place: int) -> LiveBlockSites:
        """Live blocks by source line and use before a history entry, or at the end."""
        if place not in self._sites:
            self._sites[place] = group_by_site(self.live_blocks_at(place), self.lines)
        return self._sites[place]

    def locations(self, stacks: Iterable[int]) -> tuple[Location, ...]:
        """The source lines of those stacks that have one, each once, most frequent first."""
        line = self.lines.of(np.fromiter(stacks, np.int32))
        found, n = np.unique(line[line >= 0], return_counts=True)
        order = np.argsort(-n, kind="stable")
        return tuple(self.lines.location(int(each)) for each in found[order])

    def bytes_of_line(self, line: int) -> Int64s:
        """Bytes that a line of :attr:`LiveBlockSites.line` allocated within the history.

        Before each row and at its end. Shape ``(n+1,)``.
        """
        replay = self.replay
        own = self.lines.of(self.snapshot.history.stack[replay.rows[replay.alloc]]) == line
        change = np.zeros(replay.end + 1, dtype=np.int64)
        np.add.at(change, replay.alloc[own] + 1, replay.n_bytes[replay.alloc[own]])
        ended = own & (replay.free != NO_ROW)
        np.subtract.at(change, replay.free[ended] + 1, replay.n_bytes[replay.alloc[ended]])
        return np.cumsum(change)

    def peak_without(self, line: int) -> int:
        """The peak of active bytes without what one line allocates."""
        return int((self.replay.active_bytes - self.bytes_of_line(line)).max())


def device_memories(
    snapshot: MemorySnapshot, replays: tuple[DeviceReplay, ...]
) -> tuple[DeviceMemory, ...]:
    """Every device of a snapshot, by ordinal."""
    lines = stack_lines(snapshot.stacks)
    return tuple(DeviceMemory(snapshot, replay, lines) for replay in replays)
