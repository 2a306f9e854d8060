"""Host memory growth in a library, which no Python object explains."""

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

import profkit
from profkit.capture.memory import guard as guard_module
from profkit.capture.memory.monitor.budget import Budget, Work
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.process.malloc_stats import Heap

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


@pytest.mark.slow
def test_growth_of_a_library_is_reported_as_native(allocated: list[int]) -> None:
    monitor = LeakMonitor("test", "user", AMPLE)
    for _ in range(N_STEPS):
        torch.ones(64, 64)
        allocate(allocated, 300 * KIB)
        monitor.step()
    live = monitor.finish()
    (leak,) = live.leaks
    assert (leak.kind, leak.device, leak.n, leak.chains) == ("native", "host", 0, ())
    assert leak.per_step_bytes == pytest.approx(300 * KIB, rel=0.05)
    assert leak.code.startswith("allocated.append(c.malloc")
    assert leak.operators == ()
    assert live.unexplained_per_step_bytes is None
    assert (sys.gettrace(), sys._getframe().f_trace) == (None, None)


@pytest.fixture
def native_op(allocated: list[int]) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield an operator that keeps 300 KiB, and as many bytes as its input has."""
    library = torch.library.Library("profkit_test", "DEF")
    library.define("keep(Tensor x) -> Tensor")

    def keep(x: Tensor) -> Tensor:
        allocate(allocated, 300 * KIB)
        return x.clone()

    library.impl("keep", keep, "CPU")
    yield torch.ops.profkit_test.keep
    library._destroy()


def test_the_operator_that_keeps_native_memory_is_named(
    native_op: Callable[[Tensor], Tensor],
) -> None:
    monitor = LeakMonitor("test", "user", AMPLE)
    for _ in range(N_STEPS):
        native_op(torch.ones(64, 64))  # grows here
        monitor.step()
    (leak,) = monitor.finish().leaks
    assert (leak.kind, leak.operators) == ("native", ("profkit_test::keep",))
    # Python's objects cannot be what an operator keeps, so that no scan was made.
    assert monitor._instruments.host.n_scans == 0
    assert leak.code.endswith("# grows here")
    assert leak.per_step_bytes == pytest.approx(300 * KIB, rel=0.05)


@pytest.mark.parametrize("is_kept", [True, False])
def test_memory_that_is_mapped_beside_the_heap_is_found(*, is_kept: bool) -> None:
    maps: list[mmap.mmap] = []
    monitor = LeakMonitor("test", "user")
    for _ in range(N_STEPS):
        mapped = mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapped.write(b"1" * (2 << 20))
        maps.append(mapped)
        if not is_kept:
            maps.pop().close()
        monitor.step()

    live = monitor.finish()
    for mapped in maps:
        mapped.close()
    leaks = [(leak.kind, leak.is_mapped) for leak in live.leaks]
    assert leaks == ([("native", True)] if is_kept else [])
    if is_kept:
        assert live.leaks[0].per_step_bytes == pytest.approx(2 << 20, rel=0.1)


def test_a_large_buffer_that_is_filled_step_by_step_is_not_reported() -> None:
    monitor = LeakMonitor("test", "user")
    buffer = np.zeros((N_STEPS, 2 << 20), np.uint8)
    for step in range(N_STEPS):
        buffer[step] = 1
        monitor.step()
    live = monitor.finish()
    assert live.leaks == ()


@pytest.mark.slow
def test_growth_for_shapes_that_are_all_new_is_not_reported_without_a_cache(
    native_op: Callable[[Tensor], Tensor],
) -> None:
    monitor = LeakMonitor("test", "user", AMPLE)
    for step in range(N_STEPS):
        native_op(torch.ones(1 + step, 64))
        monitor.step()
    assert monitor.finish().leaks == ()


@pytest.mark.slow
def test_a_trace_function_of_the_program_is_left_alone(allocated: list[int]) -> None:
    def trace(*_: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        monitor = LeakMonitor("test", "user", AMPLE)
        for _ in range(N_STEPS):
            allocate(allocated, 300 * KIB)
            monitor.step()
            assert sys.gettrace() is trace
        (leak,) = monitor.finish().leaks
    finally:
        sys.settrace(before)
    assert (leak.kind, leak.stack) == ("native", ())


def test_growth_that_was_not_examined_is_not_called_native(allocated: list[int]) -> None:
    monitor = LeakMonitor("test", "user", NOTHING)
    for _ in range(N_STEPS):
        allocate(allocated, 300 * KIB)
        monitor.step()
    live = monitor.finish()
    assert live.leaks == ()
    assert live.unexplained_per_step_bytes == pytest.approx(300 * KIB, rel=0.05)


@pytest.mark.slow
def test_no_leak_raises_an_error_for_growth_of_a_library(
    allocated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where all tests run, a scan passes over the objects of thousands of them.
    monkeypatch.setattr(guard_module, "CERTAIN", AMPLE)

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
