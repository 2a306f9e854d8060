"""Detects where the steps of a monitored program end: by optimizer, DataLoader or module.

A step ends with an optimizer step; of several optimizers, with that of the leading one. Without an
optimizer it ends with each batch of a DataLoader, and without both with a call of the first module.
Steps that the program itself reports take precedence over all of them.

The classes here carry out what :mod:`profkit.capture.memory.monitor.step_sources` and
:mod:`profkit.capture.memory.monitor.optimizer_order` decide.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.optimizer_order import (
    OptimizerOrder,
    OptimizerStep,
    OrderPhase,
    after_steps_of_leader,
    is_steady,
    next_order,
)
from profkit.capture.memory.monitor.step_sources import (
    SourceState,
    StepAction,
    StepSource,
    next_action,
)
from profkit.capture.process import optimizer_steps, program_profilers
from profkit.capture.recording import current
from profkit.model.live_memory import LiveMemory

__all__ = ["BlockSteps", "LeadingOptimizer", "StepBoundaries", "StepMonitor", "StepSource"]


class StepMonitor(Protocol):
    """Receives the steps: a leak monitor, for example."""

    def step(self) -> None:
        """Count a step that has ended."""
        ...

    def skip(self) -> None:
        """Count a step that has ended and must not be disturbed."""
        ...

    def discard(self) -> None:
        """Forget the steps so far: they were none, and others are reported from now on."""
        ...


Monitor = TypeVar("Monitor", bound=StepMonitor)


class LeadingOptimizer:
    """The optimizer whose steps are those of the program.

    Of several it is the outer one, which steps least often; see
    :mod:`profkit.capture.memory.monitor.optimizer_order`. Optimizers are held by weak references.

    Attributes:
        begins_anew: Whether the step that has just ended is the first: those counted before were
            parts of steps, such as the inner steps of MAML.
    """

    def __init__(self) -> None:
        self.begins_anew = False
        self._order = OptimizerOrder()
        self._keys: dict[int, tuple[int, weakref.ref[object] | None]] = {}
        self._freed: list[tuple[int, int]] = []
        self._n_keys = 0
        # A program with one optimizer, of thousands of steps per second, is soon steady.
        self._steady: weakref.ref[object] | None = None
        self._n_steady = 0

    @property
    def is_settled(self) -> bool:
        """Tell whether further steps of the leading optimizer alone need not be reported."""
        return self._order.phase is OrderPhase.SETTLED

    def repeats(self, optimizer: object) -> bool:
        """Return whether a step has ended that is one of the program's, like all before it.

        If not, :meth:`ends_step` finds out what it is.
        """
        if self._steady is None or self._steady() is not optimizer or self._freed:
            return False
        self._n_steady += 1
        return True

    def ends_step(self, optimizer: object) -> bool:
        """Return whether a step of this optimizer, which has ended, is a step of the program."""
        if self.repeats(optimizer):
            return True

        freed = self._take_freed() if self._freed else frozenset[int]()
        order = after_steps_of_leader(self._order, self._n_steady)
        key, reference = self._key_of(optimizer)
        self._order, step = next_order(order, key, freed)
        self.begins_anew = step is OptimizerStep.ENDS_FIRST
        self._steady = reference if is_steady(self._order) else None
        self._n_steady = 0
        return step is not OptimizerStep.WITHIN

    def _key_of(self, optimizer: object) -> tuple[int, weakref.ref[object] | None]:
        """Return the key of an optimizer, a new one if it has not stepped before.

        The weak reference is None where the optimizer allows none.
        """
        address = id(optimizer)
        entry = self._keys.get(address)
        if entry is not None and (entry[1] is None or entry[1]() is optimizer):
            return entry

        self._n_keys = key = self._n_keys + 1
        reference = None
        with contextlib.suppress(TypeError):
            reference = weakref.ref(optimizer, lambda _: self._freed.append((address, key)))
        self._keys[address] = key, reference
        return key, reference

    def _take_freed(self) -> frozenset[int]:
        """Return the keys of the optimizers that were freed since the last step, and drop them."""
        freed, self._freed = self._freed, []
        for address, key in freed:
            # Another optimizer may have the address by now.
            if self._keys.get(address, (0, None))[0] == key:
                del self._keys[address]
        return frozenset(key for _, key in freed)


class StepBoundaries(Generic[Monitor]):
    """Reports the ends of steps to a monitor.

    Args:
        make_monitor: Called once it is known what ends a step.

    Attributes:
        monitor: The monitor, or None before the first step.
    """

    def __init__(self, make_monitor: Callable[[StepSource], Monitor]) -> None:
        self.monitor: Monitor | None = None
        self._make_monitor = make_monitor
        self._state = SourceState()
        self._module: weakref.ref[object] | None = None
        self._had_optimizer = _has_optimizer()

    @property
    def source(self) -> StepSource | None:
        """Return what ends a step; None before the first one."""
        return self._state.source

    @property
    def is_unused(self) -> bool:
        """Return whether nothing was reported yet: neither a step nor the call of a module."""
        return self._module is None and self._state.source is None

    def counts(self, module: object) -> bool:
        """Return whether a call of this module may end a step: it is the first, or none is."""
        return self._module is None or self._module() is module

    def module_called(self, module: object, *, recorded: bool) -> bool:
        """Report a call of a module, and return whether it is the first one, which alone counts."""
        if self._module is None:
            with contextlib.suppress(TypeError):
                self._module = weakref.ref(module)
        is_first = self._module is not None and self._module() is module
        if is_first:
            self.step_ended("module", recorded=recorded)
        return is_first

    @property
    def n_ended_before(self) -> int:
        """Return how many steps ended before the first one that the present source reported."""
        return self._state.n_ended_before

    def expect_no_optimizer(self) -> None:
        """Take calls of modules for steps although there is an optimizer.

        Its steps are in hooks of gradients, which end no step.
        """
        self._had_optimizer = True

    def step_ended(
        self, source: StepSource, *, recorded: bool = False, begins_anew: bool = False
    ) -> None:
        """Report the end of a step.

        Args:
            source: What reports it.
            recorded: Whether the step was traced and must not be disturbed.
            begins_anew: Whether what this source reported until now were parts of steps.
        """
        self._state, action = next_action(
            self._state,
            source,
            awaits_optimizer=self._awaits_optimizer(source),
            begins_anew=begins_anew,
        )
        if action is StepAction.IGNORE:
            return

        if action is StepAction.BEGIN:
            if self.monitor is not None:
                self.monitor.discard()
            self.monitor = self._make_monitor(source)

        if self.monitor is not None:
            if recorded or program_profilers.state.is_active:
                self.monitor.skip()
            else:
                self.monitor.step()

    def _awaits_optimizer(self, source: StepSource) -> bool:
        """Return whether calls of a module wait for the first step of an optimizer."""
        # The search for optimizers is left out where its result does not matter.
        is_open = source == "module" and self._state.source is None
        return is_open and not self._had_optimizer and _has_optimizer()


def _has_optimizer() -> bool:
    """Return whether the process has ever made an optimizer."""
    return next(optimizer_steps.used_classes(), None) is not None


class BlockSteps:
    """The steps of a block: those that the program reports, else its optimizer steps.

    Args:
        make_monitor: Called once it is known what ends a step.
    """

    def __init__(self, make_monitor: Callable[[StepSource], LeakMonitor]) -> None:
        self._boundaries = StepBoundaries(make_monitor)
        self._leader = LeadingOptimizer()
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._remove_hook: Callable[[], None] | None = None

    @property
    def is_without_steps(self) -> bool:
        """Tell whether no step has ended; False in a forked child."""
        return self._boundaries.monitor is None and self._process == os.getpid()

    @property
    def n_steps(self) -> int:
        """Return how many steps have ended so far."""
        monitor = self._boundaries.monitor
        return 0 if monitor is None else monitor.n_steps

    def begin(self) -> None:
        """Listen for the ends of steps."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        current.step_listeners.append(self.user_stepped)
        self._remove_hook = register_optimizer_step_post_hook(self._on_optimizer).remove

    def end(self) -> LiveMemory | None:
        """Stop listening, and return the result; None without steps or in a forked child."""
        with contextlib.suppress(ValueError):
            current.step_listeners.remove(self.user_stepped)
        if self._remove_hook is not None:
            self._remove_hook()

        monitor = self._boundaries.monitor
        return None if monitor is None or not monitor.is_own_process else monitor.finish()

    def user_stepped(self) -> None:
        """Report the end of a step by the program itself; other threads are ignored."""
        if self._thread == threading.get_ident():
            self._boundaries.step_ended("user")

    def _on_optimizer(self, optimizer: object, _args: object, _kwargs: object) -> None:
        if self._thread == threading.get_ident() and self._leader.ends_step(optimizer):
            session = current.state.session
            is_recording = session is not None and session.is_recording
            self._boundaries.step_ended(
                "optimizer", recorded=is_recording, begins_anew=self._leader.begins_anew
            )
