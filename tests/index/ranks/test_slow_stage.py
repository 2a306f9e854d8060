"""The stage of a pipeline that the others wait for."""

import numpy as np
import pytest

from profkit.index.ranks.slow_stage import SlowStage, find_slow_stage
from profkit.model.events import Float64s

MS = 1_000_000
PAIR = [[0], [1]]


def steps(*by_rank: list[float]) -> Float64s:
    return np.array(by_rank) * MS


def test_the_stage_with_the_most_own_time_is_slow() -> None:
    slow = find_slow_stage(PAIR, steps([10, 11, 10], [19, 20, 18]))
    assert slow == SlowStage(1, (1,), 19 * MS, (31 / 3 + 19) / 2 * MS, 9 * MS)


def test_a_stage_is_all_of_its_ranks() -> None:
    slow = find_slow_stage([[0, 1], [2, 3], [4, 5]], steps([9], [9], [30], [10], [9], [9]))
    assert slow is not None
    assert (slow.stage, slow.ranks, slow.own_ns, slow.excess_ns) == (1, (2, 3), 20 * MS, 11 * MS)


@pytest.mark.parametrize(
    "own_ns",
    [
        steps([10, 10, 10], [11, 12, 11]),
        steps([10, 10, 10], [40, 10, 10]),
        steps([10, 10, 10, 10], [20, 10, 20, 10]),
        steps([], []),
    ],
    ids=["by little", "in one step", "in every other step", "without steps"],
)
def test_stages_that_differ_by_little_or_now_and_then_are_equal(own_ns: Float64s) -> None:
    assert find_slow_stage(PAIR, own_ns) is None


def test_one_stage_is_no_pipeline() -> None:
    assert find_slow_stage([[0, 1]], steps([10], [20])) is None
    assert find_slow_stage([], steps([10], [20])) is None


def test_time_without_a_core_does_not_count() -> None:
    own_ns, disturbed_ns = steps([30, 30, 30], [60, 60, 60]), steps([5, 5, 5], [35, 35, 35])
    assert find_slow_stage(PAIR, own_ns) is not None
    assert find_slow_stage(PAIR, own_ns, disturbed_ns) is None

    slow = find_slow_stage(PAIR, own_ns, steps([5, 5, 5], [15, 15, 15]))
    assert slow is not None
    assert (slow.excess_ns, slow.own_ns) == (20 * MS, 60 * MS)


def test_a_stage_has_to_exceed_what_a_busy_machine_adds() -> None:
    own_ns = steps([100, 100, 100], [130, 130, 130])
    assert find_slow_stage(PAIR, own_ns, steps([10] * 3, [10] * 3)) is not None
    assert find_slow_stage(PAIR, own_ns, steps([220] * 3, [220] * 3)) is None


def test_processor_time_of_the_whole_run_tells_more_work() -> None:
    chance = np.random.default_rng(0).normal(0, 2, (2, 50))
    cpu_ns = (np.array([[20.0], [30.0]]) + chance) * MS
    # The recorded steps were disturbed on the other rank.
    slow = find_slow_stage(PAIR, steps([90, 80, 90], [40, 50, 40]), None, cpu_ns)
    assert slow is not None
    assert (slow.stage, slow.has_more_work) == (1, True)
    assert slow.excess_ns == pytest.approx(10 * MS, rel=0.1)


def test_equal_processor_time_leaves_other_causes() -> None:
    cpu_ns = np.full((2, 50), 20 * MS) + np.random.default_rng(0).normal(0, MS, (2, 50))
    slow = find_slow_stage(PAIR, steps([20, 20, 20], [35, 36, 35]), steps([0] * 3, [0] * 3), cpu_ns)
    assert slow is not None
    assert (slow.stage, slow.has_more_work, slow.excess_ns) == (1, False, 15 * MS)
    equal = steps([20, 20, 20], [21, 20, 21])
    assert find_slow_stage(PAIR, equal, steps([0] * 3, [0] * 3), cpu_ns) is None
