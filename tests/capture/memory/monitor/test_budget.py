"""What watching may cost, with a clock that the test sets."""

import pytest

from profkit.capture.memory.monitor import budget
from profkit.capture.memory.monitor.budget import Budget, Clock, Work

SECOND = 1_000_000_000
WITHOUT_GROWTH: tuple[Work, ...] = ("full", "look", "graphs", "collector", "judge", "workers")
AIM_SHARE = 0.05


class Times:
    """Stands in for the module ``time``: both of its clocks go as they are told."""

    def __init__(self) -> None:
        self.now_ns = SECOND
        self.cpu_ns = SECOND

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns

    def thread_time_ns(self) -> int:
        return self.cpu_ns


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    stand_in = Times()
    monkeypatch.setattr(budget, "time", stand_in)
    return stand_in


def spend(clock: Clock, times: Times, work: Work, ms: int) -> None:
    with clock.spending(work):
        times.now_ns += ms * 1_000_000
        times.cpu_ns += ms * 1_000_000


def test_what_goes_on_without_growth_keeps_to_the_aim_in_the_long_run() -> None:
    share = Budget().share
    assert sum(share[work] for work in WITHOUT_GROWTH) <= AIM_SHARE


def test_in_a_second_no_more_than_a_quarter_is_free_without_growth_and_loader() -> None:
    free_s = Budget().free_s
    assert sum(free_s[work] for work in WITHOUT_GROWTH if work != "workers") <= 1 / 4
    assert free_s["workers"] <= 1 / 6


def test_what_is_free_is_spent_once_and_then_a_share_of_the_time(times: Times) -> None:
    clock = Clock(Budget({"closer": 0.3}, {"closer": 0.1}))
    spend(clock, times, "closer", 200)
    assert not clock.affords("closer")
    times.now_ns += 4 * SECOND
    assert clock.affords("closer"), "0.2 s spent and 0.2 s to come are a tenth of 4.2 s"


def test_the_first_of_its_kind_is_always_done_where_nobody_knows_its_cost(times: Times) -> None:
    clock = Clock(Budget({"closer": 0.0}, {"closer": 0.0}))
    assert clock.affords("closer")
    spend(clock, times, "closer", 1)
    assert not clock.affords("closer")


def test_the_first_too_waits_where_its_cost_is_known_and_too_much(times: Times) -> None:
    clock = Clock(Budget({"look": 1.0, "workers": 0.1}, {"workers": 0.01}))
    spend(clock, times, "look", 1)
    assert clock.affords("workers", 0.05 * SECOND)
    assert not clock.affords("workers", 0.4 * SECOND)
    times.now_ns += 41 * SECOND
    assert clock.affords("workers", 0.4 * SECOND)
