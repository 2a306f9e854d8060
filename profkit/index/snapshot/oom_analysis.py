"""Requests that could not be met, and what stood in their way."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from profkit.index.snapshot.allocator.sizes import SMALL_BYTES, segment_bytes
from profkit.index.snapshot.replay import DeviceReplay, common_levels
from profkit.index.snapshot.segment_map import segment_map_at
from profkit.model.device_bytes import DeviceBytes
from profkit.model.events import MISSING
from profkit.model.snapshot import Action, MemorySnapshot

Reason = Literal["exhaustion", "fragmentation", "limit", "outside"]

_MUCH_SHARE: Final = 0.1
"""With less than this of its memory in pieces an allocator is full, not fragmented."""
_OUTSIDE_SHARE: Final = 0.25
"""A CUDA context and libraries take a gibibyte or two; with more than this of a device somebody
else is on it."""


@dataclass(frozen=True)
class AllocationFailure:
    """One request that could not be met, at the moment when it was given up.

    By then the allocator had given all segments that were wholly free back to the driver.

    Attributes:
        place: Its place in the device's history.
        stack: The stack that asked.
        requested_bytes: What was asked for.
        needed_bytes: What the driver would have had to give for it.
        device_free_bytes: What the driver said was free on the device, or None.
        reserved_bytes: What the allocator had from the driver.
        active_bytes: What of it was in use.
        unreleasable_bytes: What of it was free within segments that live blocks held, private pools
            aside.
        largest_usable_block_bytes: The longest free piece that the request could have had; None where it
            cannot be known any more.
        driver: What the driver said of the device when the snapshot was taken, or None: only
            profkit's own snapshots have it.
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
        """What the driver lacked; 0 where it had enough, None where that is not known."""
        if self.device_free_bytes is None:
            return None
        return max(0, self.needed_bytes - self.device_free_bytes)

    @property
    def outside_bytes(self) -> int | None:
        """What of the device was not this allocator's and not free; None where not known."""
        if self.driver is None or self.device_free_bytes is None:
            return None
        return max(0, self.driver.total_bytes - self.device_free_bytes - self.reserved_bytes)

    @property
    def fits_if_compacted(self) -> bool:
        """Whether what was free in pieces would have made up for what the driver lacked."""
        missing = self.needed_bytes if self.missing_bytes is None else self.missing_bytes
        return self.unreleasable_bytes >= missing

    @property
    def reason(self) -> Reason:
        """Why there was no room.

        ``limit``: the driver had enough; so a limit of the program's own was reached, or others
        gave memory back a moment too late. ``outside``: a good part of the device was not this
        allocator's, and would have been enough. ``fragmentation``: much of what the allocator held
        was free in pieces, and would have been enough. ``exhaustion``: it was in use.
        """
        if self.missing_bytes == 0:
            return "limit"
        outside = self.outside_bytes
        if self.driver is not None and outside is not None:
            much = outside >= _OUTSIDE_SHARE * self.driver.total_bytes
            if much and outside >= (self.missing_bytes or 0):
                return "outside"
        much = self.unreleasable_bytes >= _MUCH_SHARE * self.reserved_bytes
        return "fragmentation" if much and self.fits_if_compacted else "exhaustion"


def allocation_failures(
    snapshot: MemorySnapshot, replay: DeviceReplay
) -> tuple[AllocationFailure, ...]:
    """Every request of a device that could not be met, in order.

    Args:
        replay: The history of the device.
    """
    action = snapshot.history.action[replay.rows]
    return tuple(
        _shortage(snapshot, replay, place)
        for place in np.flatnonzero(action == Action.OOM).tolist()
    )


def _shortage(snapshot: MemorySnapshot, replay: DeviceReplay, place: int) -> AllocationFailure:
    history = snapshot.history
    row = replay.rows[place]
    asked, free = int(history.n_bytes[row]), int(history.free_bytes.at(row.reshape(1))[0])
    active, reserved = common_levels(snapshot, replay)
    layout = segment_map_at(snapshot, replay, place)
    stream = int(history.stream[row])
    small = asked <= SMALL_BYTES
    hole = None if layout is None else layout.largest_usable_block_bytes(stream, is_small=small)
    return AllocationFailure(
        place=place,
        stack=int(history.stack[row]),
        requested_bytes=asked,
        needed_bytes=segment_bytes(asked),
        device_free_bytes=None if free == MISSING else free,
        reserved_bytes=int(replay.reserved_bytes[place]),
        active_bytes=int(replay.active_bytes[place]),
        unreleasable_bytes=int(reserved[place] - active[place]),
        largest_usable_block_bytes=hole,
        driver=next((each for each in snapshot.driver if each.device == replay.device), None),
    )
