"""Reads attributes, slots and type names without running user code.

``__getattr__``, ``__dict__`` and ``__class__`` may be overridden and run anything, so types are
read with ``type()`` and namespaces through the descriptors that Python itself defines.
"""

import sys
from collections.abc import Iterator, Mapping
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, TypeGuard

from profkit.capture.process.objects import is_exactly

_MRO: Final = type.__dict__["__mro__"]
_CLASS_NAMESPACE: Final = type.__dict__["__dict__"]
_QUALNAME: Final = type.__dict__["__qualname__"]
_MODULE: Final = type.__dict__["__module__"]


def namespace_of(thing: object) -> dict[str, object] | None:
    """Return the ``__dict__`` of an object, or None if it has none."""
    for cls in mro_of(type(thing)):
        descriptor = class_namespace(cls).get("__dict__")
        if descriptor is not None:
            # Any other descriptor is the program's, and would run its code.
            if not is_exactly(descriptor, GetSetDescriptorType, MemberDescriptorType):
                return None
            try:
                namespace = descriptor.__get__(thing)
            except (AttributeError, TypeError, SystemError):
                return None
            return namespace if type(namespace) is dict else None
    return None


def slots_of(thing: object) -> Iterator[tuple[str, object]]:
    """Yield the name and value of every slot of an object that is set."""
    for cls in mro_of(type(thing)):
        for name, descriptor in class_namespace(cls).items():
            if type(descriptor) is MemberDescriptorType:
                try:
                    yield name, descriptor.__get__(thing)
                except (AttributeError, TypeError):
                    continue


def is_class(thing: object) -> TypeGuard[type]:
    """Tell whether something is a class, by its type alone: ``__class__`` may be overridden."""
    return issubclass(type(thing), type)


def mro_of(cls: type) -> tuple[type, ...]:
    """Return a class and its bases, without calling its metaclass."""
    mro: tuple[type, ...] = _MRO.__get__(cls)
    return mro


def class_namespace(cls: type) -> Mapping[str, Any]:
    """Return the ``__dict__`` of a class, without calling its metaclass."""
    namespace: Mapping[str, Any] = _CLASS_NAMESPACE.__get__(cls)
    return namespace


def type_name(cls: type) -> str:
    """Return a class's qualified name without its module, without calling its metaclass."""
    return str(_QUALNAME.__get__(cls))


def module_of(cls: type) -> str:
    """Return the ``__module__`` of a class; empty if it is not a string."""
    try:
        name = _MODULE.__get__(cls)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


def full_name(cls: type) -> str:
    """Return a class's name with its module, ``collections.deque``; builtins without."""
    module = module_of(cls)
    return type_name(cls) if module in {"", "builtins"} else f"{module}.{type_name(cls)}"


def result_of(task: Any) -> object:  # noqa: ANN401  (an asyncio task or future)
    """Return the result of an asyncio task or future that has ended, or None."""
    # The class in C, whose attribute no subclass can override, as ``result()`` can be.
    future_type: Any = sys.modules["_asyncio"].Future
    return future_type._result.__get__(task)  # noqa: SLF001
