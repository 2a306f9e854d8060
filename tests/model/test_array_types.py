"""The dtype of an array's type, as each version of NumPy has it."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from profkit.model.events import dtype_of

OLD = np.ndarray[Any, np.dtype[np.int32]]
"""What ``NDArray[np.int32]`` is before NumPy 2.5."""
NEW = list[np.int32]
"""Since then it is an alias that has the scalar type, as this has."""


@pytest.mark.parametrize("array_type", [npt.NDArray[np.int32], OLD, NEW])
def test_the_dtype_is_known_whatever_an_array_type_is(array_type: object) -> None:
    assert dtype_of(array_type) == np.int32
