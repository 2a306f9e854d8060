"""What the memory monitor does at the end of a step is decided by a pure function."""

import itertools
import sys
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.memory.monitor.monitor_states import (
    MAX_SAMPLED_STEPS,
    RESTS,
    Evaluated,
    HeapBegun,
    HostScanned,
    Inspected,
    LinesBegun,
    MeasuringAdvanced,
    MonitorAction,
    MonitorEvent,
    MonitorFailed,
    MonitorFinished,
    MonitorPhase,
    MonitorState,
    RecordingStopped,
    Sampled,
    SitesAnswered,
    SitesChecked,
    SitesRecorded,
    StepEnded,
    TraceBegan,
    TracingAdvanced,
    next_action,
)

Phase = MonitorPhase
Action = MonitorAction
LONG = 100
OVER = {Phase.FINISHED, Phase.GIVEN_UP}
SAMPLES = {Action.BEGIN, Action.SAMPLE, Action.SAMPLE_RECORDED}

OUTCOMES: dict[Action, Any] = {
    Action.BEGIN: Sampled,
    Action.SAMPLE: Sampled,
    Action.SAMPLE_RECORDED: Sampled,
    Action.STOP_RECORDING: RecordingStopped,
    Action.ADVANCE_TRACING: TracingAdvanced,
    Action.ADVANCE_MEASURING: MeasuringAdvanced,
    Action.CHECK_SITES: SitesChecked,
    Action.RECORD_SITES: SitesRecorded,
    Action.EVALUATE: Evaluated,
    Action.ASK_FOR_SITES: SitesAnswered,
    Action.INSPECT: Inspected,
    Action.SCAN_HOST: HostScanned,
    Action.TRACE_LINES: LinesBegun,
    Action.MEASURE_HEAP: HeapBegun,
}
"""The event that follows each action."""

PHASES: dict[Phase, set[Phase]] = {
    Phase.UNSTARTED: {Phase.WATCHING},
    Phase.WATCHING: {Phase.SAMPLING_SITES, Phase.TRACING_LINES, Phase.MEASURING_HEAP},
    Phase.SAMPLING_SITES: {Phase.WATCHING},
    Phase.TRACING_LINES: {Phase.WATCHING},
    Phase.MEASURING_HEAP: {Phase.WATCHING},
    Phase.FINISHED: set(),
    Phase.GIVEN_UP: set(),
}
"""The phases that follow each, beside itself; all that are not over may also end or fail."""


def events_of(kind: Any, step: int) -> Iterator[MonitorEvent]:  # noqa: ANN401  (a NamedTuple)
    """Yield all events of a kind, with each value of a flag."""
    values: dict[str, tuple[int, ...]] = {"step": (step,), "interval": (0, 5, 70)}
    fields = [values.get(name, (False, True)) for name in kind._fields]
    for combination in itertools.product(*fields):
        yield kind(*combination)


def states() -> Iterator[MonitorState]:
    """Yield states on both sides of each limit."""
    limits = (0, LONG - 80, LONG - 2, LONG, LONG + 1)
    for phase in Phase:
        for sites_from, sites_until in ((0, 0), (LONG - 30, LONG + 5), (LONG - 2, LONG + 4)):
            for n, inspect_from, host_from in itertools.product(range(4), limits, limits):
                yield MonitorState(
                    phase, LONG, LONG, sites_from, sites_until, n, inspect_from, host_from
                )


def is_possible(state: MonitorState, event: MonitorEvent) -> bool:
    try:
        next_action(state, event)
    except ValueError:
        return False
    return True


