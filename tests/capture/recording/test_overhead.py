"""By how much recording slowed steps down."""

import gc
import time
from dataclasses import replace
from pathlib import Path

import pytest

from profkit.capture.process import files
from profkit.capture.recording import overhead
from profkit.capture.recording.options import Options
from profkit.capture.recording.overhead import StepTimes
from profkit.capture.recording.profiler import ProfilerRecording
from profkit.capture.recording.schedule import Phase
from profkit.model.capture_info import CpuTime

MS = 1_000_000


class Clocks:
    """A clock of the wall, and one of the processor time of this thread."""

    def __init__(self) -> None:
        self.wall_ns, self.cpu_ns = 1, 0

    def spend(self, wall_ns: int, cpu_ns: int) -> None:
        """Let time go by."""
        self.wall_ns += wall_ns
        self.cpu_ns += cpu_ns


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Return the clocks that a program reads."""
    clocks = Clocks()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clocks.wall_ns)
    monkeypatch.setattr(time, "thread_time_ns", lambda: clocks.cpu_ns)
    return clocks


def run_steps(clocks: Clocks, steps: list[tuple[Phase, int, int, int]]) -> StepTimes:
    """Return the times of steps: phase, steps counted before, wall time and processor time."""
    times = StepTimes()
    for phase, n_counted, wall_ns, cpu_ns in steps:
        times.begin()
        clocks.spend(wall_ns, cpu_ns)
        times.count(n_counted)
        times.stop()
        clocks.spend(7_000, 7_000)
        times.end(phase)
    return times


def test_a_step_before_which_others_were_counted_is_as_long_as_each_of_them(
    clocks: Clocks,
) -> None:
    steps = [
        (Phase.OFF, 0, 90_000, 0),
        (Phase.OFF, 0, 100, 0),
        (Phase.RECORD, 0, 300, 0),
        (Phase.REST, 15, 16 * 110, 0),
        (Phase.REST, 15, 16 * 120, 0),
        (Phase.REST, 0, 130, 0),
    ]
    ratio, source = run_steps(clocks, steps).compare_steps(None) or (0.0, "")
    assert ratio == pytest.approx(300 / 115 - 1)
    assert source == "measured: 1 recorded steps against 4 unrecorded"


def test_steps_that_other_programs_delay_are_compared_by_processor_time(clocks: Clocks) -> None:
    # Without a delay, a step computes for 4 ms, waits for 1, and computes 2 more if recorded.
    steps = [
        (Phase.OFF, 0, 90 * MS, 9 * MS),
        (Phase.OFF, 0, 30 * MS, 4 * MS),
        (Phase.OFF, 0, 10 * MS, 4 * MS),
        (Phase.RECORD, 0, 20 * MS, 6 * MS),
    ]
    busy = CpuTime(window_ns=20 * MS, thread_ns=6 * MS, process_ns=6 * MS, delayed_ns=13 * MS)
    ratio, source = run_steps(clocks, steps).compare_steps(busy) or (0.0, "")
    assert ratio == pytest.approx(2 / 5)
    assert source == "measured: 1 recorded steps against 2 unrecorded, in processor time"


def test_steps_of_threads_that_wait_for_each_other_are_not_compared_where_others_delay_them(
    clocks: Clocks,
) -> None:
    steps = [(Phase.OFF, 0, 30 * MS, 4 * MS)] * 3 + [(Phase.RECORD, 0, 20 * MS, 6 * MS)]
    times = run_steps(clocks, steps)
    busy = CpuTime(window_ns=20 * MS, thread_ns=6 * MS, process_ns=12 * MS, delayed_ns=13 * MS)
    assert times.compare_steps(busy) is None
    assert times.compare_steps(replace(busy, process_ns=7 * MS)) is not None


def test_steps_that_nothing_delays_are_compared_by_wall_time(clocks: Clocks) -> None:
    steps = [
        (Phase.OFF, 0, 9 * MS, 4 * MS),
        (Phase.OFF, 0, 5 * MS, 4 * MS),
        (Phase.OFF, 0, 5 * MS, 4 * MS),
        (Phase.RECORD, 0, 7 * MS, 5 * MS),
    ]
    idle = CpuTime(window_ns=7 * MS, thread_ns=5 * MS, process_ns=5 * MS, delayed_ns=MS // 10)
    ratio, source = run_steps(clocks, steps).compare_steps(idle) or (0.0, "")
    assert ratio == pytest.approx(2 / 5)
    assert source == "measured: 1 recorded steps against 2 unrecorded"


@pytest.mark.parametrize("memory", [False, True])
def test_the_cost_of_an_event_is_that_of_one_that_the_trace_counts(
    tmp_path: Path, *, memory: bool
) -> None:
    options = Options(memory=memory)
    recording = ProfilerRecording(options, stacks=False, device=False, is_alone=True)
    recording.start()
    overhead._make_small_network()()
    recording.stop()
    recording.export(tmp_path / "trace.json")
    # The trace has the window, too.
    n_events = recording.count_complete_events()
    assert n_events + 1 == files.count_events(tmp_path / "trace.json") > 100
    recording.release()


def test_the_cost_of_an_event_is_microseconds_of_processor_time() -> None:
    call_ns, op_ns = overhead._measure_costs(Options())
    # From 0.7 µs where much is recorded to 2 µs for the first events; a busy machine adds little.
    assert 200 < op_ns < 20_000
    assert 0 <= call_ns < 20_000


def test_the_events_of_a_measurement_of_the_overhead_are_freed() -> None:
    # Each takes 5 MB, which cycles of references would retain until the next full collection.
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        overhead._measure_recorded(Options(), lambda: None, stacks=False)
        gc.collect()
        kept = [thing for thing in gc.garbage if hasattr(thing, "kineto_results")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert kept == []
