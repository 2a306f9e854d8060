"""What ends a step is decided by the most reliable source that a program has."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.memory.monitor.step_sources import (
    MIN_EVENTS,
    MODULE_CALLS_BEFORE_STEP,
    ORDER,
    SourceState,
    StepAction,
    StepSource,
    next_action,
)


@dataclass
class Count:
    """The steps that a monitor has counted since the last discard."""

    n: int = 0
    n_discarded: int = 0

    def apply(self, action: StepAction) -> None:
        if action is StepAction.BEGIN:
            self.n_discarded += self.n
            self.n = 0
        self.n += action is not StepAction.IGNORE


def check_action(
    state: SourceState, source: StepSource, *, awaits: bool = False, anew: bool = False
) -> tuple[SourceState, StepAction]:
    """Return the next state and the action, after checks of what holds at any time."""
    after, action = next_action(state, source, awaits_optimizer=awaits, begins_anew=anew)

    # A more reliable source never loses to a less reliable one.
    if state.source is not None:
        assert after.source is not None
        assert ORDER.index(after.source) >= ORDER.index(state.source)
    # Only the source that is used counts, and what replaces another begins a count.
    if action is StepAction.COUNT:
        assert state == after
        assert (state.source, anew) == (source, False)
    if action is StepAction.BEGIN:
        assert after.source == source
        assert state.source != source or anew
    if action is StepAction.IGNORE:
        assert after.source == state.source != source
    return after, action


def test_every_event_in_every_state_has_one_action() -> None:
    seen = set()
    sources: list[StepSource | None] = [None, *ORDER]
    counts = (0, 2, 3, 5, 6, MODULE_CALLS_BEFORE_STEP - 1, MODULE_CALLS_BEFORE_STEP)

    for used, n_module, n_loader in itertools.product(sources, counts, counts):
        state = SourceState(used, n_module, n_loader)
        for source, awaits, anew in itertools.product(ORDER, (False, True), (False, True)):
            _, action = check_action(state, source, awaits=awaits, anew=anew)
            seen.add((used, source, action))

    for used, source in itertools.product(sources, ORDER):
        actions = {action for u, s, action in seen if (u, s) == (used, source)}
        if used == source:
            assert actions == {StepAction.COUNT, StepAction.BEGIN}
        elif used is not None and ORDER.index(source) < ORDER.index(used):
            assert actions == {StepAction.IGNORE}
        elif MIN_EVENTS[source]:
            assert actions == {StepAction.IGNORE, StepAction.BEGIN}
        else:
            assert actions == {StepAction.BEGIN}


EVENTS = st.tuples(st.sampled_from(ORDER), st.booleans(), st.integers(0, 9).map(lambda n: n == 0))


@given(st.lists(EVENTS, max_size=120))
def test_a_step_is_counted_once_and_after_a_discard_the_count_begins_at_zero(
    events: list[tuple[StepSource, bool, bool]],
) -> None:
    state, count = SourceState(), Count()
    for n_events, (source, awaits, anew) in enumerate(events, start=1):
        expected = {StepAction.IGNORE: count.n, StepAction.COUNT: count.n + 1, StepAction.BEGIN: 1}
        state, action = check_action(state, source, awaits=awaits, anew=anew)
        count.apply(action)
        assert count.n == expected[action]
        assert count.n + count.n_discarded <= n_events


def test_a_module_waits_for_an_optimizer_that_was_made_but_not_for_ever() -> None:
    state = SourceState()
    actions = []
    for _ in range(MODULE_CALLS_BEFORE_STEP + 2):
        state, action = check_action(state, "module", awaits=True)
        actions.append(action)
    assert actions == [StepAction.IGNORE] * MODULE_CALLS_BEFORE_STEP + [
        StepAction.BEGIN,
        StepAction.COUNT,
    ]


@pytest.mark.parametrize("source", ORDER)
@pytest.mark.parametrize("awaits", [False, True])
def test_steps_before_the_first_one_that_is_reported_are_counted(
    source: StepSource,
    awaits: bool,  # noqa: FBT001
) -> None:
    state, action, n_events = SourceState(), StepAction.IGNORE, 0
    while action is StepAction.IGNORE:
        assert state.n_ended_before == 0
        n_events += 1
        state, action = check_action(state, source, awaits=awaits)

    # The first call of a module or the first batch begins a step, as does the second one.
    begins_step = source in {"module", "loader"}
    assert state.n_ended_before == (n_events - 2 if begins_step else 0)
    state, _ = check_action(state, source, awaits=awaits)
    assert state.n_ended_before == (n_events - 2 if begins_step else 0)
