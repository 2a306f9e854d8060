"""A simple model of torch's caching allocator: segments, splits, streams and pools.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` (``DeviceCachingAllocator``): ``malloc``,
``get_free_block``, ``should_split``, ``alloc_block``, ``free_block``,
``release_available_cached_blocks``, ``release_cached_blocks``, ``try_allocate_expandable_block``.
It is independent of ``profkit.index.snapshot.allocator`` and uses linear searches: the reference
that tests compare that faster model with.
"""

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Final, NamedTuple

from profkit.dataclass import dataclass

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
"""Address space of one expandable segment, so that it never overlaps the next."""

Pool = tuple[int, int]
COMMON_POOL: Final[Pool] = (0, 0)


class RequestLane(NamedTuple):
    """What a request and the blocks that can serve it have in common.

    Attributes:
        is_small: Whether it is for requests up to 1 MiB.
    """

    stream: int
    pool: Pool
    is_small: bool


class OutOfDeviceMemoryError(RuntimeError):
    """The simulated device is out of memory, as ``torch.OutOfMemoryError``."""


@dataclass(eq=False)
class ReferenceBlock:
    """A block of a segment.

    Attributes:
        n_bytes: Its size, rounded.
        requested_bytes: The requested size.
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
    """A segment of memory from the driver.

    Attributes:
        is_expandable: Whether it grows and shrinks.
        stack: Number of the stack that requested it, or None.
        blocks: Its blocks by address, without gaps.
    """

    address: int
    lane: RequestLane
    is_expandable: bool
    stack: int | None
    blocks: list[ReferenceBlock] = field(default_factory=list)

    @property
    def n_bytes(self) -> int:
        """Its size."""
        return sum(block.n_bytes for block in self.blocks)


OnHistoryEntry = Callable[[str, int, int, int, int | None, Pool], None]
"""Called for every action of the allocator: action, address, bytes, stream, stack, pool."""


@dataclass
class ReferenceAllocator:
    """One device's allocator.

    Attributes:
        on_entry: Called for every action.
        total_bytes: The device's memory.
        outside_bytes: Memory used by others.
        expandable: ``expandable_segments``.
        max_split_bytes: ``max_split_size``, or None.
        segments: Segments in the order of their allocation.
    """

    on_entry: OnHistoryEntry
    total_bytes: int
    outside_bytes: int = 0
    expandable: bool = False
    max_split_bytes: int | None = None
    segments: list[Segment] = field(default_factory=list)
    _next_address: int = _FIRST_ADDRESS
    _last_long_address: int = _FIRST_LONG_ADDRESS

    @property
    def reserved_bytes(self) -> int:
        """Memory obtained from the driver."""
        return sum(segment.n_bytes for segment in self.segments)

    @property
    def free_bytes(self) -> int:
        """Memory that the driver still has."""
        return self.total_bytes - self.outside_bytes - self.reserved_bytes

    def malloc(self, n_bytes: int, *, stream: int, pool: Pool, stack: int | None) -> ReferenceBlock:
        """Find a cached block, or get memory from the driver, after releasing the cache if needed.

        Raises:
            OutOfDeviceMemoryError: The driver has not enough memory even then.
        """
        size = max(BLOCK_BYTES, -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        lane = RequestLane(stream, pool, size <= SMALL_BYTES)
        block = self._best_fit(size, lane) or self._from_driver(size, lane, stack)
        if block is None and self._release_oversized(size, lane, stack):
            block = self._from_driver(size, lane, stack)
        if block is None and self.release(stack, pool):
            block = self._from_driver(size, lane, stack)
        if block is None:
            self._note("oom", self.free_bytes, size, lane, stack)
            raise OutOfDeviceMemoryError(f"{size} bytes")
        if self._splits(block, size):
            self._split(block, size)
        block.state, block.requested_bytes, block.stack = "active_allocated", n_bytes, stack
        self._note("alloc", block.address, n_bytes, lane, stack)
        return block

    def _note(
        self, action: str, address: int, n_bytes: int, lane: RequestLane, stack: int | None
    ) -> None:
        self.on_entry(action, address, n_bytes, lane.stream, stack, lane.pool)

    def free(self, block: ReferenceBlock, stack: int | None) -> None:
        """Free a block; it stays active while other streams use it."""
        lane = block.segment.lane
        self._note("free_requested", block.address, block.requested_bytes, lane, stack)
        if block.streams:
            block.state = "active_pending_free"
        else:
            self.complete(block, stack)

    def complete(self, block: ReferenceBlock, stack: int | None) -> None:
        """Complete the free of a block, and merge it with its free neighbours."""
        segment = block.segment
        self._note("free_completed", block.address, block.requested_bytes, segment.lane, stack)
        block.state, block.requested_bytes, block.stack = "inactive", 0, None
        place = segment.blocks.index(block)
        for neighbour in (
            segment.blocks[place + 1 : place + 2] + segment.blocks[max(place - 1, 0) : place]
        ):
            if neighbour.state == "inactive":
                block.address = min(block.address, neighbour.address)
                block.n_bytes += neighbour.n_bytes
                segment.blocks.remove(neighbour)

    def release(self, stack: int | None, requester: Pool = COMMON_POOL) -> bool:
        """Release all free segments, or the free pages at the end of expandable ones.

        All streams are synchronized first, which completes pending frees.

        Args:
            stack: The stack that releases them.
            requester: Private pools other than this one keep their memory.

        Returns:
            Whether anything was released.
        """
        before = self.reserved_bytes
        for block in [each for segment in self.segments for each in segment.blocks]:
            if block.state == "active_pending_free":
                block.streams.clear()
                self.complete(block, stack)
        for segment in list(self.segments):
            if segment.lane.pool not in {COMMON_POOL, requester}:
                continue
            if segment.is_expandable:
                self._unmap(segment, stack)
            elif all(block.state == "inactive" for block in segment.blocks):
                self._release(segment, stack)
        return self.reserved_bytes < before

    def _release(self, segment: Segment, stack: int | None) -> None:
        self._note("segment_free", segment.address, segment.n_bytes, segment.lane, stack)
        self.segments.remove(segment)

    def _release_oversized(self, n_bytes: int, lane: RequestLane, stack: int | None) -> bool:
        """Release segments larger than ``max_split_size``, as few as the request needs."""
        limit = self.max_split_bytes
        if limit is None:
            return False
        own = [
            block.segment
            for block in self._blocks(lane)
            if block.state == "inactive"
            and block.n_bytes == block.segment.n_bytes >= limit
            and not block.segment.is_expandable
        ]
        own.sort(key=lambda segment: (segment.n_bytes, segment.address))
        enough = [segment for segment in own if segment.n_bytes >= max(n_bytes, limit)]
        released = 0
        for segment in enough[:1] or reversed(own):
            if released < max(n_bytes, limit):
                released += segment.n_bytes
                self._release(segment, stack)
        return released >= max(n_bytes, limit)

    def _blocks(self, lane: RequestLane) -> Iterator[ReferenceBlock]:
        for segment in self.segments:
            if segment.lane == lane:
                yield from segment.blocks

    def _best_fit(self, n_bytes: int, lane: RequestLane) -> ReferenceBlock | None:
        """The smallest free block that is large enough, at the lowest address.

        The free end of an expandable segment comes last, since it can grow to any size.
        """
        fitting = (
            block
            for block in self._blocks(lane)
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
        if best is None or limit is None or lane.is_small:
            return best
        # A block above the limit is used only for requests above it and close to its size.
        if n_bytes < limit <= best.n_bytes:
            return None
        too_large = n_bytes >= limit and best.n_bytes >= n_bytes + LARGE_SEGMENT_BYTES
        return None if too_large else best

    def _splits(self, block: ReferenceBlock, n_bytes: int) -> bool:
        rest = block.n_bytes - n_bytes
        if block.segment.lane.is_small or self.expandable:
            return rest >= BLOCK_BYTES
        below = self.max_split_bytes is None or n_bytes < self.max_split_bytes
        return below and rest > SMALL_BYTES

    def _split(self, block: ReferenceBlock, n_bytes: int) -> None:
        rest = ReferenceBlock(block.segment, block.address + n_bytes, block.n_bytes - n_bytes)
        block.n_bytes = n_bytes
        block.segment.blocks.insert(block.segment.blocks.index(block) + 1, rest)

    def _from_driver(
        self, n_bytes: int, lane: RequestLane, stack: int | None
    ) -> ReferenceBlock | None:
        if self.expandable and lane.pool == COMMON_POOL:
            return self._map(n_bytes, lane, stack)
        length = segment_bytes(n_bytes)
        if length > self.free_bytes:
            return None
        segment = Segment(self._address(length), lane, False, stack)  # noqa: FBT003
        segment.blocks.append(ReferenceBlock(segment, segment.address, length))
        self.segments.append(segment)
        self._note("segment_alloc", segment.address, length, lane, stack)
        return segment.blocks[0]

    def _address(self, length: int) -> int:
        """The address of a new segment: ascending for small sizes, descending for large ones."""
        if length > LARGE_SEGMENT_BYTES:
            self._last_long_address -= length + ROUND_BYTES
            return self._last_long_address
        self._next_address += length + ROUND_BYTES
        return self._next_address - length - ROUND_BYTES

    def _map(self, n_bytes: int, lane: RequestLane, stack: int | None) -> ReferenceBlock | None:
        """Grow a pool's expandable segment by pages until its last free block is large enough."""
        found = [each for each in self.segments if each.lane == lane]
        last = found[-1].blocks[-1] if found else None
        free_at_end = last.n_bytes if last is not None and last.state == "inactive" else 0
        page = SMALL_SEGMENT_BYTES if lane.is_small else LARGE_SEGMENT_BYTES
        if last is not None and free_at_end >= n_bytes:
            return last
        length = -(-(n_bytes - free_at_end) // page) * page
        if length > self.free_bytes:
            return None
        if not found:
            segment = Segment(self._next_address, lane, True, stack)  # noqa: FBT003
            self._next_address += _EXPANDABLE_SPACE
            self.segments.append(segment)
            found = [segment]
        segment = found[-1]
        address = last.address + last.n_bytes if last else segment.address
        self._note("segment_map", address, length, lane, stack)
        if last is None or last.state != "inactive":
            segment.blocks.append(ReferenceBlock(segment, address, 0))
        segment.blocks[-1].n_bytes += length
        return segment.blocks[-1]

    def _unmap(self, segment: Segment, stack: int | None) -> None:
        """Release whole free pages at the end of an expandable segment."""
        page = SMALL_SEGMENT_BYTES if segment.lane.is_small else LARGE_SEGMENT_BYTES
        last = segment.blocks[-1]
        length = last.n_bytes // page * page if last.state == "inactive" else 0
        if not length:
            return
        last.n_bytes -= length
        self._note("segment_unmap", last.address + last.n_bytes, length, segment.lane, stack)
        if not last.n_bytes:
            segment.blocks.pop()
        if not segment.blocks:
            self.segments.remove(segment)


def segment_bytes(n_bytes: int) -> int:
    """The size of the segment for a request of ``n_bytes``, which is rounded to blocks."""
    if n_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if n_bytes < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-n_bytes // ROUND_BYTES) * ROUND_BYTES
