"""Sets of time, against sets of nanoseconds counted one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.intervals import (
    Intervals,
    clip,
    complement,
    covered_before,
    covered_within,
    inside,
    intersect,
    of_pairs,
    subtract,
    union,
    unite,
)

LAST = 40
pairs = st.lists(st.tuples(st.integers(0, LAST), st.integers(0, LAST)), max_size=12)


def counted(intervals: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in intervals for moment in range(start, end)}


def of(intervals: list[tuple[int, int]]) -> Intervals:
    return of_pairs(tuple(intervals))


def moments(covered: Intervals) -> set[int]:
    return counted(list(covered.pairs()))


@given(pairs)
def test_a_union_is_sorted_disjoint_and_covers_what_its_parts_do(a: list[tuple[int, int]]) -> None:
    covered = of(a)
    assert moments(covered) == counted(a)
    assert covered.total_ns == len(counted(a))
    assert (covered.starts_ns[1:] > covered.ends_ns[:-1]).all()


@given(pairs, pairs)
def test_set_algebra_agrees_with_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = counted(a), counted(b)
    assert moments(intersect(of(a), of(b))) == x & y
    assert moments(subtract(of(a), of(b))) == x - y
    assert moments(unite(of(a), of(b))) == x | y
    for result in (intersect(of(a), of(b)), subtract(of(a), of(b)), unite(of(a), of(b))):
        assert (result.ends_ns > result.starts_ns).all()
        assert (result.starts_ns[1:] > result.ends_ns[:-1]).all()


@given(pairs, st.integers(0, LAST), st.integers(0, LAST))
def test_windows_agree_with_sets(a: list[tuple[int, int]], start: int, length: int) -> None:
    end = start + length
    window = set(range(start, end))
    assert moments(clip(of(a), start, end)) == counted(a) & window
    assert moments(complement(of(a), start, end)) == window - counted(a)
    edges = (np.array([start]), np.array([end]))
    assert covered_within(of(a), *edges).tolist() == [len(counted(a) & window)]


@given(pairs, st.lists(st.integers(-3, LAST + 3), max_size=8))
def test_moments_agree_with_sets(a: list[tuple[int, int]], at: list[int]) -> None:
    asked = np.array(at, dtype=np.int64)
    assert inside(of(a), asked).tolist() == [moment in counted(a) for moment in at]
    expected = [len([m for m in counted(a) if m < moment]) for moment in at]
    assert covered_before(of(a), asked).tolist() == expected


def test_times_near_the_end_of_an_hour_long_trace_are_exact() -> None:
    late = 3_600_000_000_000_000_001
    covered = union(np.array([late, late + 5]), np.array([late + 6, late + 9]))
    assert covered.pairs() == ((late, late + 9),)
