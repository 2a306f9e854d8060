"""Blocks, the parts of segments, and the pools in which free ones wait for a request.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` (``Block``, ``BlockPool``, ``BlockComparatorSize``,
``try_merge_blocks``).
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

_ADDRESS_BITS: Final = 80
"""More than devices have: the model's own addresses lie beyond theirs."""
_ADDRESS: Final = (1 << _ADDRESS_BITS) - 1


class Family:
    """The pools of all streams that serve the same kind of requests.

    Attributes:
        is_small: Whether they serve requests up to 1 MiB.
        private: Number of a private pool; 0 for the common one.
        n_searches: How often a free block was looked for; counted where garbage is collected.
    """

    __slots__ = ("is_small", "n_searches", "private")

    def __init__(self, *, is_small: bool, private: int) -> None:
        self.is_small = is_small
        self.private = private
        self.n_searches = 0


class Block:
    """A part of a segment; all parts of one are a chain by address.

    Attributes:
        pool: The pool of its segment.
        address: Where it begins.
        n_bytes: Its length.
        before: Its neighbour at lower addresses in the same segment, or None.
        after: Its other neighbour, or None.
        is_free: Whether it can be given to a request, or could once it has memory behind it.
        is_mapped: Whether it has memory behind it; only parts of expandable segments may not.
        origin: Where its expandable segment begins; None in segments of a fixed length.
        kept_at: :attr:`Family.n_searches` when it became free.
    """

    __slots__ = (
        "address",
        "after",
        "before",
        "is_free",
        "is_mapped",
        "kept_at",
        "n_bytes",
        "origin",
        "pool",
    )

    def __init__(self, pool: "Pool", address: int, n_bytes: int, origin: int | None = None) -> None:
        self.pool = pool
        self.address = address
        self.n_bytes = n_bytes
        self.before: Block | None = None
        self.after: Block | None = None
        self.is_free = False
        self.is_mapped = True
        self.origin = origin
        self.kept_at = 0

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None

    @property
    def reach_bytes(self) -> int:
        """How long it could become where its segment can grow."""
        after = self.after
        return self.n_bytes + (0 if after is None or after.is_mapped else after.n_bytes)

    def cut(self, n_bytes: int) -> "Block":
        """Cut it, and make what lies behind the first bytes a block of its own.

        Args:
            n_bytes: What it keeps.

        Returns:
            The rest.
        """
        rest = Block(self.pool, self.address + n_bytes, self.n_bytes - n_bytes, self.origin)
        rest.is_mapped = self.is_mapped
        rest.before, rest.after = self, self.after
        if self.after is not None:
            self.after.before = rest
        self.after = rest
        self.n_bytes = n_bytes
        return rest

    def merge(self) -> None:
        """Take in free neighbours, out of their pool, which are mapped as it is."""
        before, after = self.before, self.after
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


class Pool:
    """The free blocks of one family that serve one stream.

    Attributes:
        family: The family.
        stream: The stream.
        unmapped: Addresses of the blocks without memory, ascending.
        whole: The free blocks that are whole segments of a fixed length, by address.
    """

    __slots__ = ("_at", "_keys", "family", "stream", "unmapped", "whole")

    def __init__(self, family: Family, stream: int) -> None:
        self.family = family
        self.stream = stream
        self.unmapped: list[int] = []
        self.whole: dict[int, Block] = {}
        # By length and then by address, both in one number: numbers compare quicker than tuples.
        self._keys: list[int] = []
        self._at: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Block]:
        """The free blocks, the shortest first, of equal ones the one with the lowest address."""
        return iter([self._at[key & _ADDRESS] for key in self._keys])

    def add(self, block: Block) -> None:
        """Let a block wait for a request, or for memory."""
        block.is_free = True
        block.kept_at = self.family.n_searches
        self._at[block.address] = block
        if not block.is_mapped:
            insort(self.unmapped, block.address)
            return
        insort(self._keys, (block.n_bytes << _ADDRESS_BITS) | block.address)
        if block.origin is None and block.before is None and block.after is None:
            self.whole[block.address] = block

    def remove(self, block: Block) -> None:
        """Take a block out.

        Args:
            block: One that waits.
        """
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
        """Take out the free block at a place, in the order of lengths.

        Args:
            place: As :meth:`first` gives it.
        """
        block = self._at.pop(self._keys.pop(place) & _ADDRESS)
        block.is_free = False
        self.whole.pop(block.address, None)
        return block

    def first(self, n_bytes: int) -> int:
        """Place of the shortest free block that is long enough, or the number of blocks."""
        return bisect_left(self._keys, n_bytes << _ADDRESS_BITS)

    def block(self, place: int) -> Block:
        """The free block at a place, in the order of lengths."""
        return self._at[self._keys[place] & _ADDRESS]

    def unmapped_block(self, place: int) -> Block:
        """The block without memory at a place, in the order of addresses."""
        return self._at[self.unmapped[place]]
