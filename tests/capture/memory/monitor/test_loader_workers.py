"""The memory of DataLoader workers, compared with what a process copies and allocates."""

import ctypes
import gc
import math
import mmap
import multiprocessing
import multiprocessing.connection
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from profkit.capture.memory.monitor.loader_workers import Workers
from profkit.capture.process.malloc_stats import Heap

KIB = 1024
N_SAMPLES = 60_000
N_STEPS = 24
PER_STEP = 500
"""Samples read per step, or KiB allocated per step."""
PIECE = 100 * KIB
"""Small enough that the C allocator takes it from its heap, without pages of its own."""
N_PIECES = 400
BLOCK = bytes(PER_STEP * KIB)

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs smaps_rollup"),
    # Since Python 3.12 a process with threads is warned of forking, and torch has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]
Pipe = multiprocessing.connection.Connection


def act_on_commands(pipe: Any, samples: list[bytes], name: str) -> None:  # noqa: ANN401
    """Read samples, or allocate memory, as commanded."""
    torch.multiprocessing._set_thread_name(name)
    # A collection writes to all objects of a large test run, which would copy them.
    gc.disable()
    kept: list[Any] = []
    pipe.send("ready")

    for what, first in iter(pipe.recv, None):
        if what == "read":
            for sample in samples[first : first + PER_STEP]:
                len(sample)
        elif what == "make":
            # New pages, even if this process has free memory.
            pages = mmap.mmap(-1, PER_STEP * KIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.write(BLOCK)
            kept.append(pages)
        else:
            kept.extend([bytearray(b"x") * (PIECE - KIB) for _ in range(5)])
        pipe.send(len(kept))


class FakeHeap(Heap):
    """A heap with a given number of free bytes."""

    def __init__(self, free: int | None) -> None:
        super().__init__()
        self._free = free

    def free_bytes(self) -> int | None:
        return self._free


Start = Callable[..., Pipe]


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Collect no garbage: that writes to all objects of a large test run.

    The pages that this process copies for it become private to the workers that shared them.
    """
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def samples() -> list[bytes]:
    """Adjacent Python objects, six to a page."""
    return [bytes(600) for _ in range(N_SAMPLES)]


@pytest.fixture
def start(samples: list[bytes]) -> Iterator[Start]:
    """Starts a worker; returns the pipe for its commands."""
    context = multiprocessing.get_context("fork")
    running = []

    def begin(name: str = "pt_data_worker") -> Pipe:
        ours, theirs = context.Pipe()
        process = context.Process(target=act_on_commands, args=(theirs, samples, name), daemon=True)
        process.start()
        assert ours.recv() == "ready"
        running.append((process, ours))
        return ours

    yield begin
    for process, pipe in running:
        if process.is_alive():
            pipe.send(None)
        process.join()


def command(pipe: Pipe, what: str, step: int) -> None:
    pipe.send((what, step * PER_STEP))
    pipe.recv()


def measure(workers: Workers, pipe: Pipe, what: str, steps: range) -> list[int]:
    """Private bytes after each step of some work."""
    seen = []
    for step in steps:
        command(pipe, what, step)
        if workers.estimate_ns(step) is not None:
            read = workers.read(step)
            assert read is not None
            seen.append(read)
    return seen


def private_bytes(pid: int) -> int:
    """Private memory of a process, summed over its mappings."""
    lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) * KIB for line in lines if line.startswith("Private_"))


def test_private_bytes_agree_with_the_workers_mappings(start: Start) -> None:
    start()
    (process,) = multiprocessing.active_children()
    assert process.pid is not None
    workers = Workers(Heap())
    assert workers.estimate_ns(1) is not None
    # Each page that this process writes meanwhile becomes private to the worker.
    before = private_bytes(process.pid)
    read = workers.read(1) or 0
    after = private_bytes(process.pid)
    assert before - 64 * KIB <= read <= after + 64 * KIB
    assert read < 100 << 20, "shared memory does not count"


def test_reading_objects_of_the_main_process_counts_as_copies(start: Start) -> None:
    workers = Workers(FakeHeap(0))
    measure(workers, start(), "read", range(1, 4 * N_STEPS))
    leak = workers.find_leak()
    assert leak is not None
    # An object of 633 bytes; its page is copied once.
    assert leak.per_step_bytes == pytest.approx(PER_STEP * 640, rel=0.1)
    assert leak.copied_share > 0.95
    assert leak.made_share < 0.05
    assert leak.n == 1


@pytest.mark.parametrize("free", [20_000_000, None])
def test_copies_are_uncertain_if_the_parent_had_free_memory(start: Start, free: int | None) -> None:
    workers = Workers(FakeHeap(free))
    measure(workers, start(), "read", range(1, 4 * N_STEPS))
    leak = workers.find_leak()
    assert leak is not None
    n_steps = leak.last_step - leak.first_step
    may_be = math.inf if free is None else free / n_steps / leak.per_step_bytes
    assert leak.copied_share == pytest.approx(max(1 - may_be, 0.0), abs=0.05)
    assert leak.made_share < 0.05


@pytest.fixture
def freed() -> Iterator[None]:
    """Freed memory that the heap of this process retains, and that a worker inherits."""
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    c.free.argtypes = [ctypes.c_void_p]
    # Every other piece stays allocated: freed ones that touch would be returned to the system. All
    # have one size, since smaller ones could come from elsewhere in the heap.
    pieces = [c.malloc(PIECE) for _ in range(2 * N_PIECES)]
    for piece in pieces[::2]:
        ctypes.memset(piece, 1, PIECE)
    for piece in pieces[::2]:
        c.free(piece)
    yield
    for piece in pieces[1::2]:
        c.free(piece)


@pytest.mark.usefixtures("freed")
def test_allocations_in_freed_memory_do_not_count_as_copies(start: Start) -> None:
    """A shared page is replaced, as by a copy."""
    heap = Heap()

    assert (heap.free_bytes() or 0) >= N_PIECES * (PIECE - KIB)
    workers, pipe = Workers(heap), start()
    (process,) = multiprocessing.active_children()
    assert process.pid is not None
    steps, private = [], []
    for step in range(1, 2 * N_STEPS):
        if measure(workers, pipe, "make in the heap", range(step, step + 1)):
            steps.append(step)
            private.append(private_bytes(process.pid))
    leak = workers.find_leak()
    assert leak is not None
    # The system's own count of the same pages: what the forked worker copies besides the pieces,
    # where other tests have left much memory, is in both. Copies of single steps, which the median
    # over all pairs of steps leaves out, are all that differs.
    slopes = [
        (later - earlier) / (last - first)
        for (first, earlier), (last, later) in combinations(zip(steps, private, strict=True), 2)
    ]
    assert leak.per_step_bytes == pytest.approx(statistics.median(slopes), rel=0.05)
    # Each piece also takes the rest of its first and last page.
    assert leak.per_step_bytes >= 5 * PIECE
    assert leak.made_share < 0.5
    assert leak.copied_share < 0.5


def test_allocations_of_the_worker_count_as_made(start: Start) -> None:
    workers = Workers(FakeHeap(0))
    measure(workers, start(), "make", range(1, 2 * N_STEPS))
    leak = workers.find_leak()
    assert leak is not None
    assert leak.per_step_bytes == pytest.approx(PER_STEP * KIB, rel=0.05)
    assert leak.made_share > 0.95
    assert leak.copied_share < 0.05


def test_only_copies_count_if_the_worker_was_started_during_a_trace(start: Start) -> None:
    workers = Workers(FakeHeap(0))
    workers.note_tracing()
    measure(workers, start(), "make", range(1, 2 * N_STEPS))
    assert workers.find_leak() is None
    assert workers.uncertain_per_step == pytest.approx(PER_STEP * KIB, rel=0.05)


def test_all_workers_are_assumed_to_grow_as_the_one_that_is_measured(start: Start) -> None:
    workers = Workers(FakeHeap(0))
    first = start()
    start()
    start()
    measure(workers, first, "make", range(1, 2 * N_STEPS))
    leak = workers.find_leak()
    assert leak is not None
    assert leak.n == 3
    assert leak.per_step_bytes == pytest.approx(3 * PER_STEP * KIB, rel=0.05)


def test_a_worker_that_fills_its_cache_and_stops_does_not_grow(start: Start) -> None:
    workers = Workers(FakeHeap(0))
    pipe = start()
    measure(workers, pipe, "make", range(1, N_STEPS))
    measure(workers, pipe, "read", range(N_STEPS, N_STEPS + 1))
    for step in range(N_STEPS + 1, 3 * N_STEPS):
        if workers.estimate_ns(step) is not None:
            workers.read(step)
    assert workers.find_leak() is None


def test_other_processes_are_not_measured(start: Start) -> None:
    start("a server")
    assert Workers(Heap()).estimate_ns(1) is None


def test_after_a_worker_ends_the_next_is_measured_and_the_longest_evaluated(start: Start) -> None:
    workers = Workers(FakeHeap(0))
    first = start()
    long = measure(workers, first, "make", range(1, 2 * N_STEPS))
    first.send(None)
    until = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.01)
    short = measure(workers, start(), "read", range(3 * N_STEPS, 3 * N_STEPS + 4))
    assert short[0] < long[-1] / 2
    leak = workers.find_leak()
    assert leak is not None
    assert leak.last_step < 2 * N_STEPS


def test_without_workers_nothing_is_due() -> None:
    workers = Workers(Heap())
    assert workers.estimate_ns(1) is None
    assert workers.find_leak() is None
