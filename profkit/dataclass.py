"""``dataclass`` as in the standard library, at a twentieth of the time that a definition takes.

The standard library writes and compiles up to six methods of a class when it is defined: half of
the time that importing hundreds of classes takes. Here the methods are functions of this module,
and only ``__init__`` is compiled, when it is first used. All else is the standard library's:
``field``, ``fields``, ``replace``, ``asdict``, and what type checkers know.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        kind: type | None = None, /, *, frozen: bool = False, eq: bool = True
    ) -> type | Callable[[type], type]:
        """Make a class a dataclass. Its fields are positional and in ``__init__``, all of them.

        Args:
            frozen: Whether its instances cannot be changed, and have a hash unless ``eq`` is False.
            eq: Whether instances with equal fields are equal.
        """
        if kind is None:
            return lambda kind: dataclass(kind, frozen=frozen, eq=eq)
        if any(map(dataclasses.is_dataclass, kind.__bases__)):
            return dataclasses.dataclass(frozen=frozen, eq=eq)(kind)
        # Without a docstring the standard library writes one, from a signature.
        kind.__doc__ = kind.__doc__ or kind.__name__
        dataclasses.dataclass(init=False, repr=False, eq=False)(kind)  # collects the fields
        params = kind.__dataclass_params__
        params.init, params.repr, params.eq, params.frozen = True, True, eq, frozen
        methods = {"__init__": _Init(kind, frozen=frozen), "__repr__": _repr}
        if eq:
            methods |= _comparison(kind, frozen=frozen)
        if frozen:
            methods |= _FROZEN
        for name, method in methods.items():
            # A class that defines __eq__ has None for a hash.
            if vars(kind).get(name) is None:
                setattr(kind, name, method)
        return kind


class _Factory:
    """The default in the signature of a field that is made anew for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


class _Init:
    """``__init__`` of a class until it is first used."""

    def __init__(self, kind: Any, *, frozen: bool) -> None:  # noqa: ANN401  (any class)
        self._kind = kind
        self._frozen = frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401
        """Compile it, and put it in its place."""
        compiled = self._kind.__init__ = _init(self._kind, frozen=self._frozen)
        return compiled.__get__(instance, owner)


def _init(kind: Any, *, frozen: bool) -> Any:  # noqa: ANN401
    """``__init__`` of a class.

    Raises:
        TypeError: If a field is not plain.
    """
    scope: dict[str, Any] = {"set_field": object.__setattr__, "FACTORY": _FACTORY}
    parameters, lines = ["self"], []
    for each in fields(kind):
        if not each.init or each.kw_only:
            raise TypeError(f"{kind.__qualname__}.{each.name} is not positional")
        name = value = each.name
        if each.default_factory is not MISSING:
            scope[f"make_{name}"] = each.default_factory
            parameters.append(f"{name}=FACTORY")
            value = f"make_{name}() if {name} is FACTORY else {name}"
        elif each.default is not MISSING:
            scope[f"default_{name}"] = each.default
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
    init.__annotations__ = {**{each.name: each.type for each in fields(kind)}, "return": None}
    return init


def _comparison(kind: Any, *, frozen: bool) -> dict[str, Any]:  # noqa: ANN401
    """``__eq__``, and ``__hash__``, which is None for instances that can change."""
    # With the class there are two at least, so that it always returns a tuple.
    values = attrgetter("__class__", *(each.name for each in fields(kind) if each.compare))

    def equals(self: object, other: object) -> object:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or values(self) == values(other)

    def hashed(self: object) -> int:
        return hash(values(self))

    return {"__eq__": equals, "__hash__": hashed if frozen else None}


@recursive_repr()
def _repr(self: Any) -> str:  # noqa: ANN401
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _no_assignment(_self: object, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_deletion(_self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_FROZEN: Final = {"__setattr__": _no_assignment, "__delattr__": _no_deletion}
