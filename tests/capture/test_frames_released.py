"""Whoever looks at the frames of running functions keeps none of them, nor what they refer to."""

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from profkit.capture.live.process_now import read_stacks
from profkit.capture.process import frames
from profkit.capture.recording import harmless_kinds


class Gradients:
    """What a frame refers to."""


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "look",
    [
        harmless_kinds._is_in_optimizer,
        frames.local_values,
        frames.clear_cached_locals,
        partial(read_stacks, None),
    ],
)
def test_no_frame_is_kept_beyond_the_look(look: Callable[[], object]) -> None:
    seen: list[object] = []
    alive: list[weakref.ref[Gradients]] = []

    class Optimizer(torch.optim.SGD):
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            gradients = Gradients()
            alive.append(weakref.ref(gradients))
            seen.append(bool(look()))
            super().step(closure)

    Optimizer([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()
    assert seen
    assert alive[0]() is None


def test_the_step_of_an_optimizer_is_recognized() -> None:
    is_released: list[bool] = []

    class Optimizer(torch.optim.SGD):
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
            is_released.append(harmless_kinds._is_in_optimizer())

    Optimizer([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()
    assert is_released == [True]
    assert not harmless_kinds._is_in_optimizer()
