"""Scans host memory that no tensor owns: numbers, strings, arrays, and their containers."""

import array
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, filterfalse, pairwise, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from profkit.capture.memory.holders.attributes import full_name
from profkit.capture.memory.holders.containers import can_grow, growing_types, length_of
from profkit.capture.memory.holders.untracked_containers import array_contents
from profkit.capture.memory.monitor.object_sizes import (
    BASIC_SIZE,
    Numbers,
    TypeTotals,
    align,
    buffer_bytes,
    differ_in_size,
    has_buffer,
    mean_values_bytes,
    size_function,
    sizes_of,
    small_block_bytes,
)
from profkit.capture.process.frames import local_values
from profkit.capture.process.objects import instances, referents, type_ids
from profkit.readers.process_memory import garbage_collection_paused

MIN_ENTRIES: Final = 4
"""Entries from which a container is tracked: most containers always have fewer."""
MANY_OBJECTS: Final = 100_000
"""Of more tracked objects a part is searched for untracked ones; of four times as many, only
containers with some dozen entries are returned. ``import torch`` makes 165,000, and torch's
compiler as many again."""
_EVERY: Final = 8
"""One of so many is searched then, of those that existed at the first scan."""
_VERY_MANY: Final = 4
_MIN_ENTRIES_OF_MANY: Final = 32
"""Entries from which a container is tracked among very many objects."""
_MIN_ENTRIES_ALWAYS: Final = 256
"""Containers with so many entries are searched in any case. Chosen or not, they would count several
times or not at all, and the one that leaks is mostly the largest."""
_MIN_ELEMENTS_ALWAYS: Final = 16
"""The same limit for other containers: most dicts are namespaces, and there are few long lists."""
_MAX_RARE: Final = 1_000
"""Objects of types with so few are searched in any case: a data frame, with what it consists of,
may have all that grows."""
_MIN_LARGE_BYTES: Final = 32_768
"""Objects from this size on are tracked one by one: what replaces one may be larger."""
_MAX_LARGE: Final = 64
"""Large objects that are compared with those of the next scan, the largest first."""
_LEAF_TYPES: Final = (bytes, bytearray, str, int, float, complex, array.array, np.ndarray)
"""Types that the garbage collector does not track and that programs fill memory with."""
_UNTRACKED_TYPES: Final = {id(kind): n for n, kind in enumerate((*_LEAF_TYPES, dict, tuple))}
"""Types that are searched besides tracked objects, leaves first, by id: hashing a type may call a
metaclass of the program."""
_ARRAY: Final = _UNTRACKED_TYPES[id(np.ndarray)]
"""Types from this number on may contain further objects."""
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
_HASH: Final = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier of a hash of addresses. Source: D. Knuth, The Art of Computer Programming, 6.4."""


Mask = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]


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


class EarlierObjects(NamedTuple):
    """The tracked objects of a first scan.

    Attributes:
        ids: In order.
        every: One of so many was searched for untracked objects.
    """

    ids: Numbers
    every: int


class HostObjectScan(NamedTuple):
    """The program's objects at one moment.

    Attributes:
        by_type: All objects by type name. Excludes names in code, and memory of tensors and files
            of which an array is only a view.
        containers: Lists, dicts, sets and the like with some entries.
        large: The largest objects that are no such containers: arrays, strings, buffers. Their
            length is 1.
        earlier: What later scans compare with; None where all objects are searched.
    """

    by_type: dict[str, TypeTotals]
    containers: list[SizedContainer]
    large: list[SizedContainer]
    earlier: EarlierObjects | None = None


def scan_host_objects(
    min_entries: int = MIN_ENTRIES,
    many_objects: int = MANY_OBJECTS,
    earlier: EarlierObjects | None = None,
) -> HostObjectScan:
    """Scan all objects once, which takes about a microsecond for each of them.

    Of many objects only a part is searched for the untracked ones that they refer to, besides large
    containers and what is new. It is chosen by address, so that the difference between two scans
    has the error of what was freed alone.

    Args:
        earlier: What the first scan found; None for that scan.
    """
    with garbage_collection_paused():
        objects = gc.get_objects()
        every = _EVERY if len(objects) > many_objects else 1
        every = earlier.every if earlier is not None else every
        if len(objects) >= _VERY_MANY * many_objects:
            min_entries = max(min_entries, _MIN_ENTRIES_OF_MANY)

        tracked = _TrackedObjects(objects)
        growing = tracked.group(tracked.of_kinds(_can_grow))
        containers = list(_find_containers(growing, min_entries))
        large = _find_large(tracked.group(tracked.of_kinds(_may_be_large)))

        # The rest of the many is known by a part of it.
        held = local_values()
        is_certain = np.ones(len(objects), bool)
        if every > 1:
            is_certain = tracked.of_kinds(_is_rare) | tracked.are_among(_find_long(containers))
            held += _find_untracked_dicts(objects, _MIN_ENTRIES_ALWAYS)
        if earlier is not None:
            is_certain |= ~tracked.are_among(earlier.ids)
        certain = tracked.group(is_certain)
        chosen = tracked.group(tracked.are_chosen(every) & ~is_certain)

        # What is found from the second search on was chosen, and stands for what was not.
        untracked = _UntrackedSearch()
        untracked.search(certain, held)
        n_certain, n_certain_leaves = len(untracked.containers), untracked.n_leaves
        untracked.search(chosen)

        untracked_certain = list(_group_by_type(untracked.containers[:n_certain]))
        untracked_chosen = list(_group_by_type(untracked.containers[n_certain:]))
        containers += _find_containers([*untracked_certain, *untracked_chosen], min_entries)
        large += untracked.large

        by_type: dict[str, TypeTotals] = {}
        for name, totals in chain(
            _measure_groups([*certain, *untracked_certain]),
            _measure_groups([*chosen, *untracked_chosen], every),
            # After those: arrays of the standard library are tracked too.
            _measure_leaves(untracked.leaves, n_certain_leaves, every),
        ):
            by_type[name] = totals.plus(by_type.get(name, TypeTotals()))

        if earlier is None and every > 1:
            earlier = EarlierObjects(np.sort(tracked.ids), every)

        # The list of all objects lists a cell that it is in: a cycle, until it is empty. The array
        # of them, which nothing can empty, must be in no cell.
        objects.clear()
        large.sort(key=lambda sized: -sized.bytes)
        return HostObjectScan(by_type, containers, large[:_MAX_LARGE], earlier)


def scan_containers(
    min_entries: int = MIN_ENTRIES, many_objects: int = MANY_OBJECTS
) -> HostObjectScan:
    """Scan the lengths of the containers alone: half of the time of all objects."""
    with garbage_collection_paused():
        objects = gc.get_objects()
        if len(objects) >= _VERY_MANY * many_objects:
            min_entries = max(min_entries, _MIN_ENTRIES_OF_MANY)

        growing = instances(objects, type_ids(*growing_types()))
        growing += _find_untracked_dicts(objects, min_entries)
        objects.clear()
        return HostObjectScan({}, list(_find_containers(_group_by_type(growing), min_entries)), [])


def _find_untracked_dicts(objects: list[object], min_entries: int) -> list[object]:
    """Find the dicts that the collector does not track, as they hold numbers and strings alone.

    A log of values by name is such a dict, and nothing but what refers to it tells of it.

    Args:
        objects: All objects that the collector tracks.
        min_entries: The least number of entries.
    """
    held = local_values()
    for start in range(0, len(objects), _BATCH):
        held += instances(referents(*objects[start : start + _BATCH]), {id(dict)})

    dicts = instances(_unique(list(filterfalse(gc.is_tracked, held))), {id(dict)})
    return [names for names in dicts if dict.__len__(names) >= min_entries]


def _as_array(things: Iterable[object], n: int) -> ObjectArray:
    """Return ``n`` objects as an array, whose ids and parts cost a third of a list's."""
    return np.fromiter(things, object, n)


