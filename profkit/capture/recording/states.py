"""The states of a recording, and what is done between two of them: pure functions, no profiler.

A recording changes its phase only where the block begins or ends, where a step ends, and where the
loop pauses or goes on. :func:`next_action` says for each of these events which state follows, and
which :class:`RecorderAction` values lead there, in order. The session carries them out, on the
thread that recorded, at a safe point.

A recorded step is never cut: what the budget has left decides only what the *next* step is. It
chooses between one and all of the planned steps, and puts off the step with stacks.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from profkit.capture.recording.schedule import Phase, Schedule
from profkit.dataclass import dataclass, replace


class RecorderEvent(Enum):
    """What happens to a recording."""

    BEGIN = "the block begins"
    STEP = "a step has ended, and the next one begins"
    PAUSE = "what follows belongs to no step"
    RESUME = "the next step begins, after a pause"
    FREEZE = "the recording ends, and is written later"
    YIELD_STACKS = "the program is about to set a profile function of its own"
    END = "the block ends"
    DROP = "the block ends, and nothing of it is wanted"


class RecorderAction(Enum):
    """What leads from one state to the next."""

    MUTE_LINES = "collect nothing more in the step with stacks, which is stopped later"
    MUTE_MAIN = "collect nothing more in the recorded steps, which are stopped later"
    STOP_LINES = "stop recording the step with stacks"
    STOP_MAIN = "stop recording steps"
    DISCARD_READY = "end a profiler that was prepared and never started"
    DROP_LINES = "free the step with stacks"
    DROP_MAIN = "free the recorded steps"
    PROMOTE_LINES = "take the step with stacks for the recorded step"
    WRITE = "write the recorded steps of this cycle"
    PREPARE_MAIN = "prepare the profiler, so that its start is quick"
    START_MAIN = "start to record steps"
    START_LINES = "start to record a step with stacks"
    CLOSE = "leave the process as it was"


@dataclass(frozen=True)
class Allowance:
    """What may be recorded next, as known when a step ends.

    Attributes:
        step: Whether the budget has enough for another step in this window.
        lines: Whether it has enough for the step with stacks.
        stacks: Whether stacks can be recorded at all: a profile function of the program excludes
            them.
        stop: Whether a window can be stopped at once. Threads of torch that communicate may still
            be in what the last step has begun, and write into the window's memory when it ends:
            then nothing more is collected, and the window is stopped one step later.
        write: Whether what else is known of the recorded steps is complete. They wait for it
            unless the block ends.
    """

    step: bool = True
    lines: bool = True
    stacks: bool = True
    stop: bool = True
    write: bool = True


EVERYTHING: Final = Allowance()


@dataclass(frozen=True)
class RecorderState:
    """Where a recording is.

    Attributes:
        phase: What happens in the current step.
        step: The number of the current step, from 0.
        n_delayed: Steps by which the schedule was put off; negative where steps were left out.
        cycle: The cycle of the schedule, from 0.
        n_recorded: Whole steps that the open window has recorded.
        n_consecutive: Steps that have followed each other since the last pause.
        needs_lines: Whether a step has to be recorded with stacks for its source lines.
        has_main: Whether recorded steps of this cycle wait to be written.
        has_only_lines: Whether a step with stacks is all that has been recorded.
        is_paused: Whether the program does something else than steps.
        is_done: Whether every cycle of the schedule has been recorded.
        is_over: Whether the block has ended.
    """

    phase: Phase = Phase.OFF
    step: int = 0
    n_delayed: int = 0
    cycle: int = 0
    n_recorded: int = 0
    n_consecutive: int = 0
    needs_lines: bool = True
    has_main: bool = False
    has_only_lines: bool = False
    is_paused: bool = False
    is_done: bool = False
    is_over: bool = False

    @property
    def is_recording(self) -> bool:
        """Return whether the current step is recorded."""
        return self.phase in _MUTED

    @property
    def has_only_to_write(self) -> bool:
        """Return whether all steps have been recorded, and wait to be written."""
        return self.phase is Phase.REST and self.has_main and not self.needs_lines

    @property
    def is_open(self) -> bool:
        """Return whether a window is open, which can only be stopped at a safe point."""
        return self.is_recording or self.phase in _MUTED.values()


Actions = tuple[RecorderAction, ...]
Transition = tuple[RecorderState, Actions]

_MUTED: Final = {Phase.RECORD: Phase.DRAIN, Phase.LINES: Phase.DRAIN_LINES}
"""The phases in which a step is recorded, and those in which what it has begun ends."""
_WAITS_FOR_LINES: Final = frozenset({Phase.LINES, Phase.REST})
"""Phases in which the recorded steps are not written yet."""
_AFTER_RECORDED: Final = frozenset({Phase.RECORD, Phase.DRAIN, Phase.REST})
"""Phases of which the recorded steps are whole when they end."""
_IS_MAIN: Final = frozenset({Phase.READY, Phase.RECORD})
"""Phases that a prepared profiler leads to."""
_ENDS: Final = frozenset({RecorderEvent.END, RecorderEvent.DROP})


def next_action(
    state: RecorderState,
    event: RecorderEvent,
    schedule: Schedule | None,
    allowance: Allowance = EVERYTHING,
) -> Transition:
    """Return the state that follows an event, and the actions that lead to it.

    Args:
        schedule: Which steps are recorded, or None to record the whole block.
        allowance: What may be recorded next.

    Returns:
        The new state and its actions. An event that means nothing in a state changes nothing.
    """
    if state.is_over or (state.is_done and event not in _ENDS):
        return state, ()
    return _TRANSITIONS[event](state, schedule, allowance)


def _begin(state: RecorderState, schedule: Schedule | None, allowance: Allowance) -> Transition:
    if schedule is None:
        return replace(state, phase=Phase.RECORD), (RecorderAction.START_MAIN,)
    return _enter_next(state, schedule, allowance)


def _end_step(state: RecorderState, schedule: Schedule | None, allowance: Allowance) -> Transition:
    """Count the step that has ended, and enter the phase of the next one."""
    state = replace(
        state,
        step=state.step + 1,
        n_recorded=state.n_recorded + (state.phase is Phase.RECORD),
        n_consecutive=state.n_consecutive + 1,
        is_paused=False,
    )
    return (state, ()) if schedule is None else _enter_next(state, schedule, allowance)


def _enter_next(state: RecorderState, schedule: Schedule, allowance: Allowance) -> Transition:
    """Enter the phase that the schedule has for the current step, if that is allowed."""
    place = state.step - state.n_delayed
    cycle, phase = schedule.find_phase(place, lines=state.needs_lines)

    # One step is recorded however dear it is, and no step is cut: the rest of the planned ones are
    # left out.
    is_started = state.phase is Phase.RECORD and state.n_recorded > 0
    if phase is Phase.RECORD and cycle == state.cycle and is_started and not allowance.step:
        n_left = schedule.active_left(place) if cycle == 0 else 0
        state = replace(state, n_delayed=state.n_delayed - n_left)
        cycle, phase = schedule.find_phase(place + n_left, lines=state.needs_lines)

    if (
        not allowance.stop
        and state.phase in _MUTED
        and (phase, cycle) != (state.phase, state.cycle)
    ):
        return _drain(state)

    if phase is Phase.LINES and not allowance.stacks:
        state = replace(state, needs_lines=False)
        cycle, phase = schedule.find_phase(state.step - state.n_delayed, lines=False)

    # The step with stacks can wait: the recorded steps are whole without it.
    if phase is Phase.LINES and not allowance.lines and state.phase in _AFTER_RECORDED:
        return _enter(replace(state, n_delayed=state.n_delayed + 1), cycle, Phase.REST, schedule)

    has_main = state.has_main or state.phase in {Phase.RECORD, Phase.DRAIN}
    if not allowance.write and has_main and schedule.is_over(cycle):
        delayed = replace(state, n_delayed=state.n_delayed + 1)
        return _enter(delayed, state.cycle, Phase.REST, schedule)
    return _enter(state, cycle, phase, schedule)


def _drain(state: RecorderState) -> Transition:
    """Collect nothing more, and put off what follows by a step."""
    action = RecorderAction.MUTE_MAIN if state.phase is Phase.RECORD else RecorderAction.MUTE_LINES
    phase = _MUTED[state.phase]
    return replace(state, phase=phase, n_delayed=state.n_delayed + 1), (action,)


def _enter(state: RecorderState, cycle: int, phase: Phase, schedule: Schedule) -> Transition:
    """Leave the phase of the previous step, and enter the one of the next."""
    before, is_new_cycle = state.phase, cycle != state.cycle
    state, actions = _leave(state, stays=phase in _IS_MAIN and not is_new_cycle, phase=phase)

    if state.has_main and phase not in _WAITS_FOR_LINES:
        state = replace(state, has_main=False, has_only_lines=False)
        actions += (RecorderAction.WRITE,)

    if phase is Phase.LINES:
        actions += (RecorderAction.START_LINES,)
    elif phase is Phase.READY:
        actions += (RecorderAction.PREPARE_MAIN,)
    elif phase is Phase.RECORD and (before is not Phase.RECORD or is_new_cycle):
        actions += (RecorderAction.START_MAIN,)
        state = replace(state, n_recorded=0)

    is_done = schedule.is_over(cycle)
    return replace(state, phase=phase, cycle=cycle, is_done=is_done), actions


def _leave(state: RecorderState, *, stays: bool = False, phase: Phase = Phase.OFF) -> Transition:
    """Stop what the current phase records.

    Args:
        stays: Whether a profiler that is prepared or records goes on.
        phase: The phase that follows.
    """
    # A loop that ends before its recorded steps has this one at least, which is then written.
    if state.phase in {Phase.LINES, Phase.DRAIN_LINES}:
        return replace(state, needs_lines=False, has_only_lines=not state.has_main), (
            RecorderAction.STOP_LINES,
        )
    is_same = stays and phase is state.phase
    if state.phase in {Phase.RECORD, Phase.DRAIN} and not is_same:
        return replace(state, has_main=True), (RecorderAction.STOP_MAIN,)
    if state.phase is Phase.READY and not stays:
        return state, (RecorderAction.DISCARD_READY,)
    return state, ()


def _pause(state: RecorderState, schedule: Schedule | None) -> Transition:
    """Leave what follows out of the steps.

    The recorded steps follow each other. Where fewer than planned do, they are dropped, and steps
    after the pause are recorded instead, if so many have followed each other before.
    """
    if state.is_paused or schedule is None:
        return state, ()
    n_planned, n_consecutive = schedule.active, state.n_consecutive
    state = replace(state, is_paused=True, n_consecutive=0)

    is_rarely_longer = n_planned is None or n_consecutive < n_planned
    # As many steps in a row as planned may never come: what has been recorded is kept.
    is_main_open = state.phase in {Phase.RECORD, Phase.DRAIN}
    if is_main_open and state.n_recorded and is_rarely_longer:
        n_missing = (n_planned or state.n_recorded) - state.n_recorded
        state = replace(state, n_delayed=state.n_delayed - n_missing)
        state, actions = _enter(state, state.cycle + 1, Phase.OFF, schedule)
        return replace(state, is_done=state.is_done or n_planned is None), actions

    if is_main_open:
        n_delayed = state.n_delayed + state.n_recorded
        state = replace(state, phase=Phase.OFF, n_delayed=n_delayed, n_recorded=0)
        return state, (RecorderAction.STOP_MAIN, RecorderAction.DROP_MAIN)
    if state.phase in {Phase.LINES, Phase.DRAIN_LINES}:
        return replace(state, phase=Phase.OFF), (
            RecorderAction.STOP_LINES,
            RecorderAction.DROP_LINES,
        )
    if state.phase is Phase.READY:
        return replace(state, phase=Phase.OFF), (RecorderAction.DISCARD_READY,)
    return state, ()


def _resume(state: RecorderState, schedule: Schedule | None, allowance: Allowance) -> Transition:
    if schedule is None or not state.is_paused:
        return state, ()
    return _enter_next(replace(state, is_paused=False), schedule, allowance)


def _freeze(state: RecorderState) -> Transition:
    state, actions = _leave(state)
    return replace(state, phase=Phase.REST), actions


def _yield_stacks(state: RecorderState) -> Transition:
    """Give up the source lines: torch's tracer and a profile function exclude each other."""
    if state.phase not in {Phase.LINES, Phase.DRAIN_LINES}:
        return replace(state, needs_lines=False), ()
    phase = Phase.REST if state.has_main else Phase.OFF
    state = replace(state, phase=phase, needs_lines=False)
    return state, (RecorderAction.STOP_LINES, RecorderAction.DROP_LINES)


