"""Levels of detail against a walk over the slices, one after another."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.index.intervals import union
from profkit.index.level_of_detail import build_levels, coarser, flattened, opens, order_of, stacked
from profkit.model.timeline import Slices

spans = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 20)), min_size=1, max_size=30)


def slices(pairs: list[tuple[int, int]], row: list[int] | None = None) -> Slices:
    """Slices from (start, length) pairs, which come ordered by row and start."""
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    lengths = np.array([length for _, length in pairs], dtype=np.int64)
    ones = np.ones(len(pairs), dtype=np.int64)
    rows = np.array(row or [0] * len(pairs), dtype=np.int32)
    site = np.arange(len(pairs), dtype=np.int32)
    return Slices(rows, starts, starts + lengths, lengths, ones, lengths, site, site)


def apart(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return lengths with their starts as gaps between them, so that none overlap."""
    at, flat = 0, []
    for gap, length in pairs:
        at += gap
        flat.append((at, length))
        at += length
    return flat


places = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 5))


@given(
    st.lists(places),
    st.sampled_from([lambda _: 0, lambda place: place, lambda place: place[1:]]),
)
def test_slices_are_ordered_by_row_start_and_end_as_they_come(
    given_as: list[tuple[int, int, int]], come_by: Callable[[tuple[int, int, int]], Any]
) -> None:
    every = sorted(given_as, key=come_by)
    columns = np.array(every, dtype=np.int64).reshape(-1, 3).T
    order = order_of(columns[0].astype(np.int32), columns[1], columns[2])
    expected = sorted(range(len(every)), key=lambda place: every[place])
    assert (list(range(len(every))) if order is None else order.tolist()) == expected
    assert (order is None) == (every == sorted(every))


@settings(max_examples=200, deadline=None)
@given(spans, st.integers(1, 64))
def test_a_coarser_level_equals_a_sequential_merge(
    pairs: list[tuple[int, int]], resolution: int
) -> None:
    pairs = apart(pairs)
    expected: list[list[tuple[int, int]]] = []
    for start, length in pairs:
        last = expected[-1][-1] if expected else None
        joins = (
            last is not None
            and length < resolution
            and last[1] < resolution
            and start // resolution == last[0] // resolution
        )
        if joins:
            expected[-1].append((start, length))
        else:
            expected.append([(start, length)])

    coarse = coarser(slices(pairs), resolution)
    assert coarse.start_ns.tolist() == [group[0][0] for group in expected]
    assert coarse.end_ns.tolist() == [sum(group[-1]) for group in expected]
    assert coarse.busy_ns.tolist() == [sum(length for _, length in group) for group in expected]
    assert coarse.n.tolist() == [len(group) for group in expected]

    longest = [max(group, key=lambda pair: pair[1]) for group in expected]
    assert coarse.longest_ns.tolist() == [length for _, length in longest]
    assert [pairs[site] for site in coarse.site.tolist()] == longest


@settings(max_examples=200, deadline=None)
@given(spans, st.data())
def test_overlapping_slices_use_the_minimum_number_of_rows(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    drawn = st.lists(st.integers(0, 1), min_size=len(pairs), max_size=len(pairs))
    both = sorted(zip(data.draw(drawn), pairs, strict=True))
    lanes, pairs = [of for of, _ in both], [pair for _, pair in both]
    every = slices(pairs)
    lane = np.array(lanes, dtype=np.int32)
    row = stacked(lane, every)
    for of in (0, 1):
        on_lane = lane == of
        for number in set(row[on_lane].tolist()):
            chosen = np.flatnonzero(on_lane & (row == number))
            assert (every.start_ns[chosen][1:] >= every.end_ns[chosen][:-1]).all()
        most = max(
            (
                sum(s <= moment < s + n for (s, n), o in zip(pairs, lanes, strict=True) if o == of)
                for moment in range(120)
            ),
            default=0,
        )
        if on_lane.any():
            n_empty = sum(n == 0 for (_, n), o in zip(pairs, lanes, strict=True) if o == of)
            assert row[on_lane].max() < max(1, most) + n_empty

    begins = opens(lane, every)
    assert begins.tolist() == [
        place
        for place in range(len(pairs))
        if not any(
            lanes[row] == lanes[place] and sum(pairs[row]) > pairs[place][0] for row in range(place)
        )
    ]


@settings(max_examples=100, deadline=None)
@given(spans)
def test_flattened_slices_cover_the_union_and_count_every_event(
    pairs: list[tuple[int, int]],
) -> None:
    every = slices(sorted(pairs))
    flat = flattened(every, every.row)
    covered = union(every.start_ns, every.end_ns)
    assert flat.busy_ns.sum() == covered.total_ns
    assert flat.n.sum() == len(pairs)
    assert (flat.start_ns[1:] >= flat.end_ns[:-1]).all()


def test_a_million_slices_have_levels_down_to_what_a_page_can_show() -> None:
    n = 1_000_000
    every = slices(apart([(300, 700)] * n))
    levels = build_levels(every, n * 1_000)
    assert levels[0].resolution_ns == 0
    assert len(levels[0].slices) == n
    assert len(levels[-1].slices) < 4_096
    for level in levels:
        assert level.slices.n.sum() == n
        assert level.slices.busy_ns.sum() == n * 700


def test_few_slices_have_one_level() -> None:
    assert len(build_levels(slices(apart([(1, 2)] * 100)), 300)) == 1
