"""Expandable segments, which grow and shrink in place by pages.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` (``ExpandableSegment``, ``find_expandable_block``,
``map_block``, ``try_allocate_expandable_block``, ``unmap_block``).
"""

from collections.abc import Callable
from typing import Final

from profkit.index.snapshot.allocator.blocks import Block, StreamPool

SPACE_BYTES: Final = 1 << 42
"""Address range of each expandable segment: larger than any device's memory."""

Obtain = Callable[[int], bool]
"""Requests bytes from the driver, and returns whether it succeeded."""


def grow(
    pool: StreamPool, n_bytes: int, page_bytes: int, obtain: Obtain, new_address: Callable[[], int]
) -> Block | None:
    """Map pages of an expandable segment until a free block in it is large enough.

    Args:
        new_address: Finds an address range of :data:`SPACE_BYTES` for a new segment.

    Returns:
        The block, removed from the pool; None if the driver has no more memory.
    """
    block = _find_with_space(pool, n_bytes) or _add_segment(pool, new_address())
    if not block.is_mapped and not _map(block, min(block.n_bytes, n_bytes), page_bytes, obtain):
        return None

    while block.n_bytes < n_bytes:
        # The following block is unmapped, and merges with this one once it is mapped.
        following = block.after
        if following is None:
            return None
        missing = min(n_bytes - block.n_bytes, following.n_bytes)
        if not _map(following, missing, page_bytes, obtain):
            return None
        block = following

    pool.remove(block)
    return block


def _find_with_space(pool: StreamPool, n_bytes: int) -> Block | None:
    """Find the free or unmapped block from which on there is space for the request."""
    for place in range(len(pool.unmapped)):
        block = pool.unmapped_block(place)
        if block.before is not None and block.before.is_free:
            block = block.before
        if _space_bytes(block, n_bytes) >= n_bytes:
            return block
    return None


def _space_bytes(block: Block, enough: int) -> int:
    """Return the size of a free block and the free blocks after it, until that suffices."""
    space_bytes, following = 0, block.after
    while block.is_free:
        space_bytes += block.n_bytes
        if space_bytes >= enough or following is None:
            break
        block, following = following, following.after
    return space_bytes


def _add_segment(pool: StreamPool, address: int) -> Block:
    block = Block(pool, address, SPACE_BYTES, origin=address)
    block.is_mapped = False
    pool.add(block)
    return block


def _map(block: Block, n_bytes: int, page_bytes: int, obtain: Obtain) -> bool:
    """Map the first pages of an unmapped block, and merge it with free neighbors."""
    length = -(-n_bytes // page_bytes) * page_bytes
    if not obtain(length):
        return False

    pool = block.pool
    pool.remove(block)
    if length < block.n_bytes:
        pool.add(block.cut(length))
    block.is_mapped = True
    block.merge()
    pool.add(block)
    return True


def unmap(block: Block, page_bytes: int) -> int:
    """Unmap all whole pages of a free block of an expandable segment, and return their bytes."""
    origin = block.origin or 0
    begin = -(-(block.address - origin) // page_bytes) * page_bytes + origin
    end = (block.address + block.n_bytes - origin) // page_bytes * page_bytes + origin
    if begin >= end:
        return 0

    pool = block.pool
    pool.remove(block)
    if begin > block.address:
        remainder = block.cut(begin - block.address)
        pool.add(block)
        block = remainder
    if end < block.address + block.n_bytes:
        pool.add(block.cut(end - block.address))
    block.is_mapped = False
    block.merge()

    if not block.is_whole:
        pool.add(block)
    return end - begin