def _end(state: RecorderState) -> Transition:
    state, actions = _leave(state)
    if state.has_main:
        actions += (RecorderAction.WRITE,)
    elif state.has_only_lines:
        # The loop ended before the steps that were to be recorded.
        actions += (RecorderAction.PROMOTE_LINES, RecorderAction.WRITE)
    return _close(state), (*actions, RecorderAction.CLOSE)


def _drop(state: RecorderState) -> Transition:
    state, actions = _leave(state)
    return _close(state), (
        *actions,
        RecorderAction.DROP_LINES,
        RecorderAction.DROP_MAIN,
        RecorderAction.CLOSE,
    )


def _close(state: RecorderState) -> RecorderState:
    return replace(state, phase=Phase.OFF, has_main=False, is_over=True, is_done=True)


_TRANSITIONS: Final[
    dict[RecorderEvent, Callable[[RecorderState, Schedule | None, Allowance], Transition]]
] = {
    RecorderEvent.BEGIN: _begin,
    RecorderEvent.STEP: _end_step,
    RecorderEvent.PAUSE: lambda state, schedule, _: _pause(state, schedule),
    RecorderEvent.RESUME: _resume,
    RecorderEvent.FREEZE: lambda state, _, __: _freeze(state),
    RecorderEvent.YIELD_STACKS: lambda state, _, __: _yield_stacks(state),
    RecorderEvent.END: lambda state, _, __: _end(state),
    RecorderEvent.DROP: lambda state, _, __: _drop(state),
}
"""What each event leads to."""
