"""The lines of what stays are seen, and the program does not notice."""

import gc
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from profkit.capture.memory.monitor.allocation_sites import AllocationSampler


@pytest.fixture
def births() -> Iterator[AllocationSampler]:
    made = AllocationSampler()
    yield made
    made.forget(lambda _: False)
    assert _get_current_dispatch_mode_stack() == []


def line_of(births: AllocationSampler, tensor: Tensor) -> int:
    """The line in this file that made a tensor."""
    stack = births.stack_of(tensor.untyped_storage()._cdata)
    assert stack[0][0] == __file__
    return stack[0][1]


def here() -> int:
    """The line that calls this."""
    return sys._getframe(1).f_lineno


def test_each_tensor_is_known_by_the_line_that_made_it(births: AllocationSampler) -> None:
    layer = nn.Linear(4, 4)
    births.begin()
    first, line = torch.ones(3, 4), here()
    second = layer(first)
    loss = second.sum()
    loss.backward()
    assert births.end(1)
    assert line_of(births, first) == line
    assert line_of(births, second) == line + 1
    assert line_of(births, loss) == line + 2
    assert layer.weight.grad is not None
    assert line_of(births, layer.weight.grad) == line + 3
    assert births.steps == {1}


def test_a_view_is_not_taken_for_a_new_storage(births: AllocationSampler) -> None:
    births.begin()
    base, line = torch.ones(8, 8), here()
    view = base[2:].t()
    assert births.end(1)
    assert line_of(births, view) == line


def test_what_has_died_is_not_mistaken_for_what_came_after_it(births: AllocationSampler) -> None:
    births.begin()
    for _ in range(100):
        torch.ones(16)
    kept, line = torch.zeros(16), here()
    assert births.end(1)
    assert line_of(births, kept) == line


def test_nothing_is_kept_alive_and_forgetting_is_complete(births: AllocationSampler) -> None:
    births.begin()
    made = torch.ones(1000)
    storage = torch.multiprocessing.reductions.StorageWeakRef(made.untyped_storage())
    assert births.end(1)
    del made
    gc.collect()
    assert storage.expired()
    births.forget(lambda _: False)
    assert births._made == {}


class Counting(TorchDispatchMode):
    """A mode of the program's own."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.n += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_programs_own_is_never_taken_off(births: AllocationSampler) -> None:
    assert births.can_begin()
    births.begin()
    with Counting() as own:
        assert not births.end(1)
        torch.ones(2)
        assert own.n == 1
    assert births.is_on
    assert births.end(2)
    with Counting():
        assert not births.can_begin()


def test_an_error_of_an_operator_passes_and_keeps_nothing(births: AllocationSampler) -> None:
    big = torch.zeros(7)
    storage = torch.multiprocessing.reductions.StorageWeakRef(big.untyped_storage())
    births.begin()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.mm(big.view(1, 7), torch.zeros(3, 3))
    assert births.end(1)
    assert births.steps == {1}
    births.forget(lambda _: False)
    del big
    gc.collect()
    assert storage.expired()
