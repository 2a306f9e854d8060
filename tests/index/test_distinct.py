import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.distinct import by_number, common, distinct, marked, numbered, used
from profkit.model.events import NO_ROW

numbers = st.lists(st.integers(0, 40), max_size=60)


@given(st.lists(st.integers(0, 9) | st.integers(0, 1 << 60), max_size=40))
def test_dense_and_sparse_keys_are_numbered_in_order(keys: list[int]) -> None:
    found, place = numbered(np.array(keys, dtype=np.int64))
    assert found.tolist() == sorted(set(keys))
    assert [found[each] for each in place.tolist()] == keys


@given(one=numbers, other=numbers)
def test_distinct_common_used_and_marked_are_those_of_sets(
    one: list[int], other: list[int]
) -> None:
    first, second = (np.array(each, dtype=np.int64) for each in (one, other))
    assert distinct(first - 20).tolist() == sorted({each - 20 for each in one})
    assert common(first, second).tolist() == sorted(set(one) & set(other))
    assert used(first).tolist() == sorted(set(one))
    is_marked = marked(np.append(first, NO_ROW), 41)
    assert np.flatnonzero(is_marked).tolist() == sorted(set(one))
    assert not is_marked[NO_ROW]
    order = by_number(first).tolist()
    assert order == sorted(range(len(one)), key=lambda place: one[place])
