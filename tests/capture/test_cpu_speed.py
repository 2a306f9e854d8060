"""How fast this processor is, by a clock that the test sets."""

import time
from collections.abc import Iterator

import pytest

from profkit.capture.process import cpu_speed


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    cpu_speed.slowness.cache_clear()
    yield
    cpu_speed.slowness.cache_clear()


@pytest.mark.parametrize(
    ("times_ms", "slowness"),
    [
        ((2.64, 1.32, 1.98, 1.98, 2.64), 2.0),  # the fastest counts
        ((0.3, 0.3, 0.3, 0.3, 0.3), 1.0),
        ((90.0, 80.0, 70.0, 60.0, 50.0), 4.0),
    ],
)
def test_the_fastest_of_some_loops_is_compared(
    monkeypatch: pytest.MonkeyPatch, times_ms: tuple[float, ...], slowness: float
) -> None:
    readings = [reading for time_ms in times_ms for reading in (0.0, time_ms / 1e3)]
    clock = iter(readings)
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    assert cpu_speed.slowness() == pytest.approx(slowness)
    assert cpu_speed.slowness() == pytest.approx(slowness), "known from the first time"


def test_it_is_measured_in_a_moment() -> None:
    began_s = time.thread_time()
    assert 1.0 <= cpu_speed.slowness() <= 4.0
    assert time.thread_time() - began_s < 0.5
