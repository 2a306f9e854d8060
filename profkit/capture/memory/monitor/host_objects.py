"""Measures host memory that no tensor owns: strings, bytes, arrays, and their containers.

Sizes are shallow, as ``sys.getsizeof`` returns them, and read through built-in types alone: a class
of the program may define ``__sizeof__``, and is measured as the type that it extends.
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
from profkit.capture.memory.holders.containers import can_grow, length_of
from profkit.capture.memory.holders.frames import local_values
from profkit.capture.memory.holders.untracked_containers import (
    array_contents,
    contents_of,
    instances,
)
from profkit.readers.process_memory import garbage_collection_paused

MIN_ENTRIES: Final = 8
"""Entries from which a container is tracked: most containers always have fewer."""

WITHIN_LIMIT: Final = 200_000
"""Objects within a container that are measured: a tenth of a second."""

_LEAF_TYPES: Final = (bytes, bytearray, str, array.array, np.ndarray)
"""Types that the garbage collector does not track and that programs fill memory with."""

_UNTRACKED_TYPES: Final = {id(kind): n for n, kind in enumerate((*_LEAF_TYPES, dict, tuple))}
"""Types that are searched besides tracked objects, leaves first, by id: hashing a type may call a
metaclass of the program."""
_ARRAY: Final = _UNTRACKED_TYPES[id(np.ndarray)]
"""Types from this number on may contain further objects."""

_NOT_WITHIN: Final = ("module", "type", "function", "builtin_function_or_method", "code", "frame")
"""Types that a container shares with the rest of the program and does not own."""

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
"""Code and its names, a third of all references. What a function or class holds is in a dict or
tuple that is tracked, as it refers to something tracked in turn."""

_BUILTIN_LENGTH: Final = frozenset(map(id, (list, dict, set, deque, bytearray)))
"""Types whose ``len()`` runs no user code."""

_BATCH: Final = 8192
"""Objects whose referents are fetched at once."""

_FLAGS: Final = type.__dict__["__flags__"]
_ITEM_SIZE: Final = type.__dict__["__itemsize__"]
_HEAP_TYPE: Final = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: created at run time."""

_Numbers = npt.NDArray[np.int64]


class SizedContainer(NamedTuple):
    """A container that may grow.

    Attributes:
        length: Number of entries.
        bytes: Its own bytes, without its contents.
    """

    thing: object
    type: str
    length: int
    bytes: int


class HostObjectScan(NamedTuple):
    """The program's objects at one moment.

    Attributes:
        by_type: Number and bytes of all objects by type name. Excludes numbers, names in code, and
            memory of tensors and files of which an array is only a view.
        containers: Lists, dicts, sets and the like with some entries.
    """

    by_type: dict[str, tuple[int, int]]
    containers: list[SizedContainer]


def scan_host_objects(min_entries: int = MIN_ENTRIES) -> HostObjectScan:
    """Scan all objects once, which takes about a microsecond for each of them."""
    with garbage_collection_paused():
        objects = gc.get_objects()
        tracked = list(_by_type(objects))
        untracked = _Untracked()
        untracked.search(tracked)
        inner = list(_by_type(untracked.containers))
        containers = list(_containers([*tracked, *inner], min_entries))
        by_type: dict[str, tuple[int, int]] = {}
        for name, n, n_bytes in chain(
            map(_measured, tracked),
            (_measured(one) for one in inner if one.kind is not np.ndarray),
            # After those: since Python 3.10 arrays of the standard library are tracked.
            _measured_leaves(untracked.leaves),
        ):
            before = by_type.get(name, (0, 0))
            by_type[name] = before[0] + n, before[1] + n_bytes
        # The list of all objects lists the cell that it is in: a cycle, until it is empty.
        objects.clear()
        return HostObjectScan(by_type, containers)


def bytes_within(container: object, limit: int = WITHIN_LIMIT) -> int:
    """Bytes of a container and up to ``limit`` objects in it, each once, without tensors."""
    total = 0
    seen = {id(container)}
    pending = [container]
    while pending and len(seen) < limit:
        thing = pending.pop()
        total += _size(thing)
        for one in contents_of(thing):
            if id(one) not in seen and _is_owned(one):
                seen.add(id(one))
                pending.append(one)
    return total


class _OfType(NamedTuple):
    """Objects of one type."""

    kind: type
    things: list[Any]


def _by_type(things: Sequence[object]) -> Iterator[_OfType]:
    """Group objects by type, so that most of the work is done in C."""
    type_ids = np.fromiter(map(id, map(type, things)), np.int64, len(things))
    order = np.argsort(type_ids, kind="stable")
    starts = np.flatnonzero(np.diff(type_ids[order], prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(things)]):
        alike = list(map(things.__getitem__, order[start:end].tolist()))
        yield _OfType(type(alike[0]), alike)


