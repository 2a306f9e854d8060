"""How many steps of a run are affordable, by a clock that the test sets."""

import pytest

from profkit.capture.recording_budget import COST_PER_STOP, FREE_S, MAX_SHARE, RecordingBudget

MEASURED = (200_000_000, 50_000_000)
"""0.2 s of the program, which took 0.05 s to stop: each second costs 0.25 s to stop."""


class Clock:
    """CPU time of a process."""

    def __init__(self) -> None:
        self.now_s = 2.0

    def __call__(self) -> float:
        return self.now_s


def budget_after(steps_s: list[float], clock: Clock) -> RecordingBudget:
    budget = RecordingBudget(clock)
    budget.recording_begins()
    for step_s in steps_s:
        clock.now_s += step_s
        budget.step_ended()
    return budget


@pytest.mark.parametrize(
    ("step_s", "n_affordable"),
    [(0.1, 3), (FREE_S / COST_PER_STOP / 0.25 / 2.5, 1), (FREE_S / COST_PER_STOP / 0.25, 0)],
)
def test_a_short_run_records_as_many_steps_as_are_free(step_s: float, n_affordable: int) -> None:
    assert budget_after([step_s], Clock()).steps(MEASURED, 3) == n_affordable


def test_a_step_that_costs_more_waits_until_the_run_is_long_enough() -> None:
    clock = Clock()
    step_s = 2.0
    cost_s = COST_PER_STOP * step_s * 0.25
    budget = budget_after([step_s], clock)
    while not budget.steps(MEASURED, 1):
        assert clock.now_s < 1000
        clock.now_s += step_s
        budget.step_ended()
    assert 2 * cost_s <= MAX_SHARE * clock.now_s
    assert 2 * cost_s > MAX_SHARE * (clock.now_s - step_s)


def test_a_first_step_that_takes_longer_is_forgotten() -> None:
    budget = budget_after([5.0], Clock())
    assert budget.steps(MEASURED, 3) == 0
    assert budget_after([5.0, 0.1, 0.1], Clock()).steps(MEASURED, 3) == 3


def test_without_a_measure_all_steps_are_recorded() -> None:
    assert RecordingBudget(Clock()).steps((0, 0), 3) == 3
    assert budget_after([1.0], Clock()).steps((1_000_000, 0), 3) == 3
