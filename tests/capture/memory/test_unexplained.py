"""Memory that a library keeps, of which no object of Python knows."""

import ctypes
from collections.abc import Iterator

import pytest
import torch

from profkit.capture.malloc_stats import Heap
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor

KIB = 1024
N_STEPS = 30

pytestmark = pytest.mark.skipif(
    Heap().allocated_bytes() is None, reason="this C library has no mallinfo2"
)


@pytest.fixture
def kept() -> Iterator[list[int]]:
    """What C's allocator has given to a library, as numbers."""
    c = ctypes.CDLL(None)
    c.free.argtypes = [ctypes.c_void_p]
    addresses: list[int] = []
    yield addresses
    for address in addresses:
        c.free(address)


def keep(kept: list[int], n_bytes: int) -> None:
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    kept.append(c.malloc(n_bytes))


def test_what_a_library_keeps_is_told_by_how_much_it_grows(kept: list[int]) -> None:
    watcher = LeakMonitor("test", "user")
    for _ in range(N_STEPS):
        keep(kept, 300 * KIB)
        watcher.step()
    live = watcher.finish()
    assert live.leaks == ()
    assert live.unexplained_per_step_bytes == pytest.approx(300 * KIB, rel=0.05)


def test_a_heap_that_stands_still_is_not_told(kept: list[int]) -> None:
    watcher = LeakMonitor("test", "user")
    keep(kept, 300 * KIB)
    for _ in range(N_STEPS):
        watcher.step()
    assert watcher.finish().unexplained_per_step_bytes is None


def test_what_is_explained_is_not_told_twice() -> None:
    watcher = LeakMonitor("test", "user")
    losses: list[torch.Tensor] = []
    for _ in range(N_STEPS):
        losses.append(torch.zeros(75 * KIB))
        watcher.step()
    live = watcher.finish()
    assert len(live.leaks) == 1
    assert live.unexplained_per_step_bytes is None
