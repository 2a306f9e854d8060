"""``profkit.no_leak``: raises an error if memory grows with every step."""

import threading
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar, overload

from profkit.arguments import Arguments, whole
from profkit.capture.memory.monitor.budget import Budget, Work
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import BlockSteps, StepSource
from profkit.capture.memory.scope import IDLE, IdleMemory
from profkit.capture.process import console, wrappers
from profkit.capture.recording import current
from profkit.errors import LeakError
from profkit.index.trend import MIN_STEPS
from profkit.model.live_memory import Leak

Function = TypeVar("Function", bound=Callable[..., Any])

_ARGUMENTS: Final = Arguments("profkit.no_leak", allowed_bytes=whole())
_WORK: Final[tuple[Work, ...]] = (
    "first", "full", "young", "graphs", "evaluate", "inspection", "host", "lines", "collector",
    "classify", "workers",
)  # fmt: skip
CERTAIN: Final = Budget(dict.fromkeys(_WORK, 5.0), dict.fromkeys(_WORK, 0.2))
"""The budget of tests, where certainty matters more than speed."""
_FIRST_CHECK: Final = 16
"""Calls of a guarded function before the first check; each later check after twice as many."""


class NoLeak(wrappers.CaptureBlock):
    """One use of ``profkit.no_leak``, as a context manager or a decorator."""

    _function = "profkit.no_leak"

    def __init__(self, allowed_bytes: int) -> None:
        self._allowed_bytes = allowed_bytes
        self._steps: BlockSteps | None = None

    def __enter__(self) -> Self:
        self._steps = BlockSteps(_monitor)
        self._steps.begin()
        return self

    def __exit__(self, kind: object, _error: object, _traceback: object) -> None:
        steps, self._steps = self._steps, None
        live = None if steps is None else steps.end()

        # The exception of the block itself takes precedence.
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

    def _wrap(self, function: Function) -> Function:
        calls = _Calls(self._check)
        return wrappers.wrap(function, lambda: calls)

    def step(self) -> None:
        """End a step. Does nothing outside the block."""
        if self._steps is not None:
            self._steps.user_stepped()

    def _check(self, leaks: tuple[Leak, ...]) -> None:
        """Raise an error for the leaks above the allowed growth.

        Raises:
            LeakError: If there is one.
        """
        if not leaks:
            return
        # Only here: most programs never have a leak, and need none of the analysis. Imported before
        # one is found, it would be growth of the program.
        from profkit.engine.families.leaks.host_messages import host_message
        from profkit.engine.families.leaks.messages import leak_clause
        from profkit.model.leak_bytes import total_per_step_bytes

        refused = [leak for leak in leaks if total_per_step_bytes(leak) > self._allowed_bytes]
        if refused:
            n_more = len(refused) - 1
            hint = f"{n_more} more leak{'s' if n_more > 1 else ''} found." if n_more else ""
            is_host = refused[0].device in {"host", "workers"}
            text = host_message(refused[0]) if is_host else f"{leak_clause(refused[0])}."
            raise LeakError(text, hint, leaks=tuple(refused))


class _Calls:
    """The calls of a guarded function, each of which is a block; those of one thread are counted.

    Args:
        check: Raises an error for leaks that are not allowed.
    """

    def __init__(self, check: Callable[[tuple[Leak, ...]], None]) -> None:
        self._check = check
        self._monitor: LeakMonitor | None = None
        self._thread = 0
        self._next_check = _FIRST_CHECK

    def __enter__(self) -> None:
        """Do nothing: of the tensors of a call nothing is known before it ends."""

    def __exit__(self, kind: object, _error: object, _traceback: object) -> None:
        if kind is None and current.state.is_on:
            self._end_call()

    def _end_call(self) -> None:
        """Count a call as a step, and check for leaks if that is due."""
        monitor = self._monitor
        if monitor is None:
            monitor = self._monitor = _monitor("user")
            self._thread = threading.get_ident()

        # A monitor follows the tensors of one thread's steps: a call of another thread, or in a
        # forked child, says nothing of them.
        if self._thread != threading.get_ident() or not monitor.is_own_process:
            return

        monitor.step()
        if monitor.n_steps < self._next_check:
            return

        self._next_check *= 2
        try:
            self._check(monitor.leaks())
        except LeakError:
            # A program that catches the error is monitored anew.
            monitor.discard()
            self._monitor, self._next_check = None, _FIRST_CHECK
            raise


@overload
def no_leak(function: Function, /) -> Function: ...


@overload
def no_leak(*, allowed_bytes: int = 0) -> NoLeak | IdleMemory: ...


def no_leak(function: Any = None, /, *, allowed_bytes: int = 0) -> Any:
    """Raise an error if memory grows with every step.

    ::

        with profkit.no_leak():
            for batch in loader:
                train_step(batch)

        @profkit.no_leak
        def train_step(batch): ...

    In a block, a step ends with ``step()`` of the guard or of a ``profkit.trace``, or else with an
    optimizer step; the error is raised at the end of the block. Of a function each call is a step,
    of an async function each await, of a generator function each item; those of one thread are
    counted. The error is raised by the call that makes the leak certain. An exception of the block
    itself takes precedence.

    Args:
        function: The function that a bare ``@profkit.no_leak`` decorates.
        allowed_bytes: Growth per step that is allowed, graph nodes included.

    Returns:
        A context manager and decorator with ``step()``. A bare ``@profkit.no_leak`` returns the
        decorated function.

    Raises:
        LeakError: If memory grows, with the allocation site, the growth per step and the holder.
        UsageError: If an argument is invalid.
    """
    _ARGUMENTS.check(allowed_bytes=allowed_bytes)
    guard = NoLeak(allowed_bytes) if current.state.is_on else IDLE
    if function is None:
        return guard
    wrappers.require_function(function, "profkit.no_leak")
    return guard(function)


def _monitor(source: StepSource) -> LeakMonitor:
    return LeakMonitor("no_leak", source, CERTAIN)
