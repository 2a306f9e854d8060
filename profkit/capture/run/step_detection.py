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
from typing import Any, Final

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import (
    LeadingOptimizer,
    StepBoundaries,
    StepSource,
)
from profkit.capture.process import (
    console,
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
    unless_paused,
)
from profkit.capture.process.module_calls import ModuleCalls
from profkit.capture.process.open_regions import OpenRegions
from profkit.capture.recording import current
from profkit.capture.run.plan import Plan
from profkit.capture.run.run_recorder import RunRecorder
from profkit.capture.source.files import library_roots
from profkit.model.live_memory import LiveMemory

_UNCOUNTED: Final[dict[StepSource, int]] = {"module": 5, "loader": 2, "optimizer": 0, "user": 0}
"""Steps of a source that have ended before the first one that is reported: it had to repeat."""


_NO_PRELUDE: Final = (
    "The program has ended before a step was recorded, and this version of torch cannot record a "
    "run as a whole."
)


class StepMonitors:
    """What receives the steps of the program: the recording, and the monitor of its memory.

    Args:
        recorder: Records some of the steps.
        make_leak_monitor: Makes the monitor of memory, once it is known what ends a step; or None.
    """

    def __init__(
        self, recorder: RunRecorder, make_leak_monitor: Callable[[StepSource], LeakMonitor] | None
    ) -> None:
        self.leak_monitor: LeakMonitor | None = None
        self._recorder = recorder
        self._make_leak_monitor = make_leak_monitor

    def of(self, source: StepSource) -> "StepMonitors":
        """Use steps of another source from now on."""
        self._recorder.use_kind(source, _UNCOUNTED[source])
        if self._make_leak_monitor is not None:
            self.leak_monitor = self._make_leak_monitor(source)
        return self

    def step(self) -> None:
        """A step has ended. Memory is looked at first, so that it is not in the next step."""
        if self.leak_monitor is not None:
            self.leak_monitor.step()
        self._recorder.step_ended()

    def skip(self) -> None:
        """A step has ended that must not be disturbed."""
        if self.leak_monitor is not None:
            self.leak_monitor.skip()
        self._recorder.step_ended()

    def discard(self) -> None:
        """The steps so far were none: a more reliable source follows."""
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
        self._monitors = StepMonitors(
            self.recorder, self._leak_monitor if plan.monitor_memory else None
        )
        self._boundaries = StepBoundaries(self._monitors.of)
        self._module_calls = ModuleCalls(self._on_call)
        self._on_leading_call = unless_paused(self._on_module)
        self._on_free_optimizer = unless_paused(self._on_optimizer)
        self._main_thread = (os.getpid(), threading.get_ident())
        self._leader = LeadingOptimizer()
        self._regions = OpenRegions()

    @property
    def path(self) -> str | None:
        """The trace file, once the program has ended."""
        return self.recorder.path

    @property
    def has_steps(self) -> bool:
        """Whether steps were found, and not only the run as a whole."""
        return self.recorder.has_steps

    @property
    def flight(self) -> str | None:
        """The dump of the FlightRecorder beside the trace, or None."""
        return self.recorder.flight

    @property
    def why_less(self) -> str:
        """Why fewer steps were recorded than planned, in one sentence, or empty."""
        name = self.recorder.program_profiler
        if not self._plan.record_trace:
            return ""
        if not name:
            return "" if self.path or self.recorder.has_prelude else _NO_PRELUDE
        uses = f"The program uses a profiler itself ({name}), so profkit recorded"
        if self.path is None:
            return f"{uses} no steps. Analyze the trace of that profiler instead."
        return f"{uses} steps only until then." if self.recorder.made_way else ""

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

    def memory(self) -> LiveMemory | None:
        """Return the program's monitored memory, or None without steps. Ends the monitoring."""
        monitor, self._monitors.leak_monitor = self._monitors.leak_monitor, None
        if monitor is None or self._main_thread[0] != os.getpid():
            return None
        return monitor.finish()

    def finish(self, stopped_by: str = "") -> None:
        """End the recording with the program, and remove the hooks.

        Args:
            stopped_by: The exception that ended the program early, or empty.
        """
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
        self._unhook["optimizers"] = optimizer_steps.listen(self._on_any_optimizer)

        self._unhook["regions"] = self._regions.follow()

        current.step_listeners.append(self._on_user_step)
        self._unhook["user"] = lambda: current.step_listeners.remove(self._on_user_step)

        iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  (torch has no hook for it)
        original = iterator.__next__

        def restore() -> None:
            iterator.__next__ = original

        iterator.__next__ = wrappers.before(original, unless_paused(self._on_batch))
        self._unhook["loaders"] = restore

    def _on_program_profiler(self, name: str) -> None:
        """The program uses a profiler, in any thread. The session ends itself."""
        if self._main_thread[0] == os.getpid():
            self.recorder.yield_to(name)
            if self._in_main_thread():
                self._remove_unneeded_hooks()

    def _remove_hook(self, name: str, *, at_end: bool = False) -> None:
        if name == "modules" and not at_end and has_compiled():
            # torch.compile guards on the number of hooks: removing one causes a recompilation.
            return
        unhook = self._unhook.pop(name, None)
        if unhook is not None:
            with contextlib.suppress(Exception):
                unhook()

    def _remove_unneeded_hooks(self) -> None:
        """Remove the hooks that no recording needs any more."""
        if not self.recorder.is_over:
            return
        for name in ["regions"] if self._plan.monitor_memory else list(self._unhook):
            if name != "profilers":
                self._remove_hook(name)

    def _in_main_thread(self) -> bool:
        """Return whether this thread began; other threads and forked workers are ignored."""
        return self._main_thread == (os.getpid(), threading.get_ident())

    def _on_call(self, module: object) -> None:
        """A module is called, in any thread."""
        if self._boundaries.counts(module):
            self._on_leading_call(module)

    def _on_module(self, module: object) -> None:
        """A module is called whose calls may be steps."""
        if not self._in_main_thread():
            return
        if not self._module_calls.is_narrow:
            self.recorder.module_called()
        self._end_step(lambda recorded: self._boundaries.module_called(module, recorded=recorded))
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
        original = kind.__call__
        is_inherited = "__call__" not in vars(kind)  # in torch 2.6

        def restore() -> None:
            if is_inherited:
                del kind.__call__
            else:
                kind.__call__ = original

        kind.__call__ = wrappers.before(original, self._on_leading_call)
        self._unhook["compiled modules"] = restore

    def _on_any_optimizer(self, optimizer: Any) -> None:  # noqa: ANN401
        """An optimizer has stepped, maybe in a hook of gradients, where no recording can begin."""
        if is_in_backward():
            self._boundaries.expect_no_optimizer()
        else:
            self._on_free_optimizer(optimizer)

    def _on_optimizer(self, optimizer: Any) -> None:  # noqa: ANN401
        """An optimizer has stepped, and has returned to the program."""
        if not self._in_main_thread():
            return
        if self._leader.ends_step(optimizer):
            self._report("optimizer", begins_anew=self._leader.begins_anew)
        self._remove_hook("loaders")
        self._remove_hook("modules")

    def _on_batch(self, _batches: object) -> None:
        """A loader is about to return a batch."""
        if self._in_main_thread():
            self._report("loader")

    def _on_user_step(self) -> None:
        """The program itself marks the end of a step."""
        if self._in_main_thread():
            self._report("user")

    def _report(self, source: StepSource, *, begins_anew: bool = False) -> None:
        self._end_step(
            lambda recorded: self._boundaries.step_ended(
                source, recorded=recorded, begins_anew=begins_anew
            )
        )

    def _end_step(self, end: Callable[[bool], object]) -> None:
        """End a step here, or where the program's region ends that it has begun in the step.

        Args:
            end: Reports the end; called with whether the step was recorded.
        """

        def end_outside() -> None:
            end(self.recorder.is_recording)
            signals.act_if_pending()
            self._remove_unneeded_hooks()

        self._regions.call_outside(unless_paused(end_outside))

    def _leak_monitor(self, source: StepSource) -> LeakMonitor:
        return LeakMonitor(
            self._plan.name,
            source,
            may_sample_sites=lambda: self.recorder.is_over,
            is_tracing=lambda: not self.recorder.is_over,
            tracemalloc=self._plan.lines_of_python,
        )
