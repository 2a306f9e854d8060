"""Bytes that the C and Python allocators have allocated.

Resident memory does not show this: what a program frees stays resident and is reused. C's allocator
reports bytes; Python's, which has everything up to 512 bytes, only the number of its blocks.

Source: ``mallinfo2(3)``; ``sys.getallocatedblocks``.
"""

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import NamedTuple


class Allocated(NamedTuple):
    """What is allocated.

    Attributes:
        bytes: Of C's allocator.
        n_blocks: Of Python's.
    """

    bytes: int
    n_blocks: int


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


class Heap:
    """The heap of this process."""

    def __init__(self) -> None:
        self._mallinfo: Callable[[], _Mallinfo] | None = None
        # Only glibc has it, since 2.33. The older ``mallinfo`` counts in 32 bits.
        with contextlib.suppress(OSError, AttributeError):
            mallinfo = ctypes.CDLL(None).mallinfo2
            mallinfo.restype = _Mallinfo
            self._mallinfo = mallinfo

    def free_bytes(self) -> int | None:
        """Return the free bytes that C's allocator retains; None without ``mallinfo2``."""
        return None if self._mallinfo is None else int(self._mallinfo().fordblks)

    def in_use(self) -> tuple[int, int, int] | None:
        """Return what is allocated: bytes in arenas, bytes in blocks of their own, their number.

        Large blocks have memory of their own, as ``mmap`` gives it. None without ``mallinfo2``.
        """
        if self._mallinfo is None:
            return None
        info = self._mallinfo()
        return int(info.uordblks), int(info.hblkhd), int(info.hblks)

    def allocated(self) -> Allocated | None:
        """Return what C's and Python's allocators have allocated; None without ``mallinfo2``."""
        if self._mallinfo is None:
            return None
        info = self._mallinfo()
        return Allocated(int(info.uordblks + info.hblkhd), sys.getallocatedblocks())
