"""Finds the steps of a program that knows nothing of profkit, and records some of them.

A step is what lies between the ends of two calls of an optimizer's ``step()``; with gradient
accumulation that is several batches, and of several optimizers the first one counts. Without an
optimizer it is a turn of a DataLoader's loop. Without both, the run is recorded as a whole: first
operators alone, and from the first call of a module on with stacks, so that imports and the
reading of data are not stretched; either for a bounded time.

Source: ``torch.optim.optimizer.register_optimizer_step_post_hook``,
``torch.nn.modules.module.register_module_forward_pre_hook``.
"""

import contextlib
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from profkit.capture import console, current
from profkit.capture.compiles import has_compiled
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import StepBoundaries, Turn
from profkit.capture.options import Options
from profkit.capture.schedule import Schedule
from profkit.capture.session import Session
from profkit.capture.signals import Deadline
from profkit.model.capture_info import StepKind
from profkit.model.live_memory import LiveMemory

LOADER_PATIENCE: Final = 3
"""Batches without an optimizer's step after which the loader's turns are the steps."""
OPS_SECONDS: Final = 10.0
"""How long a run without steps is recorded: a busy one makes some 100,000 events a second."""
STACKS_SECONDS: Final = 3.0
"""The same with stacks, which make ten times as many."""
_ABOUT_HOOKS: Final = r"Using `torch\.compile\(module\)` when there are global hooks"


@dataclass(frozen=True)
class Plan:
    """What to record of a program.

    Attributes:
        name: The name of the trace.
        options: What to record.
        schedule: Which steps.
        traces: Whether steps are recorded.
        watches: Whether memory is watched over all steps.
        lines_of_python: Whether Python notes the lines that make its objects meanwhile.
    """

    name: str
    options: Options
    schedule: Schedule
    traces: bool = True
    watches: bool = True
    lines_of_python: bool = False


