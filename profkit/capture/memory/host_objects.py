"""Host memory that no tensor owns: texts, bytes, arrays, and the containers that hold them.

Sizes are shallow, as ``sys.getsizeof`` gives them, and asked of Python's own types alone: a class
of the program's may have a ``__sizeof__`` of its own, and is measured as the type that it extends.
"""

import array
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, filterfalse, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from profkit.capture.memory.attributes import full_name, module_of, mro_of, type_name
from profkit.capture.memory.heap import (
    array_contents,
    contents_of,
    instances,
    unlisted,
    variables,
)
from profkit.capture.memory.keys import can_grow, size_of
from profkit.capture.memory.unreachable import quiet_collector

MIN_ENTRIES: Final = 8
"""Entries from which a container is worth following: most of a program's have fewer for ever."""

WITHIN_LIMIT: Final = 200_000
"""Objects within a container that are measured: a tenth of a second."""

_LEAF_TYPES: Final = (bytes, bytearray, str, array.array, np.ndarray)
_LEAVES: Final = {id(kind): n for n, kind in enumerate(_LEAF_TYPES)}
"""What the collector does not list, and programs fill memory with; types go by their ids, as a
type's own hash may be a metaclass's of the program."""

_NOT_WITHIN: Final = ("module", "type", "function", "builtin_function_or_method", "code", "frame")
"""What a container shares with the rest of the program, and does not keep."""

_UNLISTED: Final = frozenset({id(dict), id(tuple), id(np.ndarray)})
"""Containers that the collector may leave out of its lists."""

_BATCH: Final = 4096
"""Objects whose references are taken at once."""

_FLAGS: Final = type.__dict__["__flags__"]
_HEAP_TYPE: Final = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: made at run time."""

_Numbers = npt.NDArray[np.int64]


class Held(NamedTuple):
    """A container that may grow.

    Attributes:
        thing: The container.
        type: Its type's name.
        length: Its entries.
        bytes: Its own bytes, without its contents.
    """

    thing: object
    type: str
    length: int
    bytes: int


def by_type() -> dict[str, tuple[int, int]]:
    """All objects of the program, by the name of their type: how many, and their bytes.

    Returns:
        Number and bytes. Numbers are left out, and so is what a tensor or a file owns and an
        array only looks into.
    """
    with quiet_collector():
        objects = gc.get_objects()
        sizes = _Sizes()
        sizes.add(objects)
        within = _Within()
        within.go_through(objects)
        sizes.add([one for one in within.unlisted if type(one) is not np.ndarray])
        # The list of all objects lists the cell that it is in: a cycle, until it is empty.
        objects.clear()
        return sizes.by_name() | _leaves_by_name(within.leaves)


def containers(min_entries: int = MIN_ENTRIES) -> Iterator[Held]:
    """The lists, dicts, sets and the like that have some entries.

    Args:
        min_entries: Entries from which a container is given.
    """
    objects = gc.get_objects()
    yield from _worth_following(objects, min_entries)
    yield from _worth_following([one.thing for one in unlisted(objects)], min_entries)


def bytes_within(container: object, limit: int = WITHIN_LIMIT) -> int:
    """Bytes of a container and of all that is within it, each object once, without tensors.

    Args:
        container: The container.
        limit: Objects after which measuring stops.
    """
    total = 0
    seen = {id(container)}
    pending = [container]
    while pending and len(seen) < limit:
        thing = pending.pop()
        total += _size(thing)
        for one in contents_of(thing):
            if id(one) not in seen and _is_within(one):
                seen.add(id(one))
                pending.append(one)
    return total


class _Within:
    """What is in none of the collector's lists, and is found from what refers to it.

    Attributes:
        leaves: Ids, sizes and types of texts, bytes and arrays; some of them several times.
        unlisted: Containers, each once.
    """

    def __init__(self) -> None:
        self.leaves: list[_Numbers] = []
        self.unlisted: list[object] = []
        self._seen: set[int] = set()
        self._kinds = _LEAVES.keys() | {id(dict), id(tuple)}

    def go_through(self, objects: Sequence[object]) -> None:
        """Look at what some objects and the variables of running functions refer to.

        Args:
            objects: The objects that the collector lists.
        """
        self._keys_of(instances(objects, {id(dict)}), MIN_ENTRIES)
        level = self._new(variables())
        level += self._held_by(objects)
        while level:
            self.unlisted += level
            dicts = instances(level, {id(dict)})
            self._keys_of(dicts)
            arrays = instances(level, {id(np.ndarray)})
            inner = [one for array in arrays for one in array_contents(array)]
            level = self._new(inner) + self._held_by(level)

    def _held_by(self, things: Sequence[object]) -> list[object]:
        places = range(0, len(things), _BATCH)
        return [
            one
            for start in places
            for one in self._new(gc.get_referents(*things[start : start + _BATCH]))
        ]

    def _new(self, held: list[object]) -> list[object]:
        """The containers among some objects that were not seen yet; their leaves are noted."""
        found = instances(held, self._kinds)
        self.leaves.append(_leaves_in(found))
        new = []
        for one in filterfalse(gc.is_tracked, instances(found, _UNLISTED)):
            if id(one) not in self._seen:
                self._seen.add(id(one))
                new.append(one)
        return new

    def _keys_of(self, dicts: list[Any], min_entries: int = 0) -> None:
        """Note the keys of dicts: the collector leaves out those that are texts."""
        large = (one for one in dicts if len(one) >= min_entries)
        self.leaves.append(_leaves_in(list(chain.from_iterable(map(list, large)))))


class _Sizes:
    """Number and bytes of objects by their type."""

    def __init__(self) -> None:
        self._kinds: dict[int, type] = {}
        self._n: dict[int, int] = {}
        self._bytes: dict[int, int] = {}

    def add(self, things: Sequence[object]) -> None:
        """Count some objects: those of one type at once, so that C does what there is most of."""
        by_type = np.fromiter(map(id, map(type, things)), np.int64, len(things))
        order = np.argsort(by_type, kind="stable")
        starts = np.flatnonzero(np.diff(by_type[order], prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(things)]):
            alike = list(map(things.__getitem__, order[start:end].tolist()))
            kind = type(alike[0])
            self._kinds[id(kind)] = kind
            self._n[id(kind)] = self._n.get(id(kind), 0) + len(alike)
            n_bytes = sum(map(_measure_of(kind), alike))
            self._bytes[id(kind)] = self._bytes.get(id(kind), 0) + n_bytes

    def by_name(self) -> dict[str, tuple[int, int]]:
        """Number and bytes by the type's name; classes of one name together."""
        totals: dict[str, tuple[int, int]] = {}
        for kind, n in self._n.items():
            # The same text each time: who keeps these figures keeps no new names with them.
            name = sys.intern(full_name(self._kinds[kind]))
            before = totals.get(name, (0, 0))
            totals[name] = (before[0] + n, before[1] + self._bytes[kind])
        return totals


