"""Finds the steps of an unmodified program, and records some of them.

A step ends with a call of an optimizer's ``step()``: with gradient accumulation it has several
batches, and of several optimizers the first one counts. Without an optimizer, a step is one
iteration over a DataLoader. Without both, the whole run is recorded for a limited time: first
operators only, and from the first call of a module on with stacks, so that imports and reading of
data are not slowed down.

What a recording costs, mostly after its end, is predicted from the first one. Steps are recorded as
soon as that is affordable: see :class:`profkit.capture.recording_budget.RecordingBudget`.

If the program uses a profiler itself, it has torch's profiler to itself from then on: nothing is
recorded any more. Memory is monitored as before, except while that profiler records.

Source: ``torch.optim.optimizer.register_optimizer_step_post_hook``,
``torch.nn.modules.module.register_module_forward_pre_hook``.
"""

import contextlib
import math
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from profkit.capture import console, current, program_profilers
from profkit.capture.compiles import has_compiled, is_compiling
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import StepBoundaries, StepSource
from profkit.capture.options import Options
from profkit.capture.plan import Plan
from profkit.capture.recording_budget import RecordingBudget
from profkit.capture.schedule import DEFAULT_SCHEDULE
from profkit.capture.session import Session
from profkit.capture.signals import Deadline
from profkit.model.capture_info import StepKind
from profkit.model.live_memory import LiveMemory

LOADER_PATIENCE: Final = 3
"""Batches without an optimizer step after which the loader's iterations are the steps."""
COMPILING_SECONDS: Final = 0.05
"""How long to wait where a recording cannot end, since the program is compiled or traced."""


@dataclass(frozen=True)
class Window:
    """How long a run without steps is recorded.

    Attributes:
        seconds: At least this long,
        cpu_s: and until the process has used this much CPU time,
        at_most_s: but no longer than this.
        n_calls: It ends at once after so many calls of all modules if :data:`MIN_WHOLE_CALLS` of
            the first one are among them,
        n_calls_at_most: or after so many in any case: then there are enough events.
    """

    seconds: float
    cpu_s: float
    at_most_s: float
    n_calls: float = math.inf
    n_calls_at_most: float = math.inf

    def doubled(self) -> "Window":
        """A window of twice the time."""
        return replace(
            self, seconds=2 * self.seconds, cpu_s=2 * self.cpu_s, at_most_s=2 * self.at_most_s
        )


OPS: Final = Window(0.5, 0.25, 10.0)
"""Operators alone: a busy thread makes 100,000 to 300,000 events per second of CPU time."""
STACKS: Final = Window(0.1, 0.08, 1.0, 100, 1000)
"""With stacks: a module's call makes some hundred events, and a busy thread up to a million per
second of CPU time."""
MAX_SECONDS: Final = {True: 1.6, False: 16.0}
"""The longest window with stacks and without: one with too little in it begins anew, for twice the
time, while the program imports modules, waits, or runs long operators."""
FEW_EVENTS_NS: Final = 10_000_000
"""Too few events to tell what fills the time: stopping the recording took less CPU time than some
2,000 take."""
ENOUGH_EVENTS_NS: Final = 200_000_000
"""Enough events, even without :data:`MIN_WHOLE_CALLS` of the first module: some 40,000."""
MIN_WHOLE_CALLS: Final = 3
_HOOKS_WARNING: Final = r"Using `torch\.compile\(module\)` when there are global hooks"


