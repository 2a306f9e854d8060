"""``dataclass`` as in the standard library, at a twentieth of the time that a definition takes.

The standard library writes and compiles up to six methods of a class when it is defined: half of
the time that importing hundreds of classes takes. Here the methods are functions of this module,
and only ``__init__`` is compiled, when it has been used some times: most classes have one instance
or none. ``field``, ``fields``, ``asdict`` and the types for type checkers are from the standard
library. Its ``replace`` calls ``__init__``; the one here copies, in a fifth of the time: states of
the recorder are replaced at each step of the program.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final

__all__ = ["dataclass", "replace"]

_N_INTERPRETED: Final = 12
"""Instances before ``__init__`` is compiled, which takes as long as some twenty of them."""

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

    def replace(instance: Any, /, **changes: object) -> Any:  # noqa: ANN401  (any dataclass)
        """Return a copy of an instance with other values of some fields.

        Raises:
            TypeError: The class has no such field.
        """
        kind = instance.__class__
        members = kind.__dataclass_fields__
        if not changes.keys() <= members.keys():
            unknown = next(name for name in changes if name not in members)
            raise TypeError(f"{kind.__qualname__} has no field {unknown!r}")

        # Values that are cached beside the fields do not fit the copy.
        values = instance.__dict__
        copy = object.__new__(kind)
        copy.__dict__.update({name: values[name] for name in members}, **changes)
        if hasattr(copy, "__post_init__"):
            copy.__post_init__()
        return copy

    def dataclass(
        kind: type | None = None, /, *, frozen: bool = False, eq: bool = True
    ) -> type | Callable[[type], type]:
        """Make a class a dataclass, whose fields are all positional and in ``__init__``.

        Args:
            frozen: Whether its instances cannot be changed, and have a hash unless ``eq`` is False.
            eq: Whether instances with equal fields are equal.

        Raises:
            TypeError: A field or a base class is not plain.
        """
        if kind is None:
            return lambda kind: dataclass(kind, frozen=frozen, eq=eq)

        members = kind.__dataclass_fields__ = _collect_fields(kind, frozen=frozen)
        kind.__dataclass_params__ = _PARAMS[frozen, eq]
        methods = {"__init__": _Init(kind, frozen=frozen), "__repr__": _repr}
        methods["__match_args__"] = tuple(members)
        # Without a docstring the standard library writes one, from a signature.
        methods["__doc__"] = kind.__name__
        if eq:
            methods |= _build_comparison(members, frozen=frozen)
        if frozen:
            methods |= _FROZEN

        defined = vars(kind)
        for name, method in methods.items():
            # A class that defines __eq__ has None for a hash.
            if defined.get(name) is None:
                setattr(kind, name, method)
        return kind


_PARAMS: Final = {
    (frozen, eq): SimpleNamespace(
        init=True, repr=True, eq=eq, order=False, unsafe_hash=False, frozen=frozen
    )
    for frozen in (True, False)
    for eq in (True, False)
}
"""Parameters that the standard library reads from a base class, by ``frozen`` and ``eq``."""


def _collect_fields(kind: Any, *, frozen: bool) -> dict[str, Any]:  # noqa: ANN401  (any class)
    """Return the fields of a class by name, the fields of its bases first.

    Raises:
        TypeError: One is not positional or has a default that can change, or a base is frozen and
            the class is not, or the other way round.
    """
    collected: dict[str, Any] = {}
    for base in kind.__mro__[-1:0:-1]:
        if "__dataclass_fields__" in vars(base):
            if base.__dataclass_params__.frozen != frozen:
                raise TypeError(f"{kind.__qualname__} and {base.__qualname__}: one is frozen")
            collected.update(base.__dataclass_fields__)

    for name, annotation in kind.__annotations__.items():
        default: Any = getattr(kind, name, MISSING)
        member: Any = default if isinstance(default, Field) else field(default=default)
        is_class_variable = getattr(annotation, "__origin__", annotation) is ClassVar
        if is_class_variable or not member.init or member.kw_only is True:
            raise TypeError(f"{kind.__qualname__}.{name} is not positional")
        if member.default.__class__.__hash__ is None:
            raise TypeError(f"The default of {kind.__qualname__}.{name} can change")

        member.name, member.type, member.kw_only = name, annotation, False
        member._field_type = dataclasses._FIELD  # type: ignore[attr-defined]  # noqa: SLF001
        # The class has the default itself, as if it were written without ``field``.
        if member is default:
            if member.default is MISSING:
                delattr(kind, name)
            else:
                setattr(kind, name, member.default)
        collected[name] = member
    return collected


class _Factory:
    """The default in the signature of a field that is made anew for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


