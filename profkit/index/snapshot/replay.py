"""Replay of a snapshot's history: active and reserved bytes over time, and their peaks.

The history is a buffer whose beginning may be lost, while its end is the state of the snapshot. So
levels are computed backward from the end, which is exact.

The history has requested sizes, and the snapshot has block sizes, which exceed them by up to 1 MiB.
For blocks that are live at the end the block size is used throughout; otherwise earlier levels
would be too high by the rounding of these blocks.
"""

from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.model.device_bytes import DeviceBytes
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import Action, MemorySnapshot, State, UInt8s

RESERVES: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
"""Actions that obtain memory from the driver."""
RELEASES: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
"""Actions that return memory to the driver."""


@dataclass(frozen=True)
class Pairs:
    """Begins and ends by address, as indices in a device's history.

    Attributes:
        begin: Indices of the begins. Shape ``(a,)``.
        end: Index of the end of each, or -1. Shape ``(a,)``.
        earlier_ends: Indices of ends whose begin precedes the history.
    """

    begin: Rows
    end: Rows
    earlier_ends: Rows


@dataclass(frozen=True)
class DeviceReplay:
    """The replayed history of one device.

    Attributes:
        device: Its ordinal.
        rows: Its rows in the history, in time order. Shape ``(n,)``.
        alloc: Indices in ``rows`` of the allocations. Shape ``(a,)``.
        free: Index of the free of each, or -1. Shape ``(a,)``.
        earlier_frees: Indices of frees of blocks allocated before the history.
        block: Rows of the blocks that are active at the end, by address. Shape ``(b,)``.
        since: Index of the allocation of each, or -1 where it precedes the history.
        n_bytes: Size of each row: the block size of an allocation that is live at the end, and
            otherwise the size in the history. Shape ``(n,)``.
        active_bytes: Active bytes before each row and at the end. Shape ``(n+1,)``.
        reserved_bytes: Reserved bytes before each row and at the end. Shape ``(n+1,)``.
    """

    device: int
    rows: Rows
    alloc: Rows
    free: Rows
    earlier_frees: Rows
    block: Rows
    since: Rows
    n_bytes: Int64s
    active_bytes: Int64s
    reserved_bytes: Int64s

    @cached_property
    def live(self) -> Rows:
        """Return the indices of the allocations without a free."""
        return np.asarray(self.alloc[self.free == NO_ROW])

    @cached_property
    def peak(self) -> int:
        """Return the first index of the peak in ``active_bytes``, or the end without a peak."""
        return int(self.active_bytes.argmax()) if self.has_peak else self.end

    @property
    def has_peak(self) -> bool:
        """Return whether the history has a peak, which a single entry cannot show."""
        return len(self.rows) > 1

    @property
    def ends(self) -> Mask:
        """Return which rows free a block. Shape ``(n,)``."""
        is_end = np.zeros(len(self.rows), dtype=np.bool_)
        is_end[self.free[self.free != NO_ROW]] = True
        is_end[self.earlier_frees] = True
        return is_end

    @property
    def end(self) -> int:
        """Return the index after the last row: the state of the snapshot."""
        return len(self.rows)


def sort_segments(snapshot: MemorySnapshot, device: int) -> Rows:
    """Return the rows of a device's segments, by address."""
    segments = snapshot.segments
    rows = np.flatnonzero(segments.device == device)
    return rows[np.argsort(segments.address[rows], kind="stable")]


def driver_figures(snapshot: MemorySnapshot, device: int) -> DeviceBytes | None:
    """Return the driver's figures of a device when the snapshot was taken, if recorded."""
    return next((driver for driver in snapshot.driver if driver.device == device), None)


def replay_history(snapshot: MemorySnapshot) -> tuple[DeviceReplay, ...]:
    """Replay the history of every device."""
    return tuple(_replay_device(snapshot, device) for device in snapshot.devices)


