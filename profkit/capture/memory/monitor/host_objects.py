"""Host memory that no tensor owns: texts, bytes, arrays, and the containers that hold them.

Sizes are shallow, as ``sys.getsizeof`` gives them, and asked of Python's own types alone: a class
of the program's may have a ``__sizeof__`` of its own, and is measured as the type that it extends.
"""

import array
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, filterfalse, pairwise, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from profkit.capture.memory.holders.attributes import full_name, module_of, mro_of, type_name
from profkit.capture.memory.holders.keys import can_grow, size_of
from profkit.capture.memory.holders.unreachable import quiet_collector
from profkit.capture.memory.holders.untracked_containers import (
    array_contents,
    contents_of,
    instances,
    variables,
)

MIN_ENTRIES: Final = 8
"""Entries from which a container is worth following: most of a program's have fewer for ever."""

WITHIN_LIMIT: Final = 200_000
"""Objects within a container that are measured: a tenth of a second."""

_LEAF_TYPES: Final = (bytes, bytearray, str, array.array, np.ndarray)
"""What the collector does not list, and programs fill memory with."""

_KINDS: Final = {id(kind): n for n, kind in enumerate((*_LEAF_TYPES, dict, tuple))}
"""What is looked for beyond the collector's lists, leaves first; types go by their ids, as a type's
own hash may be a metaclass's of the program."""
_ARRAY: Final = _KINDS[id(np.ndarray)]
"""From here on they may hold more."""

_NOT_WITHIN: Final = ("module", "type", "function", "builtin_function_or_method", "code", "frame")
"""What a container shares with the rest of the program, and does not keep."""

_CODE: Final = tuple(
    map(
        id,
        (
            types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
            types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
            type,
        ),
    )
)  # fmt: skip
"""Code and its names, a third of all references. What a function or a class keeps stands in a dict
or tuple that the collector lists, as that one refers to something that it lists in turn."""

_OWN_LENGTH: Final = frozenset(map(id, (list, dict, set, deque, bytearray)))
"""Types whose length runs no code of the program's."""

_BATCH: Final = 8192
"""Objects whose references are taken at once."""

_FLAGS: Final = type.__dict__["__flags__"]
_ITEM_SIZE: Final = type.__dict__["__itemsize__"]
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


class HostObjectScan(NamedTuple):
    """What the program's objects are at one moment.

    Attributes:
        by_type: Number and bytes of all objects by the name of their type. Numbers are left out,
            the names in code, and what a tensor or a file owns and an array only looks into.
        containers: The lists, dicts, sets and the like that have some entries.
    """

    by_type: dict[str, tuple[int, int]]
    containers: list[Held]


def survey(min_entries: int = MIN_ENTRIES) -> HostObjectScan:
    """Go through all objects once, which takes about a microsecond for each of them.

    Args:
        min_entries: Entries from which a container is given.
    """
    with quiet_collector():
        objects = gc.get_objects()
        sizes = _Sizes()
        listed = list(_alike(objects))
        found = list(_worth_following(listed, min_entries))
        sizes.add(listed)
        within = _Within()
        within.go_through(listed)
        beyond = list(_alike(within.unlisted))
        found += _worth_following(beyond, min_entries)
        sizes.add([one for one in beyond if one.kind is not np.ndarray])
        # The list of all objects lists the cell that it is in: a cycle, until it is empty.
        objects.clear()
        by_type = sizes.by_name()
        for name, (n, n_bytes) in _leaves_by_name(within.leaves).items():
            # Python 3.10 began to list arrays of its own kind.
            listed_n, listed_bytes = by_type.get(name, (0, 0))
            by_type[name] = n + listed_n, n_bytes + listed_bytes
        return HostObjectScan(by_type, found)


