"""Calls a function at the end of each step of a program that is otherwise left alone.

Steps are those of :mod:`profkit.capture.memory.monitor.step_boundaries`: reported by the program
itself, else optimizer steps, else batches of a DataLoader. There are no hooks in modules, which
would cost more than a microsecond per step.
"""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from profkit.capture.live.step_clock import StepClock
from profkit.capture.memory.monitor.step_boundaries import (
    LeadingOptimizer,
    StepBoundaries,
    StepSource,
)
from profkit.capture.process import wrappers
from profkit.capture.process.compiling import dynamo_flag, unless_paused
from profkit.capture.recording import current


class StepEnds:
    """The hooks.

    Steps count in one thread: that of the first optimizer step, or of the first step that the
    program itself reports. Until then, batches count in the thread that installs the hooks.

    Args:
        clock: Receives them.

    Attributes:
        source: What ends a step, or None before the first one.
        is_inside: Whether the step that ends is the call of an optimizer that has not returned yet:
            torch's own region around it is open, so that no recording can begin.
    """

    def __init__(self, clock: StepClock) -> None:
        self.source: StepSource | None = None
        self.is_inside = False
        self._wants_outside = False
        self._clock = clock
        self._thread = threading.get_ident()
        self._is_bound = False
        self._leader = LeadingOptimizer()
        self._same = 0  # the id of the optimizer that stepped last, if its steps count
        self._boundaries = StepBoundaries(self._found)
        self._undo: list[Callable[[], None]] = []
        self._outside: weakref.ref[object] | None = None
        self._leave_outside: Callable[[], None] | None = None

    def begin(self) -> None:
        """Install the hooks; torch must be importable."""
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data import dataloader

        current.step_listeners.append(self.user_stepped)
        hook = register_optimizer_step_post_hook(self._optimizer_hook())
        iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  (torch has no hook for it)
        original = iterator.__next__

        def timed(batches: Any) -> Any:  # noqa: ANN401
            self._on_batch()
            began_ns = time.perf_counter_ns()
            try:
                return original(batches)
            finally:
                self._clock.waited_ns += time.perf_counter_ns() - began_ns

        def restore() -> None:
            if iterator.__next__ is timed:
                iterator.__next__ = original

        iterator.__next__ = timed
        self._undo = [
            hook.remove,
            restore,
            lambda: current.step_listeners.remove(self.user_stepped),
        ]

    def end(self) -> None:
        """Remove the hooks."""
        self.stay_inside()
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()

    def user_stepped(self) -> None:
        """The program itself reports the end of a step."""
        self._bind()
        if self._counts():
            self._boundaries.step_ended("user")

    def go_outside(self) -> None:
        """Have later steps end after the optimizer has returned; called in any thread."""
        self._wants_outside = True
        self._same = 0

    def stay_inside(self) -> None:
        """Undo that."""
        self._wants_outside = False
        leave, self._leave_outside, self._outside = self._leave_outside, None, None
        if leave is not None:
            leave()

    def _found(self, source: StepSource) -> StepClock:
        self.source, self._same = source, 0
        return self._clock

    def _bind(self) -> None:
        if not self._is_bound:
            self._is_bound, self._thread = True, threading.get_ident()

    def _counts(self) -> bool:
        return self._thread == threading.get_ident()

    def _on_batch(self) -> None:
        """A loader is about to return a batch."""
        if self._counts():
            self._boundaries.step_ended("loader")

    def _optimizer_hook(self) -> Callable[..., None]:
        """The hook. Most steps are like the one before, of the same optimizer: they take least."""
        is_compiling, thread, step = dynamo_flag() or bool, threading.get_ident, self._clock.step

        def stepped(optimizer: object, _args: object, _kwargs: object) -> None:
            if is_compiling():
                return
            if id(optimizer) == self._same and thread() == self._thread:
                step()
            else:
                self._on_optimizer(optimizer)

        return stepped

    def _on_optimizer(self, optimizer: Any) -> None:  # noqa: ANN401
        self._same = 0
        self._bind()
        if not self._counts() or not self._leader.ends_step(optimizer):
            return
        if self._outside is not None and self._outside() is optimizer:
            return  # the step ends when it has returned
        if self._wants_outside:
            self._go_outside(optimizer)
        self.is_inside = True
        try:
            self._boundaries.step_ended("optimizer")
        finally:
            self.is_inside = False
        self._same = id(optimizer) if self.source == "optimizer" else 0
        if self._wants_outside:  # maybe requested just now, in another thread
            self._same = 0

    def _go_outside(self, optimizer: Any) -> None:  # noqa: ANN401
        """Have the later steps of an optimizer end when its ``step()`` has returned."""
        self.stay_inside()
        self._wants_outside = True
        on_return = unless_paused(self._on_return)
        self._leave_outside = wrappers.after_calls(optimizer, "step", on_return)
        self._outside = weakref.ref(optimizer)

    def _on_return(self) -> None:
        if self._counts():
            self._boundaries.step_ended("optimizer")
