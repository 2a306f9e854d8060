"""Detects where the steps of a monitored program end: by optimizer, DataLoader or module.

A step ends with an optimizer step; of several optimizers, with that of the leading one. Without an
optimizer it ends with each batch of a DataLoader, and without both with a call of the first module.
Steps that the program itself reports take precedence over all of them.
"""

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Final, Generic, Literal, Protocol, TypeVar

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.process import program_profilers
from profkit.capture.recording import current
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
"""Consecutive steps of other optimizers after which the leading one is considered gone."""


class StepMonitor(Protocol):
    """Receives the steps: a leak monitor, for example."""

    def step(self) -> None:
        """A step has ended."""
        ...

    def skip(self) -> None:
        """A step has ended that must not be disturbed."""
        ...

    def discard(self) -> None:
        """The steps so far were none: a more reliable source reports others from now on."""
        ...


Monitor = TypeVar("Monitor", bound=StepMonitor)


class LeadingOptimizer:
    """The optimizer whose steps are those of the program: of several, the first one.

    One that was freed is gone, and so is one that has not stepped during :data:`_FOREIGN_STEPS`
    steps of others; then the optimizer that steps leads.
    """

    def __init__(self) -> None:
        self._leader: weakref.ref[object] | None = None
        self._n_foreign = 0
        self._n_gone = 0

    @property
    def is_any(self) -> bool:
        """Whether optimizers come and go, so that a step of any of them counts."""
        return self._n_gone > 1

    def ends_step(self, optimizer: object) -> bool:
        """Whether a step of this optimizer, which has ended, is a step of the program."""
        leader = None if self._leader is None else self._leader()
        if leader is optimizer or self.is_any:
            self._n_foreign = 0
            return True
        self._n_foreign += 1
        if leader is not None and self._n_foreign < _FOREIGN_STEPS:
            return False
        self._n_gone += self._leader is not None
        self._n_foreign = 0
        with contextlib.suppress(TypeError):
            self._leader = weakref.ref(optimizer)
        return True


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
        self._source: StepSource | None = None
        self._n_events: dict[StepSource, int] = dict.fromkeys(_ORDER, 0)
        self._module: weakref.ref[object] | None = None
        self._had_optimizer = _has_optimizer()

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
        """A source reports the end of a step.

        Args:
            recorded: Whether the step was traced and must not be disturbed.
        """
        if source != self._source and not self._is_used_from_now_on(source):
            return
        if self.monitor is not None:
            if recorded or program_profilers.is_active:
                self.monitor.skip()
            else:
                self.monitor.step()

    def _is_used_from_now_on(self, source: StepSource) -> bool:
        """Whether a source replaces the one before: it is more reliable, and not a chance event."""
        if self._source is not None and _ORDER.index(source) < _ORDER.index(self._source):
            return False
        self._n_events[source] += 1
        n_events = self._n_events[source]
        if n_events <= _MIN_EVENTS[source]:
            return False
        if source == "module" and n_events <= _MODULE_CALLS_BEFORE_STEP and self._may_train():
            return False
        self._source = source
        if self.monitor is not None:
            self.monitor.discard()
        self.monitor = self._make_monitor(source)
        return True

    def _may_train(self) -> bool:
        """Whether the program has made an optimizer since the beginning."""
        return _has_optimizer() and not self._had_optimizer


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
        self._leader = LeadingOptimizer()
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
        if self._thread == threading.get_ident() and self._leader.ends_step(optimizer):
            session = current.session
            is_recording = session is not None and session.is_recording
            self._boundaries.step_ended("optimizer", recorded=is_recording)
