"""Where a wait is forbidden, where it is allowed, and where it is profkit's own.

The marks are context variables: each thread and each asyncio task has its own.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from profkit.capture import wrappers
from profkit.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

Function = TypeVar("Function", bound=Callable[..., Any])

reason: Final[ContextVar[str | None]] = ContextVar("profkit_wait_is_allowed", default=None)
"""Why a wait is allowed here, or None where nobody has said so."""

guard: Final[ContextVar[object]] = ContextVar("profkit_wait_is_forbidden", default=None)
"""The innermost guard around this place, or None."""

_is_ours: Final[ContextVar[bool]] = ContextVar("profkit_waits_itself", default=False)


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """A block whose waits are profkit's own, and are neither told nor counted."""
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


def is_ours() -> bool:
    """Whether profkit itself waits here."""
    return _is_ours.get()


class AllowSync:
    """One use of ``profkit.allow_sync``, as a context manager or a decorator.

    Args:
        why: The reason.
    """

    def __init__(self, why: str) -> None:
        self._why = why
        self._tokens: list[Token[str | None]] = []

    def __enter__(self) -> "Self":
        self._tokens.append(reason.set(self._why))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(reason, self._tokens.pop())

    def __call__(self, function: Function) -> Function:
        """Allow the waits of every call of a function.

        Args:
            function: A function of any kind.

        Raises:
            UsageError: If it is no function.
        """
        wrappers.demand_function(function, "profkit.allow_sync")
        return cast("Function", wrappers.wrap(function, partial(AllowSync, self._why)))


def allow_sync(why: str, /) -> AllowSync:
    """Allow the waits for a device in a block or a function, within a ``profkit.no_sync``.

    ::

        with profkit.no_sync():
            train_step(batch)
            with profkit.allow_sync("the number of boxes decides what runs next"):
                n_boxes = int(mask.sum())

    Args:
        why: The reason, for whoever reads the code; it stands beside the wait in what is counted.

    Returns:
        A context manager and decorator. It holds for its own thread or asyncio task, and costs
        nothing to speak of where no guard is around it.

    Raises:
        UsageError: If no reason is given.
    """
    if not str(why).strip() or callable(why):
        raise UsageError(f"profkit.allow_sync takes the reason in words, and {why!r} is none.")
    return AllowSync(why)


def leave(variable: ContextVar[Any], token: Token[Any]) -> None:
    """Put a mark back to what it was.

    Args:
        variable: The mark.
        token: What setting it returned.
    """
    # A generator that holds the block open may be closed from another context, where the mark
    # was never set and there is nothing to put back.
    with contextlib.suppress(ValueError):
        variable.reset(token)
