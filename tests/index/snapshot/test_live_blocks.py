"""Bytes of groups of blocks over time, against a count block by block."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.snapshot.live_blocks import bytes_over_time, representative_places

blocks = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 90), st.integers(0, 30), st.integers(0, 12)),
    max_size=12,
)


@given(blocks, st.sets(st.integers(0, 40), min_size=1).map(sorted))
def test_each_group_has_the_bytes_of_its_live_blocks(
    drawn: list[tuple[int, int, int, int]], moments: list[int]
) -> None:
    group, n_bytes, begin, lasts = np.array(drawn, dtype=np.intp).reshape(-1, 4).T
    end = begin + lasts
    held = bytes_over_time(group, n_bytes, begin, end, np.array(moments, dtype=np.intp), 4)
    for number in range(4):
        for place, moment in enumerate(moments):
            live = (group == number) & (begin <= moment) & (moment < end)
            assert held[number, place] == n_bytes[live].sum()


@given(st.lists(st.integers(0, 99), min_size=1, max_size=60), st.integers(1, 20))
def test_representative_places_include_both_ends_and_the_maximum(level: list[int], n: int) -> None:
    moments = representative_places(np.array(level, dtype=np.int64), n).tolist()
    assert moments == sorted(set(moments))
    assert len(moments) <= n + 2
    assert {0, len(level) - 1} <= set(moments)
    assert max(level[moment] for moment in moments) == max(level)
