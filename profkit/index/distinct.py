"""Distinct numbers and moments, without the hash tables of ``np.unique``.

NumPy hashes integers to find the distinct ones, which takes many times longer than to sort moments,
most of which are sorted already, or to look up rows in a table.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.model.events import Int64s, Mask, Rows

_SMALL_TABLE: Final = 1 << 16
_MAX_SPARSENESS: Final = 4
_MAX_SHORT: Final = int(np.iinfo(np.uint16).max)


def distinct(moments_ns: Int64s) -> Int64s:
    """Some moments, ascending and without repetitions."""
    moments = np.sort(moments_ns, kind="stable")
    return np.asarray(moments[np.diff(moments, prepend=np.iinfo(np.int64).min) != 0])


def common(one_ns: Int64s, other_ns: Int64s) -> Int64s:
    """The moments that are among both, ascending and without repetitions."""
    return np.intersect1d(distinct(one_ns), distinct(other_ns), assume_unique=True)


def marked(rows: npt.NDArray[np.integer[Any]], n: int) -> Mask:
    """Which of ``n`` rows are among some. Shape ``(n + 1,)``: the last is that of ``NO_ROW``."""
    found = np.zeros(n + 1, dtype=np.bool_)
    found[rows] = True
    found[n] = False
    return found


def used(numbers: npt.NDArray[np.integer[Any]]) -> Rows:
    """Which small numbers, all 0 or more, occur, ascending: lanes, names, rows."""
    return np.flatnonzero(marked(numbers, int(numbers.max(initial=-1)) + 1))


def numbered(keys: Int64s) -> tuple[Int64s, Int64s]:
    """The distinct keys, ascending, and the index of each key among them.

    The same as ``np.unique`` with ``return_inverse``; dense keys use a table, which is faster than
    sorting.

    Args:
        keys: Non-negative. Shape ``(n,)``.
    """
    largest = int(keys.max(initial=0))
    if largest > _MAX_SPARSENESS * len(keys) + _SMALL_TABLE:
        found, place = np.unique(keys, return_inverse=True)
        return found, place.astype(np.int64)
    is_used = np.zeros(largest + 1, dtype=np.bool_)
    is_used[keys] = True
    return np.flatnonzero(is_used).astype(np.int64), (np.cumsum(is_used) - 1)[keys]


def by_number(numbers: npt.NDArray[np.integer[Any]]) -> Rows:
    """The order of some numbers, all 0 or more; equal ones stay as they are.

    NumPy uses radix sort for 16 bits.
    """
    short = numbers.astype(np.uint16) if numbers.max(initial=0) <= _MAX_SHORT else numbers
    return np.argsort(short, kind="stable")
