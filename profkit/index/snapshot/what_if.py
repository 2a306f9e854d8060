"""What a device's history would have reserved had its allocator had other settings.

The history is played again twice and more: with the settings that it had, which must come to what
was recorded, and with others. What was reserved before the first row stays as it was, and a cache
that was emptied when there was nothing to give back left no trace in the history: both make other
settings look no better than they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from profkit.index.snapshot.allocator.requests import Requests
from profkit.index.snapshot.allocator.settings import AllocatorSettings
from profkit.index.snapshot.allocator.simulate import (
    NEVER,
    Family,
    SimulatedRun,
    combined,
    simulate,
)
from profkit.index.snapshot.cache_flushes import FlushCause, Flushes
from profkit.index.snapshot.oom_analysis import AllocationFailure
from profkit.index.snapshot.recorded_requests import recorded_requests
from profkit.index.snapshot.replay import DeviceReplay, common_levels
from profkit.model.events import Int64s, Rows
from profkit.model.snapshot import MemorySnapshot

SPLIT_MIB: Final = (32, 64, 128, 256, 512, 1024)
"""Limits to try: PyTorch takes none of 20 MiB or less, and beyond 1 GiB few blocks are as long."""
_MIB: Final = 1 << 20
TOLERANCE_SHARE: Final = 0.01
"""By so much of the most that was reserved a history played again may be off at any request."""


@dataclass(frozen=True)
class RecordedHistory:
    """One device's history, and what stood in its allocator's way.

    Attributes:
        requests: What the program asked for, or None where that cannot be played.
        settings: The settings that the allocator had.
        place: Places of the requests that were met. Shape ``(a,)``.
        reserved_bytes: What was reserved right after each of them, private pools aside.
        peak_bytes: The most that was reserved at once, likewise.
        room_bytes: What the driver had for the allocator; None where that was never reached.
        limit_bytes: What the process allowed itself, or None.
    """

    requests: Requests | None
    settings: AllocatorSettings
    place: Rows
    reserved_bytes: Int64s
    peak_bytes: int
    room_bytes: int | None = None
    limit_bytes: int | None = None


def recorded_history(
    snapshot: MemorySnapshot,
    replay: DeviceReplay,
    settings: AllocatorSettings,
    flushes: Flushes,
    shortages: tuple[AllocationFailure, ...],
) -> RecordedHistory:
    """One device's history.

    What the driver had in all shows where it was reached: at a request that was not met it says
    what is left, and where cached memory went back for want of room it was no more than the most
    that was reserved.

    Args:
        replay: The history of the device.
        settings: The settings that its allocator had.
        flushes: When cached memory was given back.
        shortages: Requests that were not met.
    """
    _, reserved = common_levels(snapshot, replay)
    most, room = int(replay.reserved_bytes.max()), None
    if shortages or bool((flushes.cause == FlushCause.RETRY).any()):
        left = [
            each.reserved_bytes + each.device_free_bytes
            for each in shortages
            if each.device_free_bytes is not None and each.missing_bytes
        ]
        room = max([most, *left[:1]])
    driver = next((each for each in snapshot.driver if each.device == replay.device), None)
    limit = None if driver is None else driver.limit_bytes
    return RecordedHistory(
        requests=recorded_requests(snapshot, replay, flushes),
        settings=settings,
        place=replay.alloc,
        reserved_bytes=reserved[replay.alloc + 1],
        peak_bytes=int(reserved.max()),
        room_bytes=room,
        limit_bytes=limit if driver is not None and limit != driver.total_bytes else None,
    )


@dataclass(frozen=True)
class SimulationResult:
    """What came of a history under some settings.

    Attributes:
        settings: The settings.
        peak_bytes: The most that was reserved at once, private pools aside.
        failed_at: Place of the first request that was met in the history and not here, or -1.
        met: Places of requests that were not met in the history and were here.
    """

    settings: AllocatorSettings
    peak_bytes: int
    failed_at: int = NEVER
    met: tuple[int, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all requests were met that were met in the history."""
        return self.failed_at == NEVER

    @property
    def alloc_conf(self) -> str:
        """What ``PYTORCH_CUDA_ALLOC_CONF`` would say; empty for a limit that goes."""
        if self.settings.expandable:
            return "expandable_segments:True"
        limit = self.settings.max_split_bytes
        return "" if limit is None else f"max_split_size_mb:{limit // _MIB}"


