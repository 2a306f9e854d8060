"""Bytes that the C and Python allocators have allocated, and resident memory.

Resident memory does not show this: what a program frees stays resident and is reused. C's allocator
reports bytes; Python's, which has everything up to 512 bytes, only the number of its blocks.

Source: ``mallinfo2(3)``; ``sys.getallocatedblocks``.
"""

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Allocated(NamedTuple):
    """What is allocated.

    Attributes:
        bytes: Of C's allocator.
        n_blocks: Of Python's.
        free_bytes: What was freed, and C's allocator keeps.
    """

    bytes: int
    n_blocks: int
    free_bytes: int = 0


class Resident(NamedTuple):
    """The resident memory of a process.

    Attributes:
        bytes: All of it.
        own_bytes: Without pages of files and without memory that is shared.
    """

    bytes: int
    own_bytes: int


def read_resident(pid: int) -> Resident | None:
    """Read the resident memory of a process, or None if the system does not report it.

    Source: ``/proc/[pid]/statm`` in proc(5).
    """
    try:
        _, pages, of_files, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):
        return None
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return Resident(pages * page_bytes, (pages - of_files) * page_bytes)


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
        in_use = int(info.uordblks + info.hblkhd)
        return Allocated(in_use, sys.getallocatedblocks(), int(info.fordblks))


@functools.cache
def _this_heap() -> Heap:
    # The functions of each loaded library are a reference cycle.
    return Heap()


def read_heap_bytes() -> int:
    """Read the bytes that C's allocator has allocated; 0 without ``mallinfo2``."""
    allocated = _this_heap().allocated()
    return 0 if allocated is None else allocated.bytes