class StepFinder:
    """Hooks a program's optimizers, loaders and modules, and runs one session accordingly.

    Attributes:
        program_profiler: The first profiler of the program itself, or empty.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kind: StepKind | None = None
        self._session: Session | None = None
        self._deadline: Deadline | None = None
        self._unhook: dict[str, Callable[[], None]] = {}
        self._n_batches = 0
        self._boundaries = StepBoundaries(self._leak_monitor) if plan.monitor_memory else None
        self._main_thread = (os.getpid(), threading.get_ident())
        self._saw_module = False
        self._window = OPS
        self._first_module: weakref.ref[object] | None = None
        self._n_calls = self._n_whole_calls = 0
        self._n_active = plan.schedule.active
        self._optimizer: weakref.ref[object] | None = None
        self._budget = RecordingBudget()
        self.program_profiler = ""

    @property
    def path(self) -> str | None:
        """The trace file, once the program has ended."""
        return None if self._session is None else self._session.path

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
        self._cancel_deadline()
        for name in list(self._unhook):
            self._remove_hook(name, at_end=True)
        if self._session is not None:
            current.leave(self._session, stopped_by)

    def drop(self) -> None:
        """Remove the hooks and write nothing: the program does not exist."""
        if self._session is not None:
            self._session.abandon()
        self.memory()
        self.finish()

    def _install_hooks(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data import dataloader

        on_optimizer = _uncompiled(self._on_optimizer)
        self._unhook["modules"] = _without_warning(
            register_module_forward_pre_hook(self._module_hook()).remove
        )
        self._unhook["optimizers"] = register_optimizer_step_post_hook(on_optimizer).remove
        iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  (torch has no hook for it)
        original = iterator.__next__

        def next_batch(batches: Any) -> Any:  # noqa: ANN401
            self._on_batch()
            return original(batches)

        def restore() -> None:
            iterator.__next__ = original

        iterator.__next__ = next_batch
        self._unhook["loaders"] = restore

    def _on_program_profiler(self, name: str) -> None:
        """The program uses a profiler, in any thread. The session ends itself."""
        if self._main_thread[0] == os.getpid() and not self.program_profiler:
            self.program_profiler = name
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

    def _module_hook(self) -> Callable[..., None]:
        """The hook of all modules' calls, in any thread. Most calls are only counted."""
        is_compiling, on_module = _compiling(), _uncompiled(self._on_module)

        def unless_other(module: object, _inputs: object = None) -> None:
            if is_compiling is not None and is_compiling():
                return
            if self._deadline is not None:
                self._count_call(module)
            if not self._saw_module or self._boundaries is None or self._boundaries.counts(module):
                on_module(module)

        return unless_other

    def _count_call(self, module: object) -> None:
        """Count a call while a run is recorded, and end the recording after enough of them."""
        self._n_calls += 1
        if self._first_module is None:
            with contextlib.suppress(TypeError):
                self._first_module = weakref.ref(module)
        elif self._first_module() is module:
            self._n_whole_calls += 1
        if self._deadline is not None and self._has_enough():
            self._deadline.come()

    def _has_enough(self) -> bool:
        """Whether the recorded calls are enough, however little time has passed."""
        if self._n_whole_calls >= MIN_WHOLE_CALLS:
            return self._n_calls > self._window.n_calls
        return self._n_calls > self._window.n_calls_at_most

    def _on_module(self, module: object) -> None:
        """A module is called. With the first call, the program's own work begins."""
        if not self._in_main_thread():
            return
        # The Python functions of a compilation would be millions of events.
        if not self._saw_module and (has_compiled() or not _is_compiled(module)):
            self._saw_module = True
            if self._kind == "whole" and self._plan.options.stacks and self._session is not None:
                self._session.freeze()
                if self._session.can_record():
                    self._restart("whole", self._plan.options, STACKS)
        if self._boundaries is None:
            if self._is_recording_over():
                self._remove_hook("modules")
        else:
            recorded = self._is_step_recorded()
            if self._boundaries.module_called(module, recorded=recorded):
                self._hide_from_compiler(module)

    def _hide_from_compiler(self, module: object) -> None:
        """Hook calls of compiled modules instead of all modules, before the first is compiled.

        torch.compile traces and guards the way through hooks in every module that it compiles,
        which takes a quarter longer, and compiles the hook itself where it is called in between.
        A compiled module's own call is never traced.
        """
        if "modules" not in self._unhook or not _is_compiled(module):
            return
        kind = _compiled_module()
        if has_compiled() or not callable(vars(kind).get("__call__")):
            return
        self._remove_hook("modules")
        original, on_module = kind.__call__, _uncompiled(self._on_module)

        def call(compiled: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            on_module(compiled)
            return original(compiled, *args, **kwargs)

        def restore() -> None:
            kind.__call__ = original

        kind.__call__ = call
        self._unhook["compiled modules"] = restore

    def _on_optimizer(self, optimizer: Any, _args: object, _kwargs: object) -> None:  # noqa: ANN401
        """An optimizer has stepped; from the first time on, its steps are the steps."""
        if not self._in_main_thread():
            return
        if self._boundaries is not None:
            self._boundaries.optimizer_stepped(optimizer, recorded=self._is_step_recorded())
        self._remove_hook("loaders")
        self._remove_hook("modules")
        if self._kind != "optimizer":
            if self._leads(optimizer) and self._affords_steps():
                self._on_first_step(optimizer)
        elif self._boundaries is not None and self._boundaries.is_any_optimizer:
            self._on_step()

    def _leads(self, optimizer: object) -> bool:
        """Whether this is the first optimizer, or that one is gone."""
        if self._optimizer is None or self._optimizer() is None:
            with contextlib.suppress(TypeError):
                self._optimizer = weakref.ref(optimizer)
        return self._optimizer is None or self._optimizer() is optimizer

    def _affords_steps(self) -> bool:
        """Whether steps can be recorded now, one of which has just ended.

        The recording of the run ends with the first step. It is what is reported if the program
        ends before its steps are affordable.
        """
        if self._session is None or self._session.is_done:
            return True
        self._budget.step_ended()
        self._cancel_deadline()
        self._session.freeze()
        if self._plan.schedule != DEFAULT_SCHEDULE:
            return True
        self._n_active = self._budget.steps(self._session.cost, self._plan.schedule.active or 1)
        return self._n_active > 0

    def _on_first_step(self, optimizer: Any) -> None:  # noqa: ANN401
        """Follow the first optimizer.

        torch calls the hook inside its own annotation of the step. Later steps end outside of it,
        after the optimizer's ``step()`` has returned.
        """
        if self._session is None or self._session.is_done:
            return
        original, on_step = optimizer.step, _uncompiled(self._on_step)

        def step(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            result = original(*args, **kwargs)
            on_step()
            return result

        def restore() -> None:
            if optimizer.__dict__.get("step") is step:
                del optimizer.step

        step.__dict__.update(getattr(original, "__dict__", {}))
        optimizer.step = step
        self._unhook["optimizer"] = restore
        self._restart("optimizer", self._plan.options)

    def _on_batch(self) -> None:
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
        session = self._session
        return session is not None and session.is_recording and self._kind != "whole"

    def _may_sample(self) -> bool:
        """Whether allocation sites may be sampled, which would fill a recording with events.

        Once the memory of a run without steps is known to grow, its recording is long enough.
        """
        if self._kind == "whole" and self._session is not None:
            self._cancel_deadline()
            self._session.freeze()
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
        if self._session is None or self._session.is_done:
            return True
        return self._kind == "whole" and not self._session.is_recording

    def _on_step(self) -> None:
        if self._session is None or not self._in_main_thread():
            return
        self._session.step()
        if self._session.is_done:
            self._remove_unneeded_hooks()

    def _restart(self, kind: StepKind, options: Options, window: Window | None = None) -> None:
        """Record again, now that the kind of step is known; drop the earlier recording."""
        self._cancel_deadline()
        if self._session is not None:
            self._session.abandon()
            current.leave(self._session)
        self._kind = kind
        if self.program_profiler:
            self._session = None
            return
        schedule = None
        if kind != "whole":  # one step has passed already
            wait = max(self._plan.schedule.wait - 1, 0)
            schedule = replace(self._plan.schedule, wait=wait, active=self._n_active)
        opened = current.enter(self._plan.name, 1 << 30, options, schedule, kind)
        self._session = opened if isinstance(opened, Session) else None
        if window is not None and self._session is not None:
            self._budget.recording_begins()
            self._begin_window(window)

    def _begin_window(self, window: Window) -> None:
        """The recording of a run begins, or begins anew."""
        self._window, self._first_module, self._n_calls, self._n_whole_calls = window, None, 0, 0
        self._deadline = Deadline(
            window.seconds, self._on_deadline, cpu_s=window.cpu_s, at_most_s=window.at_most_s
        )

    def _on_deadline(self) -> None:
        """Time is up, or there are enough calls. A recording with too little begins anew."""
        if is_compiling() or _is_traced():
            self._deadline = Deadline(COMPILING_SECONDS, self._on_deadline)
            return
        if self._session is None or self._session.is_done:
            return
        self._session.freeze()
        has_time = self._window.seconds < MAX_SECONDS[self._saw_module]
        is_enough = self._says_enough(self._session.stop_ns)
        if has_time and not is_enough and self._session.record_anew():
            self._begin_window(self._window.doubled())

    def _says_enough(self, stop_ns: int) -> bool:
        """Whether what was recorded tells what fills the time of the run."""
        has_calls = not self._saw_module or self._n_whole_calls >= MIN_WHOLE_CALLS
        return stop_ns >= (FEW_EVENTS_NS if has_calls else ENOUGH_EVENTS_NS)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _compiled_module() -> Any:  # noqa: ANN401
    """The class of modules that ``torch.compile`` returns, or None if the program has none."""
    return getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)


def _is_compiled(module: object) -> bool:
    """Whether a module is one that ``torch.compile`` has returned."""
    kind = _compiled_module()
    return kind is not None and isinstance(module, kind)


def _uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that is skipped while the program is traced.

    torch.compile traces hooks too, and a hook that it cannot trace is a graph break: slower, and
    with ``fullgraph=True`` an error in the program. ``torch.jit.trace`` and ``make_fx`` take the
    annotations of a recording that begins for the program's.
    """
    compiling = _compiling()

    def unless_traced(*args: Any) -> None:  # noqa: ANN401
        if not (compiling is not None and compiling()) and not _is_traced():
            hook(*args)

    return unless_traced


def _compiling() -> Callable[[], bool] | None:
    """The function of torch that tells whether Dynamo traces; None where there is none."""
    import torch

    # The second is for torch 2.1 and 2.2. Dynamo knows the value of both as it traces.
    places = (getattr(torch, "compiler", None), torch._utils)  # noqa: SLF001
    found = (getattr(place, "is_compiling", None) for place in places)
    return next((each for each in found if each is not None), None)


def _is_traced() -> bool:
    """Whether operators that run now are recorded by the program, or have no values.

    The beginning and the end of an annotation are operators like any other. Other dispatch modes
    change nothing: the monitoring of memory has one itself.

    Source: ``torch.ops.profiler._record_function_enter_new``.
    """
    import torch

    if torch._C._get_tracing_state() is not None:  # noqa: SLF001
        return True
    if not torch._C._len_torch_dispatch_stack():  # noqa: SLF001
        return False
    keys = torch._C._TorchDispatchModeKey  # noqa: SLF001
    mode = torch._C._get_dispatch_mode  # noqa: SLF001
    return mode(keys.PROXY) is not None or mode(keys.FAKE) is not None


def _without_warning(remove: Callable[[], None]) -> Callable[[], None]:
    """Suppress torch's warning about a global hook, which is ours, until the hook is removed.

    Args:
        remove: Removes the hook.
    """
    warnings.filterwarnings("ignore", message=_HOOKS_WARNING)
    entry = warnings.filters[0]

    def remove_both() -> None:
        remove()
        with contextlib.suppress(ValueError):  # the program may have reset its filters
            cast("list[object]", warnings.filters).remove(entry)

    return remove_both
