"""Memory that is free, given back to the system."""

import ctypes
import sys
from collections.abc import Callable


def _nothing(_keep_bytes: int) -> int:
    return 0


def _trimmer() -> Callable[[int], int]:
    if not sys.platform.startswith("linux"):
        return _nothing
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return _nothing


_trim = _trimmer()


def give_back() -> None:
    """Give memory that was freed within the heap back to the system.

    Decoding frees many small arrays between others that stay. Their pages would count as ours for
    as long as the process runs, and be of no use to the few large arrays that follow. It takes a
    few milliseconds.

    Source: malloc_trim(3): since glibc 2.8 it releases free pages anywhere in the heap.
    """
    _trim(0)
