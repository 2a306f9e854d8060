"""An honest little caching allocator: what torch's does with segments, splits, streams and pools.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` (``DeviceCachingAllocator``): ``malloc``,
``get_free_block``, ``should_split``, ``alloc_block``, ``free_block``,
``release_available_cached_blocks``, ``release_cached_blocks``, ``try_allocate_expandable_block``.
It is written for itself, by searching through lists, and so can prove
``profkit.index.snapshot.allocator`` right or wrong, which does the same quickly.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

MIB: Final = 1 << 20
BLOCK_BYTES: Final = 512
SMALL_BYTES: Final = MIB
SMALL_SEGMENT_BYTES: Final = 2 * MIB
LARGE_SEGMENT_BYTES: Final = 20 * MIB
OWN_SEGMENT_BYTES: Final = 10 * MIB
ROUND_BYTES: Final = 2 * MIB
_FIRST_ADDRESS: Final = 0x7F00_0000_0000
_FIRST_LONG_ADDRESS: Final = 0x7E00_0000_0000
_EXPANDABLE_SPACE: Final = 1 << 42
"""Room for one expandable segment: it never meets the next."""

Pool = tuple[int, int]
COMMON_POOL: Final[Pool] = (0, 0)


class OutOfDeviceMemoryError(RuntimeError):
    """The simulated device has no room for a request, as ``torch.OutOfMemoryError``."""


@dataclass(eq=False)
class ReferenceBlock:
    """A part of a segment.

    Attributes:
        segment: Its segment.
        address: Where it begins.
        n_bytes: Its length.
        requested_bytes: What was asked for.
        state: ``inactive``, ``active_allocated`` or ``active_pending_free``.
        stack: Number of the stack that allocated it, or None.
        streams: Other streams that use it.
    """

    segment: "Segment"
    address: int
    n_bytes: int
    requested_bytes: int = 0
    state: str = "inactive"
    stack: int | None = None
    streams: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Segment:
    """Memory from the driver.

    Attributes:
        address: Where it begins.
        stream: The stream that it serves.
        pool: Id of its pool.
        is_small: Whether it serves requests up to 1 MiB.
        is_expandable: Whether it grows and shrinks.
        stack: Number of the stack that took it.
        blocks: Its parts by address, without gaps.
    """

    address: int
    stream: int
    pool: Pool
    is_small: bool
    is_expandable: bool
    stack: int | None
    blocks: list[ReferenceBlock] = field(default_factory=list)

    @property
    def n_bytes(self) -> int:
        """Its length."""
        return sum(block.n_bytes for block in self.blocks)


OnHistoryEntry = Callable[[str, int, int, int, int | None, Pool], None]
"""Is told what the allocator does: action, address, bytes, stream, stack, pool."""


@dataclass
class ReferenceAllocator:
    """One device's allocator.

    Attributes:
        told: Is told everything it does.
        total_bytes: What the device has for it.
        outside_bytes: What others hold of that.
        expandable: ``expandable_segments``.
        max_split_bytes: ``max_split_size``, or None.
        segments: What it has from the driver, in the order in which it came.
    """

    told: OnHistoryEntry
    total_bytes: int
    outside_bytes: int = 0
    expandable: bool = False
    max_split_bytes: int | None = None
    segments: list[Segment] = field(default_factory=list)
    _next_address: int = _FIRST_ADDRESS
    _last_long_address: int = _FIRST_LONG_ADDRESS

    @property
    def reserved_bytes(self) -> int:
        """What it has from the driver."""
        return sum(segment.n_bytes for segment in self.segments)

    @property
    def free_bytes(self) -> int:
        """What the driver has left."""
        return self.total_bytes - self.outside_bytes - self.reserved_bytes

    def malloc(self, n_bytes: int, *, stream: int, pool: Pool, stack: int | None) -> ReferenceBlock:
        """Find a block, or ask the driver; give cached memory back to it if it has none.

        Raises:
            OutOfDeviceMemoryError: There is no room even then.
        """
        size = max(BLOCK_BYTES, -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        is_small = size <= SMALL_BYTES
        block = self._best_fit(size, stream, pool, is_small=is_small)
        if block is None:
            block = self._from_driver(size, stream, pool, stack, is_small=is_small)
        if block is None and self._release_long(size, stream, pool, stack):
            block = self._from_driver(size, stream, pool, stack, is_small=is_small)
        if block is None and self.release(stack, pool):
            block = self._from_driver(size, stream, pool, stack, is_small=is_small)
        if block is None:
            self.told("oom", self.free_bytes, size, stream, stack, pool)
            raise OutOfDeviceMemoryError(f"{size} bytes")
        if self._splits(block, size):
            self._cut(block, size)
        block.state, block.requested_bytes, block.stack = "active_allocated", n_bytes, stack
        self.told("alloc", block.address, n_bytes, stream, stack, pool)
        return block

    def free(self, block: ReferenceBlock, stack: int | None) -> None:
        """Free a block; it stays active while other streams use it."""
        segment = block.segment
        self.told("free_requested", block.address, block.requested_bytes, segment.stream, stack,
                  segment.pool)  # fmt: skip
        if block.streams:
            block.state = "active_pending_free"
        else:
            self.complete(block, stack)

    def complete(self, block: ReferenceBlock, stack: int | None) -> None:
        """End a block that no stream uses any more, and merge it with its free neighbours."""
        segment = block.segment
        self.told("free_completed", block.address, block.requested_bytes, segment.stream, stack,
                  segment.pool)  # fmt: skip
        block.state, block.requested_bytes, block.stack = "inactive", 0, None
        place = segment.blocks.index(block)
        for neighbour in (
            segment.blocks[place + 1 : place + 2] + segment.blocks[max(place - 1, 0) : place]
        ):
            if neighbour.state == "inactive":
                block.address = min(block.address, neighbour.address)
                block.n_bytes += neighbour.n_bytes
                segment.blocks.remove(neighbour)

    def release(self, stack: int | None, asking: Pool = COMMON_POOL) -> bool:
        """Give back all segments that are wholly free, or the free pages of those that can shrink.

        Before, it waits for all streams, and what they still used is complete.

        Args:
            stack: The stack that makes it do so.
            asking: A private pool keeps its memory, unless it is the one that asks.

        Returns:
            Whether anything was given back.
        """
        before = self.reserved_bytes
        for block in [each for segment in self.segments for each in segment.blocks]:
            if block.state == "active_pending_free":
                block.streams.clear()
                self.complete(block, stack)
        for segment in list(self.segments):
            if segment.pool not in {COMMON_POOL, asking}:
                continue
            if segment.is_expandable:
                self._unmap(segment, stack)
            elif all(block.state == "inactive" for block in segment.blocks):
                self._give_back(segment, stack)
        return self.reserved_bytes < before

    def _give_back(self, segment: Segment, stack: int | None) -> None:
        self.told("segment_free", segment.address, segment.n_bytes, segment.stream, stack,
                  segment.pool)  # fmt: skip
        self.segments.remove(segment)

    def _release_long(self, n_bytes: int, stream: int, pool: Pool, stack: int | None) -> bool:
        """Give back segments beyond ``max_split_size``, as few as the request needs."""
        limit = self.max_split_bytes
        if limit is None:
            return False
        own = [
            block.segment
            for block in self._blocks(stream, pool, is_small=n_bytes <= SMALL_BYTES)
            if block.state == "inactive"
            and block.n_bytes == block.segment.n_bytes >= limit
            and not block.segment.is_expandable
        ]
        own.sort(key=lambda segment: (segment.n_bytes, segment.address))
        enough = [segment for segment in own if segment.n_bytes >= max(n_bytes, limit)]
        given = 0
        for segment in enough[:1] or reversed(own):
            if given < max(n_bytes, limit):
                given += segment.n_bytes
                self._give_back(segment, stack)
        return given >= max(n_bytes, limit)

    def _blocks(self, stream: int, pool: Pool, *, is_small: bool) -> Iterator[ReferenceBlock]:
        for segment in self.segments:
            if (segment.stream, segment.pool, segment.is_small) == (stream, pool, is_small):
                yield from segment.blocks

    def _best_fit(
        self, n_bytes: int, stream: int, pool: Pool, *, is_small: bool
    ) -> ReferenceBlock | None:
        """The shortest free block that is long enough, the first of several.

        The end of a segment that grows comes last: it is as long as it can become.
        """
        fitting = (
            block
            for block in self._blocks(stream, pool, is_small=is_small)
            if block.state == "inactive" and block.n_bytes >= n_bytes
        )
        best = min(
            fitting,
            key=lambda block: (
                block.segment.is_expandable and block is block.segment.blocks[-1],
                block.n_bytes,
                block.address,
            ),
            default=None,
        )
        limit = self.max_split_bytes
        if best is None or limit is None or is_small:
            return best
        # A block beyond the limit is for requests beyond it, and for those of nearly its length.
        if n_bytes < limit <= best.n_bytes:
            return None
        too_long = n_bytes >= limit and best.n_bytes >= n_bytes + LARGE_SEGMENT_BYTES
        return None if too_long else best

    def _splits(self, block: ReferenceBlock, n_bytes: int) -> bool:
        rest = block.n_bytes - n_bytes
        if block.segment.is_small or self.expandable:
            return rest >= BLOCK_BYTES
        below = self.max_split_bytes is None or n_bytes < self.max_split_bytes
        return below and rest > SMALL_BYTES

    def _cut(self, block: ReferenceBlock, n_bytes: int) -> None:
        rest = ReferenceBlock(block.segment, block.address + n_bytes, block.n_bytes - n_bytes)
        block.n_bytes = n_bytes
        block.segment.blocks.insert(block.segment.blocks.index(block) + 1, rest)

    def _from_driver(
        self, n_bytes: int, stream: int, pool: Pool, stack: int | None, *, is_small: bool
    ) -> ReferenceBlock | None:
        if self.expandable and pool == COMMON_POOL:
            return self._map(n_bytes, stream, pool, stack, is_small=is_small)
        length = segment_bytes(n_bytes)
        if length > self.free_bytes:
            return None
        segment = Segment(self._address(length), stream, pool, is_small, False, stack)  # noqa: FBT003
        segment.blocks.append(ReferenceBlock(segment, segment.address, length))
        self.segments.append(segment)
        self.told("segment_alloc", segment.address, length, stream, stack, pool)
        return segment.blocks[0]

    def _address(self, length: int) -> int:
        """Where the driver puts a segment: short ones at ever higher addresses, long ones lower."""
        if length > LARGE_SEGMENT_BYTES:
            self._last_long_address -= length + ROUND_BYTES
            return self._last_long_address
        self._next_address += length + ROUND_BYTES
        return self._next_address - length - ROUND_BYTES

    def _map(
        self, n_bytes: int, stream: int, pool: Pool, stack: int | None, *, is_small: bool
    ) -> ReferenceBlock | None:
        """Grow the expandable segment of a pool by pages until its last free block is enough."""
        found = [
            each
            for each in self.segments
            if (each.stream, each.pool, each.is_small) == (stream, pool, is_small)
        ]
        last = found[-1].blocks[-1] if found else None
        free_at_end = last.n_bytes if last is not None and last.state == "inactive" else 0
        page = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        if last is not None and free_at_end >= n_bytes:
            return last
        length = -(-(n_bytes - free_at_end) // page) * page
        if length > self.free_bytes:
            return None
        if not found:
            segment = Segment(self._next_address, stream, pool, is_small, True, stack)  # noqa: FBT003
            self._next_address += _EXPANDABLE_SPACE
            self.segments.append(segment)
            found = [segment]
        segment = found[-1]
        address = (
            segment.blocks[-1].address + segment.blocks[-1].n_bytes if last else segment.address
        )
        self.told("segment_map", address, length, stream, stack, pool)
        if last is None or last.state != "inactive":
            segment.blocks.append(ReferenceBlock(segment, address, 0))
        segment.blocks[-1].n_bytes += length
        return segment.blocks[-1]

    def _unmap(self, segment: Segment, stack: int | None) -> None:
        """Give back whole free pages at the end of an expandable segment."""
        page = SMALL_SEGMENT_BYTES if segment.is_small else LARGE_SEGMENT_BYTES
        last = segment.blocks[-1]
        length = last.n_bytes // page * page if last.state == "inactive" else 0
        if not length:
            return
        last.n_bytes -= length
        self.told("segment_unmap", last.address + last.n_bytes, length, segment.stream, stack,
                  segment.pool)  # fmt: skip
        if not last.n_bytes:
            segment.blocks.pop()
        if not segment.blocks:
            self.segments.remove(segment)


def segment_bytes(n_bytes: int) -> int:
    """What is asked of the driver for a request that no block can serve.

    Args:
        n_bytes: The request, rounded as a block is.
    """
    if n_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if n_bytes < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-n_bytes // ROUND_BYTES) * ROUND_BYTES
