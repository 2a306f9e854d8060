"""Checks the arguments of the public functions at the call, before anything is done with them.

An argument of the wrong type would otherwise fail later, far from the line that gives it, or not at
all: a limit of ``"3"`` in a comparison, an unknown option as a missing attribute.
"""

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral
from typing import Any, Final, NamedTuple, NoReturn, Self, TypeGuard

from profkit.errors import UsageError
from profkit.names import middle_cut, visible

_MAX_SHOWN: Final = 60
"""Characters of a value in an error's message."""


class Kind(NamedTuple):
    """A kind of values that an argument accepts.

    Attributes:
        text: The end of the sentence "It must be …".
        accepts: Whether a value is of this kind, without running code of the value's class.
        hint: How to write such a value; may be empty.
    """

    text: str
    accepts: Callable[[object], bool]
    hint: str = ""


FLAG: Final = Kind("True or False", lambda value: isinstance(value, bool))
NAME: Final = Kind("a string", lambda value: isinstance(value, str))
REASON: Final = Kind(
    "a reason, a string",
    lambda value: isinstance(value, str) and bool(value.strip()),
    'Write it as in profkit.allow_sync("the loss is logged").',
)
PATH: Final = Kind("a path", lambda value: isinstance(value, (str, os.PathLike)))
ITERABLE: Final = Kind(
    "an iterable",
    lambda value: any(hasattr(type(value), name) for name in ("__iter__", "__getitem__")),
)
CALLABLE: Final = Kind("a function", callable)
MAPPING: Final = Kind("a dict", lambda value: isinstance(value, Mapping))
_ANYTHING: Final = Kind("anything", lambda _: True)


def is_number(value: object) -> "TypeGuard[int | float]":
    """Return whether a value is a number; True, an int in Python, is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole(least: int = 0) -> Kind:
    """Accept whole numbers from a minimum on, but not True and False."""
    return Kind(
        f"a whole number of {least} or more",
        lambda value: (
            not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least
        ),
    )


def optional(kind: Kind) -> Kind:
    """Accept None, or a value of a kind."""
    return Kind(
        f"{kind.text}, or None", lambda value: value is None or kind.accepts(value), kind.hint
    )


def one_of(*values: str) -> Kind:
    """Accept one of some strings."""
    return Kind(
        f"one of {', '.join(map(repr, values))}",
        lambda value: isinstance(value, str) and value in values,
    )


def instance_of(kinds: Collection[type], text: str) -> Kind:
    """Accept an instance of some classes."""
    types = tuple(kinds)
    return Kind(text, lambda value: isinstance(value, types))


def either(*kinds: Kind) -> Kind:
    """Accept a value of any of some kinds."""
    return Kind(
        ", or ".join(kind.text for kind in kinds),
        lambda value: any(kind.accepts(value) for kind in kinds),
    )


def like(default: object) -> Kind:
    """Return the kind of an option by its default value; anything for a default of other types."""
    kinds = {bool: FLAG, int: whole(), str: NAME}
    return kinds.get(type(default), _ANYTHING)


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
            UsageError: An argument has an unknown name, the wrong type, or a value that is not
                allowed.
        """
        require_names(self._function, given, self._kinds)
        for name, value in given.items():
            require(self._kinds[name], value, f"{self._function}: {name}")


