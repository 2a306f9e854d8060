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
    """Return numbers or moments, ascending and without repetitions.

    ``np.unique`` without indices imports ``numpy.ma``, which takes a small file's analysis 10 ms.
    """
    ordered = np.sort(numbers, axis=None, kind="stable")
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[is_first])


def common(first: _Integers, second: _Integers) -> Int64s:
    """Return the numbers or moments that are among both, ascending and without repetitions."""
    shared = np.intersect1d(distinct(first), distinct(second), assume_unique=True)
    return shared.astype(np.int64, copy=False)


def united(first: _Integers, second: _Integers) -> Rows:
    """Return the rows that are among either, ascending and without repetitions."""
    return distinct(np.concatenate((first, second))).astype(np.intp, copy=False)


def are_among(numbers: _Integers, members: _Integers) -> Mask:
    """Return which numbers or moments are among some members. Shape of ``numbers``.

    ``np.isin`` without its table imports ``numpy.ma`` too.
    """
    ordered = distinct(members)
    if not len(ordered):
        return np.zeros(len(numbers), dtype=np.bool_)
    # Numbers above all members compare with the first one, which they do not equal.
    place = np.searchsorted(ordered, numbers)
    place[place == len(ordered)] = 0
    return np.asarray(ordered[place] == numbers)


def marked(rows: _Integers, n: int) -> Mask:
    """Mark some of ``n`` rows. Shape ``(n + 1,)``, with the last entry for ``NO_ROW``."""
    mask = np.zeros(n + 1, dtype=np.bool_)
    mask[rows] = True
    mask[n] = False
    return mask


def used(numbers: _Integers) -> Rows:
    """Return the small numbers, all 0 or more, that occur, ascending: lanes, names, rows."""
    return np.flatnonzero(marked(numbers, int(numbers.max(initial=-1)) + 1))


def numbered(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct keys, ascending, and the index of each key among them.

    Equals ``np.unique`` with ``return_inverse``, but dense keys use a table, which is faster.

    Args:
        keys: Non-negative. Shape ``(n,)``.
    """
    distinct_keys, place = _number_keys(keys)
    return distinct_keys, place.astype(np.int64)


def numbered_pairs(first: _Integers, second: _Integers) -> tuple[tuple[Int64s, Int64s], Int32s]:
    """Return the distinct pairs of two columns, ascending, and the index of each row's pair.

    Args:
        first: Non-negative. Shape ``(n,)``.
        second: Non-negative. Shape ``(n,)``.

    Returns:
        The pairs as two columns, and numbers of shape ``(n,)``.
    """
    (firsts, first_of), (seconds, second_of) = _number_keys(first), _number_keys(second)

    # A pair is one number, computed in place: columns of a large trace are large.
    keys = first_of * np.int64(len(seconds))
    keys += second_of
    del first_of, second_of

    pairs, place = _number_keys(keys)
    return (firsts[pairs // len(seconds)], seconds[pairs % len(seconds)]), place


def _number_keys(keys: _Integers) -> tuple[Int64s, Int32s]:
    # A table of sparse keys would take more memory than a sort.
    largest = int(keys.max(initial=0))
    if largest > _MAX_SPARSENESS * len(keys) + _SMALL_TABLE:
        distinct_keys, place = np.unique(keys, return_inverse=True)
        return distinct_keys.astype(np.int64), place.astype(np.int32)

    is_used = np.zeros(largest + 1, dtype=np.bool_)
    is_used[keys] = True

    # The number of a key is the number of used keys below it.
    number = np.cumsum(is_used, dtype=np.int32)
    number -= 1
    return np.flatnonzero(is_used).astype(np.int64), number[keys]


def numbered_values(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Int64s]:
    """Return the distinct values of a column, ascending, and the index of each value among them.

    Most columns have whole numbers, such as numbers of names, which need no sort.

    Args:
        values: Integers, or floats none of which is NaN. Shape ``(k,)``.
    """
    if len(values) and 0 <= values.min() <= values.max() <= _MAX_WHOLE:
        whole = values.astype(np.int64)
        if (whole == values).all():
            return numbered(whole)
    distinct_values, place = np.unique(values, return_inverse=True)
    return distinct_values, place.astype(np.int64)


def by_number(numbers: _Integers) -> Rows:
    """Return the order of some numbers, all 0 or more. Equal numbers keep their order.

    NumPy uses radix sort for 16 bits.
    """
    short = numbers.astype(np.uint16) if numbers.max(initial=0) <= _MAX_SHORT else numbers
    return np.argsort(short, kind="stable")
