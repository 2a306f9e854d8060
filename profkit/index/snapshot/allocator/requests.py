"""Requests to an allocator, and the segments and blocks that exist before the first one."""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from profkit.index.snapshot.allocator.sizes import SMALL_BYTES
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import UInt8s


class RequestKind(IntEnum):
    """Kind of an action of the program."""

    ALLOC = 0
    PENDING_FREE = 1
    """Freed a block that is pending on another stream."""
    FREE = 2
    """Freed a block, or the other stream finished."""
    EMPTY = 3
    """Emptied the cache."""
    TRY = 4
    """Tried an allocation that failed."""


@dataclass(frozen=True)
class InitialState:
    """Segments and live blocks before a history's first entry, each by address.

    Attributes:
        address: Start of each segment. Shape ``(s,)``.
        n_bytes: Its size.
        stream: The stream that it serves.
        is_small: Whether it serves requests up to 1 MiB.
        private: Number of its private pool, or 0.
        block_address: Start of each live block; its index is its request. Shape ``(b,)``.
        block_bytes: Its size.
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
    def segment_of_block(self) -> Rows:
        """The segment of each block. Shape ``(b,)``."""
        found = np.searchsorted(self.address, self.block_address, side="right") - 1
        return np.asarray(found, dtype=np.intp)

    @property
    def is_consistent(self) -> bool:
        """Whether blocks are disjoint and within disjoint segments."""
        segment_of_block, end = self.segment_of_block, self.block_address + self.block_bytes
        if (segment_of_block < 0).any() or (end[:-1] > self.block_address[1:]).any():
            return False
        limit = self.address + self.n_bytes
        is_invalid = (self.address < 0) | (self.n_bytes <= 0)
        is_invalid[:-1] |= limit[:-1] > self.address[1:]
        return not (
            is_invalid.any()
            or (self.block_bytes <= 0).any()
            or (end > limit[segment_of_block]).any()
        )

    def with_unsplit_rests(self) -> "InitialState":
        """The same with the unsplit rests of large blocks.

        For blocks that are freed later the history has the requested size. A rest of up to 1 MiB is
        not split off a large block, and no free block of that kind is as small.
        """
        limit = (self.address + self.n_bytes)[self.segment_of_block]
        end = self.block_address + self.block_bytes
        next_begin = np.append(self.block_address[1:], np.iinfo(np.int64).max)[: len(end)]
        rest = np.minimum(limit, next_begin) - end
        is_unsplit = ~self.is_small[self.segment_of_block] & (rest <= SMALL_BYTES)
        return replace(self, block_bytes=self.block_bytes + np.where(is_unsplit, rest, 0))

    def requests_at(self, address: Int64s) -> Rows:
        """Request of the block at each address, or -1. Shape of ``address``."""
        if not len(self.block_address):
            return np.full(len(address), NO_ROW, dtype=np.intp)
        at = np.searchsorted(self.block_address, address)
        at = np.minimum(at, len(self.block_address) - 1)
        return np.where(self.block_address[at] == address, at, NO_ROW).astype(np.intp)


@dataclass(frozen=True)
class Requests:
    """The requests of one device, and the actions on them in time order.

    Attributes:
        n_bytes: Size of each request, blocks of the initial state first. Shape ``(r,)``.
        stream: The stream of each request.
        private: Number of its private pool, or 0.
        place: Indices of actions in the device's history. Shape ``(d,)``.
        kind: A :class:`RequestKind` value each.
        which: Index of the request; unused for :attr:`RequestKind.EMPTY`.
        begin: The initial state.
    """

    n_bytes: Int64s
    stream: Int64s
    private: Int32s
    place: Rows
    kind: UInt8s
    which: Rows
    begin: InitialState
