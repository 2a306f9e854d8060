"""Calls a function at the end of each step of a program that is otherwise left alone.

Steps are those of :mod:`profkit.capture.memory.monitor.step_boundaries`: reported by the program
itself, else optimizer steps, else batches of a DataLoader. There are no hooks in modules, which
would cost more than a microsecond per step.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from profkit.capture.live.step_clock import StepClock
from profkit.capture.memory.monitor.step_boundaries import (
    LeadingOptimizer,
    StepBoundaries,
    StepSource,
)
from profkit.capture.process import optimizer_steps
from profkit.capture.recording import current


class StepEnds:
    """The hooks.

    Steps count in one thread: that of the first optimizer step, or of the first step that the
    program itself reports. Until then, batches count in the thread that installs the hooks.

    Args:
        clock: Receives them.

    Attributes:
        source: What ends a step, or None before the first one.
    """

    def __init__(self, clock: StepClock) -> None:
        self.source: StepSource | None = None
        self._clock = clock
        self._thread = threading.get_ident()
        self._is_bound = False
        self._leader = LeadingOptimizer()
        self._same = 0  # the id of the optimizer that stepped last, if its steps count
        self._boundaries = StepBoundaries(self._found)
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Install the hooks; torch must be importable."""
        from torch.utils.data import dataloader

        current.step_listeners.append(self.user_stepped)
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
            optimizer_steps.listen(self._on_optimizer),
            restore,
            lambda: current.step_listeners.remove(self.user_stepped),
        ]

    def end(self) -> None:
        """Remove the hooks."""
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()

    def user_stepped(self) -> None:
        """The program itself reports the end of a step."""
        self._bind()
        if self._counts():
            self._boundaries.step_ended("user")

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

    def _on_optimizer(self, optimizer: Any) -> None:  # noqa: ANN401
        """An optimizer has stepped, and has returned to the program.

        Most steps are like the one before, of the same optimizer: they take least.
        """
        if id(optimizer) == self._same and self._counts():
            self._clock.step()
            return
        self._same = 0
        self._bind()
        if self._counts() and self._leader.ends_step(optimizer):
            self._boundaries.step_ended("optimizer", begins_anew=self._leader.begins_anew)
            # Until then another one may prove to be the outer one, by the number of its steps.
            is_same = self.source == "optimizer" and self._leader.is_settled
            self._same = id(optimizer) if is_same else 0
