"""Steps that other programs disturb are left out, where others show what the program does."""

import sys
import time
from pathlib import Path

import pytest

from profkit.api import analyze, render
from profkit.capture.process import environment
from profkit.capture.process.cpu_time import UsedTime
from profkit.capture.recording.step_delays import StepDelays, add_kept, find_disturbed_steps
from profkit.model.capture_info import HostThreads
from tests import processes

MS = 1_000_000
TWO_CORES = HostThreads(n_cores=2, n_threads=2)
HOG = """\
import os, sys
pid = os.fork()  # of the program it is no child
if pid:
    print(pid)
    sys.exit()
os.close(1)
while True: pass
"""
PROGRAM = f"""\
import os
import signal
import subprocess
import sys
import time

import torch

import profkit

HOG = {HOG!r}
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
torch.set_num_threads(1)
x = torch.randn(512, 512)

with profkit.trace("train", stacks=False, wait=0, warmup=1, active=3) as recorder:
    for number in range(5):
        hog = None
        if number == 2:  # the second recorded step
            hog = int(subprocess.check_output([sys.executable, "-c", HOG]))
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            x @ x
        if hog is not None:
            os.kill(hog, signal.SIGKILL)
        recorder.step()
"""


def used(step_ms: int, delayed_ms: int = 0, others_ms: int = 0) -> UsedTime:
    """Return the processor time of a step, another thread and the time without a core."""
    ran_ns = (step_ms - delayed_ms) * MS
    return UsedTime(
        window_ns=step_ms * MS,
        thread_ns=ran_ns,
        process_ns=ran_ns + others_ms * MS,
        delayed_ns=delayed_ms * MS,
        children_ns=0,
        threads_ns={7: others_ms * MS},
    )


@pytest.mark.parametrize(
    ("steps", "left_out"),
    [
        # One of three that take 2 ms had no core for 38 ms.
        ({"a": used(2), "b": used(40, 38), "c": used(2)}, ["b"]),
        # All are disturbed alike, so that none says what the program does without that.
        ({"a": used(40, 30), "b": used(40, 38), "c": used(30, 20)}, []),
        ({"a": used(20), "b": used(20, 2), "c": used(21, 4)}, []),
        ({"a": used(40, 38)}, []),
        ({}, []),
    ],
)
def test_a_step_is_left_out_if_another_one_had_its_core(
    steps: dict[str, UsedTime], left_out: list[str]
) -> None:
    assert find_disturbed_steps(steps, TWO_CORES) == left_out


def test_a_step_that_waits_for_threads_of_the_program_is_kept() -> None:
    steps = {"a": used(20), "b": used(40, 20, others_ms=40)}
    # A second thread that runs all the time fills one of two cores, and the only one.
    assert find_disturbed_steps(steps, TWO_CORES) == ["b"]
    assert find_disturbed_steps(steps, HostThreads(n_cores=1, n_threads=2)) == []


def test_the_time_of_the_others_is_added_thread_by_thread() -> None:
    steps = {"a": used(20, 1, others_ms=5), "b": used(40, 38), "c": used(30, 2, others_ms=6)}
    kept = add_kept(steps, ["b"])
    assert kept == UsedTime(50 * MS, 47 * MS, 58 * MS, 3 * MS, 0, {7: 11 * MS})
    assert kept.describe().other_threads_ns == (11 * MS,)


def test_only_steps_that_end_are_measured() -> None:
    delays = StepDelays()
    delays.end("never began")
    delays.begin()
    delays.drop()
    delays.end("dropped")
    delays.begin()
    time.sleep(0.02)
    delays.end("step 3")

    assert list(delays.used) == ["step 3"]
    assert 15 * MS < delays.used["step 3"].window_ns < 5000 * MS


def test_the_steps_of_a_rank_are_not_measured_and_so_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recording is often written after the end of the job's process group."""
    monkeypatch.setattr(environment, "is_distributed", lambda: True)
    delays = StepDelays()
    delays.begin()
    monkeypatch.setattr(environment, "is_distributed", lambda: False)
    delays.end("step 3")
    assert not delays.used


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the time without a core")
def test_a_step_in_which_another_program_had_the_core_is_not_in_the_figures(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    ended = processes.start(tmp_path, "train.py")
    assert ended.code == 0, ended.err

    report = analyze(next(tmp_path.rglob("*.pt.trace.json.gz")))
    assert report.summary.n_disturbed_steps == 1
    names = [step.name for step in report.summary.steps]
    assert len(names) == 2
    # The step took 0.6 s on the clock.
    assert report.summary.breakdown is not None
    assert report.summary.breakdown.mean_ns == pytest.approx(0.3e9, rel=0.3)
    assert "1 disturbed step excluded" in render(report, "text").decode()