class _Untracked:
    """Objects that the garbage collector does not track, found through what refers to them.

    Attributes:
        leaves: Ids, sizes and types of strings, bytes and arrays; with repetitions.
        containers: Untracked containers, each once.
    """

    def __init__(self) -> None:
        self.leaves: list[_Numbers] = []
        self.containers: list[object] = []
        self._seen: set[int] = set()

    def search(self, tracked: Sequence[_OfType]) -> None:
        """Follow the references of all tracked objects and of local variables."""
        for alike in tracked:
            if alike.kind is dict:
                self._add_keys(alike.things, MIN_ENTRIES)
        level = self._new_containers(local_values())
        level += self._referents([alike.things for alike in tracked if id(alike.kind) not in _CODE])
        while level:
            self.containers += level
            self._add_keys(instances(level, {id(dict)}))
            arrays = instances(level, {id(np.ndarray)})
            inner = [one for array in arrays for one in array_contents(array)]
            level = self._new_containers(inner) + self._referents([level])

    def _referents(self, things: Sequence[Sequence[object]]) -> list[object]:
        every = list(chain.from_iterable(things))
        return [
            one
            for start in range(0, len(every), _BATCH)
            for one in self._new_containers(gc.get_referents(*every[start : start + _BATCH]))
        ]

    def _new_containers(self, held: list[object]) -> list[object]:
        """The containers among some objects that are new; the leaves among them are recorded."""
        found, which = self._add_leaves(held)
        new = []
        for one in compress(found, (which >= _ARRAY).tolist()):
            if id(one) not in self._seen:
                self._seen.add(id(one))
                new.append(one)
        return new

    def _add_leaves(self, held: list[object]) -> tuple[list[object], _Numbers]:
        """Record the leaves among some objects; the untracked ones, and the type of each."""
        found = _unique(list(filterfalse(gc.is_tracked, held)))
        kinds = map(_UNTRACKED_TYPES.get, map(id, map(type, found)), repeat(-1))
        which = np.fromiter(kinds, np.int64, len(found))
        is_leaf = (which >= 0) & (which < len(_LEAF_TYPES))
        leaves = list(compress(found, is_leaf.tolist()))
        columns = (map(id, leaves), map(sys.getsizeof, leaves))
        sized = [np.fromiter(column, np.int64, len(leaves)) for column in columns]
        self.leaves.append(np.array([*sized, which[is_leaf]]))
        return found, which

    def _add_keys(self, dicts: list[Any], min_entries: int = 0) -> None:
        """Record the keys of dicts: the collector's referents omit those that are strings."""
        large = [one for one in dicts if len(one) >= min_entries]
        self._add_leaves(list(chain.from_iterable(map(list, large))))


def _unique(things: list[object]) -> list[object]:
    ids = np.fromiter(map(id, things), np.int64, len(things))
    _, first = np.unique(ids, return_index=True)
    return list(map(things.__getitem__, first.tolist()))


def _measured(alike: _OfType) -> tuple[str, int, int]:
    """The type's name, and the number and bytes of the objects."""
    # Interned, so that stored results do not add new strings to the program's memory.
    return sys.intern(full_name(alike.kind)), len(alike.things), _bytes_of(*alike)


def _bytes_of(kind: type, things: list[Any]) -> int:
    """Bytes of objects of one type; if all have the same size, from the first."""
    builtin = _builtin_base(kind)
    sized_by = next(cls for cls in mro_of(builtin) if "__sizeof__" in vars(cls))
    if sized_by is object and not _ITEM_SIZE.__get__(builtin):
        return len(things) * _size_function(kind)(things[0])
    return sum(map(_size_function(kind), things))


def _size_function(kind: type) -> Callable[[Any], int]:
    """The size function of the first built-in type that a type extends."""
    builtin = _builtin_base(kind)
    if builtin is kind:
        return sys.getsizeof
    return vars(builtin).get("__sizeof__", object.__sizeof__)


def _builtin_base(kind: type) -> type:
    """The first type of Python or its standard library that a type extends, or itself."""
    return next(cls for cls in mro_of(kind) if _is_builtin(cls))


def _is_builtin(cls: type) -> bool:
    """Whether a class was not created by a class statement of the program or a library."""
    if not _FLAGS.__get__(cls) & _HEAP_TYPE:
        return True
    top = module_of(cls).partition(".")[0]
    return top in sys.stdlib_module_names and top != "__main__"


def _size(thing: object) -> int:
    """Shallow bytes of an object; of an array with its data, unless it is a view."""
    return _size_function(type(thing))(thing)


def _measured_leaves(recorded: list[_Numbers]) -> Iterator[tuple[str, int, int]]:
    """Number and bytes by type, each object once, however many refer to it."""
    columns = np.concatenate(recorded, axis=1)
    _, first = np.unique(columns[0], return_index=True)
    _, sizes, kinds = columns[:, first]
    for n, kind in enumerate(_LEAF_TYPES):
        yield full_name(kind), int((kinds == n).sum()), int(sizes[kinds == n].sum())


def _containers(groups: Sequence[_OfType], min_entries: int) -> Iterator[SizedContainer]:
    for kind, things in groups:
        if not can_grow(kind):
            continue
        # Interned: thousands of names would be new strings in the program's memory.
        name = sys.intern(full_name(kind))
        lengths = map(len, things) if id(kind) in _BUILTIN_LENGTH else map(length_of, things)
        for thing, length in zip(things, lengths, strict=True):
            if length is not None and length >= min_entries:
                yield SizedContainer(thing, name, length, _size(thing))


def _is_owned(thing: object) -> bool:
    kind = type(thing)
    return type_name(kind) not in _NOT_WITHIN and not issubclass(kind, type)
