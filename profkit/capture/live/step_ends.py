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
from profkit.capture.process import optimizer_steps, wrappers
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
        self._last_optimizer_id = 0  # of the one that stepped last, if its steps count
        self._boundaries = StepBoundaries(self._use_source)
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

        self._undo = [
            optimizer_steps.listen(self._on_optimizer),
            wrappers.replace_attribute(iterator, "__next__", timed),
            lambda: current.step_listeners.remove(self.user_stepped),
        ]

    def end(self) -> None:
        """Remove the hooks."""
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()

    def user_stepped(self) -> None:
        """End a step that the program itself reports."""
        self._bind_thread()
        if self._is_counting_thread():
            self._boundaries.step_ended("user")

    def _use_source(self, source: StepSource) -> StepClock:
        """Count steps by a source from now on."""
        self.source, self._last_optimizer_id = source, 0
        return self._clock

    def _bind_thread(self) -> None:
        if not self._is_bound:
            self._is_bound, self._thread = True, threading.get_ident()

    def _is_counting_thread(self) -> bool:
        return self._thread == threading.get_ident()

    def _on_batch(self) -> None:
        """End a step where a loader is about to return a batch."""
        if self._is_counting_thread():
            self._boundaries.step_ended("loader")

    def _on_optimizer(self, optimizer: Any) -> None:  # noqa: ANN401
        """End a step where an optimizer has stepped and has returned to the program.

        Most steps are like the one before, of the same optimizer: they take least.
        """
        if id(optimizer) == self._last_optimizer_id and self._is_counting_thread():
            self._clock.step()
            return

        self._last_optimizer_id = 0
        self._bind_thread()
        if self._is_counting_thread() and self._leader.ends_step(optimizer):
            self._boundaries.step_ended("optimizer", begins_anew=self._leader.begins_anew)
            # Until it is settled, another optimizer may prove to be the outer one, by the number of
            # its steps.
            is_same = self.source == "optimizer" and self._leader.is_settled
            self._last_optimizer_id = id(optimizer) if is_same else 0
