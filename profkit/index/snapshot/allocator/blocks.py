"""Blocks of segments, and the pools of free blocks.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` (``Block``, ``BlockPool``, ``BlockComparatorSize``,
``try_merge_blocks``).
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

_ADDRESS_BITS: Final = 80
"""More than devices use: the model's own addresses are beyond theirs."""
_ADDRESS: Final = (1 << _ADDRESS_BITS) - 1


class BlockPool:
    """The pools of all streams for one kind of requests.

    Attributes:
        is_small: Whether they serve requests up to 1 MiB.
        private: Number of a private pool; 0 for the default pool.
        n_searches: Number of searches for a free block, counted where garbage is collected.
    """

    __slots__ = ("is_small", "n_searches", "private")

    def __init__(self, *, is_small: bool, private: int) -> None:
        self.is_small = is_small
        self.private = private
        self.n_searches = 0


class Block:
    """A block: a part of a segment, linked to its neighbors by address.

    Attributes:
        before: Its neighbor at lower addresses in the same segment, or None.
        after: Its neighbor at higher addresses, or None.
        is_mapped: Whether it has memory; only blocks of expandable segments may not.
        origin: Start of its expandable segment; None in segments of fixed size.
        freed_at: :attr:`BlockPool.n_searches` when it became free.
    """

    __slots__ = (
        "address",
        "after",
        "before",
        "freed_at",
        "is_free",
        "is_mapped",
        "n_bytes",
        "origin",
        "pool",
    )

    def __init__(
        self, pool: "StreamPool", address: int, n_bytes: int, origin: int | None = None
    ) -> None:
        self.pool = pool
        self.address = address
        self.n_bytes = n_bytes
        self.before: Block | None = None
        self.after: Block | None = None
        self.is_free = False
        self.is_mapped = True
        self.origin = origin
        self.freed_at = 0

    @property
    def is_whole(self) -> bool:
        """Return whether the block is its entire segment."""
        return self.before is None and self.after is None

    @property
    def reach_bytes(self) -> int:
        """Return the size that the block could grow to in an expandable segment."""
        after = self.after
        return self.n_bytes + (0 if after is None or after.is_mapped else after.n_bytes)

    def cut(self, n_bytes: int) -> "Block":
        """Shrink the block to some bytes, and return the rest as a new block."""
        remainder = Block(self.pool, self.address + n_bytes, self.n_bytes - n_bytes, self.origin)
        remainder.is_mapped = self.is_mapped

        remainder.before, remainder.after = self, self.after
        if self.after is not None:
            self.after.before = remainder
        self.after = remainder
        self.n_bytes = n_bytes

        return remainder

    def merge(self) -> None:
        """Merge the block with free neighbors of the same mapping, which leave the pool."""
        before, after = self.before, self.after
        # The lower neighbor leaves its pool, which finds it by address, before it is merged.
        if before is not None and before.is_free and before.is_mapped == self.is_mapped:
            self.pool.remove(before)
            self.address = before.address
            self.n_bytes += before.n_bytes
            self.before = before.before
            if self.before is not None:
                self.before.after = self

        if after is not None and after.is_free and after.is_mapped == self.is_mapped:
            self.pool.remove(after)
            self.n_bytes += after.n_bytes
            self.after = after.after
            if self.after is not None:
                self.after.before = self


class StreamPool:
    """The free blocks of a pool for one stream.

    Attributes:
        block_pool: The pool of all streams.
        stream: The stream.
        unmapped: Addresses of blocks without memory, ascending.
        whole: Free blocks that are entire segments of fixed size, by address.
    """

    __slots__ = ("_at", "_keys", "block_pool", "stream", "unmapped", "whole")

    def __init__(self, block_pool: BlockPool, stream: int) -> None:
        self.block_pool = block_pool
        self.stream = stream
        self.unmapped: list[int] = []
        self.whole: dict[int, Block] = {}
        # Size and address in one number each: numbers compare faster than tuples.
        self._keys: list[int] = []
        self._at: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Block]:
        """Iterate over the free blocks by size, then address."""
        return iter([self._at[key & _ADDRESS] for key in self._keys])

    def add(self, block: Block) -> None:
        """Add a free or unmapped block."""
        block.is_free = True
        block.freed_at = self.block_pool.n_searches
        self._at[block.address] = block
        if not block.is_mapped:
            insort(self.unmapped, block.address)
            return

        insort(self._keys, (block.n_bytes << _ADDRESS_BITS) | block.address)
        if block.origin is None and block.before is None and block.after is None:
            self.whole[block.address] = block

    def remove(self, block: Block) -> None:
        """Remove a block."""
        block.is_free = False
        del self._at[block.address]
        if not block.is_mapped:
            del self.unmapped[bisect_left(self.unmapped, block.address)]
            return

        key = (block.n_bytes << _ADDRESS_BITS) | block.address
        del self._keys[bisect_left(self._keys, key)]
        if block.origin is None:
            self.whole.pop(block.address, None)

    def pop(self, place: int) -> Block:
        """Remove the free block at an index, ordered by size, then address."""
        block = self._at.pop(self._keys.pop(place) & _ADDRESS)
        block.is_free = False
        self.whole.pop(block.address, None)
        return block

    def first(self, n_bytes: int) -> int:
        """Return the index of the smallest sufficient free block, or the number of blocks."""
        return bisect_left(self._keys, n_bytes << _ADDRESS_BITS)

    def block(self, place: int) -> Block:
        """Return the free block at an index, ordered by size, then address."""
        return self._at[self._keys[place] & _ADDRESS]

    def unmapped_block(self, place: int) -> Block:
        """Return the block without memory at an index, ordered by address."""
        return self._at[self.unmapped[place]]