def _ids_in(things: ObjectArray) -> Numbers:
    """Return the ids of the objects in an array, which are the addresses that it consists of."""
    return np.frombuffer(things, np.int64) if len(things) else np.zeros(0, np.int64)


class _TypeGroup(NamedTuple):
    """Objects of one type."""

    kind: type
    things: list[Any]


class _TrackedObjects:
    """All objects that the garbage collector tracks, chosen by masks: each pass takes milliseconds.

    Attributes:
        ids: Their addresses.
    """

    def __init__(self, objects: list[object]) -> None:
        self._things = _as_array(objects, len(objects))
        self.ids = _ids_in(self._things)
        kind_ids = _ids_in(_as_array(map(type, objects), len(objects)))
        _, first, self._kind_numbers, self._counts = np.unique(
            kind_ids, return_index=True, return_inverse=True, return_counts=True
        )
        self._kinds = [type(objects[index]) for index in first.tolist()]

    def of_kinds(self, is_wanted: Callable[[type, int], bool]) -> Mask:
        """Return which objects are of the wanted types, each of which has so many objects."""
        wanted = map(is_wanted, self._kinds, self._counts.tolist())
        return np.fromiter(wanted, bool, len(self._kinds))[self._kind_numbers]

    def are_among(self, ids: Numbers) -> Mask:
        """Return which objects have one of some ids, which are sorted."""
        if not len(ids):
            return np.zeros(len(self.ids), bool)
        place = np.minimum(np.searchsorted(ids, self.ids), len(ids) - 1)
        return ids[place] == self.ids

    def are_chosen(self, every: int) -> Mask:
        """Choose one of ``every`` objects, always the same ones: by a hash of their addresses."""
        hashes = (self.ids.astype(np.uint64) >> np.uint64(4)) * _HASH >> np.uint64(32)
        return hashes % np.uint64(every) == 0

    def group(self, is_wanted: Mask) -> list[_TypeGroup]:
        """Group some of the objects by type."""
        return list(_group_by_type(self._things[is_wanted].tolist()))


