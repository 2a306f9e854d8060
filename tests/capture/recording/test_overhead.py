"""By how much recording slowed steps down."""

import gc
import time

import pytest

from profkit.capture.recording import overhead
from profkit.capture.recording.options import Options
from profkit.capture.recording.overhead import StepTimes
from profkit.capture.recording.schedule import Phase


@pytest.fixture
def now_ns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the time that the clock shows."""
    now = [1]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    return now


def test_a_step_before_which_others_were_counted_is_as_long_as_each_of_them(
    now_ns: list[int],
) -> None:
    times = StepTimes()
    for phase, n_counted, took_ns in [
        (Phase.OFF, 0, 90_000),
        (Phase.OFF, 0, 100),
        (Phase.RECORD, 0, 300),
        (Phase.REST, 15, 16 * 110),
        (Phase.REST, 15, 16 * 120),
        (Phase.REST, 0, 130),
    ]:
        times.begin()
        now_ns[0] += took_ns
        times.count(n_counted)
        times.stop()
        now_ns[0] += 7_000
        times.end(phase)

    ratio, source = times.overhead() or (0.0, "")
    assert ratio == pytest.approx(300 / 115 - 1)
    assert source == "measured: 1 recorded steps against 4 unrecorded"


def test_the_events_of_a_measurement_of_the_overhead_are_freed() -> None:
    # Each takes 5 MB, which cycles of references would retain until the next full collection.
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        overhead._measure_fastest(Options(), lambda: None, stacks=False)
        gc.collect()
        kept = [thing for thing in gc.garbage if hasattr(thing, "kineto_results")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert kept == []
