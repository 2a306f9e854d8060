"""Controls this process's own garbage collector and heap."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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


def _malloc_trim() -> Callable[[int], int]:
    if sys.platform.startswith("linux"):
        try:
            return ctypes.CDLL(None).malloc_trim
        except (OSError, AttributeError):  # not glibc
            pass
    return lambda _: 0


_trim = _malloc_trim()


def release_free_memory() -> None:
    """Return free pages of the heap to the operating system, which takes a few milliseconds.

    Decoding frees many small arrays between others that stay. Without this their pages would count
    as resident until the process ends, and could not be used for the few large arrays that follow.

    Source: malloc_trim(3): since glibc 2.8 it releases free pages anywhere in the heap.
    """
    _trim(0)
