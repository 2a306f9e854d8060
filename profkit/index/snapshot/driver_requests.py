"""An allocator's requests to the driver, and whether fragmentation caused them.

Free memory can serve a request only in the same pool: small requests (up to 1 MiB) or larger ones,
one stream, the default pool or one private pool. So bytes are counted by pool.
"""

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import by_number
from profkit.index.snapshot.allocator.settings import (
    BLOCK_BYTES,
    LARGE_SEGMENT_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)
from profkit.index.snapshot.replay import RELEASES, RESERVES, DeviceReplay, sort_segments
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Int64s, Mask, Rows
from profkit.model.snapshot import Action, MemorySnapshot


@dataclass(frozen=True)
class DriverRequests:
    """Requests of one device's allocator to the driver, in time order.

    Attributes:
        place: Indices in the device's history. Shape ``(r,)``.
        n_bytes: Bytes obtained from the driver.
        needed_bytes: The allocation that caused it, rounded to a block size.
        free_bytes: Reserved bytes of the same pool that were not active.
        pool: Index of the pool.
        peak_active_bytes: Peak of active bytes of each pool. Shape ``(p,)``.
        is_small_pool: Whether each pool serves small requests.
        is_private_pool: Whether each pool is private.
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
        """Return which requests came although the pool had enough free memory. Shape ``(r,)``.

        Free memory of a graph's pool does not count: the graph writes to it again.
        """
        return np.asarray((self.free_bytes >= self.needed_bytes) & ~self.is_private_pool[self.pool])

    @property
    def compact_bytes(self) -> int:
        """Return the peak of reserved bytes without fragmentation, private pools excluded.

        Expandable segments, which grow and shrink by pages, come close: each pool's peak of active
        bytes, rounded up to pages.
        """
        page = np.where(self.is_small_pool, SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES)
        pages = -(-self.peak_active_bytes // page) * page
        return int(pages[~self.is_private_pool].sum())


def find_driver_requests(snapshot: MemorySnapshot, replay: DeviceReplay) -> DriverRequests:
    """Find every request of one device, with the free memory of its pool."""
    history = snapshot.history
    rows = replay.rows
    action = history.action[rows]
    is_request = np.isin(action, RESERVES)
    is_release = np.isin(action, RELEASES)
    is_begin, is_end = action == Action.ALLOC, replay.ends

    # The history has requested sizes. Blocks that are live at the end have their real size
    # already.
    n_bytes = replay.n_bytes.copy()
    is_rounded = is_begin | is_end
    is_rounded[replay.since[replay.since != NO_ROW]] = False
    n_bytes[is_rounded] = -(-n_bytes[is_rounded] // BLOCK_BYTES) * BLOCK_BYTES

    place = np.flatnonzero(is_request | is_release | is_begin | is_end)
    is_block = (is_begin | is_end)[place]
    pool, end_active, end_reserved, is_small, is_private = _assign_pools(
        snapshot, replay, place, n_bytes[place], is_block
    )

    sign = np.where((is_request | is_begin)[place], 1, -1)
    change = n_bytes[place] * sign
    active = _compute_levels(pool, np.where(is_block, change, 0), end_active)
    reserved = _compute_levels(pool, np.where(is_block, 0, change), end_reserved)
    # The end counts too, as levels are from before each change.
    peak = end_active.copy()
    np.maximum.at(peak, pool, active)

    # The request to the driver directly precedes the allocation that caused it.
    index = np.flatnonzero(is_request[place])
    following = np.minimum(place[index] + 1, len(rows) - 1)
    needed = np.where(is_begin[following], n_bytes[following], n_bytes[place[index]])

    return DriverRequests(
        place=place[index],
        n_bytes=n_bytes[place[index]],
        needed_bytes=needed,
        free_bytes=(reserved - active)[index],
        pool=pool[index],
        peak_active_bytes=peak,
        is_small_pool=is_small,
        is_private_pool=is_private,
    )


def _assign_pools(
    snapshot: MemorySnapshot, replay: DeviceReplay, place: Rows, n_bytes: Int64s, is_block: Mask
) -> tuple[Rows, Int64s, Int64s, Mask, Mask]:
    """Assign a pool to each change, and find the final active and reserved bytes by pool.

    Returns:
        Pool numbers of shape ``(c,)``; active bytes, reserved bytes, whether it serves small
        requests, and whether it is private, of shape ``(p,)``.
    """
    segments, blocks, history = snapshot.segments, snapshot.blocks, snapshot.history
    segment_rows = sort_segments(snapshot, replay.device)

    address = history.address[replay.rows[place]]
    is_small_change = np.where(is_block, n_bytes <= SMALL_BYTES, n_bytes == SMALL_SEGMENT_BYTES)
    private_pool = np.zeros(len(place), dtype=np.int64)

    # An existing segment has its pool. Without private pools a block's size determines it too,
    # which is faster for many blocks.
    lookup = np.arange(len(place)) if len(snapshot.pools) > 1 else np.flatnonzero(~is_block)
    if len(segment_rows):
        at = np.searchsorted(segments.address[segment_rows], address[lookup], side="right") - 1
        holder = segment_rows[np.maximum(at, 0)]
        end = segments.address[holder] + segments.total_bytes[holder]
        is_inside = (at >= 0) & (address[lookup] < end)
        is_small_change[lookup[is_inside]] = ~segments.is_large[holder[is_inside]]
        private_pool[lookup[is_inside]] = segments.pool[holder[is_inside]]

    stream = np.concatenate((history.stream[replay.rows[place]], segments.stream[segment_rows]))
    pools = np.concatenate((private_pool, segments.pool[segment_rows].astype(np.int64)))
    kind = np.concatenate((is_small_change, ~segments.is_large[segment_rows]))

    # One number for each combination of the three.
    key = (_number(stream) * (len(snapshot.pools) + 1) + pools) * 2 + kind
    number = _number(key)
    n_pools = int(number.max(initial=-1)) + 1
    is_small, is_private = np.zeros((2, n_pools), dtype=np.bool_)
    is_small[number] = kind
    is_private[number] = pools != 0
    pool_of_segment = number[len(place) :]

    reserved = sum_by_key(n_pools, pool_of_segment, segments.total_bytes[segment_rows])

    pool_of_row = np.full(len(segments), NO_ROW, dtype=np.intp)
    pool_of_row[segment_rows] = pool_of_segment
    row = np.flatnonzero(blocks.is_active & (pool_of_row[blocks.segment] != NO_ROW))
    active = sum_by_key(n_pools, pool_of_row[blocks.segment[row]], blocks.n_bytes[row])
    return number[: len(place)], active, reserved, is_small, is_private


def _number(values: Int64s) -> Int64s:
    """Number the distinct values from 0. Shape of ``values``."""
    if not len(values) or int(values.min()) == int(values.max()):
        return np.zeros(len(values), dtype=np.int64)
    return np.unique(values, return_inverse=True)[1].reshape(-1)


def _compute_levels(group: Rows, change: Int64s, final: Int64s) -> Int64s:
    """Compute the level of each group before each change, from the final levels."""
    order = by_number(group)
    total = np.cumsum(change[order])
    last = np.cumsum(np.bincount(group, minlength=len(final))) - 1
    level = np.empty(len(group), dtype=np.int64)
    # The group changes from before each change to the end by the sum from that change on.
    level[order] = final[group[order]] - (total[last[group[order]]] - total + change[order])
    return level
