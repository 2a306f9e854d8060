"""Time that rows cover, against nanoseconds counted one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.index import intervals
from profkit.index.intervals import covered_by
from tests.index.host.test_nesting import table


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=20),
    st.integers(1, 4),
)
def test_rows_cover_the_same_time_in_chunks_of_any_size(
    spans: list[tuple[int, int]], piece: int
) -> None:
    events = table([(start, start + length) for start, length in spans])
    rows = np.arange(0, len(spans), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "_CHUNK", piece)
        covered = covered_by(events, rows)
    counted = {at for start, length in spans[::2] for at in range(start, start + length)}
    assert {at for start, end in covered.pairs() for at in range(start, end)} == counted
    assert covered.total_ns == len(counted)
    assert len(covered_by(events, rows[:0])) == 0
