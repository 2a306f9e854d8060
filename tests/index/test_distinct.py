import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.distinct import (
    are_among,
    by_number,
    common,
    distinct,
    marked,
    numbered,
    numbered_pairs,
    numbered_values,
    used,
)
from profkit.model.events import MISSING, NO_ROW, SparseColumn

numbers = st.lists(st.integers(0, 40), max_size=60)


@given(st.lists(st.integers(0, 9) | st.integers(0, 1 << 60), max_size=40))
def test_dense_and_sparse_keys_are_numbered_in_order(keys: list[int]) -> None:
    unique_keys, place = numbered(np.array(keys, dtype=np.int64))
    assert unique_keys.tolist() == sorted(set(keys))
    assert [unique_keys[number] for number in place.tolist()] == keys


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5) | st.integers(0, 1 << 40))))
def test_pairs_are_numbered_in_order(pairs: list[tuple[int, int]]) -> None:
    left, right = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    (ones, unique_pairs), place = numbered_pairs(left, right)
    assert [*zip(ones.tolist(), unique_pairs.tolist(), strict=True)] == sorted(set(pairs))
    assert [(ones[number], unique_pairs[number]) for number in place.tolist()] == pairs


@given(
    st.lists(st.integers(0, 9) | st.integers(-3, 1 << 60), max_size=30)
    | st.lists(st.integers(0, 5) | st.floats(-2, 2**60), max_size=30)
)
def test_values_of_any_column_are_numbered_in_order(values: list[float]) -> None:
    column = np.array(values)
    unique_values, place = numbered_values(column)
    assert unique_values.tolist() == sorted(set(column.tolist()))
    assert [unique_values[number] for number in place.tolist()] == column.tolist()


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 99)), st.lists(st.integers(-1, 30)))
def test_a_sparse_column_has_the_values_of_few_and_of_many_rows(
    values: dict[int, int], rows: list[int]
) -> None:
    has = sorted(values)
    column = SparseColumn(np.array(has, dtype=np.int32), np.array([values[row] for row in has]))
    expected = [values.get(row, MISSING) for row in rows]
    assert column.at(np.array(rows, dtype=np.intp)).tolist() == expected


@given(one=numbers, other=numbers)
def test_distinct_common_used_and_marked_agree_with_sets(one: list[int], other: list[int]) -> None:
    first, second = (np.array(values, dtype=np.int64) for values in (one, other))
    assert distinct(first - 20).tolist() == sorted({value - 20 for value in one})
    assert common(first, second).tolist() == sorted(set(one) & set(other))
    assert used(first).tolist() == sorted(set(one))
    assert are_among(first, second).tolist() == [value in other for value in one]
    is_marked = marked(np.append(first, NO_ROW), 41)
    assert np.flatnonzero(is_marked).tolist() == sorted(set(one))
    assert not is_marked[NO_ROW]
    order = by_number(first).tolist()
    assert order == sorted(range(len(one)), key=lambda place: one[place])
