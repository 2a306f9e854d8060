"""What kind of tensor a storage counts as that several tensors share in turn."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from profkit.capture.memory.monitor.live_tensors import LiveTensors, TensorKind


@pytest.fixture
def census() -> Iterator[LiveTensors]:
    following = LiveTensors()
    following.begin()
    yield following
    following.end()


def kinds_of(census: LiveTensors, tensor: Tensor) -> set[TensorKind]:
    address = tensor.untyped_storage()._cdata
    return {entry.kind for known, entry in census.entries() if known == address}


def predictions(n: int) -> Tensor:
    return torch.ones(n, 3, requires_grad=True) * 2


def test_what_is_kept_detached_counts_without_a_graph_whenever_it_was_first_seen(
    census: LiveTensors,
) -> None:
    attached = predictions(5)
    kept = attached.detach()
    census.look(1)
    assert [kind.has_graph for kind in kinds_of(census, kept)] == [True]
    del attached
    later = predictions(5).detach()
    for step in (2, 3, 4):
        census.look(step)
    assert kinds_of(census, kept) == kinds_of(census, later)
    assert [kind.has_graph for kind in kinds_of(census, kept)] == [False]


def test_what_is_kept_with_its_graph_counts_with_one(census: LiveTensors) -> None:
    kept = predictions(5)
    for step in (1, 2, 3, 4):
        census.look(step)
    assert [kind.has_graph for kind in kinds_of(census, kept)] == [True]


def test_what_a_graph_alone_keeps_counts_with_a_graph(census: LiveTensors) -> None:
    inner = predictions(5)
    kept = (inner * inner).sum()
    address = inner.untyped_storage()._cdata
    census.look(1)
    del inner
    for step in (2, 3, 4):
        census.look(step)
    (entry,) = [entry for known, entry in census.entries() if known == address]
    assert kept.grad_fn is not None
    assert entry.is_aged
    assert entry.kind.has_graph


def test_tensors_without_memory_do_not_count(census: LiveTensors) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        faked = torch.zeros(1 << 20)
    shape_alone = torch.zeros(1 << 20, device="meta")
    kept = torch.zeros(8)
    for step in (1, 2, 3, 4):
        census.look(step)
    assert kinds_of(census, faked) == kinds_of(census, shape_alone) == set()
    assert len(kinds_of(census, kept)) == 1
