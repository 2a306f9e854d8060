"""A snapshot's history played again: what was live when, and the most that was.

The allocator's history is a ring: its beginning may be lost, its end is what stands in the
snapshot. So levels are worked out backward from the end, which is known to the byte.

The history tells what was asked for, and the snapshot what that took, which is more: up to 1 MiB
of a large block. Of blocks that still stand the latter counts all the way, or what was there before
them would seem to be more by all that they were rounded up.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import Action, MemorySnapshot, State, UInt8s

_TAKES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True)
class Pairs:
    """Begins and ends of what has an address, by their places in a device's history.

    Attributes:
        begin: Places of the begins. Shape ``(a,)``.
        end: For each the place of what ended it, or -1. Shape ``(a,)``.
        earlier_ends: Places of the ends of what began before the first row.
    """

    begin: Rows
    end: Rows
    earlier_ends: Rows


@dataclass(frozen=True)
class DeviceReplay:
    """The history of one device.

    Attributes:
        device: Its ordinal.
        rows: Its rows in the history, in the order of time. Shape ``(n,)``.
        alloc: Places in ``rows`` of the allocations. Shape ``(a,)``.
        free: For each the place of what ended it, or -1. Shape ``(a,)``.
        earlier_frees: Places of the ends of blocks that were allocated before the first row.
        block: Rows of the blocks that are active in the end, by address. Shape ``(b,)``.
        since: For each the place of its allocation, or -1 where that was before the first row.
        n_bytes: The bytes of each row: of an allocation that still stands what its block takes,
            of all others what the history says. Shape ``(n,)``.
        active_bytes: What was active before each row and, last, in the end. Shape ``(n+1,)``.
        reserved_bytes: What was reserved, likewise. Shape ``(n+1,)``.
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
        """Places of the allocations that nothing ended."""
        return np.asarray(self.alloc[self.free == NO_ROW])

    @cached_property
    def peak(self) -> int:
        """The first place in ``active_bytes`` of the most that was active."""
        return int(self.active_bytes.argmax())

    @property
    def end(self) -> int:
        """The place behind the last row: what stands in the snapshot."""
        return len(self.rows)


def replay_history(snapshot: MemorySnapshot) -> tuple[DeviceReplay, ...]:
    """Play the history of every device."""
    return tuple(_of_device(snapshot, device) for device in snapshot.devices)


def _of_device(snapshot: MemorySnapshot, device: int) -> DeviceReplay:
    history, blocks, segments = snapshot.history, snapshot.blocks, snapshot.segments
    rows = np.flatnonzero(history.device == device)
    action, address = history.action[rows], history.address[rows]
    here = segments.device == device
    own = here[blocks.segment]
    pending = blocks.address[own & (blocks.state == State.PENDING_FREE)]
    end = _end_of_block(action, len(pending))
    if end == Action.FREE_REQUESTED:
        action = _without_waiting(action, address, pending)
    pairs = paired(address, action, Action.ALLOC, end)
    is_active = (blocks.state == State.ALLOCATED) | (blocks.state == State.PENDING_FREE)
    block = np.flatnonzero(is_active & own)
    block = block[np.argsort(blocks.address[block], kind="stable")]
    since = _since(blocks.address[block], address, pairs.begin[pairs.end == NO_ROW])
    n_bytes = history.n_bytes[rows].copy()
    kept = since != NO_ROW
    n_bytes[since[kept]] = blocks.n_bytes[block[kept]]
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
            int(segments.total_bytes[here].sum()),
            n_bytes,
            np.isin(action, _TAKES),
            np.isin(action, _GIVES),
        ),
    )


def _since(of_block: Int64s, address: Int64s, live: Rows) -> Rows:
    """For each address of a block, ascending, the place of the allocation that it is of, or -1."""
    place = np.full(len(of_block), NO_ROW, dtype=np.intp)
    if len(of_block):
        of_live = address[live]
        at = np.searchsorted(of_block, of_live)
        hit = of_block[np.minimum(at, len(of_block) - 1)] == of_live
        place[at[hit]] = live[hit]
    return place


