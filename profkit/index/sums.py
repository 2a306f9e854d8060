"""Exact sums, and medians, by key."""

from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.index.ranges import find_runs
from profkit.model.events import Float64s, Int64s


def sum_by_key(n: int, keys: npt.NDArray[np.integer[Any]], values: Int64s) -> Int64s:
    """Return the sum of the values of each key from 0 to ``n - 1``. Shape ``(n,)``."""
    # `np.bincount` with weights would add floats, which are inexact from 2**53 on.
    sums = np.zeros(n, dtype=np.int64)
    np.add.at(sums, keys, values)
    return sums


def median_by_key(
    n: int, keys: npt.NDArray[np.integer[Any]], values: Int64s | Float64s
) -> Float64s:
    """Return the median of the values of each key from 0 to ``n - 1``, 0 without values.

    Shape ``(n,)``.
    """
    # Sorted by key, then value, the median of each key is in the middle of its run.
    order = np.lexsort((values, keys))
    ordered_keys, ordered = keys[order], values[order]
    first, sizes = find_runs(ordered_keys)

    medians = np.zeros(n)
    medians[ordered_keys[first]] = (
        ordered[first + (sizes - 1) // 2] + ordered[first + sizes // 2]
    ) / 2
    return medians
