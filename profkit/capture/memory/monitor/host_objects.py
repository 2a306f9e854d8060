"""Measures host memory that no tensor owns: numbers, strings, arrays, and their containers.

Sizes are shallow, as ``sys.getsizeof`` returns them, and read through built-in types alone: a class
of the program may define ``__sizeof__``, and is measured as the type that it extends. The values of
an instance's attributes, which ``sys.getsizeof`` omits since Python 3.11, are added.
"""

import array
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, filterfalse, islice, pairwise, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from profkit.capture.memory.holders.attributes import (
    full_name,
    module_of,
    mro_of,
    namespace_of,
    type_name,
)
from profkit.capture.memory.holders.containers import can_grow, length_of
from profkit.capture.memory.holders.untracked_containers import array_contents, contents_of
from profkit.capture.process.frames import local_values
from profkit.capture.process.objects import instances, referents
from profkit.readers.process_memory import garbage_collection_paused

MIN_ENTRIES: Final = 8
"""Entries from which a container is tracked: most containers always have fewer."""

MANY_OBJECTS: Final = 200_000
"""Tracked objects of which at most so many are searched for untracked ones; of twice as many, only
containers with some dozen entries are returned. ``import torch`` makes 165,000, and torch's
compiler as many again."""
_MIN_ENTRIES_OF_MANY: Final = 32
_MIN_ENTRIES_ALWAYS: Final = 256
"""Containers with so many entries are searched in any case. Chosen or not, they would count several
times or not at all, and the one that leaks is mostly the largest."""
_MIN_ELEMENTS_ALWAYS: Final = 16
"""The same for what is no dict: most dicts are namespaces, and there are few long lists."""
_MAX_RARE: Final = 1_000
"""Objects of types with so few are searched in any case: a data frame, with what it consists of,
may have all that grows."""
_MIN_LARGE_BYTES: Final = 32_768
_MAX_LARGE: Final = 64
_MAX_ENTRIES_MEASURED: Final = 256
_MAX_OBJECTS_MEASURED: Final = 20_000
"""Objects within a container that are measured: some ten milliseconds."""

_LEAF_TYPES: Final = (bytes, bytearray, str, int, float, complex, array.array, np.ndarray)
"""Types that the garbage collector does not track and that programs fill memory with."""

_UNTRACKED_TYPES: Final = {id(kind): n for n, kind in enumerate((*_LEAF_TYPES, dict, tuple))}
"""Types that are searched besides tracked objects, leaves first, by id: hashing a type may call a
metaclass of the program."""
_ARRAY: Final = _UNTRACKED_TYPES[id(np.ndarray)]
"""Types from this number on may contain further objects."""

_MEASURED_PACKAGES: Final = frozenset({"", "builtins", "numpy", "torch", "profkit"})
"""Packages whose objects have no memory that is not measured."""

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

_SMALL_BYTES: Final = 512
"""Up to this size Python's own allocator has an object's memory, in multiples of 16 bytes; C's has
that of larger ones. Source: ``Objects/obmalloc.c`` (``SMALL_REQUEST_THRESHOLD``, ``ALIGNMENT``)."""
_ALIGNMENT: Final = 16
_HAVE_GC: Final = 1 << 14
"""``Py_TPFLAGS_HAVE_GC``: only ``sys.getsizeof`` adds the collector's header."""
_GC_HEADER_BYTES: Final = 16
_DICT_HEADER_BYTES: Final = 16
"""Of instances with managed attributes, which only ``sys.getsizeof`` adds too."""
_MANAGED_DICT: Final = 1 << 4
"""``Py_TPFLAGS_MANAGED_DICT``: attributes are in an array of their own until the ``__dict__`` is
used."""
_VALUES_HEADER_BYTES: Final = 16
_BASIC_SIZE: Final = type.__dict__["__basicsize__"]
_REFERENCES_HERE: Final = 3
"""References to an object by a list, a variable and an argument of the measurement."""
_IMMORTAL: Final = 1 << 29
"""Objects with more references are those of the interpreter."""
_HASH: Final = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier of a hash of addresses. Source: D. Knuth, The Art of Computer Programming, 6.4."""

_WITHOUT_BUFFER: Final = (str, np.ndarray)
"""Strings have their characters in their own block, arrays their data from C's allocator."""

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


