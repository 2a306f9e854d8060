"""A program's steps are detected from its optimizers, loaders and modules."""

from typing import cast

import pytest
import torch

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import StepBoundaries, StepSource


class Counter:
    """Stands in for a leak monitor, and counts steps."""

    def __init__(self, source: StepSource) -> None:
        self.source = source
        self.n = 0
        self.skipped = 0
        self.discarded = False

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


def test_of_several_optimizers_the_first_one_ends_steps(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    first, second = Thing(), Thing()
    for _ in range(10):
        boundaries.optimizer_stepped(first, recorded=False)
        for _ in range(5):
            boundaries.optimizer_stepped(second, recorded=False)
    assert [(one.source, one.n) for one in monitors] == [("optimizer", 10)]


def test_an_optimizer_that_is_gone_is_replaced(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    first, second = Thing(), Thing()
    for _ in range(5):
        boundaries.optimizer_stepped(first, recorded=False)
    for _ in range(20):
        boundaries.optimizer_stepped(second, recorded=False)
    assert monitors[0].n == 5 + 20 - 7
    assert not boundaries.is_any_optimizer


def test_with_a_new_optimizer_in_each_step_every_one_counts(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    kept = [Thing() for _ in range(100)]
    for one in kept:
        boundaries.optimizer_stepped(one, recorded=False)
    assert boundaries.is_any_optimizer
    assert monitors[0].n == 100 - 2 * 7


def test_a_more_reliable_source_of_steps_replaces_the_monitor(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    module, optimizer = Thing(), Thing()
    for _ in range(8):
        boundaries.module_called(module, recorded=False)
    for _ in range(5):
        boundaries.step_ended("loader")
    for _ in range(3):
        boundaries.optimizer_stepped(optimizer, recorded=False)
        boundaries.step_ended("loader")
        boundaries.module_called(module, recorded=False)
    boundaries.step_ended("user")
    found = [(one.source, one.n, one.discarded) for one in monitors]
    assert found == [
        ("module", 2, True), ("loader", 2, True), ("optimizer", 3, True), ("user", 1, False),
    ]  # fmt: skip


def test_only_calls_of_the_outer_module_count(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    outer, inner = Thing(), Thing()
    for _ in range(20):
        boundaries.module_called(outer, recorded=False)
        boundaries.module_called(inner, recorded=False)
    assert [(one.source, one.n) for one in monitors] == [("module", 14)]


def test_traced_steps_are_counted_and_skipped(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    optimizer = Thing()
    for step in range(6):
        boundaries.optimizer_stepped(optimizer, recorded=step in {2, 3})
    assert (monitors[0].n, monitors[0].skipped) == (4, 2)


def test_a_new_module_is_not_mistaken_for_a_dead_one(
    boundaries: StepBoundaries, monitors: list[Counter]
) -> None:
    for _ in range(30):
        boundaries.module_called(Thing(), recorded=False)
    assert monitors == []


def test_calls_of_a_module_are_no_steps_while_an_optimizer_has_not_stepped(
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
    assert [(one.source, one.n) for one in monitors] == [("module", 10)]
