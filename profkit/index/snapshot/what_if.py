"""What a device would have reserved with other settings of its allocator.

The history is simulated with its own settings, which must reproduce the recorded figures, and then
with others. The initial state is the same for all settings, and calls of ``empty_cache`` with
nothing to release are not in the history: both make the estimate for other settings slightly too
high.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocator.settings import AllocatorSettings
from profkit.index.snapshot.allocator.simulate import (
    NEVER,
    PoolSize,
    Requests,
    SimulatedRun,
    combine,
    simulate,
)
from profkit.index.snapshot.cache_flushes import FlushCause, Flushes
from profkit.index.snapshot.oom_analysis import AllocationFailure
from profkit.index.snapshot.recorded_requests import find_recorded_requests
from profkit.index.snapshot.replay import DeviceReplay, compute_common_levels, driver_figures
from profkit.model.events import Int64s, Rows
from profkit.model.snapshot import MemorySnapshot

SPLIT_MIB: Final = (32, 64, 128, 256, 512, 1024)
"""Values to try: PyTorch accepts none of 20 MiB or less, and few blocks exceed 1 GiB."""
_MIB: Final = 1 << 20
TOLERANCE_SHARE: Final = 0.01
"""Maximum error of the simulation at any request, as a share of the recorded peak."""


@dataclass(frozen=True)
class RecordedHistory:
    """One device's history, and the limits of its allocator.

    Attributes:
        requests: The program's requests, or None if they cannot be simulated.
        place: Indices of successful allocations. Shape ``(a,)``.
        reserved_bytes: Reserved bytes after each of them, private pools excluded.
        peak_bytes: Peak of reserved bytes, private pools excluded.
        capacity_bytes: Memory that the driver could provide; None where it was never exhausted.
        limit_bytes: Limit of the process, or None.
    """

    requests: Requests | None
    settings: AllocatorSettings
    place: Rows
    reserved_bytes: Int64s
    peak_bytes: int
    capacity_bytes: int | None = None
    limit_bytes: int | None = None


def build_recorded_history(
    snapshot: MemorySnapshot,
    replay: DeviceReplay,
    settings: AllocatorSettings,
    flushes: Flushes,
    failures: tuple[AllocationFailure, ...],
) -> RecordedHistory:
    """Build one device's history.

    The driver's capacity is known only where it was exhausted: a failed allocation reports the free
    memory, and at a cache flush for a retry the capacity was at most the peak of reserved bytes.
    """
    _, reserved = compute_common_levels(snapshot, replay)
    # Without a failure or a retry, the driver never ran out.
    peak, capacity = int(replay.reserved_bytes.max()), None

    if failures or bool((flushes.cause == FlushCause.RETRY).any()):
        capacities = [
            failure.reserved_bytes + failure.device_free_bytes
            for failure in failures
            if failure.device_free_bytes is not None and failure.missing_bytes
        ]
        capacity = max([peak, *capacities[:1]])

    driver = driver_figures(snapshot, replay.device)
    limit = None if driver is None else driver.limit_bytes

    return RecordedHistory(
        requests=find_recorded_requests(snapshot, replay, flushes),
        settings=settings,
        place=replay.alloc,
        reserved_bytes=reserved[replay.alloc + 1],
        peak_bytes=int(reserved.max()),
        capacity_bytes=capacity,
        limit_bytes=limit if driver is not None and limit != driver.total_bytes else None,
    )


@dataclass(frozen=True)
class SimulationResult:
    """Result of a simulation with some settings.

    Attributes:
        peak_bytes: Peak of reserved bytes, private pools excluded.
        failed_at: Index of the first allocation that fails here but did not in the history, or -1.
        recovered: Indices of allocations that failed in the history and succeed here.
    """

    settings: AllocatorSettings
    peak_bytes: int
    failed_at: int = NEVER
    recovered: tuple[int, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Return whether all allocations succeed that did in the history."""
        return self.failed_at == NEVER


