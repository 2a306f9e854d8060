"""Converts values with arrays to entries of the cache: dataclasses, tuples, mappings, plain data.

The types of a value's fields decide which entries are valid. The caller checks the numbers in the
arrays.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from profkit.model.events import dtype_of
from profkit.readers.cache import Cache, Entry, Key

_T = TypeVar("_T")
_ARRAY: Final = 1
"""The code of MessagePack extensions that have the name of an array."""


class NotValidError(Exception):
    """The entry of the cache is not a value of this type."""


def entry_of(value: object) -> Entry:
    """Convert a value to an entry of the cache.

    Raises:
        ValueError: A text cannot be encoded, or an array does not have one dimension.
        OverflowError: An integer has more than 64 bits.
    """
    arrays: dict[str, Any] = {}

    # Called for values that msgspec does not encode itself.
    def name_array(array: object) -> msgspec.msgpack.Ext:
        if not isinstance(array, np.ndarray):
            raise TypeError(type(array))
        if array.ndim != 1:
            raise ValueError(array.shape)
        name = str(len(arrays))
        arrays[name] = array
        return msgspec.msgpack.Ext(_ARRAY, name.encode())

    return Entry(msgspec.msgpack.encode(value, enc_hook=name_array), arrays)


def find_valid(cache: Cache, key: Key, decode: Callable[[Entry], _T]) -> _T | None:
    """Return the decoded entry of a key, or None; an entry that is not valid is removed.

    Args:
        decode: Converts an entry; it may raise :class:`NotValidError`.
    """
    entry = cache.find(key)
    if entry is None:
        return None
    try:
        return decode(entry)
    except NotValidError:
        cache.remove(key)
        return None


def value_of(kind: type[_T], entry: Entry, holds: Callable[[_T], bool]) -> _T:
    """Convert an entry to a value. It is input like any other, so its types are checked.

    Args:
        kind: The type of the value.
        entry: The entry.
        holds: Whether a value of the type is valid.

    Raises:
        NotValidError: The value is of another type, or not valid.
    """

    def get_array(code: int, name: memoryview) -> Any:  # noqa: ANN401  (numpy's)
        if code != _ARRAY:
            raise ValueError(code)
        return entry.arrays[bytes(name).decode()]

    try:
        value = msgspec.msgpack.decode(entry.data, type=kind, dec_hook=_check, ext_hook=get_array)
    except (msgspec.MsgspecError, ValueError, LookupError, RecursionError) as error:
        raise NotValidError from error
    if not holds(value):
        raise NotValidError
    return value


def _check(kind: Any, value: object) -> object:  # noqa: ANN401  (a type with arguments)
    """Return an array with the type of its field: ``NDArray[np.int32]`` as ``int32``.

    Raises:
        ValueError: The value is not an array, or has another type.
    """
    dtype = dtype_of(kind)
    if not isinstance(value, np.ndarray) or not np.can_cast(value.dtype, dtype, "safe"):
        raise ValueError(kind)
    return value.astype(dtype, copy=False)
