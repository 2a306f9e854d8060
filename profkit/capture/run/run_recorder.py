"""Carries out what is recorded of a run: its prelude, then some of its steps.

What follows when is decided in :mod:`profkit.capture.run.run_states`.
"""

import sys
import time
from typing import Final

from profkit.capture.process import environment, safe_points
from profkit.capture.process.cpu_speed import slowness
from profkit.capture.recording import current
from profkit.capture.recording.recording_budget import RecordingBudget, StepBudget
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE, Phase
from profkit.capture.recording.session import Session, sessions
from profkit.capture.run.plan import Plan
from profkit.capture.run.prelude import Prelude
from profkit.capture.run.run_states import (
    RunAction,
    RunActions,
    RunState,
    Stage,
    after_new_kind,
    after_step,
)
from profkit.dataclass import replace
from profkit.model.capture_info import StepKind

_MAX_IDLE_STEPS: Final = 16
_SHORT_STEP_S: Final = 0.001
"""Of steps of less than this many seconds only each sixteenth ends, while nothing is recorded."""
_LEFT_TO_SESSION: Final = frozenset({RunAction.STEP})


class RunRecorder:
    """Records a run.

    Attributes:
        program_profiler: The first profiler of the program itself, or empty.
        state: Where the recording is.
    """

    def __init__(self, plan: Plan) -> None:
        self.program_profiler = ""
        self.state = RunState()
        self._plan = plan
        # Allocations are collected whatever else is muted.
        options = replace(plan.options, stacks=False, memory=False)
        self._prelude = Prelude(plan.name, options)
        self._session: Session | None = None
        self._paths: list[str] = []
        self._budget = RecordingBudget(spent_s=lambda: sessions.spent_ns / 1e9, slowness=slowness())
        self._step_began_s = time.monotonic()
        self._n_counted = 0
        self._is_step_short = False
        self._next_kind: tuple[StepKind, int] | None = None

    @property
    def path(self) -> str | None:
        """Return the trace file, once it is written."""
        # A trace of steps says more than that of the run as a whole.
        for recording in (self._session, self._prelude.session):
            if recording is not None and recording.path is not None:
                return recording.path
        return self._paths[-1] if self._paths else None

    @property
    def flight(self) -> str | None:
        """Return the dump of the FlightRecorder beside it, or None."""
        return None if self._session is None else self._session.flight

    @property
    def has_steps(self) -> bool:
        """Return whether steps were found, and not only the run as a whole."""
        return self.state.kind is not None

    @property
    def has_prelude(self) -> bool:
        """Return whether the run was recorded as a whole, as long as its steps were not known."""
        return self._prelude.session is not None

    @property
    def is_recording(self) -> bool:
        """Return whether a profiler records now, so that the current step must not be disturbed."""
        is_session = self._session is not None and self._session.is_recording
        return is_session or self._prelude.is_recording

    @property
    def is_collecting(self) -> bool:
        """Return whether events are collected now, which take memory."""
        is_session = self._session is not None and self._session.is_recording
        return is_session or self._prelude.is_collecting

    @property
    def is_over(self) -> bool:
        """Return whether nothing is recorded, now or soon.

        That is so too while a step with stacks waits for its budget, which may be for ever.
        """
        if not self._plan.record_trace or self.state.stage is Stage.YIELDED:
            return True
        if self._session is None:
            return False
        state = self._session.state
        return state.is_done or (state.phase is Phase.REST and state.n_delayed > 0)

    @property
    def is_over_for_good(self) -> bool:
        """Return whether nothing is recorded any more, unless steps of another kind follow."""
        if not self._plan.record_trace or self.state.stage is Stage.YIELDED:
            return True
        is_done = self._session is not None and self._session.is_done
        return is_done and self._next_kind is None

    @property
    def has_only_to_write(self) -> bool:
        """Return whether all recorded steps wait only until samples of stacks explain them."""
        return self._session is not None and self._session.state.has_only_to_write

    @property
    def yielded_to_profiler(self) -> bool:
        """Return whether steps were recorded until a profiler of the program began."""
        return self._session is not None and self._session.yielded_to_profiler

    def begin(self) -> None:
        """Begin with the prelude."""
        if self._plan.record_trace and not self.program_profiler:
            self._prelude.begin()

    def module_called(self) -> None:
        """Record from here on if this is the first module, and what came before was too much."""
        if self.state.kind is None and safe_points.is_safe():
            self._prelude.module_called()

    def use_kind(self, kind: StepKind, n_steps: int) -> None:
        """Take another kind of step, from the end of step on that is reported next.

        Args:
            n_steps: Steps of the new kind that have ended already.
        """
        self._next_kind = (kind, n_steps)

    def n_idle_steps(self) -> int:
        """Return how many of the next steps need only be counted, by :meth:`count`."""
        if self.is_over_for_good:
            return sys.maxsize
        # Samples of stacks are added to those of whole steps, so steps end now and then.
        return _MAX_IDLE_STEPS if self.has_only_to_write and self._is_step_short else 0

    def count(self, n_steps: int) -> None:
        """Count steps that have ended, no more than :meth:`n_idle_steps`."""
        if self._session is not None and not self.is_over_for_good:
            self._session.count(n_steps)
            self._n_counted += n_steps

    def close_step(self) -> None:
        """Let what profkit does until :meth:`step_ended`, which is called next, be in no step."""
        if self._session is not None:
            self._session.close_step()

    def step_ended(self) -> None:
        """End a step and begin the next one, where the program's own step ends.

        At a place where no recording may begin or end nothing changes, and the step goes on: its
        end is not counted.
        """
        if self.is_over_for_good:
            return

        state = self.state
        actions: RunActions = ()
        if self._next_kind is not None:
            state, actions = after_new_kind(state, *self._next_kind)

        last_step_s = (time.monotonic() - self._step_began_s) / (self._n_counted + 1)
        self._is_step_short = last_step_s < _SHORT_STEP_S
        state, next_actions = after_step(
            state,
            self._plan.schedule,
            last_step_s=last_step_s,
            may_hasten=self._may_hasten(),
        )
        actions += next_actions

        # The session finds out itself whether its step may end here.
        if not _LEFT_TO_SESSION.issuperset(actions) and not safe_points.is_safe():
            return

        self.state, self._next_kind = state, None
        self._carry_out(actions)
        self._step_began_s, self._n_counted = time.monotonic(), 0

    def _may_hasten(self) -> bool:
        """Return whether long steps may be recorded earlier: ranks record the same steps."""
        is_alone = environment.ranks()[1] in {None, 1}
        return is_alone and self._plan.schedule == DEFAULT_SCHEDULE

    def yield_to(self, name: str) -> None:
        """Record nothing more, as the program uses a profiler. The session ends itself."""
        self.program_profiler = self.program_profiler or name
        self._prelude.stop_sampling()
        self.state = replace(self.state, stage=Stage.YIELDED)

    def finish(self, stopped_by: str = "") -> None:
        """End with the program, and write what was recorded.

        Args:
            stopped_by: The exception or signal that ended the program early, or empty.
        """
        recording = self._session
        if recording is not None and not (recording.has_whole_step or recording.path):
            # The program has ended within its first recorded step: its begin tells more.
            self._drop_session()
        elif recording is not None:
            current.leave(recording, stopped_by, is_last=True)
        if self.path is None:
            self._prelude.finish(stopped_by)
        else:
            self._prelude.drop()

    def drop(self) -> None:
        """Write nothing."""
        self._drop_session()
        self._prelude.drop()

    def _carry_out(self, actions: tuple[RunAction, ...]) -> None:
        for action in actions:
            if action is RunAction.STEP:
                self._end_step()
            elif action is RunAction.FREEZE_PRELUDE:
                self._prelude.freeze()
            elif action is RunAction.OPEN:
                self._open()
            elif action is RunAction.DROP:
                self._drop_session()

    def _open(self) -> None:
        """Open the session for the steps."""
        state = self.state
        if self.program_profiler or state.schedule is None or state.kind is None:
            return
        is_default = self._plan.schedule == DEFAULT_SCHEDULE
        self._session = current.open_session(
            self._plan.name,
            self._plan.options,
            state.schedule,
            state.kind,
            state.n_steps,
            StepBudget(self._budget) if is_default else None,
        )

    def _end_step(self) -> None:
        if self._session is None:
            return
        self._session.step()
        # Until then a program that ends has the prelude in its report.
        if self._session.path is not None:
            self._prelude.drop()

    def _drop_session(self) -> None:
        """Leave a session of less reliable steps; a trace that it has written stays."""
        if self._session is not None:
            if self._session.path is not None:
                self._paths.append(self._session.path)
            self._session.abandon()
            current.leave(self._session)
            self._session = None
