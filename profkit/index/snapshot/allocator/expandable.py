"""Segments that grow where they are, by pages, and give pages back.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` (``ExpandableSegment``, ``find_expandable_block``,
``map_block``, ``try_allocate_expandable_block``, ``unmap_block``).
"""

from collections.abc import Callable
from typing import Final

from profkit.index.snapshot.allocator.blocks import Block, Pool

SPACE_BYTES: Final = 1 << 42
"""Addresses that each such segment has for itself: more than any device has memory."""

Takes = Callable[[int], bool]
"""Asks the driver for so many bytes, and says whether it gave them."""


def grown(
    pool: Pool, n_bytes: int, page_bytes: int, takes: Takes, new_address: Callable[[], int]
) -> Block | None:
    """Give pages to a segment of the pool until a free block in it is long enough.

    Args:
        n_bytes: The request.
        page_bytes: The length of a page.
        takes: Asks the driver.
        new_address: Finds :data:`SPACE_BYTES` of addresses for a segment that is begun.

    Returns:
        The block, out of the pool; None where the driver gave no more.
    """
    block = _with_room(pool, n_bytes) or _begun(pool, new_address())
    if not block.is_mapped and not _mapped(block, min(block.n_bytes, n_bytes), page_bytes, takes):
        return None
    while block.n_bytes < n_bytes:
        # What follows has no memory yet, and takes in the block once it has.
        following = block.after
        if following is None:
            return None
        lacking = min(n_bytes - block.n_bytes, following.n_bytes)
        if not _mapped(following, lacking, page_bytes, takes):
            return None
        block = following
    pool.remove(block)
    return block


def _with_room(pool: Pool, n_bytes: int) -> Block | None:
    """The free block, or the one without memory, from which on there is room for the request."""
    for place in range(len(pool.unmapped)):
        block = pool.unmapped_block(place)
        if block.before is not None and block.before.is_free:
            block = block.before
        if _room_bytes(block, n_bytes) >= n_bytes:
            return block
    return None


def _room_bytes(block: Block, enough: int) -> int:
    """The length of a free block and of those that follow, as far as need be."""
    found, following = 0, block.after
    while block.is_free:
        found += block.n_bytes
        if found >= enough or following is None:
            break
        block, following = following, following.after
    return found


def _begun(pool: Pool, address: int) -> Block:
    block = Block(pool, address, SPACE_BYTES, origin=address)
    block.is_mapped = False
    pool.add(block)
    return block


def _mapped(block: Block, n_bytes: int, page_bytes: int, takes: Takes) -> bool:
    """Put memory behind the first pages of a block that has none, and merge it with free ones."""
    length = -(-n_bytes // page_bytes) * page_bytes
    if not takes(length):
        return False
    pool = block.pool
    pool.remove(block)
    if length < block.n_bytes:
        pool.add(block.cut(length))
    block.is_mapped = True
    block.merge()
    pool.add(block)
    return True


def unmapped_bytes(block: Block, page_bytes: int) -> int:
    """Take the memory from behind all whole pages of a free block.

    Args:
        block: A free block of an expandable segment.
        page_bytes: The length of a page.

    Returns:
        The bytes that go back to the driver.
    """
    origin = block.origin or 0
    begin = -(-(block.address - origin) // page_bytes) * page_bytes + origin
    end = (block.address + block.n_bytes - origin) // page_bytes * page_bytes + origin
    if begin >= end:
        return 0
    pool = block.pool
    pool.remove(block)
    if begin > block.address:
        rest = block.cut(begin - block.address)
        pool.add(block)
        block = rest
    if end < block.address + block.n_bytes:
        pool.add(block.cut(end - block.address))
    block.is_mapped = False
    block.merge()
    if not block.is_whole:
        pool.add(block)
    return end - begin