@dataclass(frozen=True)
class WhatIf:
    """What would have been.

    Attributes:
        recorded: What was.
    """

    recorded: RecordedHistory

    @cached_property
    def _replayed(self) -> SimulatedRun | None:
        requests = self.recorded.requests
        if requests is None:
            return None
        if self.recorded.room_bytes is None:
            return combined(self._small, self._course(self.recorded.settings, "large"))
        return self._course(self.recorded.settings)

    @cached_property
    def max_error_bytes(self) -> int | None:
        """By how much the model was off at worst with the settings that the history had.

        None where it could not be played, or not to its end.
        """
        recorded, course = self.recorded, self._replayed
        if course is None or course.failed_at != NEVER or course.met:
            return None
        off = np.abs(course.after(recorded.place) - recorded.reserved_bytes)
        return int(off.max(initial=0))

    @cached_property
    def is_reproduced(self) -> bool:
        """Whether the model comes to what was recorded, at every request."""
        off = self.max_error_bytes
        return off is not None and off <= TOLERANCE_SHARE * self.recorded.peak_bytes

    @cached_property
    def expandable(self) -> SimulationResult | None:
        """With ``expandable_segments``; without ``max_split_size``, which goes ill with it.

        None where the history had that, or could not be played.
        """
        own = self.recorded.settings
        settings = replace(own, expandable=True, max_split_bytes=None)
        return self._outcome(settings) if settings != own and self.is_reproduced else None

    @cached_property
    def split_results(self) -> tuple[SimulationResult, ...]:
        """With each ``max_split_size`` of :data:`SPLIT_MIB` that could change anything, ascending.

        Where the history had one, without it as well. None of them where it had expandable
        segments, or could not be played.
        """
        return tuple(self._outcome(settings) for settings in self._split_settings())

    @property
    def best_split(self) -> SimulationResult | None:
        """That of them which reserves the least; of equal ones that which split_results the most."""
        whole = [each for each in reversed(self.split_results) if each.is_complete]
        return min(whole, key=lambda each: each.peak_bytes, default=None)

    def setting_that_serves(self, place: int) -> SimulationResult | None:
        """A setting with which a request would have been met that was not met in the history.

        Returns:
            Expandable segments where they do, else the largest of the limits that does.
        """
        found = (self.expandable, *reversed(self.split_results))
        return next((each for each in found if each is not None and place in each.met), None)

    def _split_settings(self) -> Iterator[AllocatorSettings]:
        own, requests = self.recorded.settings, self.recorded.requests
        if own.expandable or requests is None or not self.is_reproduced:
            return
        longest = max(
            int(requests.n_bytes.max(initial=0)), int(requests.begin.n_bytes.max(initial=0))
        )
        limits = [each * _MIB for each in SPLIT_MIB if each * _MIB <= longest]
        for limit in (*limits, None):
            if limit != own.max_split_bytes:
                yield replace(own, max_split_bytes=limit)

    def _outcome(self, settings: AllocatorSettings) -> SimulationResult:
        own, room_bytes = self.recorded.settings, self.recorded.room_bytes
        is_same_for_small = replace(own, max_split_bytes=settings.max_split_bytes) == settings
        if room_bytes is None and is_same_for_small:
            course = combined(self._small, self._course(settings, "large"))
        else:
            course = self._course(settings)
        return SimulationResult(settings, course.peak_bytes, course.failed_at, course.met)

    @cached_property
    def _small(self) -> SimulatedRun:
        return self._course(self.recorded.settings, "small")

    def _course(self, settings: AllocatorSettings, family: Family = "all") -> SimulatedRun:
        recorded = self.recorded
        if recorded.requests is None:
            raise ValueError("a history that cannot be played has no course")
        return simulate(
            recorded.requests, settings, recorded.room_bytes, recorded.limit_bytes, family
        )