def test_every_event_in_every_state_has_one_action_or_cannot_happen() -> None:
    transitions: dict[Phase, set[Phase]] = {phase: set() for phase in Phase}
    possible: dict[Phase, set[type[MonitorEvent]]] = {phase: set() for phase in Phase}
    actions: set[Action] = set()
    for state in states():
        for kind in get_args(MonitorEvent):
            for event in events_of(kind, LONG):
                if not is_possible(state, event):
                    continue
                after, action = next_action(state, event)
                possible[state.phase].add(kind)
                transitions[state.phase].add(after.phase)
                actions.add(action)
                assert action not in RESTS or after.next_step >= LONG
    ends = {MonitorFailed, MonitorFinished}
    for phase in Phase:
        # Those that are over stay so whatever happens.
        also = {phase} if phase in OVER else {phase, *OVER}
        assert transitions[phase] == PHASES[phase] | also, phase
        assert ends <= possible[phase]
        assert (len(possible[phase]) == len(get_args(MonitorEvent))) == (phase in OVER)

    assert actions == set(Action)


def test_the_outcome_of_every_action_can_happen_in_the_phase_that_it_is_taken_in() -> None:
    for state in states():
        for kind in get_args(MonitorEvent):
            for event in events_of(kind, LONG):
                if state.phase in OVER or not is_possible(state, event):
                    continue
                after, action = next_action(state, event)
                if action in RESTS:
                    continue
                for outcome in events_of(OUTCOMES[action], LONG):
                    assert is_possible(after, outcome), (state, event, action)


def run(state: MonitorState, event: MonitorEvent, flags: Iterator[bool]) -> list[MonitorState]:
    """Take all actions of an event with random outcomes, and return the states after each."""
    trail = []
    actions = []
    state, action = next_action(state, event)
    trail.append(state)
    while action not in RESTS:
        actions.append(action)
        kind: Any = OUTCOMES[action]
        fields = [5 if name == "interval" else next(flags) for name in kind._fields]
        state, action = next_action(state, kind(*fields))
        trail.append(state)

    # Nothing is done twice at the end of one step, and so the program goes on soon.
    assert len(actions) == len(set(actions)) < 8
    assert sum(done in SAMPLES for done in actions) <= 1
    return trail


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["step"] * 12 + ["skip"] * 2 + ["fail", "finish"]),
        st.lists(st.booleans(), min_size=24, max_size=24),
    ),
    max_size=80,
)


@given(STEPS)
def test_what_holds_after_any_sequence_of_steps(steps: list[tuple[str, list[bool]]]) -> None:
    state = MonitorState()
    for number, (kind, flags) in enumerate(steps, start=1):
        before, outcomes = state, iter(flags)
        if kind == "step" and number < state.next_step:
            continue
        # Only these phases record something at each step.
        records = state.phase in {Phase.SAMPLING_SITES, Phase.TRACING_LINES, Phase.MEASURING_HEAP}
        events: dict[str, MonitorEvent] = {
            "step": StepEnded(number, records and next(outcomes), next(outcomes)),
            "skip": TraceBegan(number),
            "fail": MonitorFailed(),
            "finish": MonitorFinished(),
        }
        trail = run(state, events[kind], outcomes)
        state = trail[-1]

        for earlier, later in itertools.pairwise([before, *trail]):
            allowed = {earlier.phase, *PHASES[earlier.phase]}
            assert later.phase in (allowed if earlier.phase in OVER else allowed | OVER)
            assert (later.phase is Phase.SAMPLING_SITES) == (later.sites_until > 0) or later.is_over
            assert later.n_site_samplings <= len(MAX_SAMPLED_STEPS)
        assert state.inspect_from >= before.inspect_from
        assert state.host_from >= before.host_from
        if kind == "step" and not before.is_over:
            assert state.next_step > number
        if state.is_over:
            assert state.next_step == sys.maxsize


def test_a_recorded_step_ends_tracing_and_measuring_but_not_the_sampling_of_sites() -> None:
    after = {
        phase: run(MonitorState(phase, step=9, sites_until=3), TraceBegan(9), iter([]))[-1].phase
        for phase in (Phase.SAMPLING_SITES, Phase.TRACING_LINES, Phase.MEASURING_HEAP)
    }
    assert after == {
        Phase.SAMPLING_SITES: Phase.SAMPLING_SITES,
        Phase.TRACING_LINES: Phase.WATCHING,
        Phase.MEASURING_HEAP: Phase.WATCHING,
    }