class _Init:
    """``__init__`` of a class until it has been used some times."""

    def __init__(self, kind: Any, *, frozen: bool) -> None:  # noqa: ANN401  (any class)
        self._kind = kind
        self._set = object.__setattr__ if frozen else setattr
        self._frozen = frozen
        self._n_left = _N_INTERPRETED

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401
        """Return this, or ``__init__`` compiled and in its place."""
        self._n_left -= 1
        if instance is not None and self._n_left >= 0:
            return MethodType(self, instance)
        return self._compile().__get__(instance, owner)

    def __call__(self, instance: Any, *arguments: object, **named: object) -> None:  # noqa: ANN401
        """Set the fields of an instance.

        Raises:
            TypeError: The arguments do not fit.
        """
        members = self._kind.__dataclass_fields__
        given = dict(zip(members, arguments, strict=False))
        fits = len(given) == len(arguments) and given.keys().isdisjoint(named)
        given |= named

        values = {}
        for name, member in members.items():
            if name in given:
                values[name] = given.pop(name)
            elif member.default_factory is not MISSING:
                values[name] = member.default_factory()
            else:
                values[name] = member.default
                fits = fits and member.default is not MISSING
        if given or not fits:
            self._compile()(instance, *arguments, **named)  # raises Python's error
            return

        for name, value in values.items():
            self._set(instance, name, value)
        if hasattr(instance, "__post_init__"):
            instance.__post_init__()

    def _compile(self) -> Any:  # noqa: ANN401
        compiled = self._kind.__init__ = _compile_init(self._kind, frozen=self._frozen)
        return compiled


def _compile_init(kind: Any, *, frozen: bool) -> Any:  # noqa: ANN401
    """Write and compile ``__init__`` of a class."""
    scope: dict[str, Any] = {"set_field": object.__setattr__, "FACTORY": _FACTORY}
    parameters, lines = ["self"], []
    for member in fields(kind):
        name = value = member.name
        if member.default_factory is not MISSING:
            scope[f"make_{name}"] = member.default_factory
            parameters.append(f"{name}=FACTORY")
            value = f"make_{name}() if {name} is FACTORY else {name}"
        elif member.default is not MISSING:
            scope[f"default_{name}"] = member.default
            parameters.append(f"{name}=default_{name}")
        else:
            parameters.append(name)
        lines.append(f"set_field(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")

    body = "\n ".join(lines or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n {body}", scope)  # noqa: S102  (as the standard library does)
    init = scope["__init__"]
    init.__qualname__, init.__module__ = f"{kind.__qualname__}.__init__", kind.__module__
    types = {member.name: member.type for member in fields(kind)}
    init.__annotations__ = {**types, "return": None}
    return init


def _build_comparison(members: dict[str, Any], *, frozen: bool) -> dict[str, Any]:
    """Return ``__eq__``, and ``__hash__``, which is None for instances that can change."""
    # Of two attributes or more it returns a tuple, so the class is one of them.
    names = (name for name, member in members.items() if member.compare)
    values = attrgetter("__class__", *names)

    def equals(self: object, other: object) -> object:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or values(self) == values(other)

    def hashed(self: object) -> int:
        return hash(values(self))

    return {"__eq__": equals, "__hash__": hashed if frozen else None}


@recursive_repr()
def _repr(self: Any) -> str:  # noqa: ANN401
    shown = (f"{m.name}={getattr(self, m.name)!r}" for m in fields(self) if m.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _no_assignment(_self: object, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_deletion(_self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_FROZEN: Final = {"__setattr__": _no_assignment, "__delattr__": _no_deletion}
