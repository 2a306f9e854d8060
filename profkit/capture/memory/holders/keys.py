"""Under which key or index a container holds something, without comparing it to anything.

Comparing would call ``__eq__``, which may be the user's, so all goes by identity; and a key is
shown as it is only where its type is Python's own, cut to a few characters.
"""

import functools
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from profkit.capture.memory.holders.attributes import full_name
from profkit.names import middle_cut, visible

MAX_KEY: Final = 40
"""Characters of a key."""

_BIG_INT_BITS: Final = 128
_PLAIN: Final = (bool, float, complex, type(None))
_SEQUENCES: Final = (list, tuple, deque)
_GROWING: Final = (list, dict, set, deque, bytearray)


def key_of(namespace: object, held: object) -> tuple[object] | None:
    """The key under which a dict holds something, in a tuple, or None where it is no value.

    Args:
        namespace: A dict, of any subclass.
        held: What it holds.
    """
    if not issubclass(type(namespace), dict):
        return None
    entries: Iterable[tuple[object, object]] = dict.items(namespace)  # type: ignore[arg-type]
    try:
        return next(((key,) for key, value in entries if value is held), None)
    except RuntimeError:  # Another thread has changed it meanwhile.
        return None


def index_of(sequence: object, held: object) -> int | None:
    """At which index a list, tuple or deque holds something, or None.

    Args:
        sequence: Any object.
        held: What it may hold.
    """
    for kind in _SEQUENCES:
        if issubclass(type(sequence), kind):
            elements: Iterable[Any] = kind.__iter__(sequence)  # type: ignore[arg-type]
            return _place(elements, held)
    return None


def array_index_of(array: Any, held: object) -> tuple[int, ...] | None:  # noqa: ANN401
    """At which index an array of objects holds something, a number a dimension, or None.

    Args:
        array: Any object.
        held: What it may hold.
    """
    if full_name(type(array)) != "numpy.ndarray" or not array.dtype.hasobject:
        return None
    level: list[tuple[tuple[int, ...], Any]] = [((), array.tolist())]
    for _ in range(array.ndim):
        level = [((*place, n), inner) for place, row in level for n, inner in enumerate(row)]
    return next((place for place, element in level if element is held), None)


def base_of_array(array: Any) -> object:  # noqa: ANN401
    """What an array looks into, such as another array or a tensor, or None.

    Args:
        array: Any object.
    """
    return array.base if full_name(type(array)) == "numpy.ndarray" else None


def subscript(key: object) -> str:
    """How a key reads: ``['k']``, ``[3]``, ``[(0, 'a')]``, ``[<Parameter>]``.

    Args:
        key: Any object.
    """
    return f"[{key_text(key)}]"


def key_text(key: object, depth: int = 2) -> str:
    """A key as its literal where its type is Python's own, else its type's name.

    Args:
        key: Any object.
        depth: How deep a tuple is shown.
    """
    kind = type(key)
    if kind is str or kind is bytes:
        start = key[: MAX_KEY + 1]  # type: ignore[index]
        return middle_cut(visible(repr(start)), MAX_KEY)
    if kind is int:
        return repr(key) if key.bit_length() <= _BIG_INT_BITS else "<int>"  # type: ignore[attr-defined]
    if any(kind is one for one in _PLAIN):
        return repr(key)
    if kind is tuple and depth:
        shown = [key_text(one, depth - 1) for one in key[:4]]  # type: ignore[index]
        more = ["…"] if len(key) > len(shown) else []  # type: ignore[arg-type]
        return f"({', '.join([*shown, *more])}{',' if len(shown) == 1 and not more else ''})"
    return f"<{visible(full_name(kind))}>"


def size_of(thing: object) -> int | None:
    """How many entries something has that can grow by them, or None for anything else.

    Args:
        thing: Any object.
    """
    if type(thing) is functools._lru_cache_wrapper:  # noqa: SLF001
        return thing.cache_info().currsize
    for kind in _GROWING:
        if issubclass(type(thing), kind):
            return kind.__len__(thing)  # type: ignore[arg-type]
    return None


def can_grow(kind: type) -> bool:
    """Whether things of a type have entries that they can grow by.

    Args:
        kind: Any type.
    """
    return issubclass(kind, (*_GROWING, functools._lru_cache_wrapper))  # noqa: SLF001


def _place(elements: Iterable[Any], held: object) -> int | None:
    try:
        ids = list(map(id, elements))
    except RuntimeError:  # Another thread has changed it meanwhile.
        return None
    return ids.index(id(held)) if id(held) in ids else None
