"""Finds the steps of an unmodified program, and records some of them.

A step ends with a call of an optimizer's ``step()``: with gradient accumulation it has several
batches, and of several optimizers the first one counts. Without an optimizer, a step is one
iteration over a DataLoader. Without both, the whole run is recorded for a limited time: first
operators only, and from the first call of a module on with stacks, so that imports and reading of
data are not slowed down. Of the rest of such a run, stacks are sampled: in which functions it was.

What a recording costs, mostly after its end, is predicted from earlier ones. Steps are recorded as
soon as that is affordable, and as many as are: see
:class:`profkit.capture.recording.recording_budget.RecordingBudget`.

If the program uses a profiler itself, it has torch's profiler to itself from then on: nothing is
recorded any more. Memory is monitored as before, except while that profiler records.

Source: ``torch.optim.optimizer.register_optimizer_step_post_hook``,
``torch.nn.modules.module.register_module_forward_pre_hook``.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import (
    LeadingOptimizer,
    StepBoundaries,
    StepSource,
)
from profkit.capture.process import console, program_profilers, wrappers
from profkit.capture.process.compiling import (
    compiled_module_class,
    has_compiled,
    is_compiled_module,
    unless_paused,
)
from profkit.capture.process.module_calls import ModuleCalls
from profkit.capture.process.stack_sampler import StackSampler
from profkit.capture.recording import current, session
from profkit.capture.recording.options import Options
from profkit.capture.recording.recording_budget import RecordingBudget
from profkit.capture.recording.sampled_functions import sampled_time
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE
from profkit.capture.recording.session import Session
from profkit.capture.recording.shared_steps import SharedSteps
from profkit.capture.recording.step_limit import StepLimit
from profkit.capture.run.plan import Plan
from profkit.capture.run.run_window import OPS, STACKS, RunWindow, Window
from profkit.capture.source.files import library_roots
from profkit.model.capture_info import SampledTime, StepKind
from profkit.model.live_memory import LiveMemory

LOADER_PATIENCE: Final = 3
"""Batches without an optimizer step after which the loader's iterations are the steps."""