class TypeTotals(NamedTuple):
    """Objects of one type, or how many more there are.

    Attributes:
        small_bytes: Those in blocks of Python's own allocator.
        n_blocks: Blocks of that allocator, large ones too, which it has from C's.
    """

    n: int = 0
    bytes: int = 0
    small_bytes: int = 0
    n_blocks: int = 0

    def plus(self, other: "TypeTotals", times: int = 1) -> "TypeTotals":
        """With others added, or with ``times`` -1 without them."""
        return TypeTotals(*(own + times * more for own, more in zip(self, other, strict=True)))


class HostObjectScan(NamedTuple):
    """The program's objects at one moment.

    Attributes:
        by_type: All objects by type name. Excludes names in code, and memory of tensors and files
            of which an array is only a view.
        containers: Lists, dicts, sets and the like with some entries.
        large: The largest objects that are no such containers: arrays, strings, buffers. Their
            length is 1.
    """

    by_type: dict[str, TypeTotals]
    containers: list[SizedContainer]
    large: list[SizedContainer]


def scan_host_objects(
    min_entries: int = MIN_ENTRIES, many_objects: int = MANY_OBJECTS
) -> HostObjectScan:
    """Scan all objects once, which takes about a microsecond for each of them.

    Of many objects only a part is searched for the untracked ones that they refer to, besides large
    containers. It is chosen by address, so that the difference between two scans has the error of
    what is new alone.
    """
    with garbage_collection_paused():
        objects = gc.get_objects()
        tracked = list(_by_type(objects))
        every = max(1, -(-len(objects) // many_objects))
        if len(objects) >= 2 * many_objects:
            min_entries = max(min_entries, _MIN_ENTRIES_OF_MANY)
        containers = list(_containers(tracked, min_entries))
        always = tracked
        if every > 1:
            always = list(_by_type(_searched_always(tracked, containers)))
        untracked = _Untracked()
        untracked.search(always, local_values())
        n_certain, n_certain_leaves = len(untracked.containers), untracked.n_leaves
        if every > 1:
            untracked.search(list(_by_type(_some_of(objects, every))))
        certain = list(_by_type(untracked.containers[:n_certain]))
        chosen = list(_by_type(untracked.containers[n_certain:]))
        containers += _containers([*certain, *chosen], min_entries)
        large = _large_tracked(tracked) + untracked.large
        by_type: dict[str, TypeTotals] = {}
        for name, totals in chain(
            map(_measured, tracked),
            (_measured(alike) for alike in certain if alike.kind is not np.ndarray),
            (_measured(alike, every) for alike in chosen if alike.kind is not np.ndarray),
            # After those: arrays of the standard library are tracked too.
            _measured_leaves(untracked.leaves, n_certain_leaves, every),
        ):
            by_type[name] = totals.plus(by_type.get(name, TypeTotals()))
        # The list of all objects lists the cell that it is in: a cycle, until it is empty.
        objects.clear()
        large.sort(key=lambda one: -one.bytes)
        return HostObjectScan(by_type, containers, large[:_MAX_LARGE])


def entry_bytes(container: object, n_newest: int) -> float:
    """Mean bytes of the newest entries of a container, with all that only they own.

    A part of the entries is measured. An object with several references counts as a part for each,
    so that what entries share counts once, and what belongs to the program hardly at all.

    Args:
        n_newest: How many entries are new.
    """
    length = length_of(container)
    if not length:
        return 0.0
    entries = _newest_entries(container, min(n_newest, length))
    n_measured, total = 0, 0.0
    pending: list[tuple[object, float]] = []
    n_objects = 0
    for entry in entries[:: max(1, len(entries) // _MAX_ENTRIES_MEASURED)]:
        seen = {id(container)}
        _add_parts(pending, entry, 1.0, seen)
        while pending:
            thing, part = pending.pop()
            n_objects += 1
            total += part * (_rounded(_size(thing)) + _rounded(_values_bytes(thing)))
            held = array_contents(thing) if type(thing) is np.ndarray else contents_of(thing)
            _add_parts(pending, held, part, seen)
        n_measured += 1
        if n_objects > _MAX_OBJECTS_MEASURED:
            break
    return _size(container) / length + total / max(n_measured, 1)


def view_in(container: object) -> np.ndarray[Any, Any] | None:
    """The newest entry of a container that is, or has, a view of another array; None without."""
    for entry in _newest_entries(container, 1):
        for thing in (*entry, *chain.from_iterable(map(contents_of, entry))):
            if type(thing) is np.ndarray and type(thing.base) is np.ndarray:
                return thing
    return None


def library_object_in(container: object, is_user_file: Callable[[str], bool]) -> str:
    """The type of an object of a library in the newest entry of a container; empty without.

    It may have memory that only the library knows, as pictures have. That of arrays and tensors is
    known.
    """
    for entry in _newest_entries(container, 1):
        pending = [*entry]
        seen = {id(container), *map(id, pending)}
        for thing in pending:
            if _is_of_library(type(thing), is_user_file):
                return full_name(type(thing))
            new = [one for one in contents_of(thing) if id(one) not in seen and _is_owned(one)]
            seen.update(map(id, new))
            pending += new[: max(0, _MAX_ENTRIES_MEASURED - len(pending))]
    return ""


def _is_of_library(kind: type, is_user_file: Callable[[str], bool]) -> bool:
    module = module_of(kind)
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in _MEASURED_PACKAGES:
        return False
    file = (namespace_of(sys.modules.get(module)) or {}).get("__file__")
    return type(file) is str and not is_user_file(file)


def _add_parts(
    pending: list[tuple[object, float]], things: Sequence[object], part: float, seen: set[int]
) -> None:
    """Note objects to be measured, each with the part of it that one reference stands for."""
    for one in things:
        n_refs = sys.getrefcount(one) - _REFERENCES_HERE
        if n_refs < _IMMORTAL and id(one) not in seen and _is_owned(one):
            seen.add(id(one))
            pending.append((one, part / max(n_refs, 1)))


def _newest_entries(container: Any, n: int) -> list[tuple[object, ...]]:  # noqa: ANN401
    """The newest entries of a container, each as a tuple of what it consists of."""
    kind = type(container)
    try:
        if issubclass(kind, list):
            return [(one,) for one in list.__getitem__(container, slice(-n, None))]
        if issubclass(kind, dict):
            return list(islice(reversed(dict.items(container)), n))
        if issubclass(kind, deque):
            return [(one,) for one in islice(deque.__reversed__(container), n)]
        if issubclass(kind, set):
            return [(one,) for one in islice(set.__iter__(container), n)]
    except RuntimeError:  # another thread changed it meanwhile
        return []
    return [] if issubclass(kind, bytearray) else [(one,) for one in contents_of(container)[-n:]]


def _some_of(objects: list[object], every: int) -> list[object]:
    """One of so many objects, always the same ones: by a hash of their addresses."""
    ids = np.fromiter(map(id, objects), np.uint64, len(objects))
    chosen = ((ids >> np.uint64(4)) * _HASH >> np.uint64(32)) % np.uint64(every) == 0
    return list(compress(objects, chosen.tolist()))


def _aligned(n_bytes: Any) -> Any:  # noqa: ANN401  (a number, or an array of them)
    """Bytes that Python's allocator gives for so many."""
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def _small(sizes: _Numbers) -> _Numbers:
    """Bytes that Python's own allocator gives for so many; 0 where C's does."""
    return np.where(sizes <= _SMALL_BYTES, _aligned(sizes), 0)


def _rounded(n_bytes: int) -> int:
    """Bytes that an allocator gives for so many."""
    return int(_aligned(n_bytes)) if n_bytes <= _SMALL_BYTES else n_bytes


def _has_values(kind: type) -> bool:
    return bool(_FLAGS.__get__(kind) & _MANAGED_DICT)


def _values_bytes(thing: object) -> int:
    """Bytes of the array with the values of an instance's attributes; 0 without one.

    Source: ``Objects/dictobject.c`` of Python 3.11 (``init_inline_values``); measured.
    """
    if not _has_values(type(thing)):
        return 0
    held = referents(thing)
    n = len(held) - 1  # the type
    is_in_dict = any(type(one) is dict for one in held[:1])
    return 0 if is_in_dict or n < 1 else _VALUES_HEADER_BYTES + 8 * n + 8 * (n // 6)


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


def _searched_always(
    tracked: Sequence[_OfType], containers: Sequence[SizedContainer]
) -> list[object]:
    """Of many objects those that are searched whether they are chosen or not."""
    found: list[object] = []
    for one in containers:
        is_dict = issubclass(type(one.thing), dict)
        if one.length >= (_MIN_ENTRIES_ALWAYS if is_dict else _MIN_ELEMENTS_ALWAYS):
            found.append(one.thing)
    for alike in tracked:
        is_code = id(alike.kind) in _CODE or issubclass(alike.kind, type)
        if len(alike.things) <= _MAX_RARE and not (is_code or can_grow(alike.kind)):
            found += alike.things
    return found


class _Untracked:
    """Objects that the garbage collector does not track, found through what refers to them.

    Attributes:
        leaves: Ids, sizes, numbers of references, and types of numbers, strings, bytes and arrays;
            with repetitions.
        containers: Untracked containers, each once.
        large: The large leaves, each once.
    """

    def __init__(self) -> None:
        self.leaves: list[_Numbers] = []
        self.containers: list[object] = []
        self.large: list[SizedContainer] = []
        self._large_ids: set[int] = set()
        self._seen: set[int] = set()

    @property
    def n_leaves(self) -> int:
        """Number of recorded leaves."""
        return sum(one.shape[1] for one in self.leaves)

    def search(self, tracked: Sequence[_OfType], held: Sequence[object] = ()) -> None:
        """Follow the references of tracked objects, and of others."""
        for alike in tracked:
            if alike.kind is dict:
                self._add_keys(alike.things, MIN_ENTRIES)
        level = self._new_containers(held)
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
            for one in self._new_containers(referents(*every[start : start + _BATCH]))
        ]

    def _new_containers(self, held: Sequence[object]) -> list[object]:
        """The containers among some objects that are new; the leaves among them are recorded."""
        found, which = self._add_leaves(held)
        new = []
        for one in compress(found, (which >= _ARRAY).tolist()):
            if id(one) not in self._seen:
                self._seen.add(id(one))
                new.append(one)
        return new

    def _add_leaves(self, held: Sequence[object]) -> tuple[list[object], _Numbers]:
        """Record the leaves among some objects; the untracked ones, and the type of each."""
        found = _unique(list(filterfalse(gc.is_tracked, held)))
        kinds = map(_UNTRACKED_TYPES.get, map(id, map(type, found)), repeat(-1))
        which = np.fromiter(kinds, np.int64, len(found))
        is_leaf = (which >= 0) & (which < len(_LEAF_TYPES))
        leaves = list(compress(found, is_leaf.tolist()))
        columns = (map(id, leaves), map(sys.getsizeof, leaves), map(sys.getrefcount, leaves))
        sized = [np.fromiter(column, np.int64, len(leaves)) for column in columns]
        self.leaves.append(np.array([*sized, which[is_leaf]]))
        for index in np.flatnonzero(sized[1] >= _MIN_LARGE_BYTES).tolist():
            if sized[0][index] not in self._large_ids:
                self._large_ids.add(int(sized[0][index]))
                name = sys.intern(full_name(type(leaves[index])))
                self.large.append(SizedContainer(leaves[index], name, 1, int(sized[1][index])))
        return found, which

    def _add_keys(self, dicts: list[Any], min_entries: int = 0) -> None:
        """Record the keys of dicts: the collector's referents omit those that are strings."""
        large = [one for one in dicts if len(one) >= min_entries]
        self._add_leaves(list(chain.from_iterable(map(list, large))))


def _references_of_search() -> int:
    """References to an object that the search itself holds when it counts them."""
    search = _Untracked()
    things: list[object] = [float(len("one"))]
    search._new_containers(things[:])  # noqa: SLF001
    return int(search.leaves[0][2][0]) - 1


def _unique(things: list[object]) -> list[object]:
    ids = np.fromiter(map(id, things), np.int64, len(things))
    _, first = np.unique(ids, return_index=True)
    return list(map(things.__getitem__, first.tolist()))


_Measured = tuple[str, TypeTotals]
"""The name of a type, and its objects."""


def _measured(alike: _OfType, times: int = 1) -> _Measured:
    """The number, bytes and blocks of objects, each of which stands for so many."""
    sizes = _sizes_of(*alike)
    values = _values_of_typical(alike.things) if sizes.size == 1 else 0
    each = times * (len(alike.things) if sizes.size == 1 else 1)
    header = _BASIC_SIZE.__get__(alike.kind) + _GC_HEADER_BYTES
    n_buffers = 0
    if _has_buffer(alike.kind):
        buffers = np.maximum(sizes - header, 0)
        n_buffers = int((buffers > 0).sum())
        small = _small(sizes - buffers) + _small(buffers)
    else:
        small = _small(sizes)
    totals = TypeTotals(
        times * len(alike.things),
        each * (int(sizes.sum()) + values),
        each * (int(small.sum()) + _aligned(values)),
        each * (sizes.size + (values > 0) + n_buffers),
    )
    # Interned, so that stored results do not add new strings to the program's memory.
    return sys.intern(full_name(alike.kind)), totals


def _has_buffer(kind: type) -> bool:
    """Whether objects of a type have their entries in a block of its own, as lists and dicts do."""
    builtin = _builtin_base(kind)
    if any(builtin is one for one in _WITHOUT_BUFFER) or _ITEM_SIZE.__get__(builtin):
        return False
    return _differ_in_size(kind)


def _values_of_typical(things: Sequence[object]) -> int:
    """Bytes of the attribute values of instances of one class: the mean of a few."""
    some = things[:: max(1, len(things) // 8)]
    return round(sum(map(_values_bytes, some)) / len(some))


def _sizes_of(kind: type, things: list[Any]) -> _Numbers:
    """Bytes of objects of one type; of the first alone if all have the same size."""
    if not _differ_in_size(kind):
        things = things[:1]
    return np.fromiter(map(_size_function(kind), things), np.int64, len(things))


def _differ_in_size(kind: type) -> bool:
    builtin = _builtin_base(kind)
    sized_by = next(cls for cls in mro_of(builtin) if "__sizeof__" in vars(cls))
    return sized_by is not object or bool(_ITEM_SIZE.__get__(builtin))


def _size_function(kind: type) -> Callable[[Any], int]:
    """The size function of the first built-in type that a type extends."""
    builtin = _builtin_base(kind)
    if builtin is kind:
        return sys.getsizeof
    shallow = vars(builtin).get("__sizeof__", object.__sizeof__)
    header = _GC_HEADER_BYTES if _FLAGS.__get__(kind) & _HAVE_GC else 0
    header += _DICT_HEADER_BYTES if _has_values(kind) else 0
    return lambda thing: shallow(thing) + header


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


def _measured_leaves(recorded: list[_Numbers], n_certain: int, every: int) -> Iterator[_Measured]:
    """Number, bytes and blocks by type, each object once, however many refer to it.

    If one of so many objects was searched, an object that was found stands for as many as are
    expected not to be found with its number of references; the first ones, which were found in any
    case, for themselves.
    """
    columns = np.concatenate(recorded, axis=1)
    _, first = np.unique(columns[0], return_index=True)
    _, sizes, refs, kinds = columns[:, first]
    refs = np.maximum(refs - _REFERENCES_OF_SEARCH, 1)
    weights = 1.0 / (1.0 - (1.0 - 1.0 / every) ** refs)
    weights[first < n_certain] = 1.0
    small = _small(sizes)
    without_buffer = [
        _BASIC_SIZE.__get__(one) if _has_buffer(one) else np.inf for one in _LEAF_TYPES
    ]
    n_blocks = 1 + (sizes > np.array(without_buffer)[kinds])
    totals = [
        np.bincount(kinds, weights * column, len(_LEAF_TYPES))
        for column in (1, sizes, small, n_blocks)
    ]
    for kind, *sums in zip(_LEAF_TYPES, *totals, strict=True):
        yield full_name(kind), TypeTotals(*map(round, sums))


def _large_tracked(tracked: Sequence[_OfType]) -> list[SizedContainer]:
    """Large tracked objects that are no containers of the program, such as ``io.BytesIO``."""
    return [
        SizedContainer(thing, sys.intern(full_name(kind)), 1, n_bytes)
        for kind, things in tracked
        if not can_grow(kind) and id(kind) not in _CODE and _differ_in_size(kind)
        for thing, n_bytes in zip(things, map(_size_function(kind), things), strict=True)
        if n_bytes >= _MIN_LARGE_BYTES
    ]


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


_REFERENCES_OF_SEARCH: Final = _references_of_search()