class StepFinder:
    """Watches a program's optimizers, loaders and modules, and keeps one session accordingly.

    Args:
        plan: What to record.

    Attributes:
        saw_torch: Whether the program has imported torch.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kind: StepKind | None = None
        self._session: Session | None = None
        self._deadline: Deadline | None = None
        self._undo: dict[str, Callable[[], None]] = {}
        self._n_batches = 0
        self._boundaries = StepBoundaries(self._watcher) if plan.watches else None
        self._home = (os.getpid(), threading.get_ident())
        self._saw_module = False
        self.saw_torch = False

    @property
    def path(self) -> str | None:
        """The trace file, once the program has ended."""
        return None if self._session is None else self._session.path

    def torch_is_there(self) -> None:
        """Begin to watch: the program has imported torch."""
        self.saw_torch = True
        try:
            self._watch()
        except (ImportError, AttributeError) as error:
            console.warn("this torch does not let its steps be watched.", error)
        if self._plan.traces:
            self._restart("whole", replace(self._plan.options, stacks=False), OPS_SECONDS)

    def memory(self) -> LiveMemory | None:
        """What was seen of the program's memory; it is watched no longer. None without steps."""
        watcher = None if self._boundaries is None else self._boundaries.watcher
        self._boundaries = None
        return None if watcher is None or self._home[0] != os.getpid() else watcher.finish()

    def finish(self, stopped_by: str = "") -> None:
        """End the recording with the program, and put everything back that was watched.

        Args:
            stopped_by: What ended the program early, or empty.
        """
        self._call_off()
        for name in list(self._undo):
            self._unwatch(name, at_end=True)
        if self._session is not None:
            current.leave(self._session, stopped_by)

    def drop(self) -> None:
        """Put everything back, and write nothing: there is no program to record."""
        if self._session is not None:
            self._session.abandon()
        self.memory()
        self.finish()

    def _watch(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data import dataloader

        on_module, on_optimizer = _uncompiled(self._on_module), _uncompiled(self._on_optimizer)
        self._undo["modules"] = _quietly(register_module_forward_pre_hook(on_module).remove)
        self._undo["optimizers"] = register_optimizer_step_post_hook(on_optimizer).remove
        loader: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  (torch has no hook for it)
        turn = loader.__next__

        def next_batch(batches: Any) -> Any:  # noqa: ANN401
            self._on_batch()
            return turn(batches)

        def put_back() -> None:
            loader.__next__ = turn

        loader.__next__ = next_batch
        self._undo["loaders"] = put_back

    def _unwatch(self, name: str, *, at_end: bool = False) -> None:
        if name == "modules" and not at_end and has_compiled():
            # What was compiled holds for so many hooks as there were: it would be compiled anew.
            return
        undo = self._undo.pop(name, None)
        if undo is not None:
            with contextlib.suppress(Exception):
                undo()

    def _is_home(self) -> bool:
        """Whether this is the thread that began: other threads and forked workers are let be."""
        return self._home == (os.getpid(), threading.get_ident())

    def _on_module(self, module: object, _inputs: object) -> None:
        """The first call of a module: what comes now is the program's own work."""
        if not self._is_home():
            return
        if not self._saw_module:
            self._saw_module = True
            if self._kind == "whole" and self._plan.options.stacks:
                self._restart("whole", self._plan.options, STACKS_SECONDS)
        if self._boundaries is None:
            self._unwatch("modules")
        else:
            self._boundaries.module_called(module, recorded=self._is_recorded())

    def _on_optimizer(self, optimizer: Any, _args: object, _kwargs: object) -> None:  # noqa: ANN401
        """An optimizer has stepped; from the first time on its steps are the steps."""
        if not self._is_home():
            return
        if self._boundaries is not None:
            self._boundaries.optimizer_stepped(optimizer, recorded=self._is_recorded())
        self._unwatch("loaders")
        self._unwatch("modules")
        if self._kind != "optimizer":
            self._on_first_step(optimizer)
        elif self._boundaries is not None and self._boundaries.is_any_optimizer:
            self._on_step()
        if self._boundaries is None:
            self._unwatch("optimizers")

    def _on_first_step(self, optimizer: Any) -> None:  # noqa: ANN401
        """Follow the first optimizer.

        torch calls this within its own annotation of the step. The steps that follow end outside
        of it, after the optimizer's ``step()`` has returned.
        """
        if self._session is None or self._session.is_done:
            return
        whole_step, on_step = optimizer.step, _uncompiled(self._on_step)

        def step(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            outcome = whole_step(*args, **kwargs)
            on_step()
            return outcome

        def put_back() -> None:
            if optimizer.__dict__.get("step") is step:
                del optimizer.step

        step.__dict__.update(getattr(whole_step, "__dict__", {}))
        optimizer.step = step
        self._undo["optimizer"] = put_back
        self._restart("optimizer", self._plan.options)

    def _on_batch(self) -> None:
        """A loader is asked for a batch."""
        if not self._is_home():
            return
        if self._boundaries is not None:
            self._boundaries.batch_asked(recorded=self._is_recorded())
        self._n_batches += 1
        if self._kind == "loader":
            self._on_step()
        elif self._n_batches > LOADER_PATIENCE:
            self._unwatch("modules")
            if self._session is not None:
                self._restart("loader", self._plan.options)

    def _is_recorded(self) -> bool:
        """Whether a step is being recorded. A run without steps is, as a whole, for a while."""
        session = self._session
        return session is not None and session.is_recording and self._kind != "whole"

    def _may_sample(self) -> bool:
        """Whether lines may be sampled, which a recording would be full of.

        A run without steps has been recorded long enough when its memory is seen to grow.
        """
        if self._session is None or self._session.is_done:
            return True
        if self._kind == "whole":
            self._call_off()
            self._session.freeze()
            return True
        return False

    def _watcher(self, turn: Turn) -> LeakMonitor:
        return LeakMonitor(
            self._plan.name,
            turn,
            may_sample=self._may_sample,
            is_alone=self._is_recording_over,
            lines_of_python=self._plan.lines_of_python,
        )

    def _is_recording_over(self) -> bool:
        if self._session is None or self._session.is_done:
            return True
        return self._kind == "whole" and not self._session.is_recording

    def _on_step(self) -> None:
        if self._session is None or not self._is_home():
            return
        self._session.step()
        if self._session.is_done:
            for name in list(self._undo):
                if self._boundaries is None or name == "optimizer":
                    self._unwatch(name)

    def _restart(self, kind: StepKind, options: Options, seconds: float | None = None) -> None:
        """Record anew, now that more is known; what was recorded before is dropped."""
        self._call_off()
        if self._session is not None:
            self._session.abandon()
            current.leave(self._session)
        self._kind = kind
        schedule = None if kind == "whole" else self._without_seen()
        opened = current.enter(self._plan.name, 1 << 30, options, schedule, kind)
        self._session = opened if isinstance(opened, Session) else None
        if seconds is not None and self._session is not None:
            self._deadline = Deadline(seconds, self._session.freeze)

    def _without_seen(self) -> Schedule:
        """The schedule without the step that it took to find out what a step is."""
        return replace(self._plan.schedule, wait=max(self._plan.schedule.wait - 1, 0))

    def _call_off(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _uncompiled(called: Callable[..., None]) -> Callable[..., None]:
    """The same, passed over where ``torch.compile`` follows the program.

    A compiler puts hooks into what it compiles, and whatever it cannot follow there ends a graph,
    which is slower, and with ``fullgraph=True`` an error of the program's.
    """
    import torch

    # The second is where torch 2.1 and 2.2 have it. Dynamo knows what both will say.
    places = (getattr(torch, "compiler", None), torch._utils)  # noqa: SLF001
    found = (getattr(place, "is_compiling", None) for place in places)
    is_compiling = next((each for each in found if each is not None), None)
    if is_compiling is None:
        return called

    def unless_compiling(*args: Any) -> None:  # noqa: ANN401
        if not is_compiling():
            called(*args)

    return unless_compiling


def _quietly(remove: Callable[[], None]) -> Callable[[], None]:
    """Keep torch from warning the program of a hook that is not its own, until it is removed.

    Args:
        remove: Removes the hook.
    """
    warnings.filterwarnings("ignore", message=_ABOUT_HOOKS)
    ours = warnings.filters[0]

    def remove_both() -> None:
        remove()
        with contextlib.suppress(ValueError):  # the program may set its filters anew
            cast("list[object]", warnings.filters).remove(ours)

    return remove_both
