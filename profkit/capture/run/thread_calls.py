"""Monitors the memory of a program whose model is called in threads: of a service.

A service handles each request in a thread of its own, and its main thread waits. No step is
recorded then: torch's profiler would have to begin and end within a request, while others run. But
memory can be monitored over the calls of the model, of which each request has one.

Where tensors were allocated is not recorded: a dispatch mode belongs to one thread, and the next
call may be made by another. Who holds them is found all the same.
"""

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
        self._end_step = unless_paused(self._note_call)

    def note(self, module: object) -> None:
        """Note the call of a module in this thread, which is not the main one."""
        # Called for each module of the program: all that is not needed in each call comes later.
        if self._boundaries.counts(module) and not self._is_over and self._pid == os.getpid():
            self._end_step(module)

    def finish(self) -> LiveMemory | None:
        """End it, and return the monitored memory; None if there were too few calls."""
        monitor = self._end()
        if monitor is None:
            return None
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

    def _note_call(self, module: object) -> None:
        thread = threading.get_ident()
        # A finalizer of the program, which runs while memory is looked at, may call the module.
        if self._calling_thread == thread:
            return

        with self._lock:
            self._calling_thread = thread
            try:
                if not self._is_over:
                    self._boundaries.module_called(module, recorded=False)
            finally:
                self._calling_thread = 0