def bytes_within(container: object, limit: int = WITHIN_LIMIT) -> int:
    """Bytes of a container and of all that is within it, each object once, without tensors.

    Args:
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


class _Alike(NamedTuple):
    """Objects of one type."""

    kind: type
    things: list[Any]


def _alike(things: Sequence[object]) -> Iterator[_Alike]:
    """Objects by their type, so that C does what there is most of."""
    by_type = np.fromiter(map(id, map(type, things)), np.int64, len(things))
    order = np.argsort(by_type, kind="stable")
    starts = np.flatnonzero(np.diff(by_type[order], prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(things)]):
        alike = list(map(things.__getitem__, order[start:end].tolist()))
        yield _Alike(type(alike[0]), alike)


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

    def go_through(self, listed: Sequence[_Alike]) -> None:
        """Look at what some objects and the variables of running functions refer to.

        Args:
            listed: The objects that the collector lists.
        """
        for alike in listed:
            if alike.kind is dict:
                self._keys_of(alike.things, MIN_ENTRIES)
        level = self._new(variables())
        level += self._held_by([alike.things for alike in listed if id(alike.kind) not in _CODE])
        while level:
            self.unlisted += level
            self._keys_of(instances(level, {id(dict)}))
            arrays = instances(level, {id(np.ndarray)})
            inner = [one for array in arrays for one in array_contents(array)]
            level = self._new(inner) + self._held_by([level])

    def _held_by(self, things: Sequence[Sequence[object]]) -> list[object]:
        every = list(chain.from_iterable(things))
        places = range(0, len(every), _BATCH)
        return [
            one
            for start in places
            for one in self._new(gc.get_referents(*every[start : start + _BATCH]))
        ]

    def _new(self, held: list[object]) -> list[object]:
        """The containers among some objects that were not seen yet; their leaves are noted."""
        found, which = self._noted(held)
        new = []
        for one in compress(found, (which >= _ARRAY).tolist()):
            if id(one) not in self._seen:
                self._seen.add(id(one))
                new.append(one)
        return new

    def _noted(self, held: list[object]) -> tuple[list[object], _Numbers]:
        """Note the leaves among some objects; those not listed, and what each is."""
        found = _each_once(list(filterfalse(gc.is_tracked, held)))
        kinds = map(_KINDS.get, map(id, map(type, found)), repeat(-1))
        which = np.fromiter(kinds, np.int64, len(found))
        is_leaf = (which >= 0) & (which < len(_LEAF_TYPES))
        leaves = list(compress(found, is_leaf.tolist()))
        columns = (map(id, leaves), map(sys.getsizeof, leaves))
        sized = [np.fromiter(column, np.int64, len(leaves)) for column in columns]
        self.leaves.append(np.array([*sized, which[is_leaf]]))
        return found, which

    def _keys_of(self, dicts: list[Any], min_entries: int = 0) -> None:
        """Note the keys of dicts: the collector leaves out those that are texts."""
        large = [one for one, n in zip(dicts, map(len, dicts), strict=True) if n >= min_entries]
        self._noted(list(chain.from_iterable(map(list, large))))


def _each_once(things: list[object]) -> list[object]:
    ids = np.fromiter(map(id, things), np.int64, len(things))
    _, first = np.unique(ids, return_index=True)
    return list(map(things.__getitem__, first.tolist()))


class _Sizes:
    """Number and bytes of objects by their type."""

    def __init__(self) -> None:
        self._kinds: dict[int, type] = {}
        self._n: dict[int, int] = {}
        self._bytes: dict[int, int] = {}

    def add(self, groups: Sequence[_Alike]) -> None:
        """Count some objects."""
        for kind, things in groups:
            self._kinds[id(kind)] = kind
            self._n[id(kind)] = self._n.get(id(kind), 0) + len(things)
            self._bytes[id(kind)] = self._bytes.get(id(kind), 0) + _bytes_of(kind, things)

    def by_name(self) -> dict[str, tuple[int, int]]:
        """Number and bytes by the type's name; classes of one name together."""
        totals: dict[str, tuple[int, int]] = {}
        for kind, n in self._n.items():
            # The same text each time: who keeps these figures keeps no new names with them.
            name = sys.intern(full_name(self._kinds[kind]))
            before = totals.get(name, (0, 0))
            totals[name] = (before[0] + n, before[1] + self._bytes[kind])
        return totals


def _bytes_of(kind: type, things: list[Any]) -> int:
    """Bytes of objects of one type; of one whose objects are all as large, from the first."""
    own = _own_of(kind)
    sized_by = next(cls for cls in mro_of(own) if "__sizeof__" in vars(cls))
    if sized_by is object and not _ITEM_SIZE.__get__(own):
        return len(things) * _measure_of(kind)(things[0])
    return sum(map(_measure_of(kind), things))


def _measure_of(kind: type) -> Callable[[Any], int]:
    """How instances of a type are measured: as the first type of Python's own that they extend."""
    own = _own_of(kind)
    if own is kind:
        return sys.getsizeof
    return vars(own).get("__sizeof__", object.__sizeof__)


def _own_of(kind: type) -> type:
    """The first type of Python's own that a type extends, or itself."""
    return next(cls for cls in mro_of(kind) if _is_pythons_own(cls))


def _is_pythons_own(cls: type) -> bool:
    """Whether a class was not made by a class statement of the program or of a library."""
    if not _FLAGS.__get__(cls) & _HEAP_TYPE:
        return True
    top = module_of(cls).partition(".")[0]
    return top in sys.stdlib_module_names and top != "__main__"


def _size(thing: object) -> int:
    """Bytes of an object; of an array with its data, unless they belong to something else."""
    return _measure_of(type(thing))(thing)


def _leaves_by_name(noted: list[_Numbers]) -> dict[str, tuple[int, int]]:
    """Number and bytes by type, each object once, however many refer to it."""
    columns = np.concatenate(noted, axis=1)
    _, first = np.unique(columns[0], return_index=True)
    _, sizes, kinds = columns[:, first]
    return {
        full_name(kind): (int((kinds == place).sum()), int(sizes[kinds == place].sum()))
        for place, kind in enumerate(_LEAF_TYPES)
    }


def _worth_following(groups: Sequence[_Alike], min_entries: int) -> Iterator[Held]:
    for kind, things in groups:
        if not can_grow(kind):
            continue
        # The same text each time: thousands of names would be new texts of the program's.
        name = sys.intern(full_name(kind))
        lengths = map(len, things) if id(kind) in _OWN_LENGTH else map(size_of, things)
        for thing, length in zip(things, lengths, strict=True):
            if length is not None and length >= min_entries:
                yield Held(thing, name, length, _size(thing))


def _is_within(thing: object) -> bool:
    kind = type(thing)
    return type_name(kind) not in _NOT_WITHIN and not issubclass(kind, type)