def test_a_sample_that_is_not_affordable_is_looked_at_again_only_when_it_may_be() -> None:
    state = MonitorState(Phase.WATCHING, step=20, next_step=21)
    event = StepEnded(21, was_recorded=False, n_to_wait=40)
    state, action = next_action(state, event)
    assert (state.next_step, action) == (61, Action.WAIT)


def test_growth_is_inspected_after_its_sites_were_sampled() -> None:
    """The whole way of a leak, from the first step to the inspection."""
    outcomes: list[tuple[MonitorEvent, Action]] = [
        (StepEnded(1, was_recorded=False), Action.BEGIN),
        (Sampled(is_cheap=True), Action.GO_ON),
        (StepEnded(2, was_recorded=False, n_to_wait=1), Action.WAIT),
        (StepEnded(3, was_recorded=False), Action.SAMPLE),
        (Sampled(is_cheap=True), Action.EVALUATE),
        (Evaluated(True, True, True, True), Action.ASK_FOR_SITES),  # noqa: FBT003
        (SitesAnswered(may_sample=True, interval=0), Action.RECORD_SITES),
        (SitesRecorded(is_step_due=True), Action.GO_ON),
        (StepEnded(4, was_recorded=True, n_to_wait=1), Action.SAMPLE_RECORDED),
        (Sampled(is_cheap=True), Action.RECORD_SITES),
        (SitesRecorded(is_step_due=True), Action.GO_ON),
        (StepEnded(6, was_recorded=True, n_to_wait=1), Action.SAMPLE_RECORDED),
        (Sampled(is_cheap=True), Action.CHECK_SITES),
        (SitesChecked(are_missing=False), Action.EVALUATE),
        (Evaluated(False, False, False, False), Action.INSPECT),  # noqa: FBT003
        (Inspected(is_complete=True, lacks_sites=False), Action.GO_ON),
    ]
    state = MonitorState()
    for event, expected in outcomes:
        state, action = next_action(state, event)
        assert action is expected

    assert (state.phase, state.inspect_from) == (Phase.WATCHING, 6 + 12)


@pytest.mark.parametrize(
    ("begun", "advanced", "phase"),
    [
        (LinesBegun(is_on=True), TracingAdvanced(goes_on=False), Phase.TRACING_LINES),
        (
            HeapBegun(is_allowed=True, is_on=True),
            MeasuringAdvanced(goes_on=False),
            Phase.MEASURING_HEAP,
        ),
    ],
    ids=["lines", "heap"],
)
def test_the_last_recorded_step_is_a_sample(
    begun: MonitorEvent, advanced: MonitorEvent, phase: MonitorPhase
) -> None:
    state, action = next_action(MonitorState(Phase.WATCHING, step=20, next_step=20), begun)
    assert (state.phase, state.next_step, action) == (phase, 21, Action.GO_ON)
    state, _ = next_action(state, StepEnded(21, was_recorded=True, n_to_wait=1))
    state, action = next_action(state, advanced)
    assert (state.phase, action) == (Phase.WATCHING, Action.SAMPLE_RECORDED)


def test_measurements_that_a_profiler_of_the_program_has_ended_are_not_a_sample() -> None:
    state = MonitorState(Phase.MEASURING_HEAP, step=20, next_step=21)
    state, action = next_action(state, StepEnded(21, was_recorded=False, n_to_wait=1))
    assert (state.phase, action) == (Phase.WATCHING, Action.WAIT)


def test_where_native_growth_is_not_examined_the_program_goes_on() -> None:
    state = MonitorState(Phase.WATCHING, step=20, next_step=30)
    assert next_action(state, HostScanned(wants_lines=False, is_native=False)) == (
        state,
        Action.GO_ON,
    )
