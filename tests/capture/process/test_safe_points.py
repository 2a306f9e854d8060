"""Where torch's profiler may be started and stopped, and where it may not."""

import gc
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profkit.capture.process import safe_points

Seen = list[bool]


def note(seen: Seen) -> None:
    seen.append(safe_points.is_safe())


def in_a_signal_handler(seen: Seen) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: note(seen))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def in_a_finalizer(seen: Seen) -> None:
    class Dying:
        def __del__(self) -> None:
            note(seen)

    Dying()


def in_a_callback_of_the_collector(seen: Seen) -> None:
    def callback(_phase: str, _info: dict[str, int]) -> None:
        note(seen)

    gc.callbacks.append(callback)
    gc.collect()
    gc.callbacks.remove(callback)


def in_a_hook_of_a_gradient(seen: Seen) -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda _gradient: note(seen))
    weight.sum().backward()


def in_an_optimizers_step(seen: Seen) -> None:
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], 0.1)
    optimizer.register_step_pre_hook(lambda *_: note(seen))
    optimizer.step()


def in_a_function_of_autograd(seen: Seen) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            note(seen)
            return 2 * values

    Doubled.apply(torch.ones(2))


def in_the_context_of_a_function_of_autograd(seen: Seen) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(values: torch.Tensor) -> torch.Tensor:
            note(seen)
            return 2 * values

        @staticmethod
        def setup_context(ctx: object, inputs: object, output: object) -> None:  # noqa: ARG004
            note(seen)

    Doubled.apply(torch.ones(2))


def in_a_dispatch_mode(seen: Seen) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
            note(seen)
            return function(*args, **(kwargs or {}))

    with Mode():
        torch.ones(2)


def in_code_that_is_traced(seen: Seen) -> None:
    def traced(values: torch.Tensor) -> torch.Tensor:
        note(seen)
        return values + 1

    torch.jit.trace(traced, torch.ones(2), check_trace=False)


UNSAFE = [
    in_a_signal_handler, in_a_finalizer, in_a_callback_of_the_collector, in_a_hook_of_a_gradient,
    in_an_optimizers_step, in_a_function_of_autograd, in_the_context_of_a_function_of_autograd,
    in_a_dispatch_mode, in_code_that_is_traced,
]  # fmt: skip


@pytest.mark.parametrize("place", UNSAFE, ids=lambda place: place.__name__)
def test_a_recording_begins_and_ends_nowhere_in_the_middle_of_something(
    place: Callable[[Seen], None],
) -> None:
    seen: Seen = []
    place(seen)
    assert seen
    assert not any(seen)


def test_a_call_of_the_program_is_a_safe_point_in_a_module_and_a_region_too() -> None:
    seen: Seen = []

    class Net(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            note(seen)
            return values

    @contextmanager
    def block() -> Iterator[None]:
        note(seen)
        yield

    with block(), torch.no_grad(), torch.profiler.record_function("step"):
        Net()(torch.ones(2))
    assert seen == [True, True]


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="collections run between two instructions from 3.12 on"
)
def test_the_callback_of_a_weak_reference_is_run_by_a_collection() -> None:
    seen: Seen = []

    class Garbage:
        itself: "Garbage"

    garbage = Garbage()
    garbage.itself = garbage
    reference = weakref.ref(garbage, lambda _: seen.append(safe_points.is_collecting()))
    assert not safe_points.is_collecting()
    del garbage
    gc.collect()
    assert reference() is None
    assert seen == [True]
