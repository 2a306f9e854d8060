"""What an object holds by name, read past the user's code.

``__getattr__``, ``__dict__`` and ``__class__`` may be the user's own and run anything, so types
are asked with ``type()`` and namespaces through the descriptors that Python itself has put there.
"""

from collections.abc import Iterator, Mapping
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, TypeGuard

_MRO: Final = type.__dict__["__mro__"]
_CLASS_NAMESPACE: Final = type.__dict__["__dict__"]
_QUALNAME: Final = type.__dict__["__qualname__"]
_MODULE: Final = type.__dict__["__module__"]


def namespace_of(thing: object) -> dict[str, object] | None:
    """The ``__dict__`` of an object, or None where it has none.

    Args:
        thing: Any object.
    """
    for cls in mro_of(type(thing)):
        found = class_namespace(cls).get("__dict__")
        if found is not None:
            if type(found) not in {GetSetDescriptorType, MemberDescriptorType}:
                return None
            return _dict_from(found, thing)
    return None


def slots_of(thing: object) -> Iterator[tuple[str, object]]:
    """Name and value of every slot of an object that is set.

    Args:
        thing: Any object.
    """
    for cls in mro_of(type(thing)):
        for name, found in class_namespace(cls).items():
            if type(found) is MemberDescriptorType:
                try:
                    yield name, found.__get__(thing)
                except (AttributeError, TypeError):
                    continue


def is_class(thing: object) -> TypeGuard[type]:
    """Whether something is a class, by its type alone: ``__class__`` may lie.

    Args:
        thing: Any object.
    """
    return issubclass(type(thing), type)


def mro_of(cls: type) -> tuple[type, ...]:
    """A class and its bases, past its metaclass.

    Args:
        cls: Any class.
    """
    mro: tuple[type, ...] = _MRO.__get__(cls)
    return mro


def class_namespace(cls: type) -> Mapping[str, Any]:
    """What a class holds by name, past its metaclass.

    Args:
        cls: Any class.
    """
    namespace: Mapping[str, Any] = _CLASS_NAMESPACE.__get__(cls)
    return namespace


def type_name(cls: type) -> str:
    """A class's qualified name without its module, past its metaclass.

    Args:
        cls: Any class.
    """
    return str(_QUALNAME.__get__(cls))


def module_of(cls: type) -> str:
    """Name of the module that a class says it comes from; empty where that is no text.

    Args:
        cls: Any class.
    """
    try:
        name = _MODULE.__get__(cls)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


def full_name(cls: type) -> str:
    """A class's name with its module's: ``collections.deque``; that of a builtin as it is.

    Args:
        cls: Any class.
    """
    module = module_of(cls)
    return type_name(cls) if module in {"", "builtins"} else f"{module}.{type_name(cls)}"


def _dict_from(descriptor: Any, thing: object) -> dict[str, object] | None:  # noqa: ANN401
    try:
        found = descriptor.__get__(thing)
    except (AttributeError, TypeError, SystemError):
        return None
    return found if type(found) is dict else None
