"""``profkit.no_leak``: raises an error if memory grows with every step."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from profkit.capture import console, current, wrappers
from profkit.capture.memory.monitor.budget import Budget, Work
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import BlockSteps, StepSource
from profkit.capture.memory.scope import IDLE, IdleMemory
from profkit.errors import LeakError
from profkit.index.trend import MIN_STEPS
from profkit.model.live_memory import Leak
from profkit.units import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

Function = TypeVar("Function", bound=Callable[..., Any])

_WORK: Final[tuple[Work, ...]] = (
    "full", "young", "graphs", "inspection", "host", "collector", "classify", "workers",
)  # fmt: skip
_BUDGET: Final = Budget(dict.fromkeys(_WORK, 5.0), dict.fromkeys(_WORK, 0.2))
"""Guards are used in tests, where certainty matters more than speed."""
_FIRST_CHECK: Final = 16
"""Calls of a guarded function before the first check; each later check after twice as many."""


class NoLeak:
    """One use of ``profkit.no_leak``, as a context manager or a decorator."""

    def __init__(self, allowed_bytes: int) -> None:
        self._allowed_bytes = allowed_bytes
        self._steps: BlockSteps | None = None

    def __enter__(self) -> "Self":
        self._steps = BlockSteps(_monitor)
        self._steps.begin()
        return self

    def __exit__(self, kind: object, _error: object, _traceback: object) -> None:
        steps, self._steps = self._steps, None
        live = None if steps is None else steps.end()
        if kind is not None:
            return
        if live is None or not live.n_evaluated_steps:
            n_steps = 0 if live is None else live.n_steps
            console.warn(
                f"no_leak found {n_steps} steps; more than {MIN_STEPS} are needed to detect a "
                "leak. Call its step() at the end of each step, or use an optimizer."
            )
            return
        self._check(live.leaks)

    def __call__(self, function: Function) -> Function:
        """Guard a function, each call of which is a step.

        Raises:
            UsageError: If it is not a function.
        """
        wrappers.require_function(function, "profkit.no_leak")
        calls = _Calls(self._check)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            returned = function(*args, **kwargs)
            calls.ended()
            return returned

        return cast("Function", guarded)

    def step(self) -> None:
        """End a step. Does nothing outside the block."""
        if self._steps is not None:
            self._steps.user_stepped()

    def _check(self, leaks: tuple[Leak, ...]) -> None:
        """Raise an error for the largest leak above the allowed growth.

        Raises:
            LeakError: If there is one.
        """
        refused = [one for one in leaks if one.per_step_bytes > self._allowed_bytes or one.graph]
        if refused:
            n_more = len(refused) - 1
            hint = f"{n_more} more leak{'s' if n_more > 1 else ''} found." if n_more else ""
            raise LeakError(_message(refused[0]), hint, leaks=tuple(refused))


class _Calls:
    """The calls of a guarded function; ``check`` raises an error for leaks."""

    def __init__(self, check: Callable[[tuple[Leak, ...]], None]) -> None:
        self._check = check
        self._monitor: LeakMonitor | None = None
        self._next_check = _FIRST_CHECK

    def ended(self) -> None:
        """Count a call as a step, and check for leaks if that is due."""
        if not current.is_on:
            return
        if self._monitor is None:
            self._monitor = _monitor("user")
        self._monitor.step()
        if self._monitor.n_steps < self._next_check:
            return
        self._next_check *= 2
        leaks = self._monitor.leaks()
        if leaks:
            self._monitor.discard()
            self._monitor, self._next_check = None, _FIRST_CHECK
            self._check(leaks)


def no_leak(*, allowed_bytes: int = 0) -> NoLeak | IdleMemory:
    """Raise an error if memory grows with every step.

    ::

        with profkit.no_leak():
            for batch in loader:
                train_step(batch)

        @profkit.no_leak()
        def train_step(batch): ...

    In a block, a step ends with ``step()`` of the guard or of a ``profkit.trace``, or else with an
    optimizer step; the error is raised at the end of the block. Of a function each call is a step,
    and the error is raised by the call that makes the leak certain. An exception of the block
    itself takes precedence.

    Args:
        allowed_bytes: Growth per step that is allowed.

    Returns:
        A context manager and decorator with ``step()``.

    Raises:
        LeakError: If memory grows, with the allocation site, the growth per step and the holder.
    """
    return NoLeak(allowed_bytes) if current.is_on else IDLE


def _monitor(source: StepSource) -> LeakMonitor:
    return LeakMonitor("no_leak", source, _BUDGET)


def _message(leak: Leak) -> str:
    objects = f"{leak.n} object{'s' if leak.n != 1 else ''} of type {leak.type}"
    if leak.shape:
        objects += f" of shape {leak.shape}"
    if leak.stack:
        objects += f", allocated at {leak.stack[0].file}:{leak.stack[0].line}"
    if leak.chains:
        objects += f", held by {''.join(leak.chains[0].parts)}"
    elif leak.cycle:
        objects += f", in an unreachable reference cycle {' → '.join(leak.cycle)}"
    amount = format_bytes(leak.per_step_bytes)
    if leak.nodes_per_step:
        amount += f" and {leak.nodes_per_step:.0f} graph nodes"
    return f"Memory grows by {amount} per step: {objects}."