def _replay_device(snapshot: MemorySnapshot, device: int) -> DeviceReplay:
    history, blocks, segments = snapshot.history, snapshot.blocks, snapshot.segments
    rows = np.flatnonzero(history.device == device)
    action, address = history.action[rows], history.address[rows]

    is_on_device = segments.device == device
    is_block_on_device = is_on_device[blocks.segment]
    pending = blocks.address[is_block_on_device & (blocks.state == State.PENDING_FREE)]
    end = _choose_end(action, len(pending))
    if end == Action.FREE_REQUESTED:
        action = _ignore_pending(action, address, pending)

    pairs = pair_by_address(address, action, Action.ALLOC, end)
    block = np.flatnonzero(blocks.is_active & is_block_on_device)
    block = block[np.argsort(blocks.address[block], kind="stable")]
    since = _find_allocations(blocks.address[block], address, pairs.begin[pairs.end == NO_ROW])

    n_bytes = history.n_bytes[rows].copy()
    # The snapshot has exact sizes of live blocks.
    is_known = since != NO_ROW
    n_bytes[since[is_known]] = blocks.n_bytes[block[is_known]]

    active = int(blocks.n_bytes[block].sum())
    return DeviceReplay(
        device=device,
        rows=rows,
        alloc=pairs.begin,
        free=pairs.end,
        earlier_frees=pairs.earlier_ends,
        block=block,
        since=since,
        n_bytes=n_bytes,
        active_bytes=levels(active, n_bytes, action == Action.ALLOC, action == end),
        reserved_bytes=levels(
            int(segments.total_bytes[is_on_device].sum()),
            n_bytes,
            np.isin(action, RESERVES),
            np.isin(action, RELEASES),
        ),
    )


def _find_allocations(of_block: Int64s, address: Int64s, live: Rows) -> Rows:
    """Find the index of each block's allocation, or -1, for ascending block addresses."""
    place = np.full(len(of_block), NO_ROW, dtype=np.intp)
    if len(of_block):
        live_address = address[live]
        at = np.searchsorted(of_block, live_address)
        is_match = of_block[np.minimum(at, len(of_block) - 1)] == live_address
        place[at[is_match]] = live[is_match]
    return place


def requested_peak_bytes(snapshot: MemorySnapshot, replay: DeviceReplay) -> int:
    """Return the peak of active bytes from the sizes in the history.

    Requested sizes are subtracted from the final block sizes. So it is at least the maximum of
    :attr:`DeviceReplay.active_bytes`, and exceeds it by the rounding of live blocks that were
    allocated after the peak.
    """
    begins = np.zeros(replay.end, dtype=np.bool_)
    begins[replay.alloc] = True
    requested = snapshot.history.n_bytes[replay.rows]
    return int(levels(int(replay.active_bytes[-1]), requested, begins, replay.ends).max())


def _choose_end(action: UInt8s, n_pending: int) -> Action:
    """Choose the action that ends a block.

    A free completes when no stream uses the block any more. Where completions were not recorded
    (``skip_actions``), requested frees are used: there are more of them than pending blocks.
    """
    if (action == Action.FREE_COMPLETED).any():
        return Action.FREE_COMPLETED
    n_requests = int((action == Action.FREE_REQUESTED).sum())
    return Action.FREE_REQUESTED if n_requests > n_pending else Action.FREE_COMPLETED


def _ignore_pending(action: UInt8s, address: Int64s, pending: Int64s) -> UInt8s:
    """Ignore requested frees that are still pending."""
    requests = np.flatnonzero((action == Action.FREE_REQUESTED) & np.isin(address, pending))

    # An address is not reused before its free is complete, so the last request is pending.
    _, from_last = np.unique(address[requests][::-1], return_index=True)
    completed: UInt8s = action.copy()
    completed[requests[::-1][from_last]] = Action.OTHER
    return completed


def levels(final: int, n_bytes: Int64s, ups: Mask, downs: Mask) -> Int64s:
    """Return the level in bytes before each change and at the end, given that. Shape ``(n+1,)``.

    Args:
        ups: Which changes of ``n_bytes`` add. Shape ``(n,)``.
        downs: Which changes subtract. Shape ``(n,)``.
    """
    change = np.where(ups, n_bytes, 0) - np.where(downs, n_bytes, 0)
    level = np.zeros(len(n_bytes) + 1, dtype=np.int64)
    np.cumsum(change, out=level[1:])
    level += final - level[-1]
    return level


def pair_by_address(address: Int64s, action: UInt8s, begin: Action, end: Action) -> Pairs:
    """Pair begins with ends of the same address, over all entries of a device in time order.

    Changes of one address alternate, since an address is reused only after its end.
    """
    changes = np.flatnonzero((action == begin) | (action == end))
    order = changes[np.argsort(address[changes], kind="stable")]
    begins = action[order] == begin

    # An end follows the begin of the same address. Otherwise its begin precedes the history.
    follows = np.zeros(len(order), dtype=np.bool_)
    follows[1:] = begins[:-1] & ~begins[1:] & (address[order][1:] == address[order][:-1])

    ended = np.full(len(action), NO_ROW, dtype=np.intp)
    ended[order[:-1][follows[1:]]] = order[follows]
    began = np.flatnonzero(action == begin)
    return Pairs(began, ended[began], np.sort(order[~begins & ~follows]))


