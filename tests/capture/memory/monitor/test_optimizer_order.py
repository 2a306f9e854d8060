"""Of several optimizers one ends the steps of a program: the outer one, which steps least often."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.memory.monitor.optimizer_order import (
    FOREIGN_STEPS,
    MAX_REMEMBERED,
    SETTLING_STEPS,
    OptimizerOrder,
    OptimizerStep,
    OrderPhase,
    after_steps_of_leader,
    is_steady,
    next_order,
)

Event = tuple[int, frozenset[int]]
"""The optimizer that steps, and those that were freed before."""

N_ITERATIONS = 60

PHASES: dict[OrderPhase, set[OrderPhase]] = {
    OrderPhase.EMPTY: {OrderPhase.FINDING},
    OrderPhase.FINDING: {OrderPhase.FINDING, OrderPhase.SETTLED, OrderPhase.ANY},
    OrderPhase.SETTLED: {OrderPhase.SETTLED, OrderPhase.ANY},
    OrderPhase.ANY: {OrderPhase.FINDING, OrderPhase.SETTLED, OrderPhase.ANY},
}
"""The phases that one step of an optimizer can lead to."""


def check_step(
    order: OptimizerOrder, key: int, freed: frozenset[int] = frozenset()
) -> tuple[OptimizerOrder, OptimizerStep]:
    """Return the next state and the step, after checks of what holds at any time."""
    before = order
    order, step = next_order(order, key, freed)

    # Exactly one leads, and its steps alone are the program's.
    assert order.leader is not None
    assert (order.leader.key == key) == (step is not OptimizerStep.WITHIN)
    keys = [order.leader.key, *(follower.key for follower in order.followers)]
    assert key in keys
    assert len(keys) == len(set(keys)) <= MAX_REMEMBERED + 1
    assert freed.isdisjoint(keys)

    # A step is counted once, and the count begins anew only where nothing is settled.
    assert order.n_led == before.n_led + (step is not OptimizerStep.WITHIN)
    counted = order.n_led - order.n_discarded
    if step is OptimizerStep.ENDS_FIRST:
        assert counted == 1
        assert before.phase in {OrderPhase.FINDING, OrderPhase.ANY}
    else:
        assert order.n_discarded == before.n_discarded
    assert order.n_events == before.n_events + 1
    assert order.phase in PHASES[before.phase]
    return order, step


def count(events: Iterable[Event]) -> tuple[int, OptimizerOrder]:
    """Return the number of steps, and the last state."""
    order = OptimizerOrder()
    for key, freed in events:
        order, _ = check_step(order, key, freed)
    return order.n_led - order.n_discarded, order


def repeated(pattern: list[int], n: int = N_ITERATIONS) -> list[Event]:
    return [(key, frozenset()) for key in pattern * n]


def maml(n_tasks: int, n_inner: int, *, is_scoped: bool, n: int = N_ITERATIONS) -> list[Event]:
    """Return the steps of an outer optimizer 0 and of a new inner one for each task.

    Args:
        is_scoped: Whether an inner optimizer is a variable of a function, and so freed before the
            outer one steps.
    """
    events: list[Event] = []
    keys = itertools.count(1)
    freed: frozenset[int] = frozenset()
    for _ in range(n):
        for _ in range(n_tasks):
            key = next(keys)
            for _ in range(n_inner):
                events.append((key, freed))
                freed = frozenset()
            freed = frozenset({key})
        events.append((0, freed if is_scoped else frozenset()))
        freed = frozenset() if is_scoped else freed
    return events


def test_every_short_sequence_of_steps_and_frees_has_one_leader_at_any_time() -> None:
    phases = set()
    waiting = [(OptimizerOrder(), frozenset[int](), 0)]
    while waiting:
        order, freed, n_before = waiting.pop()
        if n_before == 6:
            continue
        for key in range(3):
            if key not in freed:
                after, _ = check_step(order, key, freed)
                phases.add((order.phase, after.phase))
                waiting.append((after, frozenset(), n_before + 1))
            waiting.append((order, freed | {key}, n_before + 1))

    assert phases == {
        (OrderPhase.EMPTY, OrderPhase.FINDING),
        (OrderPhase.FINDING, OrderPhase.FINDING),
    }


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(1, SETTLING_STEPS + 2) | st.just(1),
            st.frozensets(st.integers(0, 5), max_size=3),
        ),
        max_size=30,
    )
)
def test_one_optimizer_leads_whatever_the_order_of_steps_and_frees(
    runs: list[tuple[int, int, frozenset[int]]],
) -> None:
    order = OptimizerOrder()
    was_settled = False
    for key, n, freed in runs:
        gone = freed - {key}
        for _ in range(n):
            order, step = check_step(order, key, gone)
            gone = frozenset()
            assert not (was_settled and step is OptimizerStep.ENDS_FIRST)
            was_settled |= order.phase is OrderPhase.SETTLED


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, SETTLING_STEPS + 2)), max_size=6),
    st.integers(0, 50),
)
def test_steps_of_a_steady_leader_can_be_noted_together(
    runs: list[tuple[int, int]], n_further: int
) -> None:
    order, _ = OptimizerOrder(), None
    for key, n in [(0, SETTLING_STEPS + 2), *runs]:
        for _ in range(n):
            order, _ = next_order(order, key)
            if not is_steady(order):
                continue
            leader = order.leader
            assert leader is not None
            one_by_one = order
            for _ in range(n_further):
                one_by_one, step = next_order(one_by_one, leader.key)
                assert step is OptimizerStep.ENDS
            assert after_steps_of_leader(order, n_further) == one_by_one
            break


def test_a_program_with_one_optimizer_is_steady_once_it_is_settled() -> None:
    order = OptimizerOrder()
    for n in range(1, SETTLING_STEPS + 2):
        order, _ = next_order(order, 1)
        assert is_steady(order) == (n > SETTLING_STEPS)


def test_every_phase_follows_from_those_that_the_table_has() -> None:
    turns = [key for _ in range(3) for key in [0] * 40 + [1] * 40]
    one_for_each_parameter = [*range(40)] * 5
    programs = [
        repeated([0]),
        repeated(turns, 1),
        repeated(one_for_each_parameter, 1),
        repeated([*[0] * 40, *range(1, 30), *range(1, 30)], 1),
    ]
    transitions = set()
    for program in programs:
        order = OptimizerOrder()
        for key, freed in program:
            after, _ = check_step(order, key, freed)
            transitions.add((order.phase, after.phase))
            order = after

    assert transitions == {(before, after) for before, many in PHASES.items() for after in many}


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param([0], id="one optimizer"),
        pytest.param([0, 1], id="GAN"),
        pytest.param([1, 0], id="actor-critic"),
        pytest.param([0, 1, 2], id="actor, critic and temperature"),
        pytest.param([0, 0, 1], id="TD3"),
        pytest.param([0] * 5 + [1], id="WGAN"),
        pytest.param([1] + [0] * 5, id="outer optimizer first"),
        pytest.param([0] * 30 + [1], id="many inner steps"),
    ],
)
def test_one_iteration_is_one_step(pattern: list[int]) -> None:
    n_steps, order = count(repeated(pattern))
    assert n_steps == N_ITERATIONS
    assert order.phase is OrderPhase.SETTLED


@pytest.mark.parametrize("is_scoped", [True, False])
@pytest.mark.parametrize("n_inner", [1, 2, 5, 12])
@pytest.mark.parametrize("n_tasks", [1, 2, 3, 4, 8, 16])
def test_a_step_of_maml_is_one_of_its_outer_optimizer(
    n_tasks: int, n_inner: int, *, is_scoped: bool
) -> None:
    n_steps, order = count(maml(n_tasks, n_inner, is_scoped=is_scoped))
    assert n_steps == N_ITERATIONS
    assert order.leader is not None
    assert order.leader.key == 0


@given(
    st.lists(st.integers(2, 8), max_size=3),
    st.integers(0, 3),
)
def test_an_optimizer_that_steps_once_in_an_iteration_leads(n_inner: list[int], place: int) -> None:
    blocks = [[key] * n for key, n in enumerate(n_inner, start=1)]
    blocks.insert(min(place, len(blocks)), [0])
    n_steps, order = count(repeated([key for block in blocks for key in block]))
    assert order.leader is not None
    assert order.leader.key == 0
    assert n_steps == N_ITERATIONS


@pytest.mark.parametrize("n_tasks", [2, 3, 4])
def test_an_inner_optimizer_that_is_never_freed_does_not_lead(n_tasks: int) -> None:
    events = [(key, freed - {1}) for key, freed in maml(n_tasks, 5, is_scoped=False)]
    n_steps, order = count(events)
    assert n_steps == N_ITERATIONS
    assert order.leader is not None
    assert order.leader.key == 0


def test_optimizers_that_take_turns_for_some_steps_do_not_begin_the_count_anew_for_ever() -> None:
    n_steps, order = count(repeated([0] * 10 + [1] * 10))
    assert n_steps == 10 * N_ITERATIONS
    assert order.leader is not None
    assert order.leader.key == 1


def test_optimizers_that_take_turns_for_long_all_count() -> None:
    n_steps, order = count(repeated([0] * 80 + [1] * 80, 10))
    assert order.phase is OrderPhase.ANY
    assert n_steps == 10 * 160 - 2 * (FOREIGN_STEPS - 1)


def test_of_one_optimizer_for_each_parameter_the_first_one_leads() -> None:
    n_steps, order = count(repeated([*range(100)]))
    assert order.leader is not None
    assert order.leader.key == 0
    assert n_steps == N_ITERATIONS - 1


def test_an_optimizer_of_each_epoch_does_not_take_the_lead() -> None:
    n_steps, _ = count(repeated([0] * 100 + [1], 5))
    assert n_steps == 500


def test_a_new_optimizer_for_each_step_that_is_freed_counts() -> None:
    events = [(key, frozenset({key - 1})) for key in range(1, 101)]
    n_steps, order = count(events)
    assert n_steps == 100 - 16
    assert order.phase is OrderPhase.FINDING


@pytest.mark.parametrize(("n_in_epoch", "n_counted"), [(17, 170), (30, 300), (10, 10)])
def test_a_new_optimizer_for_each_epoch_begins_no_count_anew(
    n_in_epoch: int, n_counted: int
) -> None:
    events: list[Event] = []
    for epoch in range(10):
        events += [(epoch, frozenset({epoch - 1}))] + [(epoch, frozenset())] * (n_in_epoch - 1)
    n_steps, order = count(events)
    assert n_steps == n_counted, "a short one may be the inner one of an optimizer that follows"
    assert order.leader is not None
    assert order.leader.key == 9


@pytest.mark.parametrize("n_each", [2, 3, 10])
def test_an_optimizer_for_each_trial_that_is_kept_begins_no_count_anew_for_ever(
    n_each: int,
) -> None:
    n_steps, order = count([(key, frozenset()) for key in range(60) for _ in range(n_each)])
    assert order.phase is OrderPhase.ANY
    assert n_steps >= (60 - 6) * n_each


def test_no_more_optimizers_are_remembered_than_the_limit() -> None:
    _, order = count([(key, frozenset()) for key in range(MAX_REMEMBERED + 50)])
    assert len(order.followers) == MAX_REMEMBERED
    assert order.phase is OrderPhase.ANY