def _group_by_type(things: Sequence[object]) -> Iterator[_TypeGroup]:
    """Group objects by type, so that most of the work is done in C."""
    type_ids = _ids_in(_as_array(map(type, things), len(things)))
    order = np.argsort(type_ids, kind="stable")
    starts = np.flatnonzero(np.diff(type_ids[order], prepend=-1)).tolist()
    ordered = _as_array(things, len(things))[order].tolist()

    for start, end in pairwise([*starts, len(things)]):
        group = ordered[start:end]
        yield _TypeGroup(type(group[0]), group)


def _find_long(containers: Sequence[SizedContainer]) -> Numbers:
    """Find the containers that are searched whether they are chosen or not; return their ids."""
    is_long = (
        sized.length >= (_MIN_ENTRIES_ALWAYS if _is_dict(sized) else _MIN_ELEMENTS_ALWAYS)
        for sized in containers
    )
    return np.sort(np.array([id(sized.thing) for sized in compress(containers, is_long)], np.int64))


def _is_dict(sized: SizedContainer) -> bool:
    return issubclass(type(sized.thing), dict)


def _is_code(kind: type) -> bool:
    return id(kind) in _CODE or issubclass(kind, type)


def _can_grow(kind: type, _n: int) -> bool:
    return can_grow(kind)


def _is_rare(kind: type, n: int) -> bool:
    """Tell whether objects of a type with ``n`` of them are searched, chosen or not."""
    return n <= _MAX_RARE and not (_is_code(kind) or can_grow(kind))


def _may_be_large(kind: type, _n: int) -> bool:
    """Tell whether an object of a type, which is no container of the program, may be large."""
    return not can_grow(kind) and id(kind) not in _CODE and differ_in_size(kind)


