"""Allocation sites are recorded without side effects on the program."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from profkit.capture.memory.monitor.allocation_sites import AllocationSampler
from tests.capture.memory.monitor.counting_mode import Counting


@pytest.fixture
def sampler() -> Iterator[AllocationSampler]:
    created = AllocationSampler()
    yield created
    created.retain(lambda _: False)
    assert _get_current_dispatch_mode_stack() == []


def in_another_thread(x: Tensor) -> Tensor:
    return x.cos() + 1


@torch.jit.script
def forked(x: Tensor) -> Tensor:
    """Compute in a thread of torch's, where no Python function runs."""
    return torch.jit.wait(torch.jit.fork(in_another_thread, x))


def line_of(sampler: AllocationSampler, tensor: Tensor) -> int:
    """Return the line in this file that allocated a tensor."""
    stack = sampler.stack_of(tensor.untyped_storage()._cdata)
    assert stack[0][0] == __file__
    return stack[0][1]


def here() -> int:
    """Return the line of the caller."""
    return sys._getframe(1).f_lineno


def test_each_tensor_has_the_line_that_allocated_it(sampler: AllocationSampler) -> None:
    layer = nn.Linear(4, 4)
    sampler.begin()
    first, line = torch.ones(3, 4), here()
    second = layer(first)
    loss = second.sum()
    loss.backward()
    assert sampler.end(1)
    assert line_of(sampler, first) == line
    assert line_of(sampler, second) == line + 1
    assert line_of(sampler, loss) == line + 2
    assert layer.weight.grad is not None
    assert line_of(sampler, layer.weight.grad) == line + 3
    assert sampler.steps == {1}


def test_a_view_is_not_a_new_storage(sampler: AllocationSampler) -> None:
    sampler.begin()
    base, line = torch.ones(8, 8), here()
    view = base[2:].t()
    assert sampler.end(1)
    assert line_of(sampler, view) == line


def test_a_freed_storage_is_not_mistaken_for_a_later_one(sampler: AllocationSampler) -> None:
    sampler.begin()
    for _ in range(100):
        torch.ones(16)
    kept, line = torch.zeros(16), here()
    assert sampler.end(1)
    assert line_of(sampler, kept) == line


def test_no_storage_is_kept_alive_and_none_is_retained(sampler: AllocationSampler) -> None:
    sampler.begin()
    made = torch.ones(1000)
    storage = torch.multiprocessing.reductions.StorageWeakRef(made.untyped_storage())
    assert sampler.end(1)
    del made
    gc.collect()
    assert storage.expired()
    sampler.retain(lambda _: False)
    assert sampler._stacks == {}


def test_a_mode_of_the_program_is_never_popped(sampler: AllocationSampler) -> None:
    assert sampler.can_begin()
    sampler.begin()
    with Counting() as own_calls:
        assert not sampler.end(1)
        torch.ones(2)
        assert own_calls.n == 1
    assert sampler.is_on
    assert sampler.end(2)
    with Counting():
        assert not sampler.can_begin()


def test_an_error_of_an_operator_propagates_and_keeps_nothing_alive(
    sampler: AllocationSampler,
) -> None:
    big = torch.zeros(7)
    storage = torch.multiprocessing.reductions.StorageWeakRef(big.untyped_storage())
    sampler.begin()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.mm(big.view(1, 7), torch.zeros(3, 3))
    assert sampler.end(1)
    assert sampler.steps == {1}
    sampler.retain(lambda _: False)
    del big
    gc.collect()
    assert storage.expired()


def test_sampling_does_not_import_the_compiler() -> None:
    program = (
        "import sys, torch\n"
        "from profkit.capture.memory.monitor.allocation_sites import AllocationSampler\n"
        "sites = AllocationSampler()\n"
        "sites.begin()\n"
        "torch.ones(3)\n"
        "print(sites.end(1), 'torch._dynamo' in sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert ended.stdout.split() == ["True", "False"]


def test_an_operator_in_a_thread_without_python_functions_is_recorded(
    sampler: AllocationSampler,
) -> None:
    # As autograd's thread of a GPU is: a task of TorchScript runs in a thread of C++ alone, with
    # the modes of the thread that began it.
    results = []

    def begin_and_wait() -> None:
        sampler.begin()
        with torch.no_grad():
            results.append(forked(torch.ones(8)))
        assert sampler.end(1)

    begin_and_wait()
    assert results[0].equal(torch.ones(8).cos() + 1)
    assert sampler.stack_of(results[0].untyped_storage()._cdata) == ()
