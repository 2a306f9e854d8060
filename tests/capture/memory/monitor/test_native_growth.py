"""The measuring of the C heap in operators leaves the program's own dispatch modes alone."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from profkit.capture.memory.monitor.host_growth import HostGrowthTracker
from profkit.capture.memory.monitor.native_growth import (
    NativeGrowth,
    NativeSampler,
    NativeSite,
    keeps_plans,
)
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
    with Counting() as own_calls:
        for step in range(11, 17):
            assert not sampler.advance(step)
        torch.ones(2)
        assert own_calls.n == 1
    assert sampler.advance(17)
    assert not sampler.is_on


def test_a_full_cache_of_plans_is_found_with_its_operator_and_when_it_was_full() -> None:
    tracker = HostGrowthTracker()
    site = NativeSite((__file__, 1, "step"), "aten::convolution")
    tracker.native.growth = NativeGrowth({}, {site: 120_000.0}, {site: 120_000.0})
    steps = np.arange(1, 302, 10)
    values = np.minimum(steps, 200) * 125_000.0

    leak = tracker.find_full_cache((steps, values))
    assert leak is not None
    assert (leak.kind, leak.is_for_new_shapes) == ("native", True)
    assert leak.operators == ("aten::convolution",)
    assert (leak.first_step, leak.last_step) == (1, 181)
    assert leak.per_step_bytes == pytest.approx(125_000, rel=0.05)

    assert tracker.find_full_cache((steps, values / 10)) is None
    tracker.native.growth = NativeGrowth({site: 120_000.0}, {}, {})
    assert tracker.find_full_cache((steps, values)) is None


def test_operators_of_onednn_keep_a_plan_for_each_shape() -> None:
    floats, bfloats = {"torch.float32"}, {"torch.bfloat16"}
    assert keeps_plans("aten::convolution", floats)
    assert keeps_plans("aten::mkldnn_rnn_layer", floats)
    assert keeps_plans("aten::addmm", bfloats)
    assert not keeps_plans("aten::addmm", floats)
    assert not keeps_plans("aten::add", bfloats)


def test_the_memory_of_output_tensors_is_no_librarys(sampler: NativeSampler) -> None:
    sampler.begin(10)
    kept = []
    for step in range(11, 15):
        kept += [torch.ones(()) for _ in range(100)]
        sampler.advance(step)
    assert sampler.growth is not None
    assert sampler.growth.in_operators < 10_000


def test_the_first_step_counts_nothing_and_what_it_allocated_is_freed_later(
    sampler: NativeSampler,
) -> None:
    sampler.begin(10)
    tensor = torch.ones(1 << 20)
    sampler.advance(11)
    assert sampler._readings.by_site == {}
    assert sampler._readings.for_new_shapes == {}

    del tensor
    for step in (12, 13, 14):
        sampler.advance(step)
    assert sampler.growth is not None
    assert sampler.growth.new_shapes == 0
