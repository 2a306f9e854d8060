"""A program's steps are told from what its optimizers, loaders and modules do."""

from typing import cast

import pytest

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import StepBoundaries, Turn


class Counter:
    """Stands in for a watcher, and counts."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.n = 0
        self.skipped = 0
        self.dropped = False

    def step(self) -> None:
        self.n += 1

    def skip(self) -> None:
        self.skipped += 1

    def drop(self) -> None:
        self.dropped = True


class Thing:
    """An optimizer or a module, of which only the identity counts."""


@pytest.fixture
def made() -> list[Counter]:
    return []


@pytest.fixture
def boundaries(made: list[Counter]) -> StepBoundaries:
    def watch(turn: Turn) -> LeakMonitor:
        made.append(Counter(turn))
        return cast("LeakMonitor", made[-1])

    return StepBoundaries(watch)


def test_of_several_optimizers_the_first_one_counts(
    boundaries: StepBoundaries, made: list[Counter]
) -> None:
    first, second = Thing(), Thing()
    for _ in range(10):
        boundaries.optimizer_stepped(first, recorded=False)
        for _ in range(5):
            boundaries.optimizer_stepped(second, recorded=False)
    assert [(one.turn, one.n) for one in made] == [("optimizer", 10)]


def test_an_optimizer_that_is_gone_is_succeeded(
    boundaries: StepBoundaries, made: list[Counter]
) -> None:
    first, second = Thing(), Thing()
    for _ in range(5):
        boundaries.optimizer_stepped(first, recorded=False)
    for _ in range(20):
        boundaries.optimizer_stepped(second, recorded=False)
    assert made[0].n == 5 + 20 - 7
    assert not boundaries.is_any_optimizer


def test_with_a_new_optimizer_each_step_every_one_counts(
    boundaries: StepBoundaries, made: list[Counter]
) -> None:
    kept = [Thing() for _ in range(100)]
    for one in kept:
        boundaries.optimizer_stepped(one, recorded=False)
    assert boundaries.is_any_optimizer
    assert made[0].n == 100 - 2 * 7


def test_a_surer_sign_of_steps_begins_anew(boundaries: StepBoundaries, made: list[Counter]) -> None:
    module, optimizer = Thing(), Thing()
    for _ in range(8):
        boundaries.module_called(module, recorded=False)
    for _ in range(5):
        boundaries.batch_asked(recorded=False)
    for _ in range(3):
        boundaries.optimizer_stepped(optimizer, recorded=False)
        boundaries.batch_asked(recorded=False)
        boundaries.module_called(module, recorded=False)
    boundaries.told()
    found = [(one.turn, one.n, one.dropped) for one in made]
    assert found == [
        ("module", 2, True), ("loader", 2, True), ("optimizer", 3, True), ("user", 1, False),
    ]  # fmt: skip


def test_calls_of_the_first_module_count_and_not_of_those_within(
    boundaries: StepBoundaries, made: list[Counter]
) -> None:
    outer, inner = Thing(), Thing()
    for _ in range(20):
        boundaries.module_called(outer, recorded=False)
        boundaries.module_called(inner, recorded=False)
    assert [(one.turn, one.n) for one in made] == [("module", 14)]


def test_recorded_steps_are_counted_and_left_alone(
    boundaries: StepBoundaries, made: list[Counter]
) -> None:
    optimizer = Thing()
    for step in range(6):
        boundaries.optimizer_stepped(optimizer, recorded=step in {2, 3})
    assert (made[0].n, made[0].skipped) == (4, 2)


def test_a_dead_module_is_not_confused_with_another(
    boundaries: StepBoundaries, made: list[Counter]
) -> None:
    for _ in range(30):
        boundaries.module_called(Thing(), recorded=False)
    assert made == []
