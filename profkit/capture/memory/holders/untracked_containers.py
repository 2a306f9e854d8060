"""Containers that Python's garbage collector does not track.

A dict or tuple whose contents cannot be part of a cycle, such as a dict from names to arrays, is
not tracked. An array never is, although it may hold objects, or be a view of a tensor's memory and
so keep the tensor alive. Each is found through the objects that refer to it.
"""

import gc
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, filterfalse
from typing import Any, Final

import numpy as np

from profkit.capture.process.frames import local_values
from profkit.capture.process.objects import instances, referents, type_ids, types_of
from profkit.capture.process.torch_features import tensors_refer_to_class

BATCH: Final = 512
"""Objects whose referents are fetched at once."""

_UNTRACKED: Final = frozenset(map(id, (dict, tuple, np.ndarray)))
"""Ids of types: hashing a type may call a metaclass of the program."""


def contents_of(thing: object) -> list[object]:
    """Return what an object refers to, including dict keys, which ``gc.get_referents`` may omit."""
    held = referents(thing)
    return [*held, *list(thing)] if type(thing) is dict else held


def array_contents(array: Any) -> list[object]:  # noqa: ANN401
    """Return the base of a NumPy array, such as a tensor, and the elements of an object array."""
    base = [] if array.base is None else [array.base]
    return base + array.ravel(order="K").tolist() if array.dtype.kind == "O" else base


def referrers_of(things: Iterable[object]) -> list[object]:
    """Return the tracked objects that refer to any of some objects.

    Since Python 3.13 ``gc.get_referrers`` omits the tuple that it builds of its arguments, but no
    longer the one that they are passed in.

    Args:
        things: An iterator: a list of them would itself be a referrer.
    """
    targets = tuple(things)
    return [thing for thing in gc.get_referrers(*targets) if thing is not targets]


def tensor_types() -> set[int]:
    """Return the ids of ``torch.Tensor`` and all its subclasses at this moment."""
    import torch

    return type_ids(torch.Tensor)


def live_tensors() -> list[Any]:
    """Return all tensors that the garbage collector tracks.

    An object of a class that Python code defines refers to its class. So one pass in C finds all
    tensors, in half the time of a list of all objects: 25 ns for each object instead of 60 to 100.
    """
    import torch

    types = types_of(torch.Tensor)
    objects = gc.get_referrers(*types) if tensors_refer_to_class() else gc.get_objects()
    return instances(objects, set(map(id, types)))


def find_untracked(
    objects: Sequence[object], skip: Collection[int], wanted: AbstractSet[int] | None = None
) -> Iterator[tuple[object, list[object]]]:
    """Find the untracked containers that some objects or local variables refer to, each once.

    Args:
        objects: Usually all that the collector tracks.
        skip: Ids of containers to leave out.
        wanted: Ids of objects of which a container must have one; None for all containers.

    Returns:
        Each container with its values; of a dict also the keys, of an array its base and elements.
    """
    seen = set(skip)
    batches = (objects[start : start + BATCH] for start in range(0, len(objects), BATCH))

    for held in chain([local_values()], (referents(*batch) for batch in batches)):
        level: Sequence[object] = held
        # Level by level: one search in C for the contents of a whole batch.
        while pending := list(filterfalse(gc.is_tracked, instances(level, _UNTRACKED))):
            new = {id(thing): thing for thing in pending if id(thing) not in seen}
            seen.update(new)

            contents = [
                array_contents(thing) if type(thing) is np.ndarray else contents_of(thing)
                for thing in new.values()
            ]
            level = list(chain.from_iterable(contents))

            # Hardly any has a wanted one, which is seen in C without a set for each of them.
            if wanted is None or not wanted.isdisjoint(map(id, level)):
                yield from (
                    (thing, held)
                    for thing, held in zip(new.values(), contents, strict=True)
                    if wanted is None or not wanted.isdisjoint(map(id, held))
                )
