"""The lengths by which PyTorch's caching allocator works, in bytes.

Source: ``c10/core/AllocatorConfig.h`` (``kMinBlockSize``, ``kSmallSize``, ``kSmallBuffer``,
``kMinLargeAlloc``, ``kRoundLarge``), ``c10/cuda/CUDACachingAllocator.cpp``
(``get_allocation_size``).
"""

from typing import Final

BLOCK_BYTES: Final = 512
"""What lengths of blocks are rounded up to."""
SMALL_BYTES: Final = 1 << 20
"""The longest request that goes to a pool of small ones."""
SMALL_SEGMENT_BYTES: Final = 2 << 20
"""The length of every segment of such a pool, and of the pages of an expandable one."""
LARGE_SEGMENT_BYTES: Final = 20 << 20
"""The length of segments that several larger requests share, and of pages likewise."""
OWN_SEGMENT_BYTES: Final = 10 << 20
"""From here on a request that no free block can serve gets a segment for itself."""
ROUND_BYTES: Final = 2 << 20
"""What the lengths of those are rounded up to."""


def segment_bytes(n_bytes: int, large_segment_bytes: int = LARGE_SEGMENT_BYTES) -> int:
    """What the allocator asks the driver for, to serve a request that no free block can.

    Args:
        n_bytes: The request, rounded as a block is.
        large_segment_bytes: The length of shared segments, where the program has set one.
    """
    if n_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if n_bytes < OWN_SEGMENT_BYTES:
        return large_segment_bytes
    return -(-n_bytes // ROUND_BYTES) * ROUND_BYTES
