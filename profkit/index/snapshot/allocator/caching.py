"""PyTorch's caching allocator of one device, rule by rule.

A request gets the shortest free block of its stream and kind that is long enough, the one with the
lowest address of several, and leaves what is over as a block of its own. Only where there is none
the driver is asked; where it has no more, cached segments go back to it.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` (``DeviceCachingAllocator``: ``malloc``,
``get_free_block``, ``should_split``, ``alloc_block``, ``free_block``,
``release_available_cached_blocks``, ``release_cached_blocks``, ``garbage_collect_cached_blocks``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from profkit.index.snapshot.allocator.blocks import Block, Family, Pool
from profkit.index.snapshot.allocator.expandable import SPACE_BYTES, grown, unmapped_bytes
from profkit.index.snapshot.allocator.settings import AllocatorSettings
from profkit.index.snapshot.allocator.sizes import (
    BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    segment_bytes,
)

COMMON: Final = 0
"""The pool that is not private."""
_SHARED_ADDRESS: Final = 1 << 70
"""Beyond all addresses of real devices, so that nothing new meets what stood before."""
_OWN_ADDRESS: Final = 1 << 72
_EXPANDABLE_ADDRESS: Final = 1 << 74


@dataclass
class CachingAllocator:
    """The allocator.

    Attributes:
        settings: Its settings.
        room_bytes: What the driver has for it in all, or None where that never ends.
        limit_bytes: What the process allows itself (``set_per_process_memory_fraction``), or None.
        place: The moment that changes are noted for; whoever plays a history sets it.
        changes: Every change of what is reserved: the moment, bytes taken or (below 0) given back,
            and the number of the private pool.
        reserved_bytes: What it has from the driver.
    """

    settings: AllocatorSettings
    room_bytes: int | None = None
    limit_bytes: int | None = None
    place: int = 0
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    reserved_bytes: int = 0
    _pools: dict[tuple[int, bool, int], Pool] = field(default_factory=dict, repr=False)
    _families: dict[tuple[bool, int], Family] = field(default_factory=dict, repr=False)
    _waiting: dict[int, Block] = field(default_factory=dict, repr=False)
    _shared: int = _SHARED_ADDRESS
    _own: int = _OWN_ADDRESS
    _expandable: int = _EXPANDABLE_ADDRESS
    _collects: bool = False

    def __post_init__(self) -> None:
        self._collects = self.settings.garbage_threshold > 0 and self.limit_bytes is not None

    def pool(self, stream: int, *, is_small: bool, private: int = COMMON) -> Pool:
        """The pool of some requests.

        Args:
            is_small: Whether they are of at most 1 MiB.
            private: Number of their private pool.
        """
        key = (stream, is_small, private)
        if key not in self._pools:
            family = self._families.setdefault(
                (is_small, private), Family(is_small=is_small, private=private)
            )
            self._pools[key] = Pool(family, stream)
        return self._pools[key]

    def adopt(
        self, pool: Pool, address: int, n_bytes: int, live: Iterable[tuple[int, int]]
    ) -> list[Block]:
        """Begin with a segment of a fixed length that stands already.

        Args:
            address: Where it begins.
            n_bytes: Its length.
            live: Address and length of its live blocks, by address, within it, apart.

        Returns:
            The live blocks.
        """
        self.reserved_bytes += n_bytes
        found = []
        rest: Block | None = Block(pool, address, n_bytes)
        for begin, length in live:
            if rest is not None and begin > rest.address:
                hole = rest
                rest = hole.cut(begin - hole.address)
                pool.add(hole)
            if rest is not None:
                found.append(rest)
                rest = rest.cut(length) if length < rest.n_bytes else None
        if rest is not None:
            pool.add(rest)
        return found

    def alloc(self, n_bytes: int, pool: Pool) -> Block | None:
        """Give a block to a request.

        Args:
            n_bytes: The request, rounded as the settings say.

        Returns:
            The block; None where there is no room for it.
        """
        block = self._cached(n_bytes, pool) or self._new(n_bytes, pool)
        if block is None:
            return None
        rest = block.n_bytes - n_bytes
        if rest and self._splits(n_bytes, rest, pool):
            pool.add(block.cut(n_bytes))
        return block

    def free(self, block: Block) -> None:
        """Let a block that nobody uses any more wait for the next request.

        Args:
            block: A live block.
        """
        block.merge()
        block.pool.add(block)

    def wait(self, request: int, block: Block) -> None:
        """Note that a block was freed and that another stream still uses it.

        Args:
            request: A number for :meth:`done`.
        """
        self._waiting[request] = block

    def done(self, request: int) -> None:
        """Free a block that has waited, unless the allocator itself has waited for it meanwhile.

        Args:
            request: Its number.
        """
        block = self._waiting.pop(request, None)
        if block is not None:
            self.free(block)

    def empty_cache(self) -> None:
        """Give all that is wholly free back to the driver, as ``torch.cuda.empty_cache()``."""
        for block in self._waiting.values():
            self.free(block)
        self._waiting.clear()
        # Memory of a graph's pool is kept for the graph.
        for pool in [each for each in self._pools.values() if each.family.private == COMMON]:
            for block in list(pool.whole.values()):
                self._release(block)
            for block in list(pool) if pool.unmapped else ():
                if block.origin is not None:
                    self._changed(-unmapped_bytes(block, self._page_bytes(pool)), pool)

    def _cached(self, n_bytes: int, pool: Pool) -> Block | None:
        """Take the free block that fits best, if the settings let the request have it."""
        settings = self.settings
        if self._collects:
            pool.family.n_searches += 1
        place = pool.first(n_bytes)
        if pool.unmapped:
            place = self._among_expandable(pool, place)
        if place == len(pool):
            return None
        limit = settings.max_split_bytes
        if limit is not None:
            found = pool.block(place).n_bytes
            if n_bytes < limit <= found or limit <= n_bytes <= found - settings.max_rest_bytes:
                return None
        return pool.pop(place)

    def _among_expandable(self, pool: Pool, place: int) -> int:
        """Where some blocks lie in expandable segments, the place of the one to take.

        A block that can grow counts as long as it can become: others come first.
        """
        n = len(pool)
        while place + 1 < n and pool.block(place).origin is not None:
            if pool.block(place + 1).reach_bytes >= pool.block(place).reach_bytes:
                break
            place += 1
        return place

    def _splits(self, n_bytes: int, rest_bytes: int, pool: Pool) -> bool:
        settings = self.settings
        if pool.family.is_small or settings.expandable:
            return rest_bytes >= BLOCK_BYTES
        limit = settings.max_split_bytes
        return (limit is None or n_bytes < limit) and rest_bytes > SMALL_BYTES

    def _new(self, n_bytes: int, pool: Pool) -> Block | None:
        """Ask the driver; where it has no more, give back what is cached and ask again."""
        if self._collects:
            self._collect()
        block = self._from_driver(n_bytes, pool)
        if block is None and self._release_long(n_bytes, pool):
            block = self._from_driver(n_bytes, pool)
        if block is None:
            self.empty_cache()
            block = self._from_driver(n_bytes, pool)
        return block

    def _from_driver(self, n_bytes: int, pool: Pool) -> Block | None:
        length = segment_bytes(n_bytes, self.settings.large_segment_bytes)
        if self.limit_bytes is not None and self.reserved_bytes + length > self.limit_bytes:
            return None

        def takes(n_bytes: int) -> bool:
            if self.room_bytes is not None and self.reserved_bytes + n_bytes > self.room_bytes:
                return False
            self._changed(n_bytes, pool)
            return True

        if self.settings.expandable and pool.family.private == COMMON:
            return grown(pool, n_bytes, self._page_bytes(pool), takes, self._expandable_address)
        return Block(pool, self._address(length), length) if takes(length) else None

    def _address(self, n_bytes: int) -> int:
        """Where the driver would put a segment, as far as that decides between equal blocks.

        No documentation says so, real histories do: short ones come at ever higher addresses, and
        long ones at ever lower ones.
        """
        if n_bytes > self.settings.large_segment_bytes:
            self._own -= n_bytes
            return self._own
        self._shared += n_bytes
        return self._shared - n_bytes

    def _expandable_address(self) -> int:
        self._expandable += SPACE_BYTES
        return self._expandable - SPACE_BYTES

    def _page_bytes(self, pool: Pool) -> int:
        return SMALL_SEGMENT_BYTES if pool.family.is_small else self.settings.large_segment_bytes

    def _changed(self, n_bytes: int, pool: Pool) -> None:
        if n_bytes:
            self.reserved_bytes += n_bytes
            self.changes.append((self.place, n_bytes, pool.family.private))

    def _release(self, block: Block) -> None:
        """Give a block that is a whole segment back to the driver."""
        block.pool.remove(block)
        self._changed(-block.n_bytes, block.pool)

    def _release_long(self, n_bytes: int, pool: Pool) -> bool:
        """Give back blocks beyond ``max_split_size``, no more of them than the request needs."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        wanted = max(n_bytes, limit)
        place, n = pool.first(wanted), len(pool)
        if place < n and pool.block(place).address in pool.whole:
            self._release(pool.block(place))
            return True
        released = 0
        while place > 0 and released < wanted:
            place -= 1
            block = pool.block(place)
            if block.n_bytes < limit:
                break
            if block.address in pool.whole:
                released += block.n_bytes
                self._release(block)
        return released >= wanted

    def _collect(self) -> None:
        """Give back segments that were unused for longer than others, down to a threshold."""
        least = int(self.settings.garbage_threshold * (self.limit_bytes or 0))
        wanted = self.reserved_bytes - least
        if wanted <= 0:
            return
        pools = (each for each in self._pools.values() if not each.family.is_small)
        found = [
            block
            for pool in pools
            if pool.family.private == COMMON
            for block in pool.whole.values()
        ]
        ages = {block: block.pool.family.n_searches - block.kept_at for block in found}
        while ages and wanted > 0:
            mean, n_before = sum(ages.values()) / len(ages), len(ages)
            for block in [block for block in found if ages.get(block, -1) >= mean]:
                wanted -= block.n_bytes
                del ages[block]
                self._release(block)
            if len(ages) == n_before:
                return