def measure_peak_pending_free(snapshot: MemorySnapshot, replay: DeviceReplay) -> int:
    """Measure the peak of bytes that were freed but pending on another stream.

    A block used on another stream (``record_stream``) stays active after its free until that stream
    has reached the free. A free that completes in the next history entry was not pending. Where
    completions were not recorded, only the blocks pending at the end are known.
    """
    rows, history, blocks = replay.rows, snapshot.history, snapshot.blocks
    pending = replay.block[blocks.state[replay.block] == State.PENDING_FREE]
    final = int(blocks.n_bytes[pending].sum())

    action, address = history.action[rows], history.address[rows]
    begins, ends = action == Action.FREE_REQUESTED, action == Action.FREE_COMPLETED
    if not (begins.any() and ends.any()):
        return final

    # Nearly all complete at once, so that few have to be paired.
    # A completion right after its request was not pending.
    at_once = begins[:-1] & ends[1:] & (address[:-1] == address[1:])
    remaining = begins | ends
    remaining[:-1] &= ~at_once
    remaining[1:] &= ~at_once
    places = np.flatnonzero(remaining)
    pairs = pair_by_address(
        address[places], action[places], Action.FREE_REQUESTED, Action.FREE_COMPLETED
    )

    begin, is_done = places[pairs.begin], pairs.end != NO_ROW
    is_pending = ~is_done & np.isin(address[begin], blocks.address[pending])
    end = places[pairs.end[is_done]]

    # A completion in the first entry may be half of a pair that the buffer cut.
    cut = places[pairs.earlier_ends]
    cut = cut[cut > 0]

    n_bytes = history.n_bytes[rows]
    change = np.zeros(replay.end + 1, dtype=np.int64)
    change[begin[is_done | is_pending] + 1] += n_bytes[begin[is_done | is_pending]]
    change[0] = n_bytes[cut].sum()
    change[end + 1] -= n_bytes[end]
    change[cut + 1] -= n_bytes[cut]
    return max(int(np.cumsum(change).max()), final)


def find_private_pools(snapshot: MemorySnapshot, device: int, address: Int64s) -> Int32s:
    """Find the private pool of each address in an existing segment. Shape of ``address``.

    Indices into :attr:`MemorySnapshot.pools`; 0 for the default pool and for segments that no
    longer exist.
    """
    segments = snapshot.segments
    rows = np.flatnonzero((segments.device == device) & (segments.pool != 0))
    if not len(rows):
        return np.zeros(len(address), dtype=np.int32)

    rows = rows[np.argsort(segments.address[rows], kind="stable")]
    place = np.searchsorted(segments.address[rows], address, side="right") - 1
    holder = rows[np.maximum(place, 0)]
    begin = segments.address[holder]
    is_inside = (begin <= address) & (address < begin + segments.total_bytes[holder])
    return np.where(is_inside, segments.pool[holder], 0).astype(np.int32)


def is_private(snapshot: MemorySnapshot, device: int, address: Int64s) -> Mask:
    """Return which addresses are in an existing segment of a private pool. Shape of ``address``."""
    return np.asarray(find_private_pools(snapshot, device, address) != 0)


def compute_common_levels(snapshot: MemorySnapshot, replay: DeviceReplay) -> tuple[Int64s, Int64s]:
    """Compute the active and reserved bytes outside private pools, see :class:`DeviceReplay`.

    Free memory of a CUDA graph's private pool is neither a cache that could be emptied nor
    fragmented: the graph writes to it when it is replayed.

    Source: "Graph memory management" in PyTorch's CUDA semantics.
    """
    segments, blocks = snapshot.segments, snapshot.blocks
    is_private_segment = (segments.device == replay.device) & (segments.pool != 0)
    if not is_private_segment.any():
        return replay.active_bytes, replay.reserved_bytes

    rows = replay.rows
    action, n_bytes = snapshot.history.action[rows], replay.n_bytes
    is_private_row = is_private(snapshot, replay.device, snapshot.history.address[rows])
    active = levels(
        int(blocks.n_bytes[blocks.is_active & is_private_segment[blocks.segment]].sum()),
        n_bytes,
        is_private_row & (action == Action.ALLOC),
        is_private_row & replay.ends,
    )
    reserved = levels(
        int(segments.total_bytes[is_private_segment].sum()),
        n_bytes,
        is_private_row & np.isin(action, RESERVES),
        is_private_row & np.isin(action, RELEASES),
    )
    return replay.active_bytes - active, replay.reserved_bytes - reserved