class StepFinder:
    """Hooks a program's optimizers, loaders and modules, and runs one session accordingly.

    Attributes:
        program_profiler: The first profiler of the program itself, or empty.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kind: StepKind | None = None
        self._session: Session | None = None
        self._window: RunWindow | None = None
        self._unhook: dict[str, Callable[[], None]] = {}
        self._n_batches = 0
        self._boundaries = StepBoundaries(self._leak_monitor) if plan.monitor_memory else None
        self._module_calls = ModuleCalls(self._on_call)
        self._on_leading_call = unless_paused(self._on_module)
        self._on_awaited_call = unless_paused(self._begin_with_call)
        self._main_thread = (os.getpid(), threading.get_ident())
        self._saw_module = False
        self._shared = SharedSteps(plan.name)
        self._n_ended = self._n_late = 0
        self._leader = LeadingOptimizer()
        self._budget = RecordingBudget(spent_s=lambda: session.spent_ns / 1e9)
        self._sampler = StackSampler()
        self.program_profiler = ""

    @property
    def path(self) -> str | None:
        """The trace file, once the program has ended."""
        return None if self._session is None else self._session.path

    @property
    def has_steps(self) -> bool:
        """Whether steps were found, and not only the run as a whole."""
        return self._kind not in {None, "whole"}

    @property
    def flight(self) -> str | None:
        """The dump of the FlightRecorder beside the trace, or None."""
        return None if self._session is None else self._session.flight

    @property
    def why_less(self) -> str:
        """Why fewer steps were recorded than planned, in one sentence, or empty."""
        if not self.program_profiler or not self._plan.record_trace:
            return ""
        uses = f"The program uses a profiler itself ({self.program_profiler}), so profkit recorded"
        if self.path is None:
            return f"{uses} no steps. Analyze the trace of that profiler instead."
        if self._session is not None and self._session.made_way:
            return f"{uses} steps only until then."
        return ""

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
            self.program_profiler = program_profilers.DAEMON
        program_profilers.subscribe(self._on_program_profiler, from_import=is_first)
        self._unhook["profilers"] = lambda: program_profilers.unsubscribe(self._on_program_profiler)
        library_roots()  # or else it is found out while the program is recorded
        if self._plan.record_trace:
            self._restart("whole", replace(self._plan.options, stacks=False), OPS)

    def memory(self) -> LiveMemory | None:
        """The program's monitored memory, or None without steps. Ends the monitoring."""
        monitor = None if self._boundaries is None else self._boundaries.monitor
        self._boundaries = None
        if monitor is None or self._main_thread[0] != os.getpid():
            return None
        return monitor.finish()

    def finish(self, stopped_by: str = "") -> None:
        """End the recording with the program, and remove the hooks.

        Args:
            stopped_by: The exception that ended the program early, or empty.
        """
        self._cancel_window()
        self._sampler.stop()
        for name in list(self._unhook):
            self._remove_hook(name, at_end=True)
        if self._session is not None:
            current.leave(self._session, stopped_by, is_last=True)

    def drop(self) -> None:
        """Remove the hooks and write nothing: the program does not exist."""
        if self._session is not None:
            self._session.abandon()
        self.memory()
        self.finish()

    def _install_hooks(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data import dataloader

        on_optimizer = unless_paused(self._on_optimizer)
        self._module_calls.listen()
        self._unhook["modules"] = self._module_calls.stop
        self._unhook["optimizers"] = register_optimizer_step_post_hook(on_optimizer).remove
        iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  (torch has no hook for it)
        original = iterator.__next__

        def restore() -> None:
            iterator.__next__ = original

        iterator.__next__ = wrappers.before(original, self._on_batch)
        self._unhook["loaders"] = restore

    def _on_program_profiler(self, name: str) -> None:
        """The program uses a profiler, in any thread. The session ends itself."""
        if self._main_thread[0] == os.getpid() and not self.program_profiler:
            self.program_profiler = name
            self._sampler.stop()
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
        for name in list(self._unhook):
            if name != "profilers" and (self._boundaries is None or name == "optimizer"):
                self._remove_hook(name)

    def _in_main_thread(self) -> bool:
        """Whether this is the thread that began: other threads and forked workers are ignored."""
        return self._main_thread == (os.getpid(), threading.get_ident())

    def _on_call(self, module: object) -> None:
        """A module is called, in any thread. Most calls are only counted."""
        if self._window is not None and self._window.awaits_call:
            self._on_awaited_call()
        if self._window is not None and self._window.is_open:
            self._window.count_call(module)
        if not self._saw_module or self._boundaries is None or self._boundaries.counts(module):
            self._on_leading_call(module)

    def _begin_with_call(self) -> None:
        """The import in the window of the run is over, and a module is called."""
        if self._window is not None and self._in_main_thread():
            self._sampler.stop()  # a recording with stacks would have its calls
            self._window.begin_with_call()

    def _on_module(self, module: object) -> None:
        """A module is called. With the first call, the program's own work begins."""
        if not self._in_main_thread():
            return
        # The Python functions of a compilation would be millions of events.
        if not self._saw_module and (has_compiled() or not is_compiled_module(module)):
            self._saw_module = True
            if self._kind == "whole" and self._plan.options.stacks and self._session is not None:
                self._freeze()
                if self._session.can_record():
                    self._restart("whole", self._plan.options, STACKS)
        if self._boundaries is None:
            if self._is_recording_over():
                self._remove_hook("modules")
        else:
            recorded = self._is_step_recorded()
            is_leading = self._boundaries.module_called(module, recorded=recorded)
            if is_leading and not self._module_calls.is_narrow:
                self._hide_from_compiler(module)
                if self._window is None or not self._window.is_open:
                    self._module_calls.narrow(module)

    def _hide_from_compiler(self, module: object) -> None:
        """Hook calls of compiled modules instead of all modules, before the first is compiled.

        torch.compile traces and guards the way through hooks in every module that it compiles,
        which takes a quarter longer, and compiles the hook itself where it is called in between.
        A compiled module's own call is never traced.
        """
        if "modules" not in self._unhook or not is_compiled_module(module):
            return
        kind = compiled_module_class()
        if has_compiled() or not callable(vars(kind).get("__call__")):
            return
        self._remove_hook("modules")
        original = kind.__call__

        def restore() -> None:
            kind.__call__ = original

        kind.__call__ = wrappers.before(original, self._on_leading_call)
        self._unhook["compiled modules"] = restore

    def _on_optimizer(self, optimizer: Any, _args: object, _kwargs: object) -> None:  # noqa: ANN401
        """An optimizer has stepped; from the first time on, its steps are the steps."""
        if not self._in_main_thread():
            return
        is_step = self._leader.ends_step(optimizer)
        if is_step and self._boundaries is not None:
            self._boundaries.step_ended("optimizer", recorded=self._is_step_recorded())
        self._remove_hook("loaders")
        self._remove_hook("modules")
        if self._kind != "optimizer":
            if is_step and self._affords_steps():
                self._on_first_step(optimizer)
        elif self._leader.is_any:
            self._on_step()

    def _affords_steps(self) -> bool:
        """Whether steps can be recorded now, one of which has just ended.

        The recording of the run ends with the first step. It is what is reported if the program
        ends before its steps are affordable.
        """
        if self._session is None or self._session.is_done:
            return True
        self._budget.step_ended()
        self._freeze()
        if self._plan.schedule != DEFAULT_SCHEDULE:
            return True
        self._n_ended += 1
        is_affordable = self._budget.affords_steps(self._measured_ns())
        n_late = self._shared.begins(self._n_ended, is_affordable=is_affordable)
        # Too late for the steps of the others, other ones are better than none.
        n_before = DEFAULT_SCHEDULE.wait + DEFAULT_SCHEDULE.warmup
        self._n_late = n_late if n_late is not None and n_late < n_before else 0
        return n_late is not None

    def _measured_ns(self) -> tuple[int, int]:
        """CPU time of the program in the recording of the run and that of its stop, or zeros."""
        is_measure = self._window is not None and self._window.is_measure
        return self._session.cost if is_measure and self._session is not None else (0, 0)

    def _on_first_step(self, optimizer: Any) -> None:  # noqa: ANN401
        """Follow the first optimizer.

        torch calls the hook inside its own annotation of the step. Later steps end outside of it,
        after the optimizer's ``step()`` has returned.
        """
        if self._session is None or self._session.is_done:
            return
        on_step = unless_paused(self._on_step)
        self._unhook["optimizer"] = wrappers.after_calls(optimizer, "step", on_step)
        self._restart("optimizer", self._plan.options)

    def _on_batch(self, _batches: object) -> None:
        """A loader is about to return a batch."""
        if not self._in_main_thread():
            return
        if self._boundaries is not None:
            self._boundaries.step_ended("loader", recorded=self._is_step_recorded())
        self._n_batches += 1
        if self._kind == "loader":
            self._on_step()
        elif self._n_batches > LOADER_PATIENCE:
            self._remove_hook("modules")
            if self._session is not None and self._affords_steps():
                self._restart("loader", self._plan.options)

    def _is_step_recorded(self) -> bool:
        """Whether the step that ends was recorded, so that monitoring must not disturb it."""
        if self._kind == "whole":
            return self._window is not None and self._window.ends_soon
        return self._session is not None and self._session.is_recording

    def _may_sample(self) -> bool:
        """Whether allocation sites may be sampled, which would fill a recording with events.

        Once the memory of a run without steps is known to grow, its recording is long enough.
        """
        if self._kind == "whole":
            self._freeze()
        return self._is_recording_over()

    def _leak_monitor(self, source: StepSource) -> LeakMonitor:
        return LeakMonitor(
            self._plan.name,
            source,
            may_sample_sites=self._may_sample,
            is_tracing=lambda: not self._is_recording_over(),
            tracemalloc=self._plan.lines_of_python,
        )

    def _is_recording_over(self) -> bool:
        """Whether nothing is recorded, now or soon: steps may never be affordable."""
        if self._session is None or self._session.is_done or self._session.is_waiting:
            return True
        if self._window is not None and self._window.awaits_call:
            return False
        return self._kind == "whole" and not self._session.is_recording

    def _on_step(self) -> None:
        if self._session is None or not self._in_main_thread():
            return
        self._session.step()
        if self._session.is_done:
            self._remove_unneeded_hooks()

    def _restart(self, kind: StepKind, options: Options, window: Window | None = None) -> None:
        """Record again, now that the kind of step is known; drop the earlier recording."""
        self._cancel_window()
        is_measured = any(self._measured_ns())
        if self._session is not None:
            self._session.abandon()
            current.leave(self._session)
        self._kind = kind
        self._sampler.stop()  # a recording with stacks would have its calls
        if self.program_profiler:
            self._session = None
            return
        schedule, limit = None, None
        if kind != "whole":  # one step has passed already
            wait = max(self._plan.schedule.wait - 1, 0)
            schedule = replace(self._plan.schedule, wait=wait)
            if self._plan.schedule == DEFAULT_SCHEDULE:
                n_steps = schedule.active or 1
                limit = StepLimit(self._budget, is_measured=is_measured, n_steps=n_steps)
        opened = current.enter(self._plan.name, 1 << 30, options, schedule, kind, self._n_late)
        self._session = opened if isinstance(opened, Session) else None
        if self._session is not None:
            self._session.limit = limit
            self._session.is_shared = self._shared.is_agreed
        if window is not None and self._session is not None:
            self._session.writer.sampled = self._sampled
            self._budget.recording_begins()
            self._window = RunWindow(self._session, window, self._budget, self._sampler.start)
            if not options.stacks:
                self._sampler.start()

    def _sampled(self) -> SampledTime | None:
        """What was sampled of the run, for its trace."""
        self._sampler.stop()
        return sampled_time(self._sampler)

    def _freeze(self) -> None:
        """Stop recording; what was recorded is written when the program ends."""
        self._cancel_window()
        if self._session is not None:
            self._session.freeze()
        if self._kind == "whole" and not self.program_profiler:
            self._sampler.start()

    def _cancel_window(self) -> None:
        if self._window is not None:
            self._window.cancel()
