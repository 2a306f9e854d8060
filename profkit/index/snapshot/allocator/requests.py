"""Requests to an allocator, and the segments and blocks that exist before the first one."""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from profkit.index.snapshot.allocator.sizes import SMALL_BYTES
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import UInt8s


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
    def is_consistent(self) -> bool:
        """Whether blocks lie within segments, and apart."""
        holder, end = self.holder, self.block_address + self.block_bytes
        if (holder < 0).any() or (end[:-1] > self.block_address[1:]).any():
            return False
        limit = self.address + self.n_bytes
        is_odd = (self.address < 0) | (self.n_bytes <= 0)
        is_odd[:-1] |= limit[:-1] > self.address[1:]
        return not (is_odd.any() or (self.block_bytes <= 0).any() or (end > limit[holder]).any())

    def with_unsplit_rests(self) -> "InitialState":
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
