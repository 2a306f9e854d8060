"""Processor time is attributed to the thread that runs, waits, or has children that run."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from profkit.capture.process.cpu_time import CpuClock, main_delayed_ns
from profkit.model.capture_info import CpuTime
from tests import processes

BUSY_S = 0.3
SPIN = f"import time\nend = time.process_time() + {BUSY_S}\nwhile time.process_time() < end: pass\n"
TRAIN = """\
import pathlib
import torch
training = pathlib.Path("training")
training.touch()
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(15):
    optimizer.zero_grad()
    model(torch.randn(128, 512)).square().mean().backward()
    optimizer.step()
training.unlink()
"""
HOG = """\
import pathlib, time
training = pathlib.Path("training")
while not training.exists():
    time.sleep(0.01)
while training.exists():
    sum(range(100_000))
"""
"""Takes a core while the program trains, not while it starts and writes its report."""
needs_proc = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="needs /proc of Linux"
)


def spin() -> None:
    end = time.thread_time() + BUSY_S
    while time.thread_time() < end:
        pass


def read(clock: CpuClock) -> CpuTime:
    used = clock.read()
    assert used is not None
    return used


def test_a_thread_that_computes_runs() -> None:
    clock = CpuClock()
    spin()
    used = read(clock)
    assert used.thread_ns == pytest.approx(BUSY_S * 1e9, rel=0.1)
    assert used.thread_ns <= used.process_ns


@needs_proc
def test_a_thread_that_sleeps_waits() -> None:
    clock = CpuClock()
    time.sleep(BUSY_S)
    used = read(clock)
    assert used.thread_ns < 0.1 * BUSY_S * 1e9
    assert used.waiting_ns is not None
    assert used.waiting_ns + (used.delayed_ns or 0) > 0.9 * BUSY_S * 1e9


@needs_proc
def test_the_time_of_each_other_thread_is_known() -> None:
    earlier = threading.Thread(target=time.sleep, args=(10 * BUSY_S,), daemon=True)
    earlier.start()
    clock = CpuClock()
    has_read = threading.Event()

    def work(n_spins: int) -> None:
        for _ in range(n_spins):
            spin()
        has_read.wait()

    threads = [threading.Thread(target=work, args=(n_spins,)) for n_spins in (1, 3)]
    for thread in threads:
        thread.start()
    while read(clock).process_ns < 4 * BUSY_S * 1e9:
        time.sleep(0.01)
    used = read(clock)
    has_read.set()

    assert used.other_threads_ns is not None
    longest_ns, second_ns = used.other_threads_ns[:2]
    assert longest_ns == pytest.approx(3 * BUSY_S * 1e9, rel=0.1)
    assert second_ns == pytest.approx(BUSY_S * 1e9, rel=0.1)
    assert sum(used.other_threads_ns) + used.thread_ns <= used.process_ns * 1.01


def test_another_thread_counts_for_the_process() -> None:
    clock = CpuClock()
    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()
    used = read(clock)
    assert used.thread_ns < 0.3 * BUSY_S * 1e9
    assert used.process_ns > 0.9 * BUSY_S * 1e9


def test_a_reading_by_another_thread_is_none() -> None:
    clock = CpuClock()
    cpu_times: list[CpuTime | None] = []
    thread = threading.Thread(target=lambda: cpu_times.append(clock.read()))
    thread.start()
    thread.join()
    assert cpu_times == [None]


@needs_proc
def test_children_that_ended_and_that_still_run_are_counted() -> None:
    clock = CpuClock()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    ended = read(clock).children_ns
    running = subprocess.Popen(
        [sys.executable, "-c", f"{SPIN}print(1, flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert running.stdout is not None
    running.stdout.readline()
    both = read(clock).children_ns
    running.communicate(b"\n")

    after = read(clock).children_ns
    assert ended is not None
    assert both is not None
    assert after is not None
    assert ended >= 0.9 * BUSY_S * 1e9
    assert both - ended >= 0.9 * BUSY_S * 1e9
    # What a child used is counted once, before and after it has ended.
    assert after == pytest.approx(both, abs=0.2e9)


@needs_proc
@pytest.mark.slow
def test_the_main_threads_time_without_a_core_is_read_by_any_thread() -> None:
    own_statistics = Path("/proc/thread-self/schedstat")
    if threading.current_thread() is not threading.main_thread() or not own_statistics.exists():
        pytest.skip("this is not the main thread, or the system does not tell")
    before_ns = int(own_statistics.read_text().split()[1])
    read: list[int] = []
    thread = threading.Thread(target=lambda: read.append(main_delayed_ns()))
    thread.start()
    thread.join()
    assert before_ns <= read[0] <= int(own_statistics.read_text().split()[1])


def test_a_report_says_that_other_programs_took_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    cores = os.sched_getaffinity(0)
    hogs = [subprocess.Popen([sys.executable, "-c", HOG], cwd=tmp_path) for _ in (*cores, *cores)]
    try:
        ended = processes.start(tmp_path, "-m", "profkit", "run", "train.py", OMP_NUM_THREADS="1")
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()

    assert ended.code == 0
    assert re.search(
        r"Other programs took the CPU for \d+% of the recording:\s+times\s+(and\s+shares\s+)?"
        r"are\s+inflated",
        ended.err,
    )