def requested_peak_bytes(snapshot: MemorySnapshot, replay: DeviceReplay) -> int:
    """The most that was active at once in the history's own figures, in bytes.

    What was asked for is taken away from what stands in the end, whatever that took. So it is the
    highest of :attr:`DeviceReplay.active_bytes` or more, by what blocks that still stand were
    rounded up after the peak.

    Args:
        replay: The history of one device.
    """
    ups, downs = np.zeros((2, replay.end), dtype=np.bool_)
    ups[replay.alloc] = True
    downs[replay.free[replay.free != NO_ROW]] = True
    downs[replay.earlier_frees] = True
    asked = snapshot.history.n_bytes[replay.rows]
    return int(levels(int(replay.active_bytes[-1]), asked, ups, downs).max())


def _end_of_block(action: UInt8s, n_pending: int) -> Action:
    """The action that ends a block.

    A free is complete when no stream uses the block any more. Where completions were not kept
    (``skip_actions``) requests have to do: then there are none, and more requests than blocks that
    still wait for a stream.
    """
    if (action == Action.FREE_COMPLETED).any():
        return Action.FREE_COMPLETED
    n_requests = int((action == Action.FREE_REQUESTED).sum())
    return Action.FREE_REQUESTED if n_requests > n_pending else Action.FREE_COMPLETED


def _without_waiting(action: UInt8s, address: Int64s, pending: Int64s) -> UInt8s:
    """The actions without the requests of frees that are not complete yet: these end nothing."""
    requests = np.flatnonzero((action == Action.FREE_REQUESTED) & np.isin(address, pending))
    # An address is not given away again before its free is complete: the last request is the one.
    _, from_last = np.unique(address[requests][::-1], return_index=True)
    found: UInt8s = action.copy()
    found[requests[::-1][from_last]] = Action.OTHER
    return found


def levels(in_the_end: int, n_bytes: Int64s, ups: Mask, downs: Mask) -> Int64s:
    """What there was before each change and in the end, from what there is in the end.

    Args:
        in_the_end: Bytes in the end.
        n_bytes: Bytes of each change. Shape ``(n,)``.
        ups: Which of them add. Shape ``(n,)``.
        downs: Which of them take away. Shape ``(n,)``.

    Returns:
        Bytes. Shape ``(n+1,)``.
    """
    change = np.where(ups, n_bytes, 0) - np.where(downs, n_bytes, 0)
    found = np.zeros(len(n_bytes) + 1, dtype=np.int64)
    np.cumsum(change, out=found[1:])
    found += in_the_end - found[-1]
    return found


def paired(address: Int64s, action: UInt8s, begin: Action, end: Action) -> Pairs:
    """Begins, what ended each, and ends without a begin.

    Of one address the changes are in turn a begin and its end, since an address is given away
    again only after that.

    Args:
        address: Addresses of all entries of a device's history, in the order of time.
        begin: The action that begins.
        end: The action that ends.
    """
    changes = np.flatnonzero((action == begin) | (action == end))
    order = changes[np.argsort(address[changes], kind="stable")]
    begins = action[order] == begin
    follows = np.zeros(len(order), dtype=np.bool_)
    follows[1:] = begins[:-1] & ~begins[1:] & (address[order][1:] == address[order][:-1])
    ended = np.full(len(action), NO_ROW, dtype=np.intp)
    ended[order[:-1][follows[1:]]] = order[follows]
    began = np.flatnonzero(action == begin)
    return Pairs(began, ended[began], np.sort(order[~begins & ~follows]))