class _UntrackedSearch:
    """Objects that the garbage collector does not track, found through what refers to them.

    Attributes:
        leaves: Ids, sizes, numbers of references, and types of numbers, strings, bytes and arrays;
            with repetitions.
        containers: Untracked containers, each once.
        large: The large leaves, each once.
    """

    def __init__(self) -> None:
        self.leaves: list[Numbers] = []
        self.containers: list[object] = []
        self.large: list[SizedContainer] = []
        self._large_ids: set[int] = set()
        self._seen: set[int] = set()

    @property
    def n_leaves(self) -> int:
        """Return the number of recorded leaves."""
        return sum(columns.shape[1] for columns in self.leaves)

    def search(self, tracked: Sequence[_TypeGroup], held: Sequence[object] = ()) -> None:
        """Follow the references of tracked objects, and of others."""
        for group in tracked:
            if group.kind is dict:
                self._add_keys(group.things, MIN_ENTRIES)

        level = self._new_containers(held)
        level += self._search_referents(
            [group.things for group in tracked if id(group.kind) not in _CODE]
        )
        while level:
            self.containers += level
            self._add_keys(instances(level, {id(dict)}))
            arrays = instances(level, {id(np.ndarray)})
            inner = [element for array in arrays for element in array_contents(array)]
            level = self._new_containers(inner) + self._search_referents([level])

    def _search_referents(self, things: Sequence[Sequence[object]]) -> list[object]:
        """Return the new containers that objects refer to, a batch of objects at a time."""
        holders = list(chain.from_iterable(things))
        return [
            container
            for start in range(0, len(holders), _BATCH)
            for container in self._new_containers(referents(*holders[start : start + _BATCH]))
        ]

    def _new_containers(self, held: Sequence[object]) -> list[object]:
        """Return the new containers among some objects; the leaves among them are recorded."""
        untracked, type_numbers = self._add_leaves(held)
        new = []
        for thing in compress(untracked, (type_numbers >= _ARRAY).tolist()):
            if id(thing) not in self._seen:
                self._seen.add(id(thing))
                new.append(thing)
        return new

    def _add_leaves(self, held: Sequence[object]) -> tuple[list[object], Numbers]:
        """Record the leaves among objects; return the untracked objects, and the type of each."""
        untracked = _unique(list(filterfalse(gc.is_tracked, held)))
        kinds = map(_UNTRACKED_TYPES.get, map(id, map(type, untracked)), repeat(-1))
        type_numbers = np.fromiter(kinds, np.int64, len(untracked))

        is_leaf = (type_numbers >= 0) & (type_numbers < len(_LEAF_TYPES))
        leaves = list(compress(untracked, is_leaf.tolist()))
        columns = (map(id, leaves), map(sys.getsizeof, leaves), map(sys.getrefcount, leaves))
        sized = [np.fromiter(column, np.int64, len(leaves)) for column in columns]
        self.leaves.append(np.array([*sized, type_numbers[is_leaf]]))

        for index in np.flatnonzero(sized[1] >= _MIN_LARGE_BYTES).tolist():
            if sized[0][index] not in self._large_ids:
                self._large_ids.add(int(sized[0][index]))
                name = sys.intern(full_name(type(leaves[index])))
                self.large.append(SizedContainer(leaves[index], name, 1, int(sized[1][index])))
        return untracked, type_numbers

    def _add_keys(self, dicts: list[Any], min_entries: int = 0) -> None:
        """Record the keys of dicts: the collector's referents omit those that are strings."""
        large = [namespace for namespace in dicts if len(namespace) >= min_entries]
        self._add_leaves(list(chain.from_iterable(map(list, large))))


def _references_of_search() -> int:
    """Return how many references to an object the search holds when it counts them."""
    search = _UntrackedSearch()
    things: list[object] = [float(len("one"))]
    search._new_containers(things[:])  # noqa: SLF001
    return int(search.leaves[0][2][0]) - 1


def _unique(things: list[object]) -> list[object]:
    """Return each of some objects once."""
    array = _as_array(things, len(things))
    ids = _ids_in(array)

    # Sorted, equal ones are neighbors: any of them will do.
    order = np.argsort(ids)
    is_first = np.diff(ids[order], prepend=-1) != 0
    unique: list[object] = array[order[is_first]].tolist()
    return unique