@dataclass(frozen=True)
class WhatIf:
    """Simulations of one device's history with other settings."""

    recorded: RecordedHistory

    @cached_property
    def _replayed(self) -> SimulatedRun | None:
        requests = self.recorded.requests
        if requests is None:
            return None
        if self.recorded.capacity_bytes is None:
            return combine(self._small, self._simulate(self.recorded.settings, "large"))
        return self._simulate(self.recorded.settings)

    @cached_property
    def max_error_bytes(self) -> int | None:
        """Return the maximum error of the simulation with the history's own settings.

        None if it cannot be simulated to its end.
        """
        recorded, run = self.recorded, self._replayed
        if run is None or run.failed_at != NEVER or run.recovered:
            return None
        error = np.abs(run.after(recorded.place) - recorded.reserved_bytes)
        return int(error.max(initial=0))

    @cached_property
    def is_reproduced(self) -> bool:
        """Return whether the simulation reproduces the recorded reserved bytes at every request."""
        error = self.max_error_bytes
        return error is not None and error <= TOLERANCE_SHARE * self.recorded.peak_bytes

    @cached_property
    def expandable(self) -> SimulationResult | None:
        """Simulate ``expandable_segments`` without ``max_split_size``, which they make useless.

        None if the history had these settings, or cannot be simulated.
        """
        recorded = self.recorded.settings
        settings = replace(recorded, expandable=True, max_split_bytes=None)
        return self._run_settings(settings) if settings != recorded and self.is_reproduced else None

    @cached_property
    def split_results(self) -> tuple[SimulationResult, ...]:
        """Simulate each ``max_split_size`` of :data:`SPLIT_MIB` that may have an effect, ascending.

        If the history had a limit, simulate no limit as well. Empty if the history had expandable
        segments, or cannot be simulated.
        """
        return tuple(self._run_settings(settings) for settings in self._split_settings())

    @property
    def best_split(self) -> SimulationResult | None:
        """Return the limit that reserves least, or the largest of equals."""
        complete = [split for split in reversed(self.split_results) if split.is_complete]
        return min(complete, key=lambda split: split.peak_bytes, default=None)

    def setting_that_serves(self, place: int) -> SimulationResult | None:
        """Return a setting with which a failed allocation would have succeeded, or None.

        Expandable segments if they suffice, else the largest sufficient limit.
        """
        for result in (self.expandable, *reversed(self.split_results)):
            if result is not None and place in result.recovered:
                return result
        return None

    def _split_settings(self) -> Iterator[AllocatorSettings]:
        recorded, requests = self.recorded.settings, self.recorded.requests
        if recorded.expandable or requests is None or not self.is_reproduced:
            return

        # A limit above the longest segment or request has no effect.
        longest = max(
            int(requests.n_bytes.max(initial=0)), int(requests.begin.n_bytes.max(initial=0))
        )
        limits = [mib * _MIB for mib in SPLIT_MIB if mib * _MIB <= longest]
        for limit in (*limits, None):
            if limit != recorded.max_split_bytes:
                yield replace(recorded, max_split_bytes=limit)

    def _run_settings(self, settings: AllocatorSettings) -> SimulationResult:
        recorded, capacity_bytes = self.recorded.settings, self.recorded.capacity_bytes
        is_same_for_small = replace(recorded, max_split_bytes=settings.max_split_bytes) == settings

        # Without a limit on capacity, small and large requests do not affect each other.
        if capacity_bytes is None and is_same_for_small:
            run = combine(self._small, self._simulate(settings, "large"))
        else:
            run = self._simulate(settings)
        return SimulationResult(settings, run.peak_bytes, run.failed_at, run.recovered)

    @cached_property
    def _small(self) -> SimulatedRun:
        return self._simulate(self.recorded.settings, "small")

    def _simulate(self, settings: AllocatorSettings, pool_size: PoolSize = "all") -> SimulatedRun:
        recorded = self.recorded
        if recorded.requests is None:
            raise ValueError("the history cannot be simulated")
        return simulate(
            recorded.requests, settings, recorded.capacity_bytes, recorded.limit_bytes, pool_size
        )
