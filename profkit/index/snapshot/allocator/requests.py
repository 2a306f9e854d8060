"""What a program asked of its allocator, as a snapshot's history has it.

Requests, frees and emptied caches are the program's own, whatever the allocator does; what the
driver was asked for, and what went back to it for want of room, are the allocator's answer.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np

from profkit.index.snapshot.allocator.sizes import SMALL_BYTES
from profkit.index.snapshot.cache_flushes import Cause, Flushes
from profkit.index.snapshot.private_pools import private_pools
from profkit.index.snapshot.replay import DeviceReplay, paired
from profkit.index.snapshot.segment_map import segment_map_at
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import Action, MemorySnapshot, UInt8s


class RequestKind(IntEnum):
    """What the program did."""

    ALLOC = 0
    WAIT = 1
    """Freed a block that another stream still uses."""
    FREE = 2
    """Freed a block, or the other stream was done."""
    EMPTY = 3
    """Emptied the cache."""
    TRY = 4
    """Asked for a block, and got none."""


@dataclass(frozen=True)
class InitialState:
    """What stood before a history's first row: segments and live blocks, each by address.

    Attributes:
        address: Where each segment begins. Shape ``(s,)``.
        n_bytes: Its length.
        stream: The stream that it serves.
        is_small: Whether it serves requests up to 1 MiB.
        private: Number of its private pool, or 0.
        block_address: Where each live block begins; its row is its request. Shape ``(b,)``.
        block_bytes: Its length.
    """

    address: Int64s
    n_bytes: Int64s
    stream: Int64s
    is_small: Mask
    private: Int32s
    block_address: Int64s
    block_bytes: Int64s

    def __len__(self) -> int:
        return len(self.address)

    @property
    def holder(self) -> Rows:
        """The segment of each block. Shape ``(b,)``."""
        found = np.searchsorted(self.address, self.block_address, side="right") - 1
        return np.asarray(found, dtype=np.intp)

    @property
    def is_possible(self) -> bool:
        """Whether blocks lie within segments, and apart."""
        holder, end = self.holder, self.block_address + self.block_bytes
        if (holder < 0).any() or (end[:-1] > self.block_address[1:]).any():
            return False
        limit = self.address + self.n_bytes
        is_odd = (self.address < 0) | (self.n_bytes <= 0)
        is_odd[:-1] |= limit[:-1] > self.address[1:]
        return not (is_odd.any() or (self.block_bytes <= 0).any() or (end > limit[holder]).any())

    def with_rests(self) -> "InitialState":
        """The same with what large blocks were given beyond their requests.

        Of what is freed later the history tells what was asked for. A rest of up to 1 MiB is not
        split off a large block, and no free block of that kind is as short.
        """
        limit = (self.address + self.n_bytes)[self.holder]
        end = self.block_address + self.block_bytes
        following = np.append(self.block_address[1:], np.iinfo(np.int64).max)[: len(end)]
        rest = np.minimum(limit, following) - end
        own = ~self.is_small[self.holder] & (rest <= SMALL_BYTES)
        return replace(self, block_bytes=self.block_bytes + np.where(own, rest, 0))

    def requests_at(self, address: Int64s) -> Rows:
        """The request of the block that begins at each address, or -1. Shape of ``address``."""
        if not len(self.block_address):
            return np.full(len(address), NO_ROW, dtype=np.intp)
        at = np.searchsorted(self.block_address, address)
        at = np.minimum(at, len(self.block_address) - 1)
        return np.where(self.block_address[at] == address, at, NO_ROW).astype(np.intp)


_NO_BYTES: Final = np.zeros(0, dtype=np.int64)
_NOTHING: Final = InitialState(
    address=_NO_BYTES,
    n_bytes=_NO_BYTES,
    stream=_NO_BYTES,
    is_small=np.zeros(0, dtype=np.bool_),
    private=np.zeros(0, dtype=np.int32),
    block_address=_NO_BYTES,
    block_bytes=_NO_BYTES,
)


@dataclass(frozen=True)
class Requests:
    """One device's requests, and what was done with them in the order of time.

    Attributes:
        n_bytes: What each asked for, those before the first row first. Shape ``(r,)``.
        stream: The stream that it is for.
        private: Number of its private pool, or 0.
        place: Places in the device's history. Shape ``(d,)``.
        kind: A :class:`RequestKind` value each.
        which: The request; of no account where the cache is emptied.
        begin: What stood before.
    """

    n_bytes: Int64s
    stream: Int64s
    private: Int32s
    place: Rows
    kind: UInt8s
    which: Rows
    begin: InitialState


def requests_of(
    snapshot: MemorySnapshot, replay: DeviceReplay, flushes: Flushes
) -> Requests | None:
    """The requests of one device.

    Args:
        replay: The history of the device.
        flushes: When cached memory was given back.

    Returns:
        None where it is not known what stood before the first row, or the history is odd.
    """
    begin = _begin(snapshot, replay)
    history, rows = snapshot.history, replay.rows
    tried = np.flatnonzero(history.action[rows] == Action.OOM)
    asked = rows[np.concatenate((replay.alloc, tried))]
    if begin is None or not len(asked) or int(history.n_bytes[asked].min()) < 0:
        return None
    n, n_allocs = len(begin.block_address), len(replay.alloc)
    own, ended = np.arange(n, n + n_allocs), replay.free != NO_ROW
    earlier = begin.requests_at(history.address[rows[replay.earlier_frees]])
    caused = _caused(snapshot, replay, flushes)
    wait, waiting = _waits(snapshot, replay, begin, caused)
    empty = flushes.first[flushes.cause != Cause.FULL]
    done = (
        (RequestKind.ALLOC, replay.alloc, own),
        (RequestKind.FREE, replay.free[ended], own[ended]),
        (RequestKind.FREE, replay.earlier_frees[earlier != NO_ROW], earlier[earlier != NO_ROW]),
        (RequestKind.WAIT, wait, waiting),
        (RequestKind.EMPTY, empty, np.full(len(empty), NO_ROW, dtype=np.intp)),
        (RequestKind.TRY, tried, np.arange(n + n_allocs, n + len(asked))),
    )
    kind = np.repeat([each for each, _, _ in done], [len(place) for _, place, _ in done])
    place = np.concatenate([place for _, place, _ in done])
    of_request = caused[place]
    place = np.where(of_request == NO_ROW, place, of_request)
    order = np.lexsort((of_request != NO_ROW, place))
    return Requests(
        n_bytes=np.concatenate((begin.block_bytes, history.n_bytes[asked])),
        stream=np.concatenate((begin.stream[begin.holder], history.stream[asked])),
        private=np.concatenate(
            (
                begin.private[begin.holder],
                private_pools(snapshot, replay.device, history.address[asked]),
            )
        ),
        place=place[order],
        kind=kind[order].astype(np.uint8),
        which=np.concatenate([which for _, _, which in done])[order],
        begin=begin,
    )


def _begin(snapshot: MemorySnapshot, replay: DeviceReplay) -> InitialState | None:
    """What stood before the first row; None where that is not known, or cannot have been."""
    layout = segment_map_at(snapshot, replay, 0)
    if layout is None:
        # Expandable segments: only where nothing stood it is known.
        is_empty = not int(replay.reserved_bytes[0]) and not len(replay.earlier_frees)
        return _NOTHING if is_empty and bool((replay.since != NO_ROW).all()) else None
    here = snapshot.segments.device == replay.device
    if len(layout.segment_address) and bool(snapshot.segments.is_expandable[here].any()):
        return None
    begin = InitialState(
        address=layout.segment_address,
        n_bytes=layout.segment_bytes,
        stream=layout.segment_stream,
        is_small=layout.is_small,
        private=private_pools(snapshot, replay.device, layout.segment_address),
        block_address=layout.block_address,
        block_bytes=layout.block_bytes,
    )
    return begin.with_rests() if begin.is_possible else None


def _waits(
    snapshot: MemorySnapshot, replay: DeviceReplay, begin: InitialState, caused: Rows
) -> tuple[Rows, Rows]:
    """Frees that were not complete at once: their places, and the requests that they are of."""
    history, rows = snapshot.history, replay.rows
    action, address = history.action[rows], history.address[rows]
    waits = action == Action.FREE_REQUESTED
    # Where completions were not kept, requests to free are what ends a block.
    waits[replay.free[replay.free != NO_ROW]] = False
    waits[replay.earlier_frees] = False
    completes = (action == Action.FREE_COMPLETED) & (caused == NO_ROW)
    waits[:-1] &= ~(completes[1:] & (address[1:] == address[:-1]))
    places = np.flatnonzero(waits | (action == Action.ALLOC))
    pairs = paired(address[places], action[places], Action.ALLOC, Action.FREE_REQUESTED)
    own = np.flatnonzero(pairs.end != NO_ROW)
    earlier = places[pairs.earlier_ends]
    request = begin.requests_at(address[earlier])
    known = request != NO_ROW
    return (
        np.concatenate((places[pairs.end[own]], earlier[known])),
        np.concatenate((own + len(begin.block_address), request[known])),
    )


def _caused(snapshot: MemorySnapshot, replay: DeviceReplay, flushes: Flushes) -> Rows:
    """For each row that a request made happen the place of the request, else -1. Shape ``(n,)``.

    Before an allocator gives cached memory back for want of room it waits for all streams, and
    completes what they still used. Such a completion has the stack of the request, and one right
    after its free without that is the free's own.
    """
    history, rows = snapshot.history, replay.rows
    action, address, stack = (
        column[rows] for column in (history.action, history.address, history.stack)
    )
    found = np.full(len(rows), NO_ROW, dtype=np.intp)
    asks = np.flatnonzero((action == Action.ALLOC) | (action == Action.OOM))
    at = np.searchsorted(asks, flushes.first)
    is_of_request = (flushes.cause == Cause.FULL) & (at < len(asks))
    for row in np.flatnonzero(is_of_request).tolist():
        asking, place = asks[at[row]], int(flushes.first[row]) - 1
        while place >= 0 and action[place] == Action.FREE_COMPLETED:
            follows = place > 0 and action[place - 1] == Action.FREE_REQUESTED
            if follows and address[place - 1] == address[place]:
                own = stack[place] != stack[asking] or stack[place] == stack[place - 1]
                if own:
                    break
            found[place] = asking
            place -= 1
    return found
