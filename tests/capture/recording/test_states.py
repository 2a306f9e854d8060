"""The states of a recording: what each event leads to, in every state."""

from dataclasses import replace
from itertools import product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.recording.schedule import Phase, Schedule
from profkit.capture.recording.states import (
    Actions,
    Allowance,
    RecorderAction,
    RecorderEvent,
    RecorderState,
    next_action,
)

STARTS: Final = {RecorderAction.START_MAIN, RecorderAction.START_LINES}
STOPS: Final = {
    RecorderAction.START_MAIN: RecorderAction.STOP_MAIN,
    RecorderAction.START_LINES: RecorderAction.STOP_LINES,
}
DEFAULT: Final = Schedule(2, 2, 3, lines_last=True)
IN_WARMUP: Final = Schedule(1, 2, 2)
SCHEDULES: Final = [
    None, DEFAULT, IN_WARMUP, Schedule(active=1), Schedule(2, 1, 3), Schedule(0, 1, None),
    Schedule(1, 1, 2, repeat=3), Schedule(0, 0, 2, repeat=0), Schedule(3, 0, 1, lines_last=True),
]  # fmt: skip
ALLOWANCES: Final = [Allowance(*values) for values in product((True, False), repeat=5)]


class Profiler:
    """What a session does with torch's profiler, and the rules that it must keep."""

    def __init__(self) -> None:
        self.open: RecorderAction | None = None
        self.is_prepared = False
        self.n_written = 0
        self.is_closed = False

    def carry_out(self, actions: Actions) -> None:
        for action in actions:
            assert not self.is_closed, "nothing follows the end"

            if action in STARTS:
                assert self.open is None, "torch has one profiler"
                self.open, self.is_prepared = action, False
            elif action in STOPS.values():
                assert self.open is not None
                assert STOPS[self.open] is action, "each start has one stop"
                self.open = None
            elif action is RecorderAction.PREPARE_MAIN:
                assert self.open is None
                assert not self.is_prepared
                self.is_prepared = True
            elif action is RecorderAction.DISCARD_READY:
                assert self.is_prepared
                self.is_prepared = False
            elif action is RecorderAction.WRITE:
                assert self.open is None, "what is written is stopped"
                self.n_written += 1
            elif action is RecorderAction.CLOSE:
                self.is_closed = True


def run(
    schedule: Schedule | None, events: list[tuple[RecorderEvent, Allowance]], first_step: int = 0
) -> tuple[RecorderState, Profiler, list[Phase]]:
    """Return the last state, what was done, and the phase of each step."""
    state, profiler = RecorderState(step=first_step), Profiler()
    phases = []
    for event, allowance in [(RecorderEvent.BEGIN, Allowance()), *events]:
        state, actions = next_action(state, event, schedule, allowance)
        profiler.carry_out(actions)
        assert state.is_open == (profiler.open is not None)
        phases.append(state.phase)
    return state, profiler, phases


def steps(n: int, allowance: Allowance = ALLOWANCES[0]) -> list[tuple[RecorderEvent, Allowance]]:
    return [(RecorderEvent.STEP, allowance)] * n


EVENTS = st.lists(
    st.tuples(st.sampled_from([e for e in RecorderEvent if e is not RecorderEvent.BEGIN]),
              st.sampled_from(ALLOWANCES)),
    max_size=40,
)  # fmt: skip


@given(schedule=st.sampled_from(SCHEDULES), events=EVENTS, first_step=st.integers(0, 9))
def test_each_start_has_one_stop_and_nothing_follows_the_end(
    schedule: Schedule | None, events: list[tuple[RecorderEvent, Allowance]], first_step: int
) -> None:
    state, profiler, _ = run(schedule, [*events, (RecorderEvent.END, ALLOWANCES[0])], first_step)
    assert state.is_over
    assert profiler.open is None
    assert not profiler.is_prepared
    assert profiler.is_closed


@given(allowances=st.lists(st.sampled_from(ALLOWANCES), min_size=10, max_size=40))
def test_a_program_of_ten_steps_has_a_whole_one_whatever_the_budget_has(
    allowances: list[Allowance],
) -> None:
    events = [(RecorderEvent.STEP, allowance) for allowance in allowances]
    _, profiler, phases = run(DEFAULT, [*events, (RecorderEvent.END, ALLOWANCES[0])])
    assert Phase.RECORD in phases[:6]
    assert profiler.n_written == 1


@given(events=EVENTS)
def test_a_recorded_step_ends_with_a_step_a_pause_or_the_block(
    events: list[tuple[RecorderEvent, Allowance]],
) -> None:
    state = RecorderState()
    for event, allowance in [(RecorderEvent.BEGIN, ALLOWANCES[0]), *events]:
        before = state
        state, actions = next_action(state, event, DEFAULT, allowance)
        if before.phase is Phase.RECORD and RecorderAction.STOP_MAIN in actions:
            assert event in {
                RecorderEvent.STEP,
                RecorderEvent.PAUSE,
                RecorderEvent.FREEZE,
                RecorderEvent.END,
                RecorderEvent.DROP,
            }
            assert event is not RecorderEvent.STEP or state.n_recorded >= 1


def test_what_other_threads_have_begun_ends_before_a_window_is_stopped() -> None:
    busy = Allowance(stop=False)
    _, profiler, phases = run(DEFAULT, steps(14, busy))
    assert phases[4:12] == [
        Phase.RECORD,
        Phase.RECORD,
        Phase.RECORD,
        Phase.DRAIN,
        Phase.REST,
        Phase.LINES,
        Phase.DRAIN_LINES,
        Phase.OFF,
    ]
    assert profiler.n_written == 1


