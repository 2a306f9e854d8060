"""Host memory growth in a library, which no Python object explains."""

import ctypes
from collections.abc import Iterator
from typing import get_args

import pytest
import torch

import profkit
from profkit.capture.malloc_stats import Heap
from profkit.capture.memory.monitor.budget import Budget, Work
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor

KIB = 1024
N_STEPS = 40
AMPLE = Budget(dict.fromkeys(get_args(Work), 600.0))
NOTHING = Budget(dict.fromkeys(("host", "lines"), 0.0), dict.fromkeys(get_args(Work), 0.2))

pytestmark = pytest.mark.skipif(
    Heap().allocated() is None, reason="this C library has no mallinfo2"
)


@pytest.fixture
def allocated() -> Iterator[list[int]]:
    """Addresses of memory that a library has allocated."""
    c = ctypes.CDLL(None)
    c.free.argtypes = [ctypes.c_void_p]
    addresses: list[int] = []
    yield addresses
    for address in addresses:
        c.free(address)


def allocate(allocated: list[int], n_bytes: int) -> None:
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    allocated.append(c.malloc(n_bytes))


def test_growth_of_a_library_is_reported_as_native(allocated: list[int]) -> None:
    monitor = LeakMonitor("test", "user", AMPLE)
    for _ in range(N_STEPS):
        allocate(allocated, 300 * KIB)
        monitor.step()
    live = monitor.finish()
    (leak,) = live.leaks
    assert (leak.kind, leak.device, leak.n, leak.chains) == ("native", "host", 0, ())
    assert leak.per_step_bytes == pytest.approx(300 * KIB, rel=0.05)
    assert live.unexplained_per_step_bytes is None


def test_growth_that_was_not_examined_is_not_called_native(allocated: list[int]) -> None:
    monitor = LeakMonitor("test", "user", NOTHING)
    for _ in range(N_STEPS):
        allocate(allocated, 300 * KIB)
        monitor.step()
    live = monitor.finish()
    assert live.leaks == ()
    assert live.unexplained_per_step_bytes == pytest.approx(300 * KIB, rel=0.05)


def test_no_leak_raises_an_error_for_growth_of_a_library(allocated: list[int]) -> None:
    def program() -> None:
        with profkit.no_leak() as guard:
            for _ in range(N_STEPS):
                allocate(allocated, 300 * KIB)
                guard.step()

    with pytest.raises(profkit.LeakError, match="No tensor and no Python object owns it"):
        program()


def test_a_stable_heap_is_not_reported(allocated: list[int]) -> None:
    monitor = LeakMonitor("test", "user")
    allocate(allocated, 300 * KIB)
    for _ in range(N_STEPS):
        monitor.step()
    assert monitor.finish().unexplained_per_step_bytes is None


def test_growth_that_a_leak_explains_is_not_unexplained() -> None:
    monitor = LeakMonitor("test", "user")
    losses: list[torch.Tensor] = []
    for _ in range(N_STEPS):
        losses.append(torch.zeros(75 * KIB))
        monitor.step()
    live = monitor.finish()
    assert len(live.leaks) == 1
    assert live.unexplained_per_step_bytes is None
