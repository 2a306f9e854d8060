"""Monitors the memory of a program whose model is called in threads: of a service.

A service handles each request in a thread of its own, and its main thread waits. No step is
recorded then: torch's profiler would have to begin and end within a request, while others run. But
memory can be monitored over the calls of the model, of which each request has one.

Where tensors were allocated is not recorded: a dispatch mode belongs to one thread, and the next
call may be made by another. Who holds them is found all the same.
"""

import itertools
import os
import threading
from collections.abc import Callable
from typing import Final

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import StepBoundaries
from profkit.capture.memory.monitor.step_sources import StepSource
from profkit.capture.process.compiling import unless_paused
from profkit.dataclass import replace
from profkit.model.live_memory import LiveMemory

MANY_CALLS: Final = 10_000
"""Calls in threads after which a program that has made none in its main thread is taken for a
service: it will hardly begin to call another module there."""
_REMARK: Final = (
    "A step of the monitored memory is a call of the model in a thread. What threads allocate has "
    "no source lines."
)


class ThreadCalls:
    """Takes calls that other threads make of the first module for steps, if there are no others.

    Args:
        make_monitor: Makes the monitor of memory, once the module was called some times.
    """

    def __init__(self, make_monitor: Callable[[StepSource], LeakMonitor]) -> None:
        self._boundaries = StepBoundaries(make_monitor)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._calling_thread = 0
        self._is_over = False
        # Most calls are only counted, which takes no lock: threads would wait for each other.
        self._calls = itertools.count(1)
        self._last_call = self._next_call = 0
        self._end_step = unless_paused(self._note_call)

    def note(self, module: object) -> bool:
        """Note the call of a module in this thread, which is not the main one.

        Returns:
            Whether there were so many calls of this module that the program is a service.
        """
        # Called for each module of the program: all that is not needed in each call comes later.
        if not self._boundaries.counts(module) or self._is_over:
            return False
        call = next(self._calls)
        if call >= self._next_call and self._pid == os.getpid():
            self._end_step(module, call)
        return call >= MANY_CALLS and self._boundaries.monitor is not None

    def finish(self) -> LiveMemory | None:
        """End it, and return the monitored memory; None if there were too few calls."""
        monitor = self._end()
        if monitor is None:
            return None
        self._count_calls(monitor, next(self._calls))
        live = monitor.finish()
        return replace(live, not_measured=(*live.not_measured, _REMARK))

    def discard(self) -> None:
        """End it without a result: the program's own thread has steps."""
        monitor = self._end()
        if monitor is not None:
            monitor.discard()

    def _end(self) -> LeakMonitor | None:
        """Note no more calls, and return the monitor, if there is one that has not ended."""
        with self._lock:
            self._is_over, was_over = True, self._is_over
        return None if was_over else self._boundaries.monitor

    def _note_call(self, module: object, call: int) -> None:
        """Report the end of a step, and of those that were only counted since the last one.

        Args:
            call: The number of the call, from 1.
        """
        thread = threading.get_ident()
        # A finalizer of the program, which runs while memory is looked at, may call the module.
        if self._calling_thread == thread:
            return

        with self._lock:
            self._calling_thread = thread
            try:
                # Threads pass each other: this call may have been counted with a later one.
                if not self._is_over and call > self._last_call:
                    self._report(module, call)
            finally:
                self._calling_thread = 0

    def _report(self, module: object, call: int) -> None:
        monitor = self._boundaries.monitor
        if monitor is not None:
            self._count_calls(monitor, call)

        self._boundaries.module_called(module, recorded=False)
        monitor = self._boundaries.monitor
        self._last_call = call
        if monitor is not None:
            self._next_call = self._last_call + 1 + monitor.n_idle_steps

    def _count_calls(self, monitor: LeakMonitor, call: int) -> None:
        """Count the calls since the last one that was reported, before this one."""
        monitor.count(min(call - self._last_call - 1, monitor.n_idle_steps))
