"""A program's steps are detected from its optimizers, loaders and modules."""

from collections.abc import Callable
from typing import cast

import pytest
import torch

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import (
    BlockSteps,
    LeadingOptimizer,
    StepBoundaries,
    StepSource,
)


class Counter:
    """Stands in for a leak monitor, and counts steps."""

    def __init__(self, source: StepSource) -> None:
        self.source = source
        self.n = 0
        self.skipped = 0
        self.discarded = False
        self.is_own_process = True

    def step(self) -> None:
        self.n += 1

    def skip(self) -> None:
        self.skipped += 1

    def discard(self) -> None:
        self.discarded = True


class Thing:
    """Stands in for an optimizer or a module."""


@pytest.fixture
def monitors() -> list[Counter]:
    return []


@pytest.fixture
def boundaries(monitors: list[Counter]) -> StepBoundaries:
    def make_monitor(source: StepSource) -> LeakMonitor:
        monitors.append(Counter(source))
        return cast("LeakMonitor", monitors[-1])

    return StepBoundaries(make_monitor)


def test_of_several_optimizers_the_first_one_ends_steps() -> None:
    first, second, leader = Thing(), Thing(), LeadingOptimizer()
    steps = ([first] + [second] * 5) * 10
    assert [leader.ends_step(optimizer) for optimizer in steps] == ([True] + [False] * 5) * 10


def test_another_optimizer_after_very_many_steps_of_the_first_is_within_a_step() -> None:
    first, second, leader = Thing(), Thing(), LeadingOptimizer()
    assert all(leader.ends_step(first) for _ in range(1000))
    assert leader.is_settled
    assert [leader.ends_step(optimizer) for optimizer in [second, first, first, second]] == [
        False,
        True,
        True,
        False,
    ]
    assert sum(leader.ends_step(second) for _ in range(20)) == 20 - 6


def test_an_optimizer_that_steps_no_more_is_replaced() -> None:
    first, second, leader = Thing(), Thing(), LeadingOptimizer()
    n_steps = sum(leader.ends_step(optimizer) for optimizer in [first] * 33 + [second] * 20)
    assert n_steps == 33 + 20 - 7


def test_a_few_steps_of_one_optimizer_before_another_takes_over_are_not_counted() -> None:
    first, second, leader = Thing(), Thing(), LeadingOptimizer()
    steps: list[Thing] = []
    for optimizer in [first] * 5 + [second] * 20:
        is_step = leader.ends_step(optimizer)
        steps = ([] if leader.begins_anew else steps) + [optimizer] * is_step
    assert steps == [second] * 20


def test_an_optimizer_that_was_freed_is_replaced_at_once() -> None:
    leader = LeadingOptimizer()
    first = [Thing()]
    assert leader.ends_step(first[0])
    first.clear()
    second, third = Thing(), Thing()
    assert [leader.ends_step(optimizer) for optimizer in (second, third, second)] == [
        True,
        False,
        True,
    ]


def test_with_a_new_optimizer_in_each_step_every_one_counts() -> None:
    kept, leader = [Thing() for _ in range(100)], LeadingOptimizer()
    assert sum(map(leader.ends_step, kept)) == 100 - 2 * 7


def test_a_more_reliable_source_of_steps_replaces_the_monitor(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    module = Thing()
    for _ in range(8):
        boundaries.module_called(module, recorded=False)
    for _ in range(5):
        boundaries.step_ended("loader")
    for _ in range(3):
        boundaries.step_ended("optimizer")
        boundaries.step_ended("loader")
        boundaries.module_called(module, recorded=False)
    boundaries.step_ended("user")

    sources = [(monitor.source, monitor.n, monitor.discarded) for monitor in monitors]
    assert sources == [
        ("module", 2, True),
        ("loader", 2, True),
        ("optimizer", 3, True),
        ("user", 1, False),
    ]


def test_only_calls_of_the_outer_module_count(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    outer, inner = Thing(), Thing()
    for _ in range(20):
        boundaries.module_called(outer, recorded=False)
        boundaries.module_called(inner, recorded=False)
    assert [(monitor.source, monitor.n) for monitor in monitors] == [("module", 14)]


def test_traced_steps_are_counted_and_skipped(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    for step in range(6):
        boundaries.step_ended("optimizer", recorded=step in {2, 3})
    assert (monitors[0].n, monitors[0].skipped) == (4, 2)


def test_a_new_module_is_not_mistaken_for_a_dead_one(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    for _ in range(30):
        boundaries.module_called(Thing(), recorded=False)
    assert monitors == []


def test_calls_of_a_module_are_not_steps_while_an_optimizer_has_not_stepped(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    module = torch.nn.Linear(1, 1)
    torch.optim.SGD(module.parameters())
    boundaries._had_optimizer = False  # other tests of this process have made some
    for _ in range(1000):
        boundaries.module_called(module, recorded=False)
    assert monitors == []
    for _ in range(10):
        boundaries.module_called(module, recorded=False)
    assert [(monitor.source, monitor.n) for monitor in monitors] == [("module", 10)]


def count_steps(program: Callable[[], None]) -> int:
    """Return the number of steps of a block."""
    monitors: list[Counter] = []

    def make_monitor(source: StepSource) -> LeakMonitor:
        monitors.append(Counter(source))
        return cast("LeakMonitor", monitors[-1])

    block = BlockSteps(make_monitor)
    block.begin()
    try:
        program()
    finally:
        monitors[-1].is_own_process = False
        block.end()
    assert [monitor.discarded for monitor in monitors[:-1]] == [True] * (len(monitors) - 1)
    return monitors[-1].n


def weights() -> list[torch.Tensor]:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return [parameter]


@pytest.mark.parametrize("n_tasks", [1, 4])
@pytest.mark.parametrize("is_scheduled", [False, True], ids=["plain", "with a scheduler"])
def test_a_step_of_maml_is_one_of_the_outer_optimizer(n_tasks: int, *, is_scheduled: bool) -> None:
    outer = torch.optim.Adam(weights())

    def adapt() -> None:
        inner = torch.optim.SGD(weights(), lr=0.1)
        # A scheduler makes a cycle of the optimizer, which a garbage collection frees.
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1) if is_scheduled else None
        for _ in range(5):
            inner.step()
        if scheduler is not None:
            scheduler.step()

    def program() -> None:
        for _ in range(60):
            for _ in range(n_tasks):
                adapt()
            outer.step()

    assert count_steps(program) == 60


@pytest.mark.parametrize("n_critic", [1, 5])
def test_a_step_of_a_gan_is_one_of_its_generator(n_critic: int) -> None:
    critic, generator = torch.optim.Adam(weights()), torch.optim.Adam(weights())

    def program() -> None:
        for _ in range(60):
            for _ in range(n_critic):
                critic.step()
            generator.step()

    assert count_steps(program) == 60


def test_a_step_of_accumulated_gradients_is_one_of_the_optimizer() -> None:
    parameters = weights()
    optimizer = torch.optim.Adam(parameters)

    def program() -> None:
        for batch in range(240):
            parameters[0].square().sum().backward()
            if batch % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    assert count_steps(program) == 60