_Measurement = tuple[str, TypeTotals]
"""The name of a type, and the totals of its objects."""


def _measure_groups(groups: Sequence[_TypeGroup], times: int = 1) -> Iterator[_Measurement]:
    """Measure objects by type, except arrays of objects, which are measured with the leaves."""
    return (_measure(group, times) for group in groups if group.kind is not np.ndarray)


def _measure(group: _TypeGroup, times: int = 1) -> _Measurement:
    """Measure the number, bytes and blocks of objects, each of which stands for ``times``."""
    sizes = sizes_of(*group)
    values = mean_values_bytes(group.things) if sizes.size == 1 else 0
    # Of objects of one size, one was measured and stands for all.
    weight = times * (len(group.things) if sizes.size == 1 else 1)

    buffers = buffer_bytes(group.kind, sizes)
    n_buffers = int((buffers > 0).sum())
    small = small_block_bytes(sizes - buffers) + small_block_bytes(buffers)

    totals = TypeTotals(
        times * len(group.things),
        weight * (int(sizes.sum()) + values),
        weight * (int(small.sum()) + align(values)),
        weight * (sizes.size + (values > 0) + n_buffers),
    )
    # Interned, so that stored results do not add new strings to the program's memory.
    return sys.intern(full_name(group.kind)), totals


def _measure_leaves(recorded: list[Numbers], n_certain: int, every: int) -> Iterator[_Measurement]:
    """Measure leaves by type, each object once, however many refer to it.

    If one of so many objects was searched, an object that was found stands for as many as are
    expected not to be found with its number of references; the first ones, which were found in any
    case, for themselves.
    """
    columns = np.concatenate(recorded, axis=1)
    _, first = np.unique(columns[0], return_index=True)
    _, sizes, refs, kinds = columns[:, first]

    # An object with so many references is found by the chance that one of its holders is chosen.
    refs = np.maximum(refs - _REFERENCES_OF_SEARCH, 1)
    weights = 1.0 / (1.0 - (1.0 - 1.0 / every) ** refs)
    weights[first < n_certain] = 1.0

    small = small_block_bytes(sizes)
    without_buffer = [
        BASIC_SIZE.__get__(leaf) if has_buffer(leaf) else np.inf for leaf in _LEAF_TYPES
    ]
    n_blocks = 1 + (sizes > np.array(without_buffer)[kinds])

    totals = [
        np.bincount(kinds, weights * column, len(_LEAF_TYPES))
        for column in (1, sizes, small, n_blocks)
    ]
    for kind, *sums in zip(_LEAF_TYPES, *totals, strict=True):
        yield full_name(kind), TypeTotals(*map(round, sums))


def _find_large(groups: Sequence[_TypeGroup]) -> list[SizedContainer]:
    """Find large tracked objects that are no containers of the program, such as ``io.BytesIO``."""
    return [
        SizedContainer(thing, sys.intern(full_name(kind)), 1, n_bytes)
        for kind, things in groups
        for thing, n_bytes in zip(things, map(size_function(kind), things), strict=True)
        if n_bytes >= _MIN_LARGE_BYTES
    ]


def _find_containers(groups: Iterable[_TypeGroup], min_entries: int) -> Iterator[SizedContainer]:
    """Find the containers that can grow and have some entries."""
    for kind, things in groups:
        if not can_grow(kind):
            continue

        # Interned: thousands of names would be new strings in the program's memory.
        name, size_of = sys.intern(full_name(kind)), size_function(kind)
        lengths = list(map(len if id(kind) in _BUILTIN_LENGTH else length_of, things))
        is_long = [length is not None and length >= min_entries for length in lengths]
        for thing, length in zip(
            compress(things, is_long), compress(lengths, is_long), strict=True
        ):
            yield SizedContainer(thing, name, length or 0, size_of(thing))


_REFERENCES_OF_SEARCH: Final = _references_of_search()
