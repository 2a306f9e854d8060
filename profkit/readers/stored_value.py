"""Values with arrays as entries of the cache: dataclasses, tuples, mappings and plain data.

The types of a value's fields say what an entry must have. Which numbers an array may have is for
the caller to check.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args

import msgspec
import numpy as np

from profkit.readers.cache import Entry

_T = TypeVar("_T")
_ARRAY: Final = 1
"""The code of MessagePack extensions that have the name of an array."""


class NotValidError(Exception):
    """What was stored is no such value."""


def entry_of(value: object) -> Entry:
    """A value as an entry of the cache.

    Raises:
        ValueError: A text cannot be encoded, or an array has not one dimension.
        OverflowError: An integer has more than 64 bits.
    """
    arrays: dict[str, Any] = {}

    def stored(array: object) -> msgspec.msgpack.Ext:
        if not isinstance(array, np.ndarray):
            raise TypeError(type(array))
        if array.ndim != 1:
            raise ValueError(array.shape)
        name = str(len(arrays))
        arrays[name] = array
        return msgspec.msgpack.Ext(_ARRAY, name.encode())

    return Entry(msgspec.msgpack.encode(value, enc_hook=stored), arrays)


def value_of(kind: type[_T], entry: Entry) -> _T:
    """The value of an entry, which is input like any other.

    Args:
        kind: Its type.

    Raises:
        NotValidError: It is of another type.
    """

    def array(code: int, name: memoryview) -> Any:  # noqa: ANN401  (numpy's)
        return _array(entry.arrays, code, bytes(name))

    try:
        return msgspec.msgpack.decode(entry.data, type=kind, dec_hook=_checked, ext_hook=array)
    except (msgspec.MsgspecError, ValueError, LookupError, RecursionError) as error:
        raise NotValidError from error


def _array(arrays: Mapping[str, Any], code: int, name: bytes) -> Any:  # noqa: ANN401  (numpy's)
    """An array by name.

    Raises:
        LookupError: There is none.
        ValueError: It is something else.
    """
    if code != _ARRAY:
        raise ValueError(code)
    return arrays[name.decode()]


def _checked(kind: Any, value: object) -> object:  # noqa: ANN401  (a type with arguments)
    """An array of the type that a field has.

    Raises:
        ValueError: It is something else.
    """
    ((wanted,),) = (get_args(each) for each in get_args(kind)[1:])
    if not isinstance(value, np.ndarray) or not np.can_cast(value.dtype, wanted, "safe"):
        raise ValueError(kind)
    return value.astype(wanted, copy=False)
