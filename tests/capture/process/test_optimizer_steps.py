"""The ends of optimizers' steps are noticed after they have returned to the program."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR

from profkit.capture.process import optimizer_steps, safe_points
from tests.processes import start_forked


class Stepped:
    """The optimizers whose steps have ended, and whether each end was a safe point."""

    def __init__(self) -> None:
        self.optimizers: list[Any] = []
        self.are_safe: list[bool] = []

    def __call__(self, optimizer: Any) -> None:  # noqa: ANN401
        self.optimizers.append(optimizer)
        self.are_safe.append(safe_points.is_safe())


@pytest.fixture
def stepped() -> Iterator[Stepped]:
    listener = Stepped()
    stop = optimizer_steps.listen(listener)
    yield listener
    stop()


def weights() -> list[torch.Tensor]:
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    return [weight]


def test_a_step_ends_after_it_has_returned_where_recordings_may_begin(stepped: Stepped) -> None:
    optimizer = SGD(weights(), 0.1)
    optimizer.step()
    optimizer.step()
    assert stepped.optimizers == [optimizer, optimizer]
    assert stepped.are_safe == [True, True]


def test_an_optimizer_from_before_is_followed_too() -> None:
    optimizer = Adam(weights())
    listener = Stepped()
    stop = optimizer_steps.listen(listener)
    optimizer.step()
    stop()
    optimizer.step()
    assert listener.optimizers == [optimizer]


def test_classes_are_what_they_were_afterwards() -> None:
    class Mine(SGD):
        pass

    Mine(weights(), 0.1)
    before = {kind: vars(kind).get("step") for kind in (Mine, SGD, Adam, Optimizer)}
    stop = optimizer_steps.listen(Stepped())
    Mine(weights(), 0.1).step()
    stop()
    assert {kind: vars(kind).get("step") for kind in before} == before


def test_a_step_within_a_step_is_a_part_of_it(stepped: Stepped) -> None:
    class Outer(SGD):
        def step(self, closure: Any = None) -> Any:  # noqa: ANN401
            self.inner.step()
            return super().step(closure)

        inner: Optimizer

    outer = Outer(weights(), 0.1)
    outer.inner = Adam(weights())
    outer.step()
    assert stepped.optimizers == [outer]


def test_a_step_that_fails_is_none(stepped: Stepped) -> None:
    optimizer = SGD(weights(), 0.1)

    def failing() -> float:
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        optimizer.step(failing)
    assert stepped.optimizers == []
    optimizer.step()
    assert stepped.optimizers == [optimizer]


def test_a_scheduler_finds_its_mark_and_warns_of_nothing(
    stepped: Stepped, recwarn: pytest.WarningsRecorder
) -> None:
    optimizer = SGD(weights(), 0.1)
    schedule = StepLR(optimizer, 1)
    optimizer.step()
    schedule.step()
    assert stepped.optimizers == [optimizer]
    assert not recwarn.list


def test_a_copy_steps_by_itself(stepped: Stepped) -> None:
    optimizer = SGD(weights(), 0.1)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):  # noqa: S301
        copied.step()
        assert stepped.optimizers[-1] is copied
    assert len(stepped.optimizers) == 2


COMPILED = """\
import torch
from profkit.capture.process import optimizer_steps

seen = []
optimizer_steps.listen(seen.append)
weight = torch.ones(2, requires_grad=True)
weight.grad = torch.ones(2)
optimizer = torch.optim.SGD([weight], 0.1)
step = torch.compile(optimizer.step, backend="eager")
step()
step()
print([round(value, 3) for value in weight.tolist()], len(seen) <= 2)
"""


def test_compiled_code_has_the_optimizers_step_in_it(tmp_path: Path) -> None:
    ended = start_forked(tmp_path, "-c", COMPILED)
    assert ended.out == "[0.8, 0.8] True\n", ended.err
