"""The overhead budget of monitoring, with a fake clock."""

import pytest

from profkit.capture.memory.monitor import budget
from profkit.capture.memory.monitor.budget import Budget, Clock, Work

SECOND = 1_000_000_000
WITHOUT_GROWTH: tuple[Work, ...] = ("full", "young", "graphs", "collector", "classify", "workers")
TARGET_SHARE = 0.05


class Times:
    """Stands in for the module ``time``."""

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


def test_work_without_growth_stays_within_the_target_in_the_long_run() -> None:
    share = Budget().share
    assert sum(share[work] for work in WITHOUT_GROWTH) <= TARGET_SHARE


def test_free_work_without_growth_and_loader_takes_at_most_a_quarter_of_a_second() -> None:
    free_s = Budget().free_s
    assert sum(free_s[work] for work in WITHOUT_GROWTH if work != "workers") <= 1 / 4
    assert free_s["workers"] <= 1 / 6


def test_free_seconds_are_spent_once_and_then_a_share_of_the_time(times: Times) -> None:
    clock = Clock(Budget({"inspection": 0.3}, {"inspection": 0.1}))
    spend(clock, times, "inspection", 200)
    assert not clock.affords("inspection")
    times.now_ns += 4 * SECOND
    assert clock.affords("inspection"), "0.2 s spent and 0.2 s to come are a tenth of 4.2 s"


def test_free_seconds_count_for_the_measured_processor(times: Times) -> None:
    budget = Budget({"inspection": 0.3, "sites": 0.0}, {"inspection": 0.0, "sites": 0.0})
    for slowness, is_affordable in ((1.0, False), (2.0, True)):
        clock = Clock(budget, slowness)
        spend(clock, times, "inspection", 250)
        assert clock.affords("inspection") == is_affordable
        assert clock.affords_one("inspection"), "alone it takes no more than is free"


def test_one_monitor_after_the_other_has_one_budget(times: Times) -> None:
    budget = Budget({"inspection": 0.3, "sites": 0.0}, {"inspection": 0.1, "sites": 0.0})
    clocks = [Clock(budget)]
    spend(clocks[0], times, "inspection", 100)
    for _ in range(2):
        clocks.append(Clock(budget))
        clocks[-1].follow(clocks[-2].budget_spent())
        assert clocks[-1].affords("inspection", 0.1 * SECOND)
        spend(clocks[-1], times, "inspection", 100)

    assert not clocks[-1].affords("inspection")
    times.now_ns += 4 * SECOND
    assert clocks[-1].affords("inspection"), "0.4 s are a tenth of the time since the first began"
    assert clocks[-1].cost().total_ns == 100_000_000, "what it has cost itself"


def test_the_first_work_of_a_kind_is_allowed_if_its_cost_is_unknown(times: Times) -> None:
    clock = Clock(Budget({"inspection": 0.0}, {"inspection": 0.0}))
    assert clock.affords("inspection")
    spend(clock, times, "inspection", 1)
    assert not clock.affords("inspection")


def test_the_first_work_of_a_kind_waits_if_its_expected_cost_is_too_high(times: Times) -> None:
    clock = Clock(Budget({"young": 1.0, "workers": 0.1}, {"workers": 0.01}))
    spend(clock, times, "young", 1)
    assert clock.affords("workers", 0.05 * SECOND)
    assert not clock.affords("workers", 0.4 * SECOND)
    times.now_ns += 41 * SECOND
    assert clock.affords("workers", 0.4 * SECOND)


def test_the_steps_until_work_is_affordable_are_known_from_their_pace(times: Times) -> None:
    clock = Clock(Budget({}, {"young": 0.01}))
    spend(clock, times, "young", 2)
    clock.step_begins(10)
    times.now_ns += 5 * 1_000_000
    clock.step_ended(20, sites_sampled=False)

    # 2 ms and 2 ms more are a hundredth of 400 ms, of which 7 ms are over: steps take 0.5 ms.
    assert clock.steps_until_afforded("young") == (400 - 7) * 2
    times.now_ns += 393 * 1_000_000
    assert clock.affords("young")
    assert clock.steps_until_afforded("young") == 0


def test_nothing_is_expected_of_work_without_a_share(times: Times) -> None:
    clock = Clock(Budget({}, {}))
    assert clock.steps_until_afforded("young") == 0
    spend(clock, times, "young", 2)
    assert clock.steps_until_afforded("young") == 0
