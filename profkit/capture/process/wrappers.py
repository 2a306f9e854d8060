# ruff: noqa: ANN401  (a wrapper passes on the arguments and results of its function)
"""Wraps functions of every kind so that each call enters a context manager."""

import contextlib
import functools
import inspect
import operator
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from profkit.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

Function = TypeVar("Function", bound=Callable[..., Any])

NewContext = Callable[[], Any]
"""Creates the context manager for one call, or None when it is not recorded."""

_NO_CONTEXT: Final = contextlib.nullcontext()
_NORMAL_ENDS: Final = (StopIteration, StopAsyncIteration, GeneratorExit)


class IdleContext:
    """A context manager and decorator that does nothing."""

    __slots__ = ()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        return None

    def __call__(self, function: Function) -> Function:
        """Return a function unchanged."""
        return function


def is_early_end(kind: type[BaseException] | None) -> bool:
    """Whether an exception ends a block before its end.

    ``StopIteration`` and ``GeneratorExit`` are the normal ends of ``__next__`` and of generators.
    """
    return kind is not None and not issubclass(kind, _NORMAL_ENDS)


def require_function(given: object, decorator: str) -> None:
    """Check the argument of a decorator, such as ``profkit.memory``.

    Raises:
        UsageError: If it is not a function.
    """
    if not callable(given):
        raise UsageError(f"{decorator} decorates functions; {given!r} is not one.")


def name_of(function: Callable[..., Any]) -> str:
    """A function's name with its class, without enclosing functions."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return str(name).rsplit("<locals>.", 1)[-1]


def wrap(function: Function, new_context: NewContext) -> Function:
    """Enter a context in each call of a function, and for each item of a generator.

    The context sees the ``StopIteration`` or ``StopAsyncIteration`` after a generator's last item.

    Args:
        function: A function, async function, generator function or async generator function.
    """
    wrapper = _function
    if inspect.isasyncgenfunction(function):
        wrapper = _async_generator
    elif inspect.iscoroutinefunction(function):
        wrapper = _coroutine
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator
    return cast("Function", wrapper(function, new_context))


def before(function: Callable[..., Any], hook: Callable[[Any], None]) -> Callable[..., Any]:
    """A method that calls a hook with its object first."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        hook(self)
        return function(self, *args, **kwargs)

    return method


class _FollowedMethod:
    """A method that calls a hook once it has returned, as an attribute of its one object.

    It looks like the method. Pickled or copied with its object, by an optimizer whose state is its
    whole ``__dict__``, it is the method again, of the copy, and nothing of profkit.

    Attributes:
        hook: As above.
    """

    def __init__(self, thing: Any, name: str, hook: Callable[[], None]) -> None:
        method, self.own = getattr(thing, name), vars(thing).get(name)
        own, followed = self.own, weakref.ref(thing)

        def call(itself: Any, /, *args: Any, **kwargs: Any) -> Any:
            bound = getattr(type(itself), name).__get__(itself) if own is None else own
            result = bound(*args, **kwargs)
            if itself is followed():
                hook()
            return result

        functools.update_wrapper(call, getattr(method, "__func__", method))
        functools.update_wrapper(self, method)
        self.__self__, self.__func__, self.hook = thing, call, hook

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __repr__(self) -> str:
        return repr(vars(self)["__wrapped__"])

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, Any]]:
        if self.own is None:
            return getattr, (self.__self__, vars(self)["__name__"])
        return operator.getitem, ((self.own,), 0)


def after_calls(thing: Any, name: str, hook: Callable[[], None]) -> Callable[[], None]:
    """Call a hook whenever a method of one object has returned; returns what undoes that.

    It stays a method with the same attributes: a learning-rate scheduler replaces ``step()`` of its
    optimizer by binding it once more, marks it, and warns if it does not find the mark.

    What undoes it holds no reference to the object, which may be an optimizer with its model.

    Source: ``LRScheduler.__init__``.
    """
    followed = weakref.ref(thing)

    def undo() -> None:
        there = followed()
        found = None if there is None else vars(there).get(name)
        if not isinstance(found, _FollowedMethod) or found.hook is not hook:
            return
        if found.own is None:
            del vars(there)[name]
        else:
            vars(there)[name] = found.own

    # Without setattr(), which may be the program's.
    vars(thing)[name] = _FollowedMethod(thing, name, hook)
    return undo


def _function(function: Callable[..., Any], new_context: NewContext) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        context = new_context()
        if context is None:
            return function(*args, **kwargs)
        with context:
            return function(*args, **kwargs)

    return wrapper


def _coroutine(function: Callable[..., Any], new_context: NewContext) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with new_context() or _NO_CONTEXT:
            return await function(*args, **kwargs)

    return wrapper


def _generator(function: Callable[..., Any], new_context: NewContext) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        resume, value = inner.send, None
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


def _async_generator(function: Callable[..., Any], new_context: NewContext) -> Callable[..., Any]:
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
