"""The measuring of the C heap in operators leaves the program's own dispatch modes alone."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from profkit.capture.memory.monitor.native_growth import NativeSampler
from tests.capture.memory.monitor.counting_mode import Counting


@pytest.fixture
def sampler() -> Iterator[NativeSampler]:
    created = NativeSampler()
    yield created
    created.end()
    assert _get_current_dispatch_mode_stack() == []


def test_it_ends_after_some_steps(sampler: NativeSampler) -> None:
    sampler.begin(10)
    for step in range(11, 15):
        torch.ones(2)
        assert sampler.is_on
        is_done = sampler.advance(step)
    assert is_done
    assert sampler.growth is not None


def test_a_mode_of_the_program_is_never_popped(sampler: NativeSampler) -> None:
    sampler.begin(10)
    with Counting() as own:
        for step in range(11, 17):
            assert not sampler.advance(step)
        torch.ones(2)
        assert own.n == 1
    assert sampler.advance(17)
    assert not sampler.is_on
