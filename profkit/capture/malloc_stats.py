"""What the allocators of C and Python have given out, and what they can give back to the system.

Resident memory does not tell: what a program frees stays resident, and is used again unseen.

Source: ``mallinfo2(3)``, ``malloc_trim(3)``; ``sys.getallocatedblocks``.
"""

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Final

_BYTES_A_BLOCK: Final = 64
"""Of Python's own allocator, which says only how many blocks it has given out, of 16 to 512."""


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


class Heap:
    """Asks the allocators how many bytes are given out."""

    def __init__(self) -> None:
        self._ask: Callable[[], _Mallinfo] | None = None
        with contextlib.suppress(OSError, AttributeError):
            ask = ctypes.CDLL(None).mallinfo2
            ask.restype = _Mallinfo
            self._ask = ask

    def free_bytes(self) -> int | None:
        """Bytes that C's allocator has kept to give out again; None where it does not tell."""
        return None if self._ask is None else int(self._ask().fordblks)

    def read(self) -> int | None:
        """Bytes given out by C's allocator and Python's; None where C's does not tell."""
        if self._ask is None:
            return None
        told = self._ask()
        return int(told.uordblks + told.hblkhd) + _BYTES_A_BLOCK * sys.getallocatedblocks()


def give_back() -> None:
    """Give what is free back to the system, as far as C's allocator can.

    A recording takes hundreds of megabytes for a moment. They would count as the program's.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
