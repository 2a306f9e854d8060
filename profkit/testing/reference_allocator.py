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

# A pool's id as torch writes it: (0, 0), or a number for a CUDA graph's or a user's pool.
Pool = tuple[int, int]
COMMON_POOL: Final[Pool] = (0, 0)


class RequestLane(NamedTuple):
    """Stream, pool and size class: a request is served only by blocks of the same three.

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
        """Sum of the sizes of its blocks."""
        return sum(block.n_bytes for block in self.blocks)


OnHistoryEntry = Callable[[str, int, int, int, int | None, Pool], None]
"""Function to call for every action: action, address, bytes, stream, stack, pool."""


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
        """Memory that the driver can still provide."""
        return self.total_bytes - self.outside_bytes - self.reserved_bytes

    def malloc(self, n_bytes: int, *, stream: int, pool: Pool, stack: int | None) -> ReferenceBlock:
        """Find a cached block, or get memory from the driver, after releasing the cache if needed.

        Raises:
            OutOfDeviceMemoryError: The driver does not have enough memory even then.
        """
        size = max(BLOCK_BYTES, -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        lane = RequestLane(stream, pool, size <= SMALL_BYTES)
        block = self._find_best_fit(size, lane) or self._request_memory(size, lane, stack)

        # The cheapest release comes first: a single oversized segment may be enough.
        if block is None and self._release_oversized(size, lane, stack):
            block = self._request_memory(size, lane, stack)
        if block is None and self.release(stack, pool):
            block = self._request_memory(size, lane, stack)
        if block is None:
            self._note("oom", self.free_bytes, size, lane, stack)
            raise OutOfDeviceMemoryError(f"{size} bytes")

        if self._must_split(block, size):
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

        index = segment.blocks.index(block)
        following = segment.blocks[index + 1 : index + 2]
        preceding = segment.blocks[max(index - 1, 0) : index]
        for neighbour in following + preceding:
            if neighbour.state == "inactive":
                block.address = min(block.address, neighbour.address)
                block.n_bytes += neighbour.n_bytes
                segment.blocks.remove(neighbour)

    def release(self, stack: int | None, requester: Pool = COMMON_POOL) -> bool:
        """Release all free segments, or the free pages at the end of expandable ones.

        Args:
            stack: The stack that releases them.
            requester: Private pools other than this one keep their memory.

        Returns:
            Whether anything was released.
        """
        reserved_before = self.reserved_bytes

        # torch synchronizes all streams before it releases memory, which completes pending frees.
        blocks = [block for segment in self.segments for block in segment.blocks]
        for block in blocks:
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
        return self.reserved_bytes < reserved_before

    def _release(self, segment: Segment, stack: int | None) -> None:
        self._note("segment_free", segment.address, segment.n_bytes, segment.lane, stack)
        self.segments.remove(segment)

    def _release_oversized(self, n_bytes: int, lane: RequestLane, stack: int | None) -> bool:
        """Release segments larger than ``max_split_size``, as few as the request needs."""
        limit = self.max_split_bytes
        if limit is None:
            return False
        needed_bytes = max(n_bytes, limit)

        oversized = [
            block.segment
            for block in self._blocks_of(lane)
            if block.state == "inactive"
            and block.n_bytes == block.segment.n_bytes >= limit
            and not block.segment.is_expandable
        ]
        oversized.sort(key=lambda segment: (segment.n_bytes, segment.address))

        # The smallest segment that is enough by itself, else the largest ones until they are.
        sufficient = [segment for segment in oversized if segment.n_bytes >= needed_bytes]
        released_bytes = 0
        for segment in sufficient[:1] or reversed(oversized):
            if released_bytes < needed_bytes:
                released_bytes += segment.n_bytes
                self._release(segment, stack)
        return released_bytes >= needed_bytes

    def _blocks_of(self, lane: RequestLane) -> Iterator[ReferenceBlock]:
        for segment in self.segments:
            if segment.lane == lane:
                yield from segment.blocks

    def _find_best_fit(self, n_bytes: int, lane: RequestLane) -> ReferenceBlock | None:
        """Find the smallest free block that is large enough, at the lowest address.

        The free end of an expandable segment comes last, since it can grow to any size.
        """
        large_enough = (
            block
            for block in self._blocks_of(lane)
            if block.state == "inactive" and block.n_bytes >= n_bytes
        )
        best = min(
            large_enough,
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

    def _must_split(self, block: ReferenceBlock, n_bytes: int) -> bool:
        remaining_bytes = block.n_bytes - n_bytes
        if block.segment.lane.is_small or self.expandable:
            return remaining_bytes >= BLOCK_BYTES
        is_below_limit = self.max_split_bytes is None or n_bytes < self.max_split_bytes
        return is_below_limit and remaining_bytes > SMALL_BYTES

    def _split(self, block: ReferenceBlock, n_bytes: int) -> None:
        remainder = ReferenceBlock(block.segment, block.address + n_bytes, block.n_bytes - n_bytes)
        block.n_bytes = n_bytes
        block.segment.blocks.insert(block.segment.blocks.index(block) + 1, remainder)

    def _request_memory(
        self, n_bytes: int, lane: RequestLane, stack: int | None
    ) -> ReferenceBlock | None:
        """Get memory from the driver as a free block; return None if it does not have enough."""
        if self.expandable and lane.pool == COMMON_POOL:
            return self._map(n_bytes, lane, stack)

        length = segment_bytes(n_bytes)
        if length > self.free_bytes:
            return None
        segment = Segment(self._reserve_address(length), lane, False, stack)  # noqa: FBT003
        segment.blocks.append(ReferenceBlock(segment, segment.address, length))
        self.segments.append(segment)
        self._note("segment_alloc", segment.address, length, lane, stack)
        return segment.blocks[0]

    def _reserve_address(self, length: int) -> int:
        """Reserve addresses for a segment: ascending for small sizes, descending for large ones."""
        if length > LARGE_SEGMENT_BYTES:
            self._last_long_address -= length + ROUND_BYTES
            return self._last_long_address
        self._next_address += length + ROUND_BYTES
        return self._next_address - length - ROUND_BYTES

    def _map(self, n_bytes: int, lane: RequestLane, stack: int | None) -> ReferenceBlock | None:
        """Grow a pool's expandable segment by pages until its last free block is large enough."""
        segment = next((old for old in reversed(self.segments) if old.lane == lane), None)
        last = segment.blocks[-1] if segment else None
        free_at_end = last.n_bytes if last is not None and last.state == "inactive" else 0
        if last is not None and free_at_end >= n_bytes:
            return last

        # A free block at the end becomes larger, so only the difference needs new pages.
        page = SMALL_SEGMENT_BYTES if lane.is_small else LARGE_SEGMENT_BYTES
        length = -(-(n_bytes - free_at_end) // page) * page
        if length > self.free_bytes:
            return None

        if segment is None:
            segment = Segment(self._next_address, lane, True, stack)  # noqa: FBT003
            self._next_address += _EXPANDABLE_SPACE
            self.segments.append(segment)
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
    """Return the size of the segment for a request of ``n_bytes``, which is rounded to blocks."""
    if n_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if n_bytes < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-n_bytes // ROUND_BYTES) * ROUND_BYTES
