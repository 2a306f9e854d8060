"""Detects where the steps of a monitored program end: by optimizer, DataLoader or module.

A step ends with an optimizer step; of several optimizers, with that of the first one. Without an
optimizer it ends with each batch of a DataLoader, and without both with a call of the first module.
Steps that the program itself reports take precedence over all of them.
"""

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Final, Literal

from profkit.capture import current, program_profilers
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.model.live_memory import LiveMemory

StepSource = Literal["module", "loader", "optimizer", "user"]
"""What ends a step, the most reliable last."""

_MIN_EVENTS: Final[dict[StepSource, int]] = {"module": 6, "loader": 3, "optimizer": 0, "user": 0}
"""Events of a source before it is used, as a more reliable one may follow."""
_ORDER: Final = tuple(_MIN_EVENTS)
_MODULE_CALLS_BEFORE_STEP: Final = 1000
"""Calls of a module, before they are used, while an optimizer exists that has not stepped: a policy
or a cell is called many times in a step, and what its calls retain until then is no growth."""
_FOREIGN_STEPS: Final = 8
"""Consecutive steps of other optimizers after which the first one is considered gone."""


class StepBoundaries:
    """Reports the ends of steps to a leak monitor.

    Args:
        make_monitor: Called once it is known what ends a step.

    Attributes:
        monitor: The leak monitor, or None before the first step.
    """

    def __init__(self, make_monitor: Callable[[StepSource], LeakMonitor]) -> None:
        self.monitor: LeakMonitor | None = None
        self._make_monitor = make_monitor
        self._source: StepSource | None = None
        self._n_events: dict[StepSource, int] = dict.fromkeys(_ORDER, 0)
        self._leader: weakref.ref[object] | None = None
        self._module: weakref.ref[object] | None = None
        self._n_foreign = 0
        self._n_leaders_gone = 0
        self._had_optimizer = _has_optimizer()

    @property
    def is_any_optimizer(self) -> bool:
        """Whether optimizers come and go, so that a step of any of them counts."""
        return self._n_leaders_gone > 1

    def optimizer_stepped(self, optimizer: object, *, recorded: bool) -> None:
        """An optimizer step has ended.

        Args:
            recorded: Whether the step was traced and must not be disturbed.
        """
        if self._leads(optimizer):
            self.step_ended("optimizer", recorded=recorded)

    def counts(self, module: object) -> bool:
        """Whether a call of this module may end a step: it is the first one, or there is none."""
        return self._module is None or self._module() is module

    def module_called(self, module: object, *, recorded: bool) -> bool:
        """A module is called; only calls of the first one count. Returns whether this is it."""
        if self._module is None:
            with contextlib.suppress(TypeError):
                self._module = weakref.ref(module)
        is_first = self._module is not None and self._module() is module
        if is_first:
            self.step_ended("module", recorded=recorded)
        return is_first

    def step_ended(self, source: StepSource, *, recorded: bool = False) -> None:
        """A source reports the end of a step: the program itself, or a DataLoader's next batch."""
        if self._source is not None and _ORDER.index(source) < _ORDER.index(self._source):
            return
        self._n_events[source] += 1
        if source != self._source:
            n_events = self._n_events[source]
            if n_events <= _MIN_EVENTS[source]:
                return
            if source == "module" and n_events <= _MODULE_CALLS_BEFORE_STEP and self._may_train():
                return
            self._source = source
            if self.monitor is not None:
                self.monitor.discard()
            self.monitor = self._make_monitor(source)
        if self.monitor is not None:
            if recorded or program_profilers.is_active:
                self.monitor.skip()
            else:
                self.monitor.step()

    def _may_train(self) -> bool:
        """Whether the program has made an optimizer since the beginning."""
        return _has_optimizer() and not self._had_optimizer

    def _leads(self, optimizer: object) -> bool:
        """Whether this is the first optimizer, or the one that has replaced it."""
        if self._leader is None:
            self._follow(optimizer)
            return True
        if self.is_any_optimizer:
            return True
        if self._leader() is optimizer:
            self._n_foreign = 0
            return True
        self._n_foreign += 1
        if self._n_foreign < _FOREIGN_STEPS:
            return False
        self._n_leaders_gone += 1
        self._follow(optimizer)
        return True

    def _follow(self, optimizer: object) -> None:
        self._n_foreign = 0
        with contextlib.suppress(TypeError):
            self._leader = weakref.ref(optimizer)


def _has_optimizer() -> bool:
    """Whether the process has ever made an optimizer.

    Source: ``torch.optim.Optimizer._patch_step_function`` marks ``step`` of its class.
    """
    optimizer = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    kinds: list[type] = [] if optimizer is None else [optimizer]
    while kinds:
        kind = kinds.pop()
        if getattr(vars(kind).get("step"), "hooked", False):
            return True
        kinds += kind.__subclasses__()
    return False


class BlockSteps:
    """The steps of a block: those that the program reports, else its optimizer steps.

    Args:
        make_monitor: Called once it is known what ends a step.
    """

    def __init__(self, make_monitor: Callable[[StepSource], LeakMonitor]) -> None:
        self._boundaries = StepBoundaries(make_monitor)
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._remove_hook: Callable[[], None] | None = None

    @property
    def is_without_steps(self) -> bool:
        """Whether no step has ended; False in a forked child."""
        return self._boundaries.monitor is None and self._process == os.getpid()

    def begin(self) -> None:
        """Listen for the ends of steps."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        current.step_listeners.append(self.user_stepped)
        self._remove_hook = register_optimizer_step_post_hook(self._on_optimizer).remove

    def end(self) -> LiveMemory | None:
        """Stop listening; the result, or None without steps or in a forked child."""
        with contextlib.suppress(ValueError):
            current.step_listeners.remove(self.user_stepped)
        if self._remove_hook is not None:
            self._remove_hook()
        monitor = self._boundaries.monitor
        return None if monitor is None or not monitor.is_own_process else monitor.finish()

    def user_stepped(self) -> None:
        """The program itself reports the end of a step; other threads are ignored."""
        if self._thread == threading.get_ident():
            self._boundaries.step_ended("user")

    def _on_optimizer(self, optimizer: object, _args: object, _kwargs: object) -> None:
        if self._thread == threading.get_ident():
            session = current.session
            is_recording = session is not None and session.is_recording
            self._boundaries.optimizer_stepped(optimizer, recorded=is_recording)
