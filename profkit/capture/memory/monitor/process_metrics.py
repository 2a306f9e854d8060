"""The figures of one step boundary that cost next to nothing: resident memory and allocators'."""

import contextlib
import os
import sys
from typing import Any, Final

_STATM: Final = "/proc/self/statm"
_RESIDENT: Final = 1
"""Place of the resident pages in ``/proc/self/statm``. Source: proc(5)."""
_DEVICE_MODULES: Final = ("cuda", "xpu")


class ResidentMemory:
    """Reads the resident memory of this process, through one file that stays open."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> int | None:
        """Bytes resident now, or None where the system does not tell."""
        if self._file is None:
            return None
        try:
            return int(os.pread(self._file, 128, 0).split()[_RESIDENT]) * self._page
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None


def device_bytes() -> tuple[int | None, int | None]:
    """Allocated and reserved bytes of all devices in use, or None and None without one.

    A device runtime that the program has not woken is left asleep.
    """
    allocated = reserved = 0
    found = False
    for kind in _DEVICE_MODULES:
        module = _in_use(kind)
        if module is None:
            continue
        with contextlib.suppress(RuntimeError, AttributeError, AssertionError):
            for ordinal in range(module.device_count()):
                allocated += int(module.memory_allocated(ordinal))
                reserved += int(module.memory_reserved(ordinal))
                found = True
    return (allocated, reserved) if found else (None, None)


def is_device_in_use() -> bool:
    """Whether the program has woken a device's runtime."""
    return any(_in_use(kind) is not None for kind in _DEVICE_MODULES)


def _in_use(kind: str) -> Any | None:  # noqa: ANN401  (torch.cuda or its like)
    module = getattr(sys.modules.get("torch"), kind, None)
    with contextlib.suppress(RuntimeError, AttributeError, AssertionError):
        if module is not None and module.is_available() and module.is_initialized():
            return module
    return None