def test_a_run_records_three_steps_and_then_one_with_stacks() -> None:
    _, profiler, phases = run(DEFAULT, steps(12))

    off, record = Phase.OFF, Phase.RECORD
    assert phases == [
        off,
        off,
        off,
        Phase.READY,
        record,
        record,
        record,
        Phase.REST,
        Phase.LINES,
        off,
        off,
        off,
        off,
    ]
    assert profiler.n_written == 1


def test_the_budget_leaves_out_later_steps_and_not_the_first() -> None:
    poor = Allowance(step=False)
    _, profiler, phases = run(DEFAULT, steps(9, poor))
    assert phases.count(Phase.RECORD) == 1
    assert profiler.n_written == 1
    assert phases[5:7] == [Phase.REST, Phase.LINES]


def test_the_step_with_stacks_waits_until_it_is_affordable() -> None:
    poor = Allowance(lines=False)
    _, profiler, phases = run(DEFAULT, [*steps(20, poor), *steps(3)])
    assert phases.count(Phase.LINES) == 1
    assert phases.index(Phase.LINES) == 21
    assert profiler.n_written == 1


def test_a_program_that_ends_before_it_has_its_steps_without_source_lines() -> None:
    poor = Allowance(lines=False)
    state, profiler, phases = run(DEFAULT, [*steps(20, poor), (RecorderEvent.END, poor)])
    assert Phase.LINES not in phases
    assert profiler.n_written == 1
    assert state.is_over


def test_without_stacks_the_steps_are_written_at_once() -> None:
    _, profiler, phases = run(DEFAULT, steps(9, Allowance(stacks=False)))
    assert Phase.LINES not in phases
    assert profiler.n_written == 1


def test_recorded_steps_wait_for_what_else_is_known_of_them_but_not_for_ever() -> None:
    waits = Allowance(write=False)
    _, profiler, phases = run(DEFAULT, steps(20, waits))
    assert (profiler.n_written, set(phases[9:])) == (0, {Phase.REST})
    for last in ((RecorderEvent.STEP, ALLOWANCES[0]), (RecorderEvent.END, waits)):
        state, profiler, _ = run(DEFAULT, [*steps(20, waits), last])
        assert (profiler.n_written, state.is_done) == (1, True)


@pytest.mark.parametrize(
    ("schedule", "first_lines"), [(IN_WARMUP, 1), (Schedule(1, 1, 2), 1), (Schedule(1, 0, 2), 3)]
)
def test_a_schedule_of_the_user_has_its_step_with_stacks_where_it_is_documented(
    schedule: Schedule, first_lines: int
) -> None:
    _, _, phases = run(schedule, steps(8))
    assert phases.index(Phase.LINES) == first_lines
    assert phases.count(Phase.RECORD) == 2


def test_a_loop_that_ends_in_its_warmup_has_the_step_with_stacks() -> None:
    state = RecorderState()
    actions: Actions = ()
    for event in (RecorderEvent.BEGIN, RecorderEvent.STEP, RecorderEvent.STEP, RecorderEvent.END):
        state, actions = next_action(state, event, IN_WARMUP)
    assert RecorderAction.PROMOTE_LINES in actions
    assert actions[-2:] == (RecorderAction.WRITE, RecorderAction.CLOSE)


def test_a_pause_drops_a_window_that_is_cut_and_later_steps_are_recorded() -> None:
    plan = Schedule(1, 1, 3)
    events = [
        *steps(3),
        (RecorderEvent.PAUSE, ALLOWANCES[0]),
        (RecorderEvent.RESUME, ALLOWANCES[0]),
        *steps(8),
    ]
    _, profiler, phases = run(plan, events)
    assert profiler.n_written == 1
    assert phases[4] is Phase.OFF, "the pause"
    assert phases.count(Phase.RECORD) >= 4


def test_a_pause_ends_a_window_where_steps_are_never_more_in_a_row() -> None:
    plan = Schedule(0, 0, 5)
    _, profiler, _ = run(plan, [*steps(3), (RecorderEvent.PAUSE, ALLOWANCES[0])])
    assert profiler.n_written == 1


def test_a_block_is_recorded_from_its_begin_to_its_end() -> None:
    state, profiler, phases = run(None, [*steps(3), (RecorderEvent.END, ALLOWANCES[0])])
    assert phases == [Phase.RECORD] * 4 + [Phase.OFF]
    assert (profiler.n_written, state.is_over) == (1, True)


def test_a_frozen_block_is_written_at_its_end() -> None:
    state, profiler, _ = run(None, [(RecorderEvent.FREEZE, ALLOWANCES[0])])
    assert profiler.n_written == 0
    _, actions = next_action(state, RecorderEvent.END, None)
    assert actions == (RecorderAction.WRITE, RecorderAction.CLOSE)


def test_a_profile_function_of_the_program_ends_the_step_with_stacks_alone() -> None:
    state, profiler, phases = run(DEFAULT, [*steps(8), (RecorderEvent.YIELD_STACKS, ALLOWANCES[0])])
    assert phases[-2:] == [Phase.LINES, Phase.REST]
    state, actions = next_action(state, RecorderEvent.STEP, DEFAULT)
    assert RecorderAction.WRITE in actions
    assert profiler.n_written == 0


@pytest.mark.parametrize("event", list(RecorderEvent))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_happens_after_the_end(event: RecorderEvent, schedule: Schedule | None) -> None:
    over = replace(RecorderState(), is_over=True, is_done=True)
    assert next_action(over, event, schedule) == (over, ())
