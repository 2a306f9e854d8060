"""Steps are sampled until their functions are known."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from profkit.capture.process.stack_sampler import StackSample
from profkit.capture.recording import step_samples
from profkit.capture.recording.step_samples import ENOUGH_SAMPLES, StepSamples
from tests.processes import start

MS = 1_000_000
pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="coverage sets a trace function")
LOOP = """\
import gc, sys, threading, time
from profkit.capture.recording.step_samples import StepSamples

def wait_for_sensor():
    time.sleep(0.03)

def make_batch():
    end_s, n = time.thread_time() + 0.03, 0
    while time.thread_time() < end_s:
        n += sum(i * i for i in range(100))
    return n

def collect():
    gc.collect()

def main(step, n):
    samples = StepSamples(threading.get_ident())
    samples.begin()
    for number in range(n):
        step()
        samples.step_ended(number < 3)
    samples.stop()
    return samples.summarize()

kept = [{"id": i, "meta": {"lang": [i]}} for i in range(200_000)] if "collect" in sys.argv else []
result = main(globals()[sys.argv[1]], int(sys.argv[2]))
first = result.functions[0]
print(first.place[1], first.place[2], first.callee or "-", first.ns / result.running_ns,
      first.waiting_ns / first.ns, result.n_steps)
"""
"""A program whose steps are one function."""


@pytest.mark.parametrize(
    ("function", "n_steps", "line", "callee", "waits"),
    [
        ("wait_for_sensor", 40, 5, "time.sleep", True),
        ("make_batch", 40, None, None, False),
        ("collect", 8, 14, "gc.collect", False),
    ],
)
def test_a_loop_tells_the_function_its_line_and_whether_it_waits(
    tmp_path: Path,
    function: str,
    n_steps: int,
    line: int | None,
    callee: str | None,
    waits: bool,  # noqa: FBT001
) -> None:
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    ended = start(tmp_path, str(program), function, str(n_steps))
    assert ended.code == 0, ended.err
    at, name, called, share, waiting, n = ended.out.split()
    assert name == function
    if callee is not None:
        assert (int(at), called) == (line, callee)
        assert float(share) > 0.8
    assert (float(waiting) > 0.5) == waits
    assert 0 < int(n) <= n_steps


class Clock:
    """Replaces the clocks of the module."""

    def __init__(self) -> None:
        self.now_ns = 10**18

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns


class Steps:
    """Steps of a thread with samples at given times, without a sampling thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(step_samples, "time", self.clock)
        self.samples = StepSamples(threading.get_ident())
        monkeypatch.setattr(self.samples._sampler, "start", lambda: True)
        monkeypatch.setattr(type(self.samples._sampler), "is_on", True)
        self.samples.begin()

    def sample(self, after_ms: float, line: int = 1, *, thread: int | None = None) -> None:
        self.clock.now_ns += round(after_ms * MS)
        ident = threading.get_ident() if thread is None else thread
        calls = ((__file__, line, "main"),)
        sample = StackSample(self.clock.now_ns, ident, "", calls, is_running=True)
        self.samples._add([sample])

    def end(self, *, is_recorded: bool = False, after_ms: float = 0.0) -> None:
        self.clock.now_ns += round(after_ms * MS)
        self.samples.step_ended(is_recorded)

    def collect(self, after_ms: float, ms: float) -> None:
        """Collect garbage; the next sample follows when it has one."""
        times = self.samples._collections.times
        self.clock.now_ns += round(after_ms * MS)
        times._starts.append((self.clock.now_ns, threading.get_ident()))
        self.clock.now_ns += round(ms * MS)
        times._stops.append((self.clock.now_ns, threading.get_ident()))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    steps = Steps(monkeypatch)
    yield steps
    steps.samples._collections.times.end()


def test_it_stops_once_there_are_enough_samples(steps: Steps) -> None:
    for _ in range(ENOUGH_SAMPLES):
        assert not steps.samples.is_over
        steps.sample(10)
        steps.end()
    assert steps.samples.is_over
    steps.end()
    result = steps.samples.summarize()
    assert result is not None
    assert (result.n_samples, result.n_steps) == (ENOUGH_SAMPLES, ENOUGH_SAMPLES)
    assert result.steps_ns == result.running_ns == 10 * ENOUGH_SAMPLES * MS


