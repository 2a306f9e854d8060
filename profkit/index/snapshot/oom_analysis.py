"""Failed allocations and their causes."""

from typing import Final, Literal

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocator.settings import SMALL_BYTES, segment_bytes
from profkit.index.snapshot.replay import DeviceReplay, compute_common_levels, driver_figures
from profkit.index.snapshot.segment_map import build_segment_map_at
from profkit.model.device_bytes import DeviceBytes
from profkit.model.events import MISSING
from profkit.model.snapshot import Action, MemorySnapshot

Reason = Literal["exhaustion", "fragmentation", "limit", "outside"]

_MIN_FRAGMENTED_SHARE: Final = 0.1
"""With a smaller unreleasable share of its memory an allocator is exhausted, not fragmented, unless
it is known how many bytes the driver lacked."""
_MIN_OUTSIDE_SHARE: Final = 0.25
"""A CUDA context and libraries use one or two GiB; a larger share belongs to other processes."""


@dataclass(frozen=True)
class AllocationFailure:
    """One failed allocation, at the moment of the error.

    By then the allocator has returned all completely free segments to the driver.

    Attributes:
        place: Index in the device's history.
        needed_bytes: Bytes needed from the driver.
        device_free_bytes: Free memory of the device as the driver reported it, or None.
        unreleasable_bytes: Free bytes in segments with live blocks, private pools excluded.
        largest_usable_block_bytes: Largest free block that the request could have used; None where
            the segment map cannot be reconstructed.
        driver: The driver's figures when the snapshot was taken, or None: only profkit's own
            snapshots have them.
    """

    place: int
    stack: int
    requested_bytes: int
    needed_bytes: int
    device_free_bytes: int | None
    reserved_bytes: int
    active_bytes: int
    unreleasable_bytes: int
    largest_usable_block_bytes: int | None
    driver: DeviceBytes | None = None

    @property
    def missing_bytes(self) -> int | None:
        """Return the bytes that the driver lacked, 0 if it had enough, or None if unknown."""
        if self.device_free_bytes is None:
            return None
        return max(0, self.needed_bytes - self.device_free_bytes)

    @property
    def outside_bytes(self) -> int | None:
        """Return the bytes of the device in use outside this allocator, or None if unknown."""
        if self.driver is None or self.device_free_bytes is None:
            return None
        return max(0, self.driver.total_bytes - self.device_free_bytes - self.reserved_bytes)

    @property
    def fits_if_compacted(self) -> bool:
        """Return whether the unreleasable free memory would have covered the missing bytes."""
        missing = self.needed_bytes if self.missing_bytes is None else self.missing_bytes
        return self.unreleasable_bytes >= missing

    @property
    def reason(self) -> Reason:
        """Explain why the allocation failed.

        ``limit``: the driver had enough, so a limit of the program applied, or other processes
        freed memory a moment too late. ``outside``: memory in use outside this allocator is a
        large part of the device and would have been enough. ``fragmentation``: enough reserved
        memory was free, but not contiguous: as much as the driver lacked, or, where that is not
        known, a large part. ``exhaustion``: the reserved memory was in use.
        """
        if self.missing_bytes == 0:
            return "limit"

        # Other processes come first: they explain a failure that the program cannot avoid.
        outside = self.outside_bytes
        if self.driver is not None and outside is not None:
            is_large = outside >= _MIN_OUTSIDE_SHARE * self.driver.total_bytes
            if is_large and outside >= (self.missing_bytes or 0):
                return "outside"
        is_large = (
            self.missing_bytes is not None
            or self.unreleasable_bytes >= _MIN_FRAGMENTED_SHARE * self.reserved_bytes
        )
        return "fragmentation" if is_large and self.fits_if_compacted else "exhaustion"


def find_allocation_failures(
    snapshot: MemorySnapshot, replay: DeviceReplay
) -> tuple[AllocationFailure, ...]:
    """Find every failed allocation of a device, in order."""
    action = snapshot.history.action[replay.rows]
    return tuple(
        _build_failure(snapshot, replay, place)
        for place in np.flatnonzero(action == Action.OOM).tolist()
    )


def _build_failure(snapshot: MemorySnapshot, replay: DeviceReplay, place: int) -> AllocationFailure:
    history = snapshot.history
    row = replay.rows[place]
    requested, free = int(history.n_bytes[row]), int(history.free_bytes.at(row.reshape(1))[0])

    active, reserved = compute_common_levels(snapshot, replay)
    segments = build_segment_map_at(snapshot, replay, place)
    stream = int(history.stream[row])
    is_small = requested <= SMALL_BYTES
    largest = (
        None if segments is None else segments.largest_usable_block_bytes(stream, is_small=is_small)
    )

    return AllocationFailure(
        place=place,
        stack=int(history.stack[row]),
        requested_bytes=requested,
        needed_bytes=segment_bytes(requested),
        device_free_bytes=None if free == MISSING else free,
        reserved_bytes=int(replay.reserved_bytes[place]),
        active_bytes=int(replay.active_bytes[place]),
        unreleasable_bytes=int(reserved[place] - active[place]),
        largest_usable_block_bytes=largest,
        driver=driver_figures(snapshot, replay.device),
    )
