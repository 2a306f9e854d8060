"""What is recorded of a run: the prelude, then steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.recording.schedule import DEFAULT_SCHEDULE, Schedule
from profkit.capture.run.run_states import (
    RunAction,
    RunActions,
    RunState,
    Stage,
    after_new_kind,
    after_step,
)

OPEN = (RunAction.FREEZE_PRELUDE, RunAction.OPEN)


def run(
    n: int, plan: Schedule = DEFAULT_SCHEDULE, *, step_s: float = 0.1, may_hasten: bool = True
) -> tuple[RunState, list[RunActions]]:
    state, _ = after_new_kind(RunState(), "optimizer", 0)
    done = []
    for _ in range(n):
        state, actions = after_step(state, plan, last_step_s=step_s, may_hasten=may_hasten)
        done.append(actions)
    return state, done


def test_the_session_begins_with_the_step_that_prepares_the_profiler() -> None:
    state, done = run(5)
    assert done == [(), (), OPEN, (RunAction.STEP,), (RunAction.STEP,)]
    assert state.schedule == Schedule(3, 1, 3, lines_last=True)


def test_long_steps_are_recorded_earlier() -> None:
    state, done = run(3, step_s=2.0)
    assert done == [(), OPEN, (RunAction.STEP,)]
    assert state.schedule == Schedule(2, 0, 3, lines_last=True), "this step is recorded"


def test_ranks_record_the_same_steps_however_long_theirs_are() -> None:
    assert run(5, step_s=2.0, may_hasten=False)[1] == run(5)[1]


@pytest.mark.parametrize(
    ("plan", "n_before", "first"),
    [(Schedule(0, 0, 1), 0, 1), (Schedule(0, 1, 2), 0, 2), (Schedule(5, 3, 2), 6, 8)],
)
def test_a_plan_of_the_user_is_kept(plan: Schedule, n_before: int, first: int) -> None:
    state, done = run(n_before + 1, plan)
    assert done[-1] == OPEN
    assert state.schedule is not None
    assert state.schedule.first_active == first
    assert state.schedule.active == plan.active


def test_steps_that_were_found_late_begin_at_once() -> None:
    state, _ = after_new_kind(RunState(), "loader", 7)
    state, actions = after_step(state, DEFAULT_SCHEDULE, last_step_s=0.1, may_hasten=True)
    assert actions == OPEN
    assert state.schedule is not None
    assert (state.n_steps, state.schedule.first_active) == (8, 9)


def test_a_more_reliable_kind_of_step_drops_the_session_and_begins_anew() -> None:
    state, _ = run(5)
    state, actions = after_new_kind(state, "user", 0)
    assert actions == (RunAction.DROP,)
    assert state == RunState(kind="user")


def test_nothing_follows_a_profiler_of_the_program() -> None:
    yielded = RunState(Stage.YIELDED, "optimizer")
    assert after_new_kind(yielded, "user", 0) == (yielded, ())
    assert after_step(yielded, DEFAULT_SCHEDULE, last_step_s=0.1, may_hasten=True)[1] == ()


@given(
    st.lists(st.one_of(st.sampled_from(["loader", "optimizer", "user"]), st.floats(0.0, 5.0))),
    st.booleans(),
)
def test_a_session_is_open_where_one_is_ended_or_dropped(
    events: list[str | float],
    may_hasten: bool,  # noqa: FBT001  (Hypothesis passes it by position)
) -> None:
    state, is_open = RunState(), False
    for event in events:
        if isinstance(event, str):
            state, actions = after_new_kind(state, event, 0)  # type: ignore[arg-type]
        else:
            state, actions = after_step(
                state, DEFAULT_SCHEDULE, last_step_s=event, may_hasten=may_hasten
            )
        for action in actions:
            assert (action in {RunAction.STEP, RunAction.DROP}) == is_open
            is_open = action is RunAction.OPEN or (is_open and action is RunAction.STEP)
        assert is_open == (state.stage is Stage.STEPS)
