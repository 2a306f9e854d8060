import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.host.call_paths import numbered


@given(st.lists(st.integers(0, 9) | st.integers(0, 1 << 60), max_size=40))
def test_dense_and_sparse_keys_are_numbered_in_order(keys: list[int]) -> None:
    found, place = numbered(np.array(keys, dtype=np.int64))
    assert found.tolist() == sorted(set(keys))
    assert [found[each] for each in place.tolist()] == keys
