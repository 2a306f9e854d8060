"""Finds the method by which an object empties what it has collected, as a metric's ``reset``."""

import dis
import types
from collections.abc import Sequence
from typing import Final

from profkit.capture.memory.holders.attributes import (
    class_namespace,
    module_of,
    mro_of,
    namespace_of,
)
from profkit.capture.memory.holders.containers import find_key

_BEGINNINGS: Final = ("reset", "clear", "empty")
"""How the names of methods begin that empty an object."""
_REMOVALS: Final = frozenset({"clear", "pop", "popleft", "popitem", "remove", "truncate", "zero_"})
"""Methods of what an attribute holds by which it is emptied."""
_STORES: Final = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_OF_SUBSCRIPTS: Final = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_OF_METRICS: Final = "torchmetrics"
"""The library whose ``Metric.reset`` empties all states, which it finds by their names."""


def find_emptying_method(path: Sequence[object]) -> str:
    """Return the name of a method that empties an attribute, without calling anything.

    Args:
        path: Objects, each held by the one before; the last is the value of the attribute, or its
            container.

    Returns:
        The method's name; empty without an owner or such a method.
    """
    for place in range(len(path) - 2, max(len(path) - 4, -1), -1):
        namespace = namespace_of(path[place])
        key = None if namespace is None else find_key(namespace, path[-1])
        if key is not None and type(key[0]) is str:
            return _find_method(type(path[place]), key[0])
    return ""


def _find_method(cls: type, attribute: str) -> str:
    """Find a method of a class, or of a base, that uses an attribute and is named so."""
    for base in mro_of(cls):
        is_metric = module_of(base).partition(".")[0] == _OF_METRICS
        for name, method in class_namespace(base).items():
            if type(method) is not types.FunctionType or not name.startswith(_BEGINNINGS):
                continue
            if is_metric or _empties(method.__code__, attribute):
                return name
    return ""


def _empties(code: types.CodeType, attribute: str) -> bool:
    """Tell whether a method empties an attribute, or only reads it, as ``Queue.empty`` does."""
    names = set(code.co_names)
    # One that calls ``__init__`` begins anew.
    if attribute not in names or "__init__" in names:
        return "__init__" in names
    if names & _REMOVALS:
        return True

    return any(
        (step.opname in _STORES and step.argval == attribute) or step.opname in _OF_SUBSCRIPTS
        for step in dis.get_instructions(code)
    )
