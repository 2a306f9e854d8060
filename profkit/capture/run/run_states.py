"""The states of what ``profkit run`` records: pure functions.

A run begins with a prelude: as long as its steps are not known, its first operators are recorded as
a whole. When steps have repeated often enough, they are recorded instead. A more reliable kind of
step (an optimizer's steps instead of a loader's) begins anew.
"""

from enum import Enum
from typing import Final

from profkit.capture.recording.schedule import Schedule
from profkit.dataclass import dataclass, replace
from profkit.model.capture_info import StepKind

LONG_STEP_S: Final = 1.0
"""A step of this length has warmed up what later ones need, and is too dear to wait for others."""
_N_BEFORE_LONG: Final = 2
"""Steps before long ones are recorded: the first one does what later ones need not."""


class Stage(Enum):
    """What is recorded of the run."""

    PRELUDE = "the run as a whole, as its steps are not known"
    STEPS = "steps"
    YIELDED = "nothing more: the program uses a profiler itself"


class RunAction(Enum):
    """What a transition needs."""

    FREEZE_PRELUDE = "stop recording the run as a whole"
    OPEN = "open a session for the steps"
    STEP = "end a step of the session"
    DROP = "drop the session of less reliable steps"


@dataclass(frozen=True)
class RunState:
    """Where the recording of a run is.

    Attributes:
        stage: What is recorded.
        kind: What a step is, or None as long as that is not known.
        n_steps: Steps of that kind so far.
        schedule: The schedule of the session, or None before it is opened.
    """

    stage: Stage = Stage.PRELUDE
    kind: StepKind | None = None
    n_steps: int = 0
    schedule: Schedule | None = None


RunActions = tuple[RunAction, ...]


def after_step(
    state: RunState, plan: Schedule, *, last_step_s: float, may_hasten: bool
) -> tuple[RunState, RunActions]:
    """Return what follows the end of a step.

    Args:
        plan: The schedule that was requested.
        last_step_s: How long the step took.
        may_hasten: Whether long steps are recorded earlier than planned. Ranks of a job record the
            same steps, whatever each of them takes.
    """
    state = replace(state, n_steps=state.n_steps + 1)
    if state.stage is Stage.STEPS:
        return state, (RunAction.STEP,)
    if state.stage is not Stage.PRELUDE or state.kind is None:
        return state, ()

    # Long steps are too dear to be waited for, and the first ones have warmed up what they need.
    is_long = may_hasten and state.n_steps >= _N_BEFORE_LONG and last_step_s >= LONG_STEP_S
    if not is_long and state.n_steps < _first_session_step(plan):
        return state, ()
    schedule = _schedule_from(plan, state.n_steps, is_long=is_long)
    state = replace(state, stage=Stage.STEPS, schedule=schedule)
    return state, (RunAction.FREEZE_PRELUDE, RunAction.OPEN)


def after_new_kind(state: RunState, kind: StepKind, n_steps: int) -> tuple[RunState, RunActions]:
    """Return what follows when another kind of step is used from now on.

    Args:
        n_steps: Steps of the new kind that have ended without being counted here.
    """
    if state.stage is Stage.YIELDED:
        return state, ()
    # It begins anew, in the stage of the prelude: steps of the other kind count no more.
    actions = (RunAction.DROP,) if state.stage is Stage.STEPS else ()
    return RunState(kind=kind, n_steps=n_steps), actions


def _first_session_step(plan: Schedule) -> int:
    """Return with which step the session begins: the one in which the profiler is prepared."""
    return max(plan.first_active - min(plan.warmup, 1), 1)


def _schedule_from(plan: Schedule, n_steps: int, *, is_long: bool) -> Schedule:
    """Return the schedule of a session that begins with a step.

    Args:
        n_steps: The number of that step.
        is_long: Whether it is recorded itself.
    """
    warmup = 0 if is_long else min(plan.warmup, 1)
    wait = n_steps if is_long else max(n_steps, plan.first_active - warmup)
    return replace(plan, wait=wait, warmup=warmup, lines_last=True)
