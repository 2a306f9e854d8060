# ruff: noqa: ANN401  (a wrapper passes on whatever its function takes and gives)
"""Functions of every kind with a recording around each of their entries."""

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final

from profkit.errors import UsageError

Fresh = Callable[[], Any]
"""Makes the context manager for one entry, or None when it is not to be recorded."""

_NOTHING: Final = contextlib.nullcontext()


def require_function(given: object, decorator: str) -> None:
    """Refuse what is no function.

    Args:
        given: What is to be decorated.
        decorator: The decorator's name, such as ``profkit.memory``.

    Raises:
        UsageError: If it is no function.
    """
    if not callable(given):
        raise UsageError(f"{decorator} decorates functions, and {given!r} is none.")


def wrap(function: Callable[..., Any], fresh: Fresh) -> Callable[..., Any]:
    """A function that enters a context around each entry into another.

    Args:
        function: A function, async function, generator function or async generator function.
        fresh: Makes the context of one entry.
    """
    if inspect.isasyncgenfunction(function):
        return _async_generator(function, fresh)
    if inspect.iscoroutinefunction(function):
        return _coroutine(function, fresh)
    if inspect.isgeneratorfunction(function):
        return _generator(function, fresh)
    return _function(function, fresh)


def _function(function: Callable[..., Any], fresh: Fresh) -> Callable[..., Any]:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        entry = fresh()
        if entry is None:
            return function(*args, **kwargs)
        with entry:
            return function(*args, **kwargs)

    return recorded


def _coroutine(function: Callable[..., Any], fresh: Fresh) -> Callable[..., Any]:
    @functools.wraps(function)
    async def recorded(*args: Any, **kwargs: Any) -> Any:
        with fresh() or _NOTHING:
            return await function(*args, **kwargs)

    return recorded


def _generator(function: Callable[..., Any], fresh: Fresh) -> Callable[..., Any]:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        resume, value = inner.send, None
        try:
            while True:
                with fresh() or _NOTHING:
                    try:
                        item = resume(value)
                    except StopIteration as end:
                        return end.value
                try:
                    resume, value = inner.send, (yield item)
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001  (thrown in: the generator's to handle)
                    resume, value = inner.throw, error
        finally:
            inner.close()

    return recorded


def _async_generator(function: Callable[..., Any], fresh: Fresh) -> Callable[..., Any]:
    @functools.wraps(function)
    async def recorded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        resume, value = inner.asend, None
        try:
            while True:
                with fresh() or _NOTHING:
                    try:
                        item = await resume(value)
                    except StopAsyncIteration:
                        return
                try:
                    resume, value = inner.asend, (yield item)
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001  (thrown in: the generator's to handle)
                    resume, value = inner.athrow, error
        finally:
            await inner.aclose()

    return recorded
