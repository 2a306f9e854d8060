"""Bytes that the C and Python allocators have allocated.

Resident memory does not show this: what a program frees stays resident and is reused.

Source: ``mallinfo2(3)``; ``sys.getallocatedblocks``.
"""

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Final

_BYTES_PER_BLOCK: Final = 64
"""Of Python's own allocator, which counts blocks (of 16 to 512 bytes) and not bytes."""


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


class Heap:
    """The heap of this process."""

    def __init__(self) -> None:
        self._mallinfo: Callable[[], _Mallinfo] | None = None
        with contextlib.suppress(OSError, AttributeError):
            mallinfo = ctypes.CDLL(None).mallinfo2
            mallinfo.restype = _Mallinfo
            self._mallinfo = mallinfo

    def free_bytes(self) -> int | None:
        """Free bytes that the C allocator retains for reuse; None without ``mallinfo2``."""
        return None if self._mallinfo is None else int(self._mallinfo().fordblks)

    def allocated_bytes(self) -> int | None:
        """Bytes allocated by the C and Python allocators; None without ``mallinfo2``."""
        if self._mallinfo is None:
            return None
        info = self._mallinfo()
        return int(info.uordblks + info.hblkhd) + _BYTES_PER_BLOCK * sys.getallocatedblocks()
