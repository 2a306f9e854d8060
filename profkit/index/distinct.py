"""Distinct numbers and moments, without the hash tables of ``np.unique``.

NumPy hashes integers to find the distinct ones, which takes many times longer than to sort moments,
most of which are sorted already, or to look up rows in a table.
"""

from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from profkit.model.events import Int32s, Int64s, Mask, Rows

_Integers = npt.NDArray[np.integer[Any]]
_Number = TypeVar("_Number", bound=np.generic)
_SMALL_TABLE: Final = 1 << 16
_MAX_SPARSENESS: Final = 4
_MAX_WHOLE: Final = 1 << 53
"""Floats represent all whole numbers up to here."""
_MAX_SHORT: Final = int(np.iinfo(np.uint16).max)


def distinct(numbers: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Some numbers or moments, ascending and without repetitions.

    ``np.unique`` without indices imports ``numpy.ma``, which takes a small file's analysis 10 ms.
    """
    ordered = np.sort(numbers, axis=None, kind="stable")
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[is_first])


def common(one: _Integers, other: _Integers) -> Int64s:
    """The numbers or moments that are among both, ascending and without repetitions."""
    found = np.intersect1d(distinct(one), distinct(other), assume_unique=True)
    return found.astype(np.int64, copy=False)


def united(one: _Integers, other: _Integers) -> Rows:
    """The rows that are among either, ascending and without repetitions."""
    return distinct(np.concatenate((one, other))).astype(np.intp, copy=False)


def are_among(numbers: _Integers, some: _Integers) -> Mask:
    """Which numbers or moments are among some others. Shape of ``numbers``.

    ``np.isin`` without its table imports ``numpy.ma`` too.
    """
    ordered = distinct(some)
    if not len(ordered):
        return np.zeros(len(numbers), dtype=np.bool_)
    place = np.searchsorted(ordered, numbers)
    place[place == len(ordered)] = 0
    return np.asarray(ordered[place] == numbers)


def marked(rows: _Integers, n: int) -> Mask:
    """Which of ``n`` rows are among some. Shape ``(n + 1,)``: the last is that of ``NO_ROW``."""
    found = np.zeros(n + 1, dtype=np.bool_)
    found[rows] = True
    found[n] = False
    return found


def used(numbers: _Integers) -> Rows:
    """Which small numbers, all 0 or more, occur, ascending: lanes, names, rows."""
    return np.flatnonzero(marked(numbers, int(numbers.max(initial=-1)) + 1))


def numbered(keys: Int64s) -> tuple[Int64s, Int64s]:
    """The distinct keys, ascending, and the index of each key among them.

    The same as ``np.unique`` with ``return_inverse``; dense keys use a table, which is faster than
    sorting.

    Args:
        keys: Non-negative. Shape ``(n,)``.
    """
    found, place = _numbered(keys)
    return found, place.astype(np.int64)


def numbered_pairs(one: _Integers, other: _Integers) -> tuple[tuple[Int64s, Int64s], Int32s]:
    """The distinct pairs of two columns, ascending, and the index of each row's pair among them.

    Args:
        one: Non-negative. Shape ``(n,)``.
        other: Non-negative. Shape ``(n,)``.

    Returns:
        The pairs as two columns, and numbers of shape ``(n,)``.
    """
    (ones, one_of), (others, other_of) = _numbered(one), _numbered(other)
    keys = one_of * np.int64(len(others))
    keys += other_of
    del one_of, other_of
    pairs, place = _numbered(keys)
    return (ones[pairs // len(others)], others[pairs % len(others)]), place


def _numbered(keys: _Integers) -> tuple[Int64s, Int32s]:
    largest = int(keys.max(initial=0))
    if largest > _MAX_SPARSENESS * len(keys) + _SMALL_TABLE:
        found, place = np.unique(keys, return_inverse=True)
        return found.astype(np.int64), place.astype(np.int32)
    is_used = np.zeros(largest + 1, dtype=np.bool_)
    is_used[keys] = True
    number = np.cumsum(is_used, dtype=np.int32)
    number -= 1
    return np.flatnonzero(is_used).astype(np.int64), number[keys]


def numbered_values(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Int64s]:
    """The distinct values of a column, ascending, and the index of each value among them.

    Most columns have whole numbers, such as those of names, which need no sort.

    Args:
        values: Integers, or floats none of which is NaN. Shape ``(k,)``.
    """
    if len(values) and 0 <= values.min() <= values.max() <= _MAX_WHOLE:
        whole = values.astype(np.int64)
        if (whole == values).all():
            return numbered(whole)
    found, place = np.unique(values, return_inverse=True)
    return found, place.astype(np.int64)


def by_number(numbers: _Integers) -> Rows:
    """The order of some numbers, all 0 or more; equal ones stay as they are.

    NumPy uses radix sort for 16 bits.
    """
    short = numbers.astype(np.uint16) if numbers.max(initial=0) <= _MAX_SHORT else numbers
    return np.argsort(short, kind="stable")
