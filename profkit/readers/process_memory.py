"""Controls this process's own garbage collector and heap."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Disable automatic garbage collection while open.

    Decoding makes millions of objects without any cycle. A scan of a running program's objects
    would trigger collections, which run the program's finalizers.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _load_from_glibc(name: str) -> Callable[..., int]:
    """Load a function of glibc; with another C library, return one that does nothing."""
    if sys.platform.startswith("linux"):
        try:
            function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
        except (OSError, AttributeError):  # not glibc
            pass
        else:
            return function
    return lambda *_: 0


_trim = _load_from_glibc("malloc_trim")
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_MAX_FREE_BYTES: Final = (1 << 31) - 1


def release_free_memory() -> None:
    """Return free pages of the heap to the operating system, which takes a few milliseconds.

    Decoding frees many small arrays between others that stay. Without this their pages would count
    as resident until the process ends, and could not be used for the few large arrays that follow.

    Source: malloc_trim(3): since glibc 2.8 it releases free pages anywhere in the heap.
    """
    _trim(0)


def reuse_free_memory() -> None:
    """Let large arrays take the memory of earlier ones, until the process ends.

    By default each array of a few MiB gets new pages, which the system has to clear, and returns
    them when it is freed. A page that is drawn from large columns spends up to half of its time on
    that. Only for a process of profkit itself: free memory at the end of the heap stays with it.

    Source: mallopt(3), ``M_MMAP_MAX`` and ``M_TRIM_THRESHOLD``.
    """
    configure = _load_from_glibc("mallopt")
    configure(_M_MMAP_MAX, 0)
    configure(_M_TRIM_THRESHOLD, _MAX_FREE_BYTES)
