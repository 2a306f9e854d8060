"""The containers that Python's collector does not list.

A dict or tuple whose contents could be part of no cycle, such as a dict from names to arrays, is
not tracked. An array never is, though it may hold objects, or look into a tensor's memory and so
keep the tensor. Each is found from what refers to it.
"""

import gc
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, compress
from typing import Any, Final, NamedTuple

from profkit.capture.memory.holders.frames import locals_of, running

BATCH: Final = 512
"""Objects whose references are taken at once."""

_UNLISTED: Final = frozenset({id(dict), id(tuple)})
"""Ids of types: a type's own hash may be a metaclass's of the program."""


class Container(NamedTuple):
    """A container that the collector does not list.

    Attributes:
        thing: The container.
        contents: What it holds; of a dict its keys too, of an array its base and its elements.
    """

    thing: object
    contents: list[object]


def variables() -> list[object]:
    """What the local variables of all functions that run are: the collector does not see them."""
    return [value for frame in running() for value in locals_of(frame).values()]


def contents_of(thing: object) -> list[object]:
    """What an object refers to, with the keys of a dict that the collector leaves out.

    Args:
        thing: Any object.
    """
    held = gc.get_referents(thing)
    return [*held, *list(thing)] if type(thing) is dict else held


def array_contents(array: Any) -> list[object]:  # noqa: ANN401
    """What an array looks into, such as a tensor, and the objects that it holds.

    Args:
        array: One of NumPy's.
    """
    base = [] if array.base is None else [array.base]
    return base + array.ravel(order="K").tolist() if array.dtype.kind == "O" else base


def referrers_of(things: Iterable[object]) -> list[object]:
    """What refers to any of some objects, as far as the collector sees it.

    Since Python 3.13 the collector leaves out the tuple that it makes of its arguments, and no
    longer the one that they come in.

    Args:
        things: The objects, given one by one: a list of them would be a referrer too.
    """
    asked = tuple(things)
    return [one for one in gc.get_referrers(*asked) if one is not asked]


def tensor_types() -> set[int]:
    """Ids of the types that are tensors: the user's classes come and go, and may have a hash."""
    import torch

    found: set[int] = set()
    pending: list[type] = [torch.Tensor]
    while pending:
        one = pending.pop()
        found.add(id(one))
        pending.extend(type.__subclasses__(one))
    return found


def instances(objects: Sequence[object], types: Collection[int]) -> list[Any]:
    """Those of some objects that are of given types: by C alone, a tenth of a second for a million.

    Args:
        types: Ids of the types.
    """
    return list(compress(objects, map(types.__contains__, map(id, map(type, objects)))))


def unlisted(objects: Sequence[object], skip: Collection[int] = ()) -> Iterator[Container]:
    """The containers that the collector does not list, each once.

    Those that some objects or the variables of running functions refer to.

    Args:
        objects: The objects, such as all that the collector lists.
        skip: Ids of containers to leave out.
    """
    kinds = {*_UNLISTED, *map(id, _array_type())}
    seen = set(skip)
    batches = (objects[start : start + BATCH] for start in range(0, len(objects), BATCH))
    for held in chain([variables()], (gc.get_referents(*batch) for batch in batches)):
        pending = instances(held, kinds)
        while pending:
            thing = pending.pop()
            if gc.is_tracked(thing) or id(thing) in seen:
                continue
            seen.add(id(thing))
            contents = _contents(thing)
            yield Container(thing, contents)
            pending.extend(one for one in contents if id(type(one)) in kinds)


def _array_type() -> tuple[type, ...]:
    """NumPy's array, where the program has loaded it."""
    loaded: Any = sys.modules.get("numpy")
    found = None if loaded is None else vars(loaded).get("ndarray")
    return (found,) if isinstance(found, type) else ()


def _contents(container: Any) -> list[object]:  # noqa: ANN401
    return contents_of(container) if id(type(container)) in _UNLISTED else array_contents(container)
