# ruff: noqa: ANN401  (a wrapper passes on the arguments and results of its function)
"""Wraps functions of every kind, and puts wrappers in the place of functions of others."""

import contextlib
import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, ClassVar, Final, NoReturn, Self, TypeVar, cast

from profkit.arguments import shown
from profkit.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

NewContext = Callable[[], Any]
"""Creates the context manager for one call, or None when it is not recorded."""

_NO_CONTEXT: Final = contextlib.nullcontext()
_NORMAL_ENDS: Final = (StopIteration, StopAsyncIteration, GeneratorExit)


class CaptureBlock:
    """What ``with`` opens, and what decorates; ``async with`` is refused with a hint."""

    __slots__ = ()

    _function: ClassVar[str] = "profkit.trace"
    """The public function that makes it."""
    _wrap: Callable[[Any], Any]
    """Returns a function whose calls open a block."""

    def __call__(self, function: Function) -> Function:
        """Open a block for every call of a function of any kind, or for every item of a generator.

        Raises:
            UsageError: If it is not a function.
        """
        return cast("Function", decorate(function, self._function, self._wrap))

    def __aenter__(self) -> NoReturn:
        """Refuse to be opened.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"{self._function} does not open blocks of `async with`.",
            f"Write `with {self._function}(…):`, also in async functions: `await` works within it.",
        )

    def __aexit__(self, *_error: object) -> None:
        """Do nothing: Python searches this method before it opens a block."""


class IdleContext(CaptureBlock):
    """A context manager and decorator that does nothing."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        return None

    def __call__(self, function: Function) -> Function:
        """Return a function unchanged."""
        return function


def is_early_end(kind: type[BaseException] | None) -> bool:
    """Return whether an exception ends a block before its end.

    ``StopIteration`` and ``GeneratorExit`` are the normal ends of ``__next__`` and of generators.
    """
    return kind is not None and not issubclass(kind, _NORMAL_ENDS)


def decorate(given: Any, decorator: str, wrap_function: Callable[[Any], Any]) -> Any:
    """Wrap a function, or the function of a static or class method.

    Args:
        decorator: The decorator's public name, such as ``profkit.memory``.
        wrap_function: Wraps a function.

    Raises:
        UsageError: If it is neither.
    """
    if isinstance(given, (staticmethod, classmethod)):
        return type(given)(decorate(given.__func__, decorator, wrap_function))
    require_function(given, decorator)
    return wrap_function(given)


def require_function(given: object, decorator: str) -> None:
    """Check the argument of a decorator, such as ``profkit.memory``.

    Raises:
        UsageError: If it is not a function, nor a static or class method.
    """
    if isinstance(given, (staticmethod, classmethod)):
        given = given.__func__

    if inspect.isclass(given):
        name = given.__qualname__
        raise UsageError(
            f"{decorator} decorates functions; {name} is a class.",
            "Decorate the class's methods.",
        )

    # A module is callable, but its class would be replaced by a plain function.
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    if module is not None and isinstance(given, module):
        raise UsageError(
            f"{decorator} decorates functions; {type(given).__qualname__} is a module, which would "
            "lose its parameters.",
            f"Decorate its forward: model.forward = {decorator}(model.forward).",
        )
    if not callable(given):
        raise UsageError(f"{decorator} decorates functions; {shown(given)} is not one.")


def not_open(function: str) -> UsageError:
    """Return the error of a block that ends and has not begun.

    Args:
        function: The public function that makes such blocks.
    """
    return UsageError(
        f"This {function} is not open, so it cannot be closed.",
        f"Use it as `with {function}(…):`, which calls `__enter__` and `__exit__` in pairs.",
    )


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name with its class, without enclosing functions."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return str(name).rsplit("<locals>.", 1)[-1]


def wrap(function: Function, new_context: NewContext) -> Function:
    """Enter a context in each call of a function, and for each item of a generator.

    The context sees the ``StopIteration`` or ``StopAsyncIteration`` after a generator's last item.

    Args:
        function: A function, async function, generator function or async generator function.
    """
    wrapper = _wrap_function
    if inspect.isasyncgenfunction(function):
        wrapper = _wrap_async_generator
    elif inspect.iscoroutinefunction(function):
        wrapper = _wrap_coroutine
    elif inspect.isgeneratorfunction(function):
        wrapper = _wrap_generator
    return cast("Function", wrapper(function, new_context))


def before(function: Callable[..., Any], hook: Callable[[Any], None]) -> Callable[..., Any]:
    """Return a method that calls a hook with its object first."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        hook(self)
        return function(self, *args, **kwargs)

    return method


def replace_attribute(owner: Any, name: str, replacement: object) -> Callable[[], None]:
    """Replace an attribute of a module or class; returns what restores it.

    Whatever something else has put in its place by then stays, and may still call the replacement.
    """
    # An inherited attribute is replaced in this class alone, and deleted there again.
    is_inherited = name not in vars(owner)
    original = vars(owner).get(name)
    setattr(owner, name, replacement)

    def restore() -> None:
        if vars(owner).get(name) is not replacement:
            return
        if is_inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return restore


def _wrap_function(function: Callable[..., Any], new_context: NewContext) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        context = new_context()
        if context is None:
            return function(*args, **kwargs)
        with context:
            return function(*args, **kwargs)

    return wrapper


def _wrap_coroutine(function: Callable[..., Any], new_context: NewContext) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with new_context() or _NO_CONTEXT:
            return await function(*args, **kwargs)

    return wrapper


def _wrap_generator(function: Callable[..., Any], new_context: NewContext) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        resume, value = inner.send, None

        # As `yield from` does, with a context around each item and none while the caller has it.
        try:
            while True:
                try:
                    with new_context() or _NO_CONTEXT:
                        item = resume(value)
                except StopIteration as end:
                    return end.value

                try:
                    resume, value = inner.send, (yield item)
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001  (thrown in, for the inner one)
                    resume, value = inner.throw, error
        finally:
            inner.close()

    return wrapper


def _wrap_async_generator(
    function: Callable[..., Any], new_context: NewContext
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        resume, value = inner.asend, None

        try:
            while True:
                try:
                    with new_context() or _NO_CONTEXT:
                        item = await resume(value)
                except StopAsyncIteration:
                    return

                try:
                    resume, value = inner.asend, (yield item)
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001  (thrown in, for the inner one)
                    resume, value = inner.athrow, error
        finally:
            await inner.aclose()

    return wrapper
