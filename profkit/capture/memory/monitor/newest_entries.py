"""The newest entries of a container that grows: what they take, and what they are.

An entry is measured with all that it alone owns, so that growth has its whole size.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import numpy as np

from profkit.capture.memory.holders.attributes import (
    full_name,
    module_of,
    namespace_of,
    type_name,
)
from profkit.capture.memory.holders.containers import length_of
from profkit.capture.memory.holders.untracked_containers import array_contents, contents_of
from profkit.capture.memory.monitor.object_sizes import (
    TypeTotals,
    allocated_bytes,
    buffer_bytes,
    size_function,
    size_of,
    small_block_bytes,
    values_bytes,
)

_MAX_ENTRIES_MEASURED: Final = 256
"""Entries of a container that are measured, evenly among the new ones."""
_MAX_OBJECTS_MEASURED: Final = 20_000
"""Objects within a container that are measured: some ten milliseconds."""
_MEASURED_PACKAGES: Final = frozenset({"", "builtins", "numpy", "torch", "profkit"})
"""Packages whose objects have no memory that is not measured."""
_WITH_NATIVE_CODE: Final = "torch.jit"
"""But scripted and traced modules have a graph and its profiles in C++."""
_NOT_WITHIN: Final = ("module", "type", "function", "builtin_function_or_method", "code", "frame")
"""Types that a container shares with the rest of the program and does not own."""
_REFERENCES_HERE: Final = 3
"""References to an object by a list, a variable and an argument of the measurement."""
_IMMORTAL: Final = 1 << 29
"""Objects with more references are those of the interpreter."""


class MeasuredEntries(NamedTuple):
    """The newest entries of a container, with all that only they own.

    Attributes:
        mean_bytes: Of one entry.
        by_type: What all of them consist of.
    """

    mean_bytes: float
    by_type: dict[str, TypeTotals]


class _SizedObjects(NamedTuple):
    """Objects of one type within a container.

    Attributes:
        size_of: What measures one of them.
        parts: The part of each that the container owns.
        sizes: The bytes of each.
        values: The bytes of the values of its attributes.
    """

    kind: type
    size_of: Callable[[Any], int]
    parts: list[float]
    sizes: list[int]
    values: list[int]

    def add(self, thing: object, part: float) -> float:
        """Add an object of this type, and return the bytes that the container owns of it."""
        size, values = self.size_of(thing), values_bytes(thing)
        self.parts.append(part)
        self.sizes.append(size)
        self.values.append(values)
        return part * (allocated_bytes(size) + allocated_bytes(values))

    def totals(self, times: float) -> TypeTotals:
        """Return what the objects are, each of which stands for so many."""
        parts = times * np.array(self.parts)
        sizes, values = np.array(self.sizes), np.array(self.values)
        buffers = buffer_bytes(self.kind, sizes)
        blocks = np.array([sizes - buffers, buffers, values])

        return TypeTotals(
            round(parts.sum()),
            round(float(parts @ (sizes + values))),
            round(float(parts @ small_block_bytes(blocks).sum(axis=0))),
            round(float(parts @ (blocks > 0).sum(axis=0))),
        )


def measure_entries(container: object, n_newest: int) -> MeasuredEntries:
    """Measure the newest entries of a container, with all that only they own.

    A part of the entries is measured. An object with several references counts as a part for each,
    so that what entries share counts once, and what belongs to the program hardly at all.

    Args:
        n_newest: How many entries are new.
    """
    length = length_of(container)
    if not length:
        return MeasuredEntries(0.0, {})

    entries = _read_newest(container, min(n_newest, length))
    n_measured, total = 0, 0.0
    pending: list[tuple[object, float]] = []
    by_kind: dict[int, _SizedObjects] = {}
    n_objects = 0

    for entry in entries[:: max(1, len(entries) // _MAX_ENTRIES_MEASURED)]:
        seen = {id(container)}
        _add_parts(pending, entry, 1.0, seen)
        while pending:
            thing, part = pending.pop()
            kind, n_objects = type(thing), n_objects + 1
            if id(kind) not in by_kind:
                by_kind[id(kind)] = _SizedObjects(kind, size_function(kind), [], [], [])
            total += by_kind[id(kind)].add(thing, part)
            held = array_contents(thing) if type(thing) is np.ndarray else contents_of(thing)
            _add_parts(pending, held, part, seen)
        n_measured += 1
        if n_objects > _MAX_OBJECTS_MEASURED:
            break

    times = n_newest / max(n_measured, 1)
    by_type = {sys.intern(full_name(o.kind)): o.totals(times) for o in by_kind.values()}
    own_bytes = size_of(container) / length
    return MeasuredEntries(own_bytes + total / max(n_measured, 1), by_type)


def find_view(container: object) -> np.ndarray[Any, Any] | None:
    """Find the newest entry of a container that is, or has, a view of another array; or None."""
    for entry in _read_newest(container, 1):
        for thing in (*entry, *chain.from_iterable(map(contents_of, entry))):
            if type(thing) is np.ndarray and type(thing.base) is np.ndarray:
                return thing
    return None


def find_library_object(container: object, is_user_file: Callable[[str], bool]) -> str:
    """Return the type of a library's object in the newest entry of a container; or an empty text.

    It may have memory that only the library knows, as pictures have. That of arrays and tensors is
    known.
    """
    for entry in _read_newest(container, 1):
        pending = [*entry]
        seen = {id(container), *map(id, pending)}
        for thing in pending:
            if _is_of_library(type(thing), is_user_file):
                return full_name(type(thing))
            new = [part for part in contents_of(thing) if id(part) not in seen and _is_owned(part)]
            seen.update(map(id, new))
            pending += new[: max(0, _MAX_ENTRIES_MEASURED - len(pending))]
    return ""


def _read_newest(container: Any, n: int) -> list[tuple[object, ...]]:  # noqa: ANN401
    """Read the newest entries of a container, each as a tuple of what it consists of."""
    # Through the built-in types alone: a class of the program may define all of these itself.
    kind = type(container)

    try:
        if issubclass(kind, list):
            return [(element,) for element in list.__getitem__(container, slice(-n, None))]
        if issubclass(kind, dict):
            return list(islice(reversed(dict.items(container)), n))
        if issubclass(kind, deque):
            return [(element,) for element in islice(deque.__reversed__(container), n)]
        if issubclass(kind, set):
            return [(element,) for element in islice(set.__iter__(container), n)]
    except RuntimeError:  # another thread changed it meanwhile
        return []

    return (
        []
        if issubclass(kind, bytearray)
        else [(element,) for element in contents_of(container)[-n:]]
    )


def _add_parts(
    pending: list[tuple[object, float]], things: Sequence[object], part: float, seen: set[int]
) -> None:
    """Note objects to be measured, each with the part of it that one reference stands for."""
    for thing in things:
        n_refs = sys.getrefcount(thing) - _REFERENCES_HERE
        if n_refs < _IMMORTAL and id(thing) not in seen and _is_owned(thing):
            seen.add(id(thing))
            pending.append((thing, part / max(n_refs, 1)))


def _is_of_library(kind: type, is_user_file: Callable[[str], bool]) -> bool:
    """Tell whether a type is of an installed library whose memory is not measured."""
    module = module_of(kind)
    top = module.partition(".")[0]
    is_measured = top in _MEASURED_PACKAGES and not module.startswith(_WITH_NATIVE_CODE)
    if top in sys.stdlib_module_names or is_measured:
        return False
    file = (namespace_of(sys.modules.get(module)) or {}).get("__file__")
    return type(file) is str and not is_user_file(file)


def _is_owned(thing: object) -> bool:
    """Tell whether what refers to an object may own it."""
    kind = type(thing)
    return type_name(kind) not in _NOT_WITHIN and not issubclass(kind, type)
