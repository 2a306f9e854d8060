"""All that a snapshot tells of one device's memory, worked out when it is first asked."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from profkit.index.snapshot.allocator.settings import AllocatorSettings, settings_of
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
from profkit.model.snapshot import MemorySnapshot, State


@dataclass(frozen=True)
class DeviceMemory:
    """One device of a snapshot.

    Attributes:
        snapshot: The snapshot.
        replay: The device's history, played again.
        lines: The telling lines of the snapshot's stacks.
    """

    snapshot: MemorySnapshot
    replay: DeviceReplay
    lines: StackLines
    _live_blocks: dict[int, LiveBlocks] = field(default_factory=dict, repr=False, compare=False)
    _sites: dict[int, LiveBlockSites] = field(default_factory=dict, repr=False, compare=False)

    @property
    def label(self) -> str:
        """As PyTorch writes it: ``cuda:0``. The snapshot does not tell of another kind."""
        return f"cuda:{self.replay.device}"

    @property
    def driver(self) -> DeviceBytes | None:
        """What the driver said of the device when the snapshot was taken, if it was asked."""
        own = (each for each in self.snapshot.driver if each.device == self.replay.device)
        return next(own, None)

    @cached_property
    def _common(self) -> tuple[Int64s, Int64s]:
        return common_levels(self.snapshot, self.replay)

    @property
    def active_bytes(self) -> Int64s:
        """What was active outside private pools, as :attr:`DeviceReplay.active_bytes`."""
        return self._common[0]

    @property
    def reserved_bytes(self) -> Int64s:
        """What was reserved outside private pools, likewise."""
        return self._common[1]

    @cached_property
    def cache_trend(self) -> CacheTrend | None:
        """How these two went on; None where the history is too short to tell."""
        return cache_trend(self.active_bytes, self.reserved_bytes)

    @property
    def is_cache_growing(self) -> bool:
        """Whether the cache rises on and on."""
        return self.cache_trend is not None and self.cache_trend.is_growing

    @cached_property
    def driver_requests(self) -> DriverRequests:
        """What was asked of the driver."""
        return driver_requests(self.snapshot, self.replay)

    @cached_property
    def flushes(self) -> Flushes:
        """When cached memory was given back."""
        return cache_flushes(self.snapshot, self.replay)

    @cached_property
    def allocation_failures(self) -> tuple[AllocationFailure, ...]:
        """Requests that could not be met."""
        return allocation_failures(self.snapshot, self.replay)

    @cached_property
    def settings(self) -> AllocatorSettings:
        """The settings that the allocator had."""
        told = settings_of(self.snapshot.settings)
        here = self.snapshot.segments.device == self.replay.device
        # Before torch 2.3 a snapshot had no settings, and only segments tell.
        grows = bool(self.snapshot.segments.is_expandable[here].any())
        return replace(told, expandable=told.expandable or grows)

    @cached_property
    def what_if(self) -> WhatIf:
        """What would have been reserved with others."""
        return WhatIf(
            recorded_history(
                self.snapshot, self.replay, self.settings, self.flushes, self.allocation_failures
            )
        )

    @cached_property
    def segment_map(self) -> SegmentMap:
        """Where everything lies in the end."""
        return final_segment_map(self.snapshot, self.replay.device)

    @cached_property
    def rounding_bytes(self) -> int:
        """What active blocks are longer than what was asked for, in the end."""
        blocks = self.snapshot.blocks
        here = self.snapshot.segments.device[blocks.segment] == self.replay.device
        active = (blocks.state == State.ALLOCATED) | (blocks.state == State.PENDING_FREE)
        asked = blocks.requested_bytes
        # What was asked for is not in every layout: 0 or missing is no request.
        known = here & active & (asked > 0) & (asked <= blocks.n_bytes)
        return int((blocks.n_bytes[known] - asked[known]).sum())

    def segment_map_at(self, place: int) -> SegmentMap:
        """Where everything lay before a row of the history; where that is lost, in the end."""
        return segment_map_at(self.snapshot, self.replay, place) or self.segment_map

    def live_blocks_at(self, place: int) -> LiveBlocks:
        """What stands before a row of the history, or in the end."""
        if place not in self._live_blocks:
            self._live_blocks[place] = live_blocks_at(self.snapshot, self.replay, place)
        return self._live_blocks[place]

    def sites_at(self, place: int) -> LiveBlockSites:
        """The same by line and use."""
        if place not in self._sites:
            self._sites[place] = group_by_site(self.live_blocks_at(place), self.lines)
        return self._sites[place]

    def locations(self, stacks: Iterable[int]) -> tuple[Location, ...]:
        """The telling lines of some stacks, each once, the one of most stacks first.

        Args:
            stacks: Numbers of stacks; those without a line are passed over.
        """
        line = self.lines.of(np.fromiter(stacks, np.int32))
        found, n = np.unique(line[line >= 0], return_counts=True)
        order = np.argsort(-n, kind="stable")
        return tuple(self.lines.location(int(each)) for each in found[order])

    def bytes_of_line(self, line: int) -> Int64s:
        """Bytes that one line allocated within the history, before each row and at its end.

        Args:
            line: As in :attr:`LiveBlockSites.line`.

        Returns:
            Shape ``(n+1,)``.
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
    """Every device of a snapshot, by ordinal.

    Args:
        replays: The history of each device, played again.
    """
    lines = stack_lines(snapshot.stacks)
    return tuple(DeviceMemory(snapshot, replay, lines) for replay in replays)
