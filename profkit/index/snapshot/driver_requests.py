"""What an allocator asked of the driver, and whether it could have done without.

Free memory can serve a request only where it is of the same pool: that of small requests (up to
1 MiB) or that of the others, of one stream, of the common pool or of one private pool. So bytes
are counted by pool.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.index.snapshot.allocator.sizes import (
    BLOCK_BYTES,
    LARGE_SEGMENT_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)
from profkit.index.snapshot.replay import DeviceReplay
from profkit.model.events import NO_ROW, Int64s, Mask, Rows
from profkit.model.snapshot import Action, MemorySnapshot, State


@dataclass(frozen=True)
class DriverRequests:
    """The times that one device's allocator asked the driver for memory, in the order of time.

    Attributes:
        place: Places in the device's history. Shape ``(r,)``.
        n_bytes: What the driver gave.
        needed_bytes: The request that made it necessary, rounded as a block is.
        free_bytes: What was reserved and not active in the same pool.
        pool: A number that tells pools apart; see :attr:`peak_active_bytes`.
        peak_active_bytes: By pool the most that was active in it at once. Shape ``(p,)``.
        is_small_pool: By pool whether it is one of small requests.
        is_private_pool: By pool whether it is a private one, which shares with none.
    """

    place: Rows
    n_bytes: Int64s
    needed_bytes: Int64s
    free_bytes: Int64s
    pool: Rows
    peak_active_bytes: Int64s
    is_small_pool: Mask
    is_private_pool: Mask

    @property
    def is_fragmented(self) -> Mask:
        """Which of them found enough free memory in the pool, in pieces too short. ``(r,)``.

        What is free in a graph's pool at a moment is no piece: the graph writes to it again.
        """
        return np.asarray((self.free_bytes >= self.needed_bytes) & ~self.is_private_pool[self.pool])

    @property
    def compact_bytes(self) -> int:
        """What would be reserved at most if free memory always were in one piece.

        So it is, nearly, in expandable segments, which grow and shrink by pages: each pool's most
        active bytes, up to a whole page; private pools aside.
        """
        page = np.where(self.is_small_pool, SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES)
        pages = -(-self.peak_active_bytes // page) * page
        return int(pages[~self.is_private_pool].sum())


_NOTHING: Final = np.zeros(0, dtype=np.int64)
_NONE: Final = DriverRequests(
    place=np.zeros(0, dtype=np.intp),
    n_bytes=_NOTHING,
    needed_bytes=_NOTHING,
    free_bytes=_NOTHING,
    pool=np.zeros(0, dtype=np.intp),
    peak_active_bytes=_NOTHING,
    is_small_pool=np.zeros(0, dtype=np.bool_),
    is_private_pool=np.zeros(0, dtype=np.bool_),
)
"""Where nothing was asked for, pools are not looked at either."""


def driver_requests(snapshot: MemorySnapshot, replay: DeviceReplay) -> DriverRequests:
    """Every request of one device, with what was free in its pool.

    Args:
        replay: The history of the device.
    """
    history = snapshot.history
    rows = replay.rows
    action = history.action[rows]
    asks = np.isin(action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    if not asks.any():
        return _NONE
    gives = np.isin(action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    ends = np.zeros(len(rows), dtype=np.bool_)
    ends[replay.free[replay.free != NO_ROW]] = True
    ends[replay.earlier_frees] = True
    begins = action == Action.ALLOC
    n_bytes = replay.n_bytes.copy()
    rounded = begins | ends
    rounded[replay.since[replay.since != NO_ROW]] = False
    n_bytes[rounded] = -(-n_bytes[rounded] // BLOCK_BYTES) * BLOCK_BYTES
    place = np.flatnonzero(asks | gives | begins | ends)
    is_block = (begins | ends)[place]
    pool, end_active, end_reserved, is_small, is_private = _pools(
        snapshot, replay, place, n_bytes[place], is_block
    )
    sign = np.where((asks | begins)[place], 1, -1)
    change = n_bytes[place] * sign
    active = _levels_by_group(pool, np.where(is_block, change, 0), end_active)
    reserved = _levels_by_group(pool, np.where(is_block, 0, change), end_reserved)
    peak = end_active.copy()
    np.maximum.at(peak, pool, active)
    asked = np.flatnonzero(asks[place])
    following = np.minimum(place[asked] + 1, len(rows) - 1)
    needed = np.where(begins[following], n_bytes[following], n_bytes[place[asked]])
    return DriverRequests(
        place=place[asked],
        n_bytes=n_bytes[place[asked]],
        needed_bytes=needed,
        free_bytes=(reserved - active)[asked],
        pool=pool[asked],
        peak_active_bytes=peak,
        is_small_pool=is_small,
        is_private_pool=is_private,
    )


def _pools(
    snapshot: MemorySnapshot, replay: DeviceReplay, place: Rows, n_bytes: Int64s, is_block: Mask
) -> tuple[Rows, Int64s, Int64s, Mask, Mask]:
    """The pool of each change, and by pool what is active and reserved in the end.

    Returns:
        Numbers of pools of shape ``(c,)``; active bytes, reserved bytes, whether it is a pool of
        small requests, and whether a private one, of shape ``(p,)``.
    """
    segments, blocks, history = snapshot.segments, snapshot.blocks, snapshot.history
    here = np.flatnonzero(segments.device == replay.device)
    here = here[np.argsort(segments.address[here], kind="stable")]
    address = history.address[replay.rows[place]]
    small = np.where(is_block, n_bytes <= SMALL_BYTES, n_bytes == SMALL_SEGMENT_BYTES)
    private = np.zeros(len(place), dtype=np.int64)
    # A segment that still stands tells its pool. Without private pools a block's length tells it
    # as well, and there are many blocks.
    asked = np.arange(len(place)) if len(snapshot.pools) > 1 else np.flatnonzero(~is_block)
    if len(here):
        at = np.searchsorted(segments.address[here], address[asked], side="right") - 1
        holder = here[np.maximum(at, 0)]
        end = segments.address[holder] + segments.total_bytes[holder]
        inside = (at >= 0) & (address[asked] < end)
        small[asked[inside]] = ~segments.is_large[holder[inside]]
        private[asked[inside]] = segments.pool[holder[inside]]
    stream = np.concatenate((history.stream[replay.rows[place]], segments.stream[here]))
    pools = np.concatenate((private, segments.pool[here].astype(np.int64)))
    kind = np.concatenate((small, ~segments.is_large[here]))
    # One number for each of the three together; there are few pools, and few streams.
    key = (_numbered(stream) * (len(snapshot.pools) + 1) + pools) * 2 + kind
    number = _numbered(key)
    n_pools = int(number.max(initial=-1)) + 1
    is_small, is_private = np.zeros((2, n_pools), dtype=np.bool_)
    is_small[number] = kind
    is_private[number] = pools != 0
    of_segment = number[len(place) :]
    active, reserved = np.zeros((2, n_pools), dtype=np.int64)
    np.add.at(reserved, of_segment, segments.total_bytes[here])
    is_active = (blocks.state == State.ALLOCATED) | (blocks.state == State.PENDING_FREE)
    of = np.full(len(segments), NO_ROW, dtype=np.intp)
    of[here] = of_segment
    row = np.flatnonzero(is_active & (of[blocks.segment] != NO_ROW))
    np.add.at(active, of[blocks.segment[row]], blocks.n_bytes[row])
    return number[: len(place)], active, reserved, is_small, is_private


def _numbered(values: Int64s) -> Int64s:
    """Equal values as equal numbers from 0 on. Shape of ``values``."""
    if not len(values) or int(values.min()) == int(values.max()):
        return np.zeros(len(values), dtype=np.int64)
    return np.unique(values, return_inverse=True)[1].reshape(-1)


def _levels_by_group(group: Rows, change: Int64s, in_the_end: Int64s) -> Int64s:
    """Within each group what there was before each change, from what there is in the end."""
    few = len(in_the_end) <= np.iinfo(np.int16).max
    # NumPy sorts short integers by radix.
    order = np.argsort(group.astype(np.int16) if few else group, kind="stable")
    total = np.cumsum(change[order])
    last = np.cumsum(np.bincount(group, minlength=len(in_the_end))) - 1
    found = np.empty(len(group), dtype=np.int64)
    # What comes from a change on, it included, is what the group gains from before it to the end.
    found[order] = in_the_end[group[order]] - (total[last[group[order]]] - total + change[order])
    return found
