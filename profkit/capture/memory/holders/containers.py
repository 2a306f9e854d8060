"""Keys, indices and lengths of containers, read without running user code.

A comparison would call ``__eq__``, which may be user code, so objects are matched by identity. A
key is shown as its literal only if its type is built in, cut to a few characters.
"""

import functools
import queue
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from profkit.capture.memory.holders.attributes import full_name
from profkit.capture.process.objects import is_exactly
from profkit.names import middle_cut, visible

MAX_KEY: Final = 40
"""Characters of a key."""

_BIG_INT_BITS: Final = 128
"""A larger integer is not shown: ``repr`` takes quadratic time, and refuses 4,300 digits."""
_PLAIN: Final = (bool, float, complex, type(None))
_SEQUENCES: Final = (list, tuple, deque)
_GROWING: Final = (list, dict, set, deque, bytearray)


def find_key(namespace: object, held: object) -> tuple[object] | None:
    """Find the key under which a dict or subclass holds an object, as a 1-tuple, or None."""
    if not issubclass(type(namespace), dict):
        return None
    entries: Iterable[tuple[object, object]] = dict.items(namespace)  # type: ignore[arg-type]
    try:
        return next(((key,) for key, value in entries if value is held), None)
    except RuntimeError:  # another thread changed it meanwhile
        return None


def find_index(sequence: object, held: object) -> int | None:
    """Find the index at which a list, tuple or deque holds an object, or None."""
    for kind in _SEQUENCES:
        if issubclass(type(sequence), kind):
            elements: Iterable[Any] = kind.__iter__(sequence)  # type: ignore[arg-type]
            try:
                ids = list(map(id, elements))
            except RuntimeError:  # another thread changed it meanwhile
                return None
            return ids.index(id(held)) if id(held) in ids else None
    return None


def find_array_index(array: Any, held: object) -> tuple[int, ...] | None:  # noqa: ANN401
    """Find the index, a number per dimension, at which an object array holds an object, or None."""
    if type(array) is not np.ndarray or not array.dtype.hasobject:
        return None
    level: list[tuple[tuple[int, ...], Any]] = [((), array.tolist())]
    for _ in range(array.ndim):
        level = [((*index, n), inner) for index, row in level for n, inner in enumerate(row)]
    return next((index for index, element in level if element is held), None)


def subscript(key: object) -> str:
    """Return a key as a subscript: ``['k']``, ``[3]``, ``[(0, 'a')]``, ``[<Parameter>]``."""
    return f"[{_render_key(key)}]"


def _render_key(key: object, depth: int = 2) -> str:
    """Return a key of a built-in type as its literal, any other as its type's name."""
    kind = type(key)
    if kind is str or kind is bytes:
        # Cut before ``repr``, which would copy a key of any length.
        start = key[: MAX_KEY + 1]  # type: ignore[index]
        return middle_cut(visible(repr(start)), MAX_KEY)

    if kind is int:
        return repr(key) if key.bit_length() <= _BIG_INT_BITS else "<int>"  # type: ignore[attr-defined]

    if is_exactly(key, *_PLAIN):
        return repr(key)

    if kind is tuple and depth:
        shown = [_render_key(item, depth - 1) for item in key[:4]]  # type: ignore[index]
        more = ["…"] if len(key) > len(shown) else []  # type: ignore[arg-type]
        return f"({', '.join([*shown, *more])}{',' if len(shown) == 1 and not more else ''})"

    return f"<{visible(full_name(kind))}>"


def length_of(thing: object) -> int | None:
    """Return the number of entries of a container that can grow, or None for anything else."""
    if type(thing) is functools._lru_cache_wrapper:  # noqa: SLF001
        return thing.cache_info().currsize
    if type(thing) is queue.SimpleQueue:
        return thing.qsize()
    for kind in _GROWING:
        if issubclass(type(thing), kind):
            return kind.__len__(thing)  # type: ignore[arg-type]
    return None


def limit_of(thing: object) -> int | None:
    """Return how many entries a container takes before it drops old ones, or None without limit."""
    if type(thing) is functools._lru_cache_wrapper:  # noqa: SLF001
        return thing.cache_info().maxsize
    return deque.maxlen.__get__(thing) if issubclass(type(thing), deque) else None


def growing_types() -> tuple[type, ...]:
    """Return the types, with all their subclasses, of containers that can grow."""
    return (*_GROWING, functools._lru_cache_wrapper)  # noqa: SLF001


def can_grow(kind: type) -> bool:
    """Tell whether instances of a type are containers that can grow."""
    return issubclass(kind, growing_types())