def test_recorded_steps_are_sampled_to_their_end(steps: Steps) -> None:
    for _ in range(ENOUGH_SAMPLES + 5):
        steps.sample(1)
    steps.end(is_recorded=True)
    assert not steps.samples.is_over
    steps.end(is_recorded=False)
    assert steps.samples.is_over


def test_long_steps_are_sampled_for_three_seconds(steps: Steps) -> None:
    steps.sample(1400)
    steps.end(is_recorded=True)
    assert not steps.samples.is_over
    steps.sample(1700)
    steps.end(is_recorded=True)
    assert steps.samples.is_over


def test_a_step_that_has_not_ended_does_not_count(steps: Steps) -> None:
    steps.sample(10, line=1)
    steps.end()
    steps.sample(10, line=2)
    steps.samples.stop()
    result = steps.samples.summarize()
    assert result is not None
    assert [function.place[1] for function in result.functions] == [1]


def test_other_threads_do_not_count(steps: Steps) -> None:
    steps.sample(10, thread=1)
    steps.end()
    assert steps.samples.summarize() is None


def test_a_late_sample_stands_for_the_time_since_the_one_before(steps: Steps) -> None:
    steps.sample(20, line=1)
    steps.sample(700, line=2)
    steps.end()
    steps.samples.stop()
    result = steps.samples.summarize()
    assert result is not None
    assert [(function.place[1], function.ns) for function in result.functions] == [
        (2, 700 * MS),
        (1, 20 * MS),
    ]


def test_without_a_step_there_is_no_result() -> None:
    samples = StepSamples(threading.get_ident())
    samples.begin()
    samples.stop()
    assert samples.summarize() is None
    samples.begin()
    assert samples.is_over


def test_a_debugger_of_the_program_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettrace", lambda: lambda *_: None)
    samples = StepSamples(threading.get_ident())
    samples.begin()
    assert samples.is_over
    time.sleep(0)
    samples.step_ended(is_recorded=True)
    assert samples.summarize() is None


def test_time_between_two_steps_is_in_none(steps: Steps) -> None:
    steps.sample(20, line=5)
    steps.sample(20, line=5)
    steps.end(after_ms=10)
    # Starting a profiler lets a sample in and then none for long.
    steps.sample(100, line=99)
    steps.clock.now_ns += 900 * MS
    steps.samples.step_begins()
    steps.sample(20, line=5)
    steps.end()
    # What follows the last whole step counts neither as a step nor as a pause.
    steps.clock.now_ns += 500 * MS
    steps.samples.step_begins()

    result = steps.samples.summarize()
    assert result is not None
    (only,) = result.functions
    assert (only.place[1], only.ns, only.n) == (5, 70 * MS, 3)
    assert (result.steps_ns, result.n_steps) == (70 * MS, 2)
    assert sum(end - begin for begin, end in steps.samples.spans) == 70 * MS


def test_steps_that_follow_at_once_share_a_sample(steps: Steps) -> None:
    steps.end(after_ms=12)
    steps.samples.step_begins()
    steps.sample(8)
    steps.end()
    result = steps.samples.summarize()
    assert result is not None
    assert (result.running_ns, result.steps_ns) == (20 * MS, 20 * MS)


def test_a_collection_counts_as_exactly_what_it_takes(steps: Steps) -> None:
    for _ in range(3):
        steps.collect(after_ms=30, ms=200)
        steps.sample(0.1, line=14)
        steps.sample(10, line=15)
        steps.end()
    steps.samples.stop()

    result = steps.samples.summarize()
    assert result is not None
    assert [(function.place[1], function.ns) for function in result.functions] == [
        (14, 600 * MS),
        (15, round(120.3 * MS)),
    ]
    assert result.n_samples == 3 * 10 + 3


def test_short_collections_belong_to_where_one_lets_a_sample_in(steps: Steps) -> None:
    for line in (14, 15):
        for _ in range(4):
            steps.collect(after_ms=2, ms=4)
        steps.sample(0 if line == 14 else 3, line=line)
    steps.end()
    steps.samples.stop()

    result = steps.samples.summarize()
    assert result is not None
    # The collections since the last sample have no line yet, and are in no other's time.
    assert [(function.place[1], function.ns) for function in result.functions] == [
        (15, 19 * MS),
        (14, 16 * MS),
    ]
