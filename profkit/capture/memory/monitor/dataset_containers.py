"""Finds what a data set adds to in its workers, by its source.

Workers are processes of their own, into which nothing is put. They run the class of the program's
data set, which the main process has too: what its methods add to, besides ``__init__``, is what
grows in a worker that grows. Where that is one container, it is the most likely one.
"""

import ast
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from profkit.capture.memory.holders.attributes import (
    class_namespace,
    full_name,
    module_of,
    mro_of,
    namespace_of,
    type_name,
)
from profkit.capture.memory.holders.containers import limit_of
from profkit.capture.memory.holders.declared_limits import find_declared_limit
from profkit.capture.memory.holders.links import is_a
from profkit.capture.memory.holders.roots import is_class_of_program
from profkit.capture.source.user_code import Place

_MAX_WRAPPERS: Final = 8
"""Data sets of torch around each other, as ``Subset``, that are looked into."""
_MAX_FILE_BYTES: Final = 1 << 20
_ADDING: Final = frozenset(
    {"append", "appendleft", "add", "extend", "insert", "setdefault", "update"}
)
_TO_ITEM: Final = "__getitem__"


class Addition(NamedTuple):
    """What a data set adds to.

    Attributes:
        name: As in ``Pictures.cache``.
        container: The container's type; empty if it is not known.
        place: The line that adds.
        is_by_sample: Whether the index of a sample is the key: there is one entry for each.
    """

    name: str
    container: str
    place: Place
    is_by_sample: bool


class _Noted:
    """The iterator of a loader with workers that was made last.

    Attributes:
        iterator: Returns it, or None once it is gone: profkit keeps no loader alive.
    """

    iterator: Callable[[], object] = staticmethod(lambda: None)


_noted: Final = _Noted()


def note_iterator(iterator: object) -> None:
    """Note the iterator of a loader that is about to start workers."""
    _noted.iterator = weakref.ref(iterator)


def find_addition() -> Addition | None:
    """Find the one container that the data set of the latest loader adds to, or None."""
    namespace = namespace_of(_noted.iterator()) or {}
    dataset = _unwrap(namespace.get("_dataset"))
    found = set() if dataset is None else set(_find_additions(dataset))
    return found.pop() if len(found) == 1 else None


def _unwrap(dataset: object) -> object | None:
    """Return the program's own data set within those of a library, or None."""
    for _ in range(_MAX_WRAPPERS):
        if is_class_of_program(type(dataset)):
            return dataset
        dataset = (namespace_of(dataset) or {}).get("dataset")
    return None


def _find_additions(dataset: object) -> Iterator[Addition]:
    """Find the attributes and caches of a data set that grow without a limit."""
    own = namespace_of(dataset) or {}
    for cls in filter(is_class_of_program, mro_of(type(dataset))):
        file = (namespace_of(sys.modules.get(module_of(cls))) or {}).get("__file__")
        yield from _find_caches(cls)
        for name, place, is_key in read_additions(file, type_name(cls)) if file else ():
            thing = own.get(name)
            is_limited = limit_of(thing) is not None or find_declared_limit(name, dataset, {}) > 0
            if not is_limited:
                is_by_sample = is_key and not is_a(dataset, "torch.utils.data", "IterableDataset")
                container = "" if thing is None else full_name(type(thing))
                yield Addition(f"{type_name(cls)}.{name}", container, place, is_by_sample)


def _find_caches(cls: type) -> Iterator[Addition]:
    """Find the methods whose results ``functools`` caches without a limit."""
    namespace: Mapping[str, Any] = class_namespace(cls)
    for name, method in namespace.items():
        if type(method) is functools._lru_cache_wrapper and limit_of(method) is None:  # noqa: SLF001
            code = method.__wrapped__.__code__
            place = code.co_filename, code.co_firstlineno, code.co_name
            full = f"{type_name(cls)}.{name}"
            yield Addition(full, "functools.lru_cache", place, is_by_sample=False)


@functools.cache
def read_additions(file: str, class_name: str) -> tuple[tuple[str, Place, bool], ...]:
    """Read the attributes that a class adds to after its creation, with the first line of each.

    Returns:
        The name, the line, and whether the argument of ``__getitem__`` is the key.
    """
    path = Path(file)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return ()
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()

    added: dict[str, tuple[str, Place, bool]] = {}
    emptied: set[str] = set()
    for cls in ast.walk(tree):
        if not isinstance(cls, ast.ClassDef) or cls.name != class_name:
            continue
        for method in cls.body:
            if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                emptied |= set(_emptied_attributes(method))
                for name, line, is_key in _added_attributes(method):
                    added.setdefault(name, (name, (file, line, method.name), is_key))
    return tuple(entry for name, entry in added.items() if name not in emptied)


def _added_attributes(method: ast.FunctionDef) -> Iterator[tuple[str, int, bool]]:
    """Yield the attributes of ``self`` that a method adds to, the line, and whether by index."""
    arguments = [argument.arg for argument in method.args.args[1:2]]
    for node in ast.walk(method):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id="self"), attr=name), attr=call
                )
            ) if call in _ADDING:
                yield name, node.lineno, False
            case ast.Assign(
                targets=[
                    ast.Subscript(
                        value=ast.Attribute(value=ast.Name(id="self"), attr=name), slice=key
                    )
                ]
            ):
                is_index = isinstance(key, ast.Name) and key.id in arguments
                yield name, node.lineno, is_index and method.name == _TO_ITEM


def _emptied_attributes(method: ast.FunctionDef) -> Iterator[str]:
    """Yield the attributes of ``self`` that a method replaces, or removes entries of."""
    for node in ast.walk(method):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id="self"), attr=name), attr=call
                )
            ) if call in {"pop", "popitem", "popleft", "clear", "remove"}:
                yield name
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
                yield name
            case ast.Delete(
                targets=[ast.Subscript(value=ast.Attribute(value=ast.Name(id="self"), attr=name))]
            ):
                yield name
