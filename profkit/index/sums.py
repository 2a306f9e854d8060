"""Exact sums by key."""

from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.model.events import Int64s


def sum_by_key(n: int, keys: npt.NDArray[np.integer[Any]], values: Int64s) -> Int64s:
    """Return the sum of the values of each key from 0 to ``n - 1``. Shape ``(n,)``."""
    # `np.bincount` with weights would add floats, which are inexact from 2**53 on.
    sums = np.zeros(n, dtype=np.int64)
    np.add.at(sums, keys, values)
    return sums
