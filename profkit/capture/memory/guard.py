"""``profkit.no_leak``: an error where memory grows with every step."""

import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from profkit.capture import console, current, wrappers
from profkit.capture.memory.monitor.budget import Budget, Work
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import Turn
from profkit.capture.memory.scope import IDLE, FoundSteps, IdleMemory
from profkit.errors import LeakError
from profkit.index.trend import MIN_STEPS
from profkit.model.live_memory import Leak
from profkit.units import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

Function = TypeVar("Function", bound=Callable[..., Any])

_WORK: Final[tuple[Work, ...]] = (
    "full", "look", "graphs", "closer", "host", "collector", "judge", "workers",
)  # fmt: skip
_BUDGET: Final = Budget(dict.fromkeys(_WORK, 5.0), dict.fromkeys(_WORK, 0.2))
"""A guard stands in tests, where certainty is worth more than speed."""
_FIRST_VERDICT: Final = 16
"""Calls of a guarded function before it is first judged; then after twice as many each time."""


class NoLeak:
    """One use of ``profkit.no_leak``, as a context manager or a decorator.

    Args:
        allowed_bytes: Growth a step that is let pass.
    """

    def __init__(self, allowed_bytes: int) -> None:
        self._allowed_bytes = allowed_bytes
        self._steps: FoundSteps | None = None

    def __enter__(self) -> "Self":
        self._steps = FoundSteps(_watcher)
        self._steps.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        steps, self._steps = self._steps, None
        live = None if steps is None else steps.end()
        if kind is not None:
            return
        if live is None or not live.n_evaluated_steps:
            n_steps = 0 if live is None else live.n_steps
            console.warn(
                f"no_leak saw {n_steps} steps, too few to judge: it takes more than {MIN_STEPS}. "
                "Steps end with its step(), or with an optimizer's."
            )
            return
        self._refuse(live.leaks)

    def __call__(self, function: Function) -> Function:
        """Guard a function, each call of which is a step.

        Raises:
            UsageError: If it is no function.
        """
        wrappers.require_function(function, "profkit.no_leak")
        calls = _Calls(self._refuse)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            outcome = function(*args, **kwargs)
            calls.ended()
            return outcome

        return cast("Function", guarded)

    def step(self) -> None:
        """Say that a step has ended. Does nothing outside the block."""
        if self._steps is not None:
            self._steps.told()

    def _refuse(self, growths: tuple[Leak, ...]) -> None:
        """Raise an error for the largest growth that is not allowed.

        Raises:
            LeakError: If there is one.
        """
        leaks = [one for one in growths if one.per_step_bytes > self._allowed_bytes or one.graph]
        if leaks:
            raise LeakError(_sentence(leaks[0]), _others(leaks[1:]), leaks=tuple(leaks))


class _Calls:
    """The calls of a guarded function.

    Args:
        refuse: Raises an error for what grows.
    """

    def __init__(self, refuse: Callable[[tuple[Leak, ...]], None]) -> None:
        self._refuse = refuse
        self._watcher: LeakMonitor | None = None
        self._verdict_at = _FIRST_VERDICT

    def ended(self) -> None:
        """A call has ended."""
        if not current.is_on:
            return
        if self._watcher is None:
            self._watcher = _watcher("user")
        self._watcher.step()
        if self._watcher.n_steps < self._verdict_at:
            return
        self._verdict_at *= 2
        growths = self._watcher.judged()
        if growths:
            self._watcher.drop()
            self._watcher, self._verdict_at = None, _FIRST_VERDICT
            self._refuse(growths)


def no_leak(*, allowed_bytes: int = 0) -> NoLeak | IdleMemory:
    """Raise an error if memory grows with every step.

    ::

        with profkit.no_leak():
            for batch in loader:
                train_step(batch)

        @profkit.no_leak()
        def train_step(batch): ...

    In a block, steps are those that ``step()`` tells, of the guard or of a ``profkit.trace``, else
    the optimizer's; the error comes at the block's end. Of a function each call is a step, and the
    error comes from the call that makes it certain. An exception of the block's own goes first.

    Args:
        allowed_bytes: Growth a step that is let pass.

    Returns:
        A context manager and decorator with ``step()``.

    Raises:
        LeakError: When memory grows: with the line, by how much, and who holds it.
    """
    return NoLeak(allowed_bytes) if current.is_on else IDLE


def _watcher(turn: Turn) -> LeakMonitor:
    return LeakMonitor("no_leak", turn, _BUDGET)


def _sentence(growth: Leak) -> str:
    """What grows, in one sentence."""
    what = f"{growth.n} of {growth.type}"
    if growth.shape:
        what += f" of shape {growth.shape}"
    if growth.stack:
        what += f", made at {growth.stack[0].file}:{growth.stack[0].line}"
    if growth.chains:
        what += f", held by {''.join(growth.chains[0].parts)}"
    elif growth.cycle:
        what += f", in an unreachable cycle of {' → '.join(growth.cycle)}"
    much = format_bytes(growth.per_step_bytes)
    if growth.nodes_per_step:
        much += f" and {growth.nodes_per_step:.0f} graph nodes"
    return f"Each step keeps {much} more: {what}."


def _others(growths: list[Leak]) -> str:
    return f"{len(growths)} more grow too." if growths else ""