def _measure_of(kind: type) -> Callable[[Any], int]:
    """How instances of a type are measured: as the first type of Python's own that they extend."""
    own = next(cls for cls in mro_of(kind) if _is_pythons_own(cls))
    if own is kind:
        return sys.getsizeof
    return vars(own).get("__sizeof__", object.__sizeof__)


def _is_pythons_own(cls: type) -> bool:
    """Whether a class was not made by a class statement of the program or of a library."""
    if not _FLAGS.__get__(cls) & _HEAP_TYPE:
        return True
    top = module_of(cls).partition(".")[0]
    return top in sys.stdlib_module_names and top != "__main__"


def _size(thing: object) -> int:
    """Bytes of an object; of an array with its data, unless they belong to something else."""
    return _measure_of(type(thing))(thing)


def _leaves_in(held: list[object]) -> _Numbers:
    """Of what is in none of the collector's lists: ids, sizes, and which type it is."""
    found = instances(held, _LEAVES.keys())
    columns = (
        map(id, found),
        map(sys.getsizeof, found),
        map(_LEAVES.get, map(id, map(type, found))),
    )
    return np.array([np.fromiter(column, np.int64, len(found)) for column in columns])


def _leaves_by_name(noted: list[_Numbers]) -> dict[str, tuple[int, int]]:
    """Number and bytes by type, each object once, however many refer to it."""
    columns = np.concatenate(noted, axis=1)
    _, first = np.unique(columns[0], return_index=True)
    _, sizes, kinds = columns[:, first]
    return {
        full_name(kind): (int((kinds == place).sum()), int(sizes[kinds == place].sum()))
        for place, kind in enumerate(_LEAF_TYPES)
    }


def _worth_following(things: Sequence[object], min_entries: int) -> Iterator[Held]:
    kinds = {id(kind): kind for kind in map(type, things)}
    growing = {identity for identity, kind in kinds.items() if can_grow(kind)}
    for thing in instances(things, growing):
        length = size_of(thing)
        if length is not None and length >= min_entries:
            # The same text each time: thousands of names would be new texts of the program's.
            yield Held(thing, sys.intern(full_name(type(thing))), length, _size(thing))


def _is_within(thing: object) -> bool:
    kind = type(thing)
    return type_name(kind) not in _NOT_WITHIN and not issubclass(kind, type)
