"""Finds the most entries that a program itself allows in a container, by its source.

``if len(self.items) > self.limit: self.items.popitem()`` bounds a cache as ``maxsize`` does, and
one that is never full in a run does not leak.
"""

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from profkit.capture.memory.holders.attributes import class_namespace, module_of, mro_of
from profkit.capture.memory.holders.attributes import namespace_of as attributes_of

_MAX_FILE_BYTES: Final = 1 << 20
"""A larger file is not parsed."""
_REMOVING: Final = frozenset({"pop", "popitem", "popleft", "remove", "clear", "heappop"})
_ADDING: Final = frozenset({"append", "appendleft", "add", "insert", "extend"})
_FULL: Final = (ast.Gt, ast.GtE, ast.Eq)
_NOT_FULL: Final = (ast.Lt, ast.LtE)


class _Bound(NamedTuple):
    """A comparison of a container's length, beside which it is emptied or not filled.

    Attributes:
        name: The container's variable or attribute.
        limit: The expression that its length is compared with.
    """

    name: str
    limit: ast.expr


def find_declared_limit(name: str, owner: object | None, namespace: Mapping[str, object]) -> int:
    """Return how many entries a program allows in one of its containers; 0 if it has no limit.

    Args:
        name: The variable or attribute with the container.
        owner: The object whose attribute it is, or None.
        namespace: The globals of the module with the variable.
    """
    module_namespace = namespace if owner is None else _globals_of(type(owner))
    file = module_namespace.get("__file__")
    if type(file) is not str:
        return 0

    for bound in _read_bounds(file):
        limit = _evaluate(bound.limit, owner, module_namespace) if bound.name == name else None
        if type(limit) is int and limit > 0:
            return limit
    return 0


def _globals_of(cls: type) -> Mapping[str, object]:
    module = sys.modules.get(module_of(cls))
    return attributes_of(module) or {} if issubclass(type(module), ModuleType) else {}


def _evaluate(
    expression: ast.expr, owner: object | None, namespace: Mapping[str, object]
) -> object | None:
    """Return the value of a number, a global or an attribute of the owner; None for others."""
    match expression:
        case ast.Constant(value=int()):
            return expression.value
        case ast.Name(id=name):
            return namespace.get(name)
        case ast.Attribute(value=ast.Name(id="self"), attr=name) if owner is not None:
            own = attributes_of(owner) or {}
            inherited = (class_namespace(cls).get(name) for cls in mro_of(type(owner)))
            return own.get(name, next((value for value in inherited if value is not None), None))
    return None


@functools.cache
def _read_bounds(file: str) -> tuple[_Bound, ...]:
    """Read the bounds on containers in a source file; none if it cannot be read."""
    path = Path(file)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return ()
        tree = ast.parse(path.read_bytes())
        return tuple(_find_bounds(tree))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _find_bounds(tree: ast.Module) -> Iterator[_Bound]:
    added = [name for node in ast.walk(tree) for name in _names_changed(node, _ADDING)]

    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.While):
            continue
        body = [inner for statement in node.body for inner in ast.walk(statement)]
        removed_here = {name for inner in body for name in _names_changed(inner, _REMOVING)}
        added_here = [name for inner in body for name in _names_changed(inner, _ADDING)]

        for comparison in ast.walk(node.test):
            name, operator, limit = _read_comparison(comparison)
            # Where all that is added is added below the limit, nothing has to be removed.
            is_only_here = bool(name) and added.count(name) == added_here.count(name) > 0
            is_bound = isinstance(operator, _FULL) and name in removed_here
            if limit is not None and (
                is_bound or (isinstance(operator, _NOT_FULL) and is_only_here)
            ):
                yield _Bound(name, limit)


def _read_comparison(node: ast.AST) -> tuple[str, ast.cmpop | None, ast.expr | None]:
    """Read ``len(items) > limit``: the container's name, the operator and the limit."""
    match node:
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="len"), args=[container]),
            ops=[operator],
            comparators=[limit],
        ):
            return _last_name(container), operator, limit
    return "", None, None


def _names_changed(node: ast.AST, methods: frozenset[str]) -> Iterator[str]:
    """Yield the names of containers that a node changes by one of some methods, or by ``del``."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="heapq"), attr=attr), args=[heap, *_]):
            if attr in methods:
                yield _last_name(heap)
        case ast.Call(func=ast.Attribute(value=container, attr=attr)) if attr in methods:
            yield _last_name(container)
        case ast.Delete(targets=targets) if "pop" in methods:
            for target in targets:
                if isinstance(target, ast.Subscript):
                    yield _last_name(target.value)


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
