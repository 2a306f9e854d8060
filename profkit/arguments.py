"""Checks the arguments of the public functions at the call, before anything is done with them.

An argument of the wrong type would otherwise fail later, far from the line that gives it, or not at
all: a limit of ``"3"`` in a comparison, an unknown option as a missing attribute.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral
from typing import Final, NamedTuple

from profkit.errors import UsageError
from profkit.names import middle_cut, visible

_MAX_SHOWN: Final = 60
"""Characters of a value in an error's message."""


class Kind(NamedTuple):
    """What an argument may be.

    Attributes:
        text: As the end of the sentence "It must be …".
        accepts: Whether a value is of this kind; it runs no code of the value's class.
        hint: How to write it; may be empty.
    """

    text: str
    accepts: Callable[[object], bool]
    hint: str = ""


FLAG: Final = Kind("True or False", lambda value: isinstance(value, bool))
NAME: Final = Kind("a string", lambda value: isinstance(value, str))
REASON: Final = Kind(
    "a reason, a string", lambda value: isinstance(value, str) and bool(value.strip())
)
PATH: Final = Kind("a path", lambda value: isinstance(value, (str, os.PathLike)))
ITERABLE: Final = Kind(
    "something to loop over",
    lambda value: any(hasattr(type(value), name) for name in ("__iter__", "__getitem__")),
)
CALLABLE: Final = Kind("a function", callable)
MAPPING: Final = Kind("a dict", lambda value: isinstance(value, Mapping))
_ANYTHING: Final = Kind("anything", lambda _: True)


def whole(least: int = 0) -> Kind:
    """A whole number that is not less than another one. True and False are none."""
    return Kind(
        f"a whole number of {least} or more",
        lambda value: (
            not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least
        ),
    )


def optional(kind: Kind) -> Kind:
    """None, or a value of a kind."""
    return Kind(
        f"{kind.text}, or None", lambda value: value is None or kind.accepts(value), kind.hint
    )


def one_of(*values: str) -> Kind:
    """One of some strings."""
    return Kind(
        f"one of {', '.join(map(repr, values))}",
        lambda value: isinstance(value, str) and value in values,
    )


def instance_of(kinds: Collection[type], text: str) -> Kind:
    """An instance of a class, or of one of several."""
    types = tuple(kinds)
    return Kind(text, lambda value: isinstance(value, types))


def either(*kinds: Kind) -> Kind:
    """A value of any of some kinds."""
    return Kind(
        ", or ".join(kind.text for kind in kinds),
        lambda value: any(kind.accepts(value) for kind in kinds),
    )


def like(default: object) -> Kind:
    """The kind of an option that has a default value; anything if that does not show it."""
    known = {bool: FLAG, int: whole(), str: NAME}
    return known.get(type(default), _ANYTHING)


class Arguments:
    """The arguments of one function, by name.

    Args:
        function: Its public name, such as ``profkit.memory``.
    """

    def __init__(self, function: str, **kinds: Kind) -> None:
        self._function = function
        self._kinds = kinds

    def check(self, **given: object) -> None:
        """Check some arguments.

        Raises:
            UsageError: One is of the wrong type, or its value is not allowed.
        """
        for name, value in given.items():
            require(self._kinds[name], value, f"{self._function}: {name}")


def require(kind: Kind, value: object, what: str) -> None:
    """Check one value.

    Raises:
        UsageError: It is not of this kind.
    """
    if not kind.accepts(value):
        raise UsageError(f"{what} must be {kind.text}, not {_shown(value)}.", kind.hint)


def numbers_in(numbers: Iterable[int], what: str) -> tuple[int, ...]:
    """The whole numbers of 0 or more in a list, or in any other iterable, which is read once.

    Raises:
        UsageError: It is something else.
    """
    require(ITERABLE, numbers, what)
    found = tuple(numbers)
    for number in found:
        require(whole(), number, f"Each of {what}")
    return found


def names_in(names: Iterable[str], what: str) -> tuple[str, ...]:
    """The names in a list, or in any other iterable of strings, which is read once; or one name.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(names, str):
        return (names,)
    require(ITERABLE, names, what)
    found = tuple(names)
    for name in found:
        require(NAME, name, f"Each of {what}")
    return found


def _shown(value: object) -> str:
    """A value of a built-in type as its literal, any other by its type: ``repr`` is user code."""
    if type(value) in {str, bytes}:
        return middle_cut(visible(repr(value[: _MAX_SHOWN + 1])), _MAX_SHOWN)  # type: ignore[index]
    if type(value) in {int, float, bool, type(None)}:
        return middle_cut(repr(value), _MAX_SHOWN)
    return f"an object of type {visible(type(value).__qualname__)}"
