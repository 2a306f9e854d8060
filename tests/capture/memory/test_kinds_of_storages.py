"""The tensor kind of a storage that several tensors share in turn."""

import torch
from torch import Tensor

from profkit.capture.memory.monitor.live_tensors import LiveTensors, TensorKind


def kinds_of(live: LiveTensors, tensor: Tensor) -> set[TensorKind]:
    address = tensor.untyped_storage()._cdata
    return {storage.kind for known_address, storage in live.storages() if known_address == address}


def predictions(n: int) -> Tensor:
    return torch.ones(n, 3, requires_grad=True) * 2


def test_a_detached_tensor_has_no_graph_whenever_it_was_first_seen(live: LiveTensors) -> None:
    attached = predictions(5)
    kept = attached.detach()
    live.scan(1)
    assert [kind.has_graph for kind in kinds_of(live, kept)] == [True]
    del attached
    later = predictions(5).detach()
    for step in (2, 3, 4):
        live.scan(step)
    assert kinds_of(live, kept) == kinds_of(live, later)
    assert [kind.has_graph for kind in kinds_of(live, kept)] == [False]


def test_a_tensor_that_keeps_its_graph_has_one(live: LiveTensors) -> None:
    kept = predictions(5)
    for step in (1, 2, 3, 4):
        live.scan(step)
    assert [kind.has_graph for kind in kinds_of(live, kept)] == [True]


def test_a_storage_that_only_a_graph_keeps_has_a_graph(live: LiveTensors) -> None:
    inner = predictions(5)
    kept = (inner * inner).sum()
    address = inner.untyped_storage()._cdata
    live.scan(1)
    del inner
    for step in (2, 3, 4):
        live.scan(step)
    (storage,) = [storage for known_address, storage in live.storages() if known_address == address]
    assert kept.grad_fn is not None
    assert storage.is_aged
    assert storage.kind.has_graph


def test_tensors_without_memory_are_not_tracked(live: LiveTensors) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        faked = torch.zeros(1 << 20)
    shape_alone = torch.zeros(1 << 20, device="meta")
    kept = torch.zeros(8)
    for step in (1, 2, 3, 4):
        live.scan(step)
    assert kinds_of(live, faked) == kinds_of(live, shape_alone) == set()
    assert len(kinds_of(live, kept)) == 1