def peak_pending_free_bytes(snapshot: MemorySnapshot, replay: DeviceReplay) -> int:
    """The most that waited at once, from the first entry of the history to its end.

    A free that the allocator completes by itself is complete in the next entry: that is no wait.
    Where completions were not kept, only what waits in the end is known.

    Args:
        replay: The history of one device.
    """
    rows, history, blocks = replay.rows, snapshot.history, snapshot.blocks
    waiting = replay.block[blocks.state[replay.block] == State.PENDING_FREE]
    in_the_end = int(blocks.n_bytes[waiting].sum())
    action, address = history.action[rows], history.address[rows]
    begins, ends = action == Action.FREE_REQUESTED, action == Action.FREE_COMPLETED
    if not (begins.any() and ends.any()):
        return in_the_end
    # Nearly all are complete at once, and what is left is soon paired.
    at_once = begins[:-1] & ends[1:] & (address[:-1] == address[1:])
    left = begins | ends
    left[:-1] &= ~at_once
    left[1:] &= ~at_once
    places = np.flatnonzero(left)
    pairs = paired(address[places], action[places], Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    begin, is_done = places[pairs.begin], pairs.end != NO_ROW
    still = ~is_done & np.isin(address[begin], blocks.address[waiting])
    end = places[pairs.end[is_done]]
    # A completion that comes first of all may be half of a pair that the ring has cut.
    cut = places[pairs.earlier_ends]
    cut = cut[cut > 0]
    n_bytes = history.n_bytes[rows]
    change = np.zeros(replay.end + 1, dtype=np.int64)
    change[begin[is_done | still] + 1] += n_bytes[begin[is_done | still]]
    change[0] = n_bytes[cut].sum()
    change[end + 1] -= n_bytes[end]
    change[cut + 1] -= n_bytes[cut]
    return max(int(np.cumsum(change).max()), in_the_end)


def private_pools(snapshot: MemorySnapshot, device: int, address: Int64s) -> Int32s:
    """The private pool of each address whose segment still stands. Shape of ``address``.

    Args:
        device: Ordinal of the device.
        address: The addresses.

    Returns:
        Indices into :attr:`MemorySnapshot.pools`; 0 is the common one, and that of what stands no
        more.
    """
    segments = snapshot.segments
    own = np.flatnonzero((segments.device == device) & (segments.pool != 0))
    if not len(own):
        return np.zeros(len(address), dtype=np.int32)
    own = own[np.argsort(segments.address[own], kind="stable")]
    holder = own[np.maximum(np.searchsorted(segments.address[own], address, side="right") - 1, 0)]
    begin = segments.address[holder]
    inside = (begin <= address) & (address < begin + segments.total_bytes[holder])
    return np.where(inside, segments.pool[holder], 0).astype(np.int32)


def is_private(snapshot: MemorySnapshot, device: int, address: Int64s) -> Mask:
    """Which addresses lie in a segment of a private pool that still stands. Shape of ``address``.

    Args:
        device: Ordinal of the device.
        address: The addresses.
    """
    return np.asarray(private_pools(snapshot, device, address) != 0)


def common_levels(snapshot: MemorySnapshot, replay: DeviceReplay) -> tuple[Int64s, Int64s]:
    """What was active and what was reserved outside private pools, as in :class:`DeviceReplay`.

    Args:
        replay: The history of one device.
    """
    segments, blocks = snapshot.segments, snapshot.blocks
    own = (segments.device == replay.device) & (segments.pool != 0)
    if not own.any():
        return replay.active_bytes, replay.reserved_bytes
    rows = replay.rows
    action, n_bytes = snapshot.history.action[rows], replay.n_bytes
    private = is_private(snapshot, replay.device, snapshot.history.address[rows])
    ends = np.zeros(len(rows), dtype=np.bool_)
    ends[replay.free[replay.free != NO_ROW]] = True
    ends[replay.earlier_frees] = True
    is_active = (blocks.state == State.ALLOCATED) | (blocks.state == State.PENDING_FREE)
    active = levels(
        int(blocks.n_bytes[is_active & own[blocks.segment]].sum()),
        n_bytes,
        private & (action == Action.ALLOC),
        private & ends,
    )
    reserved = levels(
        int(segments.total_bytes[own].sum()),
        n_bytes,
        private & np.isin(action, _TAKES),
        private & np.isin(action, _GIVES),
    )
    return replay.active_bytes - active, replay.reserved_bytes - reserved
