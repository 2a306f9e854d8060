"""Finds the steps of an unmodified program, to record some of them and monitor all of them.

A step ends with a call of an optimizer's ``step()``: with gradient accumulation it has several
batches, and of several optimizers one counts. Without an optimizer, a step is one iteration over a
DataLoader; without both, it is a call of the first module. Steps that the program marks itself, by
``profkit.steps`` or ``profkit.trace``, come before all of them. Which one it is, is decided in
:mod:`profkit.capture.memory.monitor.step_boundaries`, for the recording and for the memory.

Each end of a step is a call of the program on its own thread, with nothing open: after ``step()``
has returned, before the loader fetches, before the module runs. That is where recordings begin and
end.

If the program uses a profiler itself, it has torch's profiler to itself from then on: nothing is
recorded any more. Memory is monitored as before, except while that profiler records.

Source: ``torch.nn.modules.module.register_module_forward_pre_hook``.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from profkit.capture.memory.monitor.dataset_containers import note_iterator
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import (
    LeadingOptimizer,
    StepBoundaries,
    StepSource,
)
from profkit.capture.memory.monitor.worker_starts import WorkerStarts
from profkit.capture.process import (
    console,
    environment,
    optimizer_steps,
    program_profilers,
    signals,
    wrappers,
)
from profkit.capture.process.compiling import (
    compiled_module_class,
    has_compiled,
    is_compiled_module,
    is_in_backward,
    is_traced,
    unless_paused,
)
from profkit.capture.process.module_calls import ModuleCalls, is_within_module_call
from profkit.capture.process.open_regions import OpenRegions
from profkit.capture.process.step_times import StepLog
from profkit.capture.recording import current
from profkit.capture.run.plan import Plan
from profkit.capture.run.run_recorder import RunRecorder
from profkit.capture.run.thread_calls import ThreadCalls
from profkit.capture.source.files import library_roots
from profkit.model.live_memory import LiveMemory

_BEFORE_OPTIMIZER: Final = ("loaders", "modules")
"""Hooks that find steps as long as no optimizer has stepped."""
_COUNTED: Final = ("module", "optimizer")
"""What ends steps that may be shorter than a millisecond: they are counted where nothing is due."""

_NO_PRELUDE: Final = (
    "The program has ended before a step was recorded, and this version of torch cannot record a "
    "run as a whole."
)


class StepMonitors:
    """What receives the steps of the program: the recording, and the monitor of its memory.

    Args:
        recorder: Records some of the steps.
        make_leak_monitor: Makes the monitor of memory, once it is known what ends a step; or None.
        thread_calls: Monitors memory as long as the program's own thread has no steps; or None.
        times: Notes when each step ends, or None where no other ranks are to be compared.
    """

    def __init__(
        self,
        recorder: RunRecorder,
        make_leak_monitor: Callable[[StepSource], LeakMonitor] | None,
        thread_calls: ThreadCalls | None,
        times: StepLog | None,
    ) -> None:
        self.leak_monitor: LeakMonitor | None = None
        self.thread_calls = thread_calls
        self.worker_starts = WorkerStarts()
        self._recorder = recorder
        self._make_leak_monitor = make_leak_monitor
        self.times = times

    def switch_source(self, source: StepSource, n_ended_before: int) -> "StepMonitors":
        """Use steps of another source from now on, and return this.

        Args:
            n_ended_before: Steps of this source that ended before the first one that is reported.
        """
        self._recorder.use_kind(source, n_ended_before)
        if self.thread_calls is not None:
            self.thread_calls.discard()
        if self._make_leak_monitor is not None:
            earlier, self.leak_monitor = self.leak_monitor, self._make_leak_monitor(source)
            if earlier is not None:
                self.leak_monitor.follow(earlier.budget_spent())
        return self

    def step(self) -> None:
        """Report the end of a step. Memory is looked at between it and the next one."""
        self._end_step(LeakMonitor.step)

    def skip(self) -> None:
        """Report the end of a step that must not be disturbed."""
        self._end_step(LeakMonitor.skip)

    def _end_step(self, monitor: Callable[[LeakMonitor], None]) -> None:
        """End a step, and let the monitor of memory do something before the next one begins."""
        if self.times is not None:
            self.times.end_step()
        self._recorder.close_step()
        if self.leak_monitor is not None:
            monitor(self.leak_monitor)
        self._recorder.step_ended()
        if self.times is not None:
            self.times.begin_step()

    def n_idle_steps(self) -> int:
        """Return how many of the next steps need only be counted, by :meth:`count`."""
        monitor, n_steps = self.leak_monitor, self._recorder.n_idle_steps()
        return n_steps if monitor is None else min(n_steps, monitor.n_idle_steps)

    def count(self, n_steps: int) -> None:
        """Count steps that have ended, no more than :meth:`n_idle_steps`."""
        self._recorder.count(n_steps)
        if self.leak_monitor is not None:
            self.leak_monitor.count(n_steps)

    def discard(self) -> None:
        """Discard the steps so far, as they were none: a more reliable source follows."""
        if self.times is not None:
            self.times.clear()
        if self.leak_monitor is not None:
            self.leak_monitor.discard()


class StepFinder:
    """Hooks a program's optimizers, loaders and modules, and passes on where its steps end.

    Attributes:
        recorder: Records the run.
    """

    def __init__(self, plan: Plan) -> None:
        self.recorder = RunRecorder(plan)
        self._plan = plan
        self._unhook: dict[str, Callable[[], None]] = {}

        make_leak_monitor, thread_calls = None, None
        if plan.monitor_memory:
            make_leak_monitor = self._make_leak_monitor
            thread_calls = ThreadCalls(partial(self._make_leak_monitor, in_threads=True))
        # The times of all steps are compared between the ranks of a job.
        is_rank = (environment.ranks()[1] or 1) > 1
        times = StepLog() if is_rank else None
        self._monitors = StepMonitors(self.recorder, make_leak_monitor, thread_calls, times)
        self._boundaries = StepBoundaries(self._switch_source)
        self._module_calls = ModuleCalls(self._on_call)
        self._on_leading_call = unless_paused(self._on_module)
        self._main_thread = (os.getpid(), threading.get_ident())
        self._leader = LeadingOptimizer()
        self._regions = OpenRegions()
        # A program of tiny modules takes ten thousand steps per second.
        self._n_idle = self._n_uncounted = 0

    def _switch_source(self, source: StepSource) -> StepMonitors:
        return self._monitors.switch_source(source, self._boundaries.n_ended_before)

    @property
    def shortfall_reason(self) -> str:
        """Return why fewer steps were recorded than planned, in one sentence, or empty."""
        name = self.recorder.program_profiler
        if not self._plan.record_trace:
            return ""
        if not name:
            return "" if self.recorder.path or self.recorder.has_prelude else _NO_PRELUDE
        uses = f"The program uses a profiler itself ({name}), so profkit recorded"
        if self.recorder.path is None:
            return f"{uses} no steps. Analyze the trace of that profiler instead."
        return f"{uses} steps only until then." if self.recorder.yielded_to_profiler else ""

    def on_torch_import(self, *, is_first: bool = False) -> None:
        """Install the hooks and begin to record.

        Args:
            is_first: Whether torch was imported just now, and not before the program.
        """
        try:
            self._install_hooks()
        except (ImportError, AttributeError) as error:
            console.warn("steps cannot be detected with this version of torch.", error)
        if program_profilers.has_daemon():
            self.recorder.yield_to(program_profilers.DAEMON)
        program_profilers.subscribe(self._on_program_profiler, from_import=is_first)
        self._unhook["profilers"] = lambda: program_profilers.unsubscribe(self._on_program_profiler)
        library_roots()  # or else it is found out while the program is recorded
        self.recorder.begin()

    def step_times(self) -> dict[str, list[int]] | None:
        """Return the times of all steps of a rank; None of a program that is no rank."""
        times = self._monitors.times
        return None if times is None else times.to_lists()

    def memory(self) -> LiveMemory | None:
        """Return the program's monitored memory, or None without steps. Ends the monitoring."""
        self._count_idle_steps()
        monitors = self._monitors
        monitor, monitors.leak_monitor = monitors.leak_monitor, None
        if self._main_thread[0] != os.getpid():
            return None
        if monitor is not None:
            restarts = monitors.worker_starts.find_restarts()
            return replace(monitor.finish(), worker_restarts=restarts)
        return None if monitors.thread_calls is None else monitors.thread_calls.finish()

    def finish(self, stopped_by: str = "") -> None:
        """End the recording with the program, and remove the hooks.

        Args:
            stopped_by: The exception that ended the program early, or empty.
        """
        self._count_idle_steps()
        for name in list(self._unhook):
            self._remove_hook(name, at_end=True)
        self.recorder.finish(stopped_by)

    def drop(self) -> None:
        """Remove the hooks and write nothing: the program does not exist."""
        self.recorder.drop()
        self.memory()
        self.finish()

    def _install_hooks(self) -> None:
        from torch.utils.data import dataloader

        self._module_calls.listen()
        self._unhook["modules"] = self._module_calls.stop
        self._unhook["optimizers"] = optimizer_steps.listen(self._note_optimizer_step)

        # A step that ends within a region of the program is ended where that region does.
        self._unhook["regions"] = self._regions.follow()

        current.step_listeners.append(self._on_user_step)
        self._unhook["user"] = lambda: current.step_listeners.remove(self._on_user_step)

        iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  (torch has no hook for it)
        fetch = wrappers.before(iterator.__next__, unless_paused(self._on_batch))
        self._unhook["loaders"] = wrappers.replace_attribute(iterator, "__next__", fetch)
        if self._plan.monitor_memory:
            with_workers: Any = dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001
            end_timing = self._monitors.worker_starts.begin(with_workers)
            begin = wrappers.before(with_workers.__init__, note_iterator)
            self._unhook["workers"] = wrappers.replace_attribute(with_workers, "__init__", begin)
            self._unhook["worker starts"] = end_timing  # what it has replaced is below the other

    def _on_program_profiler(self, name: str) -> None:
        """Yield to a profiler of the program, in any thread. The session ends itself."""
        if self._main_thread[0] == os.getpid():
            self.recorder.yield_to(name)
            if self._in_main_thread():
                self._remove_unneeded_hooks()

    def _remove_hook(self, name: str, *, at_end: bool = False) -> None:
        if name not in self._unhook:
            return
        if name == "modules" and not at_end and has_compiled():
            # torch.compile guards on the number of hooks: removing one causes a recompilation.
            return
        unhook = self._unhook.pop(name)
        with contextlib.suppress(Exception):
            unhook()

    def _remove_unneeded_hooks(self) -> None:
        """Remove the hooks that no recording needs any more."""
        if self.recorder.has_only_to_write:
            self._remove_hook("regions")
        if not self.recorder.is_over_for_good:
            return
        needs_steps = self._plan.monitor_memory or self._monitors.times is not None
        for name in ["regions"] if needs_steps else list(self._unhook):
            if name != "profilers":
                self._remove_hook(name)

    def _in_main_thread(self) -> bool:
        """Return whether this thread began; other threads and forked workers are ignored."""
        return self._main_thread == (os.getpid(), threading.get_ident())

    def _on_call(self, module: object) -> None:
        """Handle the call of a module: the program's own thread has steps, others memory alone."""
        # Called for each module of the program: all that is not needed in each call comes later.
        if threading.get_ident() != self._main_thread[1]:
            calls = self._monitors.thread_calls
            is_of_service = calls is not None and calls.note(module)
            if is_of_service and self._boundaries.is_unused and not self._module_calls.is_narrow:
                self._module_calls.narrow(module)
            return
        if not self._boundaries.counts(module):
            return
        if self._n_idle and self._boundaries.source == "module":
            self._count_idle_step()
        else:
            self._on_leading_call(module)

    def _on_module(self, module: object) -> None:
        """Handle the call of a module whose calls may be steps."""
        if not self._in_main_thread():
            return
        # The outer module's own call is a step, once the region around it has ended.
        if self._regions.are_waited_for and is_within_module_call():
            return

        if not self._module_calls.is_narrow and not self._regions.are_open:
            self.recorder.module_called()
        self._end_step(partial(self._boundaries.module_called, module))
        if self._boundaries.counts(module) and not self._module_calls.is_narrow:
            self._hide_from_compiler(module)
            self._module_calls.narrow(module)

    def _hide_from_compiler(self, module: object) -> None:
        """Hook calls of compiled modules instead of all modules, before the first is compiled.

        torch.compile traces and guards the way through hooks in every module that it compiles,
        which takes a quarter longer, and compiles the hook itself where it is called in between.
        A compiled module's own call is never traced.
        """
        if "modules" not in self._unhook or not is_compiled_module(module):
            return
        if has_compiled():
            return

        self._remove_hook("modules")
        kind = compiled_module_class()
        call = wrappers.before(kind.__call__, self._on_leading_call)
        self._unhook["compiled modules"] = wrappers.replace_attribute(kind, "__call__", call)

    def _note_optimizer_step(self, optimizer: Any) -> None:  # noqa: ANN401
        """Note that an optimizer has stepped, and has returned to the program."""
        if self._n_idle and self._leader.repeats(optimizer):
            self._count_idle_step()
            return
        if is_in_backward():
            # It has stepped in a hook of gradients, where no recording can begin.
            self._boundaries.expect_no_optimizer()
            return
        if is_traced() or not self._in_main_thread():
            return
        if self._leader.ends_step(optimizer):
            self._report("optimizer", begins_anew=self._leader.begins_anew)
        if not self._unhook.keys().isdisjoint(_BEFORE_OPTIMIZER):
            for name in _BEFORE_OPTIMIZER:
                self._remove_hook(name)

    def _on_batch(self, _batches: object) -> None:
        """Handle a loader that is about to return a batch."""
        if self._in_main_thread():
            self._report("loader")

    def _on_user_step(self) -> None:
        """Handle the end of a step that the program itself marks."""
        if self._in_main_thread():
            self._report("user")

    def _report(self, source: StepSource, *, begins_anew: bool = False) -> None:
        self._end_step(partial(self._boundaries.step_ended, source, begins_anew=begins_anew))

    def _end_step(self, end: Callable[..., object]) -> None:
        """End a step here, or where the program's region ends that it has begun in the step.

        Args:
            end: Reports the end; called with ``recorded``, whether the step was recorded.
        """
        self._regions.call_outside(partial(self._end_outside, end))

    def _end_outside(self, end: Callable[..., object]) -> None:
        """End a step outside of the program's regions."""
        self._count_idle_steps()
        end(recorded=self.recorder.is_recording)
        signals.act_if_pending()
        self._remove_unneeded_hooks()
        if self._boundaries.source in _COUNTED:
            self._n_idle = self._monitors.n_idle_steps()

    def _count_idle_step(self) -> None:
        """Count a step, at whose end nothing is due, later."""
        self._n_idle -= 1
        self._n_uncounted += 1
        if self._monitors.times is not None:
            self._monitors.times.note()

    def _count_idle_steps(self) -> None:
        """Count the steps at which nothing was due."""
        n_steps, self._n_idle, self._n_uncounted = self._n_uncounted, 0, 0
        if n_steps:
            self._monitors.count(n_steps)

    def _make_leak_monitor(self, source: StepSource, *, in_threads: bool = False) -> LeakMonitor:
        recorder = self.recorder
        return LeakMonitor(
            self._plan.name,
            source,
            # A dispatch mode of one thread sees nothing of the next call, in another thread.
            may_sample_sites=lambda: recorder.is_over and not in_threads,
            is_tracing=lambda: recorder.is_collecting if in_threads else not recorder.is_over,
            tracemalloc=self._plan.lines_of_python,
        )