def require_names(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Check the names of arguments.

    Args:
        function: The public name of their function.
        given: The names in a call.
        known: The names of all arguments.

    Raises:
        UsageError: A name is unknown; the error lists all names, similar spellings first.
    """
    unknown = [name for name in given if name not in known]
    if not unknown:
        return

    from difflib import get_close_matches  # noqa: PLC0415  (only for this error)

    # The likely names come first, since a long list of names is skimmed.
    likely = [match for name in unknown for match in get_close_matches(name, known, n=1)]
    names = list(dict.fromkeys([*likely, *known]))
    question = f"Did you mean {' and '.join(dict.fromkeys(likely))}? " if likely else ""
    takes = f"It takes {', '.join(names)}." if names else "It takes no arguments by name."
    shown = ", ".join(middle_cut(visible(name), _MAX_SHOWN) for name in unknown)
    raise UsageError(f"{function} has no argument {shown}.", question + takes)


def require(kind: Kind, value: object, what: str) -> None:
    """Check one value.

    Raises:
        UsageError: It is not of this kind.
    """
    if not kind.accepts(value):
        raise UsageError(f"{what} must be {kind.text}, not {shown(value)}.", kind.hint)


def numbers_in(numbers: Iterable[int], what: str) -> tuple[int, ...]:
    """Return the whole numbers of 0 or more in an iterable, which is read once.

    Raises:
        UsageError: It is not an iterable, or has other values.
    """
    # A generator can be read only once: its values are checked and kept together.
    require(ITERABLE, numbers, what)
    values = tuple(numbers)
    for value in values:
        require(whole(), value, f"{what}: each value")
    return values


def names_in(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the names in an iterable of strings, which is read once; or one name.

    Raises:
        UsageError: It is not an iterable, or has other values.
    """
    # A string is an iterable of strings too, but nobody means its letters.
    if isinstance(names, str):
        return (names,)
    require(ITERABLE, names, what)
    values = tuple(names)
    for value in values:
        require(NAME, value, f"{what}: each value")
    return values


def shown(value: object) -> str:
    """Return a built-in value as its literal, others by their type, since ``repr`` is user code."""
    # Subclasses may define their own ``__repr__``: only exact types are shown.
    if type(value) in {str, bytes}:
        return middle_cut(visible(repr(value[: _MAX_SHOWN + 1])), _MAX_SHOWN)  # type: ignore[index]
    if type(value) in {int, float, bool, type(None)}:
        return middle_cut(repr(value), _MAX_SHOWN)
    return f"an object of type {visible(type(value).__qualname__)}"


class PublicFunction:
    """A public function as programs see it: where it is misused, it says how it is used.

    To editors, ``help()`` and ``inspect`` it looks like the function. It can be pickled by name.

    Args:
        function: The function.
        name: Its public name, such as ``profkit.memory``.
    """

    __qualname__: str
    __call__: Callable[..., Any]

    def __new__(cls, function: Callable[..., Any], name: str) -> Self:
        """Make it of a class of its own, as a call in Python would take a block twice its time.

        ``functools.partial`` is as quick, but no routine for ``help()`` in Python 3.13.
        """
        call = staticmethod(_with_checked_names(function, name))
        kind: Any = type(cls.__name__, (cls,), {"__call__": call})
        self: Self = super().__new__(kind)
        functools.update_wrapper(self, function)
        self.__module__, _, self.__qualname__ = name.rpartition(".")
        return self

    def __repr__(self) -> str:
        return f"<function {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> str:
        """Pickle by name."""
        return str(self.__qualname__)

    def __get__(self, instance: object, _owner: type | None = None) -> Any:  # noqa: ANN401
        """Bind to an instance, as functions do: ``help()`` recognizes functions by this method."""
        return self if instance is None else functools.partial(self, instance)


class PublicBlock(PublicFunction):
    """A public function whose result opens a block, and that reports ``with profkit.trace:``.

    Args:
        function: The function.
        name: Its public name.
        example: A call of it, for the error.
    """

    _example: str

    def __new__(cls, function: Callable[..., Any], name: str, example: str) -> Self:
        """Wrap the function as other public functions."""
        self = super().__new__(cls, function, name)
        self._example = example
        return self

    def __enter__(self) -> NoReturn:
        """Refuse to be opened.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"`with {self.__module__}.{self.__qualname__}:` lacks the call.",
            f"Write `with {self._example}:`.",
        )

    def __exit__(self, *_error: object) -> None:
        """Do nothing: Python requires this method to open a block."""

    __aenter__ = __enter__
    __aexit__ = __exit__


def _with_checked_names(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a function to check the names of arguments, unless the function does that itself."""
    import inspect  # noqa: PLC0415  (slow, and the command line does not need it)

    # A function that takes any name checks the names itself.
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function

    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = tuple(parameter.name for parameter in parameters if parameter.kind in by_name)
    name_set = frozenset(names)
    positional = {
        parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY
    }

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        # One comparison of sets on the usual path: it is called at each step of a program.
        if not name_set.issuperset(kwargs):
            require_positional(name, kwargs, positional)
            require_names(name, kwargs, names)
        return function(*args, **kwargs)

    return checked


def require_positional(function: str, given: Iterable[str], positional: Collection[str]) -> None:
    """Check that arguments without a name are not given by name.

    Raises:
        UsageError: An argument without a name is given by name.
    """
    for name in given:
        if name in positional:
            raise UsageError(
                f"{function} takes its {name} without `{name}=`.", "Give it as the first argument."
            )
