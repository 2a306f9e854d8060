"""Sizes used by PyTorch's caching allocator, in bytes.

Source: ``c10/core/AllocatorConfig.h`` (``kMinBlockSize``, ``kSmallSize``, ``kSmallBuffer``,
``kMinLargeAlloc``, ``kRoundLarge``), ``c10/cuda/CUDACachingAllocator.cpp``
(``get_allocation_size``).
"""

from typing import Final

BLOCK_BYTES: Final = 512
"""Block sizes are multiples of this."""
SMALL_BYTES: Final = 1 << 20
"""Largest request that is served by a small pool."""
SMALL_SEGMENT_BYTES: Final = 2 << 20
"""Size of a segment of a small pool, and of the pages of an expandable one."""
LARGE_SEGMENT_BYTES: Final = 20 << 20
"""Size of a segment shared by larger requests, and of the pages of an expandable one."""
OWN_SEGMENT_BYTES: Final = 10 << 20
"""Requests from this size on get a segment of their own."""
ROUND_BYTES: Final = 2 << 20
"""Sizes of such segments are multiples of this."""


def segment_bytes(n_bytes: int, large_segment_bytes: int = LARGE_SEGMENT_BYTES) -> int:
    """Size of the segment that the allocator requests from the driver.

    Args:
        n_bytes: The request, rounded to a block size.
        large_segment_bytes: Size of shared segments, if it is set.
    """
    if n_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if n_bytes < OWN_SEGMENT_BYTES:
        return large_segment_bytes
    return -(-n_bytes // ROUND_BYTES) * ROUND_BYTES
