"""PyTorch's caching allocator of one device, rule by rule.

A request gets the smallest sufficient free block of its stream and pool, with the lowest
address among equals, and the rest becomes a block of its own. Only if there is none, memory is
requested from the driver; if that fails, cached segments are returned to the driver.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` (``DeviceCachingAllocator``: ``malloc``,
``get_free_block``, ``should_split``, ``alloc_block``, ``free_block``,
``release_available_cached_blocks``, ``release_cached_blocks``, ``garbage_collect_cached_blocks``).
"""

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocator.blocks import Block, BlockPool, StreamPool
from profkit.index.snapshot.allocator.expandable import SPACE_BYTES, grow, unmap
from profkit.index.snapshot.allocator.settings import (
    BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
    segment_bytes,
)

COMMON: Final = 0
"""Number of the default pool."""
_SHARED_ADDRESS: Final = 1 << 70
"""Beyond addresses of real devices, so that new segments do not overlap adopted ones."""
_OWN_ADDRESS: Final = 1 << 72
_EXPANDABLE_ADDRESS: Final = 1 << 74


@dataclass
class CachingAllocator:
    """The allocator.

    Attributes:
        capacity_bytes: Memory that the driver can provide, or None if unlimited.
        limit_bytes: Limit of the process (``set_per_process_memory_fraction``), or None.
        place: The current moment, set by the caller, which is recorded with changes.
        changes: Changes of reserved bytes: moment, difference in bytes, and number of the private
            pool.
    """

    settings: AllocatorSettings
    capacity_bytes: int | None = None
    limit_bytes: int | None = None
    place: int = 0
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    reserved_bytes: int = 0
    _pools: dict[tuple[int, bool, int], StreamPool] = field(default_factory=dict, repr=False)
    _block_pools: dict[tuple[bool, int], BlockPool] = field(default_factory=dict, repr=False)
    _pending: dict[int, Block] = field(default_factory=dict, repr=False)
    _shared: int = _SHARED_ADDRESS
    _own: int = _OWN_ADDRESS
    _expandable: int = _EXPANDABLE_ADDRESS
    _collects: bool = False

    def __post_init__(self) -> None:
        self._collects = self.settings.garbage_threshold > 0 and self.limit_bytes is not None

    def pool(self, stream: int, *, is_small: bool, private: int = COMMON) -> StreamPool:
        """Return the pool of requests that are small (at most 1 MiB) or not."""
        key = (stream, is_small, private)
        if key not in self._pools:
            block_pool = self._block_pools.setdefault(
                (is_small, private), BlockPool(is_small=is_small, private=private)
            )
            self._pools[key] = StreamPool(block_pool, stream)
        return self._pools[key]

    def adopt(
        self, pool: StreamPool, address: int, n_bytes: int, live: Iterable[tuple[int, int]]
    ) -> list[Block]:
        """Add an existing segment of fixed size.

        Args:
            live: Address and size of its disjoint live blocks, by address.

        Returns:
            The live blocks.
        """
        self.reserved_bytes += n_bytes
        live_blocks = []
        remainder: Block | None = Block(pool, address, n_bytes)

        for begin, length in live:
            if remainder is not None and begin > remainder.address:
                unused = remainder
                remainder = unused.cut(begin - unused.address)
                pool.add(unused)
            if remainder is not None:
                live_blocks.append(remainder)
                remainder = remainder.cut(length) if length < remainder.n_bytes else None
        if remainder is not None:
            pool.add(remainder)
        return live_blocks

    def alloc(self, n_bytes: int, pool: StreamPool) -> Block | None:
        """Allocate a block of a rounded size, or return None if that fails."""
        block = self._take_cached(n_bytes, pool) or self._request_new(n_bytes, pool)
        if block is None:
            return None

        rest_bytes = block.n_bytes - n_bytes
        if rest_bytes and self._splits(n_bytes, rest_bytes, pool):
            pool.add(block.cut(n_bytes))
        return block

    def free(self, block: Block) -> None:
        """Free a live block."""
        block.merge()
        block.pool.add(block)

    def defer_free(self, request: int, block: Block) -> None:
        """Free a block that is pending on another stream, until :meth:`complete_free`."""
        self._pending[request] = block

    def complete_free(self, request: int) -> None:
        """Complete a deferred free, unless the allocator has synchronized meanwhile."""
        block = self._pending.pop(request, None)
        if block is not None:
            self.free(block)

    def empty_cache(self) -> None:
        """Return all releasable memory to the driver, like ``torch.cuda.empty_cache()``."""
        for block in self._pending.values():
            self.free(block)
        self._pending.clear()

        # Memory of a graph's pool is reserved for the graph.
        for pool in self._pools.values():
            if pool.block_pool.private != COMMON:
                continue
            for block in list(pool.whole.values()):
                self._release(block)
            for block in list(pool) if pool.unmapped else ():
                if block.origin is not None:
                    self._record_change(-unmap(block, self._page_bytes(pool)), pool)

    def _take_cached(self, n_bytes: int, pool: StreamPool) -> Block | None:
        """Take the best-fitting free block, if the settings allow it for the request."""
        settings = self.settings
        if self._collects:
            pool.block_pool.n_searches += 1

        place = pool.first(n_bytes)
        if pool.unmapped:
            place = self._skip_expandable(pool, place)
        if place == len(pool):
            return None

        limit = settings.max_split_bytes
        if limit is not None:
            cached_bytes = pool.block(place).n_bytes
            if (
                n_bytes < limit <= cached_bytes
                or limit <= n_bytes <= cached_bytes - settings.max_rest_bytes
            ):
                return None
        return pool.pop(place)

    def _skip_expandable(self, pool: StreamPool, place: int) -> int:
        """Return the index of the block to take, where some blocks are in expandable segments.

        A block that can grow counts with the size it could grow to, so others are preferred.
        """
        n_blocks = len(pool)
        while place + 1 < n_blocks and pool.block(place).origin is not None:
            if pool.block(place + 1).reach_bytes >= pool.block(place).reach_bytes:
                break
            place += 1
        return place

    def _splits(self, n_bytes: int, rest_bytes: int, pool: StreamPool) -> bool:
        settings = self.settings
        if pool.block_pool.is_small or settings.expandable:
            return rest_bytes >= BLOCK_BYTES
        limit = settings.max_split_bytes
        return (limit is None or n_bytes < limit) and rest_bytes > SMALL_BYTES

    def _request_new(self, n_bytes: int, pool: StreamPool) -> Block | None:
        """Request memory from the driver; if that fails, flush the cache and retry."""
        if self._collects:
            self._collect()
        block = self._request_memory(n_bytes, pool)
        if block is None and self._release_long(n_bytes, pool):
            block = self._request_memory(n_bytes, pool)
        if block is None:
            self.empty_cache()
            block = self._request_memory(n_bytes, pool)
        return block

    def _request_memory(self, n_bytes: int, pool: StreamPool) -> Block | None:
        length = segment_bytes(n_bytes, self.settings.large_segment_bytes)
        if self.limit_bytes is not None and self.reserved_bytes + length > self.limit_bytes:
            return None

        def obtain(n_bytes: int) -> bool:
            if (
                self.capacity_bytes is not None
                and self.reserved_bytes + n_bytes > self.capacity_bytes
            ):
                return False
            self._record_change(n_bytes, pool)
            return True

        if self.settings.expandable and pool.block_pool.private == COMMON:
            return grow(pool, n_bytes, self._page_bytes(pool), obtain, self._expandable_address)
        return Block(pool, self._address(length), length) if obtain(length) else None

    def _address(self, n_bytes: int) -> int:
        """Return the address of a new segment, as far as it decides between equal blocks.

        This is not documented but seen in real histories: small segments come at increasing
        addresses, and large ones at decreasing addresses.
        """
        if n_bytes > self.settings.large_segment_bytes:
            self._own -= n_bytes
            return self._own

        self._shared += n_bytes
        return self._shared - n_bytes

    def _expandable_address(self) -> int:
        self._expandable += SPACE_BYTES
        return self._expandable - SPACE_BYTES

    def _page_bytes(self, pool: StreamPool) -> int:
        return (
            SMALL_SEGMENT_BYTES if pool.block_pool.is_small else self.settings.large_segment_bytes
        )

    def _record_change(self, n_bytes: int, pool: StreamPool) -> None:
        if n_bytes:
            self.reserved_bytes += n_bytes
            self.changes.append((self.place, n_bytes, pool.block_pool.private))

    def _release(self, block: Block) -> None:
        """Return a block that is an entire segment to the driver."""
        block.pool.remove(block)
        self._record_change(-block.n_bytes, block.pool)

    def _release_long(self, n_bytes: int, pool: StreamPool) -> bool:
        """Release segments beyond ``max_split_size``, no more than the request needs."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        wanted_bytes = max(n_bytes, limit)

        place, n_blocks = pool.first(wanted_bytes), len(pool)
        if place < n_blocks and pool.block(place).address in pool.whole:
            self._release(pool.block(place))
            return True

        released_bytes = 0
        while place > 0 and released_bytes < wanted_bytes:
            place -= 1
            block = pool.block(place)
            if block.n_bytes < limit:
                break
            if block.address in pool.whole:
                released_bytes += block.n_bytes
                self._release(block)
        return released_bytes >= wanted_bytes

    def _collect(self) -> None:
        """Release the segments that were unused for longest, down to the threshold."""
        target_bytes = int(self.settings.garbage_threshold * (self.limit_bytes or 0))
        excess_bytes = self.reserved_bytes - target_bytes
        if excess_bytes <= 0:
            return

        candidates = [
            block
            for pool in self._pools.values()
            if not pool.block_pool.is_small and pool.block_pool.private == COMMON
            for block in pool.whole.values()
        ]

        ages = {block: block.pool.block_pool.n_searches - block.freed_at for block in candidates}

        # Each round releases the blocks of at least the mean age, as PyTorch does.
        while ages and excess_bytes > 0:
            mean, n_before = sum(ages.values()) / len(ages), len(ages)
            for block in [block for block in candidates if ages.get(block, -1) >= mean]:
                excess_bytes -= block.n_bytes
                del ages[block]
                self._release(block)
            if len(ages) == n_before:
                return
