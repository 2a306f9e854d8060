"""Blocking the host costs at most the time that it was blocked and the device was idle."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.device.idle import blocking_cost
from profkit.index.intervals import EMPTY, of_pairs, take_from_start


def ns(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def test_each_window_saves_the_smaller_of_blocked_and_idle_time() -> None:
    blocked = of_pairs(((10, 40), (110, 120)))
    idle = of_pairs(((0, 5), (50, 55), (150, 190)))
    cost = blocking_cost(blocked, idle, ns(0, 100), ns(100, 200))
    assert (cost.blocked_ns, cost.idle_ns, cost.saving_ns) == (40, 50, 10 + 10)
    assert cost.claims == ((0, 5), (50, 55), (150, 160))


def test_a_window_without_a_blocking_call_is_not_counted() -> None:
    cost = blocking_cost(
        of_pairs(((10, 20),)), of_pairs(((50, 60), (150, 190))), ns(0, 100), ns(100, 200)
    )
    assert cost.n_windows == 1
    assert cost.idle_ns == 10
    assert cost.claims == ((50, 60),)


def test_a_device_that_is_never_idle_costs_nothing() -> None:
    cost = blocking_cost(of_pairs(((10, 90),)), EMPTY, ns(0), ns(100))
    assert (cost.blocked_ns, cost.saving_ns, cost.claims) == (80, 0, ())


def test_idle_time_across_two_windows_is_split() -> None:
    blocked = of_pairs(((0, 10), (100, 105)))
    cost = blocking_cost(blocked, of_pairs(((80, 130),)), ns(0, 100), ns(100, 200))
    assert cost.saving_ns == 10 + 5
    assert cost.claims == ((80, 90), (100, 105))


def test_there_may_be_no_window() -> None:
    assert blocking_cost(of_pairs(((0, 1),)), of_pairs(((0, 1),)), ns(), ns()).saving_ns == 0


@given(
    pairs=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=8),
    wanted=st.lists(st.integers(0, 30), min_size=3, max_size=3),
)
def test_the_wanted_time_or_all_covered_time_is_taken(
    pairs: list[tuple[int, int]], wanted: list[int]
) -> None:
    covered = of_pairs(tuple((start, start + length) for start, length in pairs))
    starts, ends = ns(5, 20, 45), ns(20, 40, 60)
    taken = take_from_start(covered, starts, ends, ns(*wanted))
    moments = {t for start, end in covered.pairs() for t in range(start, end)}
    expected: set[int] = set()
    for start, end, want in zip((5, 20, 45), (20, 40, 60), wanted, strict=True):
        expected |= set(sorted(moments & set(range(start, end)))[:want])
    assert {t for start, end in taken for t in range(start, end)} == expected
