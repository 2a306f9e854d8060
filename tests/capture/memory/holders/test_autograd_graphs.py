"""Nodes and saved bytes of graphs, compared with torch's hooks and with known graphs."""

import gc
import itertools
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from profkit.capture.memory.holders import autograd_graphs
from tests.capture.memory.saved_tensors import needs_saved_tensors
from tests.processes import start_forked

WIDTH = 8


def _linear() -> torch.Tensor:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 4))
    return nn.functional.mse_loss(model(torch.randn(5, WIDTH)), torch.zeros(5, 4))


def _convolution() -> torch.Tensor:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    return model(torch.randn(2, 3, 12, 12)).mean()


def _recurrent() -> torch.Tensor:
    out, _ = nn.GRU(WIDTH, 6)(torch.randn(4, 2, WIDTH))
    return out.square().sum()


def _attention() -> torch.Tensor:
    model = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    return model(torch.randn(2, 3, WIDTH)).sum()


def _many_of_one() -> torch.Tensor:
    parts = [row * row for row in torch.randn(6, WIDTH, requires_grad=True)]
    return torch.stack(torch.cat(parts).split(7)[:-1]).index_select(0, torch.tensor([1, 0])).sum()


MODELS = (_linear, _convolution, _recurrent, _attention, _many_of_one)


@needs_saved_tensors
@pytest.mark.parametrize("make", MODELS)
def test_saved_bytes_agree_with_a_saved_tensor_hook(
    make: Callable[[], torch.Tensor],
) -> None:
    saved: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        alive.append(storage)
        saved[storage._cdata] = storage.nbytes()
        return tensor

    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hooked = make()
    torch.manual_seed(1)
    plain = make()
    graph = autograd_graphs.measure_graph([plain], counted=set())
    assert graph.saved_bytes == sum(saved.values()) + _leaves_beside(hooked, saved)
    assert graph.is_exact


def _leaves_beside(hooked: torch.Tensor, saved: dict[int, int]) -> int:
    """Bytes of leaves that the graph reaches but has not saved for backward, such as biases."""
    seen: dict[int, int] = {}
    for node in _nodes_by_hand(hooked.grad_fn):
        if hasattr(node, "variable"):
            storage = node.variable.untyped_storage()
            if storage._cdata not in saved:
                seen[storage._cdata] = storage.nbytes()
    return sum(seen.values())


def _nodes_by_hand(root: Any) -> list[Any]:  # noqa: ANN401
    """All nodes behind one, by torch's own links."""
    nodes = {root: None}
    for node in (pending := [root]):
        for following, _ in node.next_functions:
            if following is not None and following not in nodes:
                nodes[following] = None
                pending.append(following)
    return list(nodes)


@pytest.mark.parametrize("make", MODELS)
def test_nodes_match_the_links_of_torch(make: Callable[[], torch.Tensor]) -> None:
    loss = make()
    graph = autograd_graphs.measure_graph([loss], counted=set())
    assert graph.n_nodes == len(_nodes_by_hand(loss.grad_fn))
    assert loss.grad_fn is not None
    assert graph.root == type(loss.grad_fn).__name__


def test_a_running_sum_gains_the_nodes_of_each_step() -> None:
    weight = torch.ones(3, requires_grad=True)
    total = torch.zeros(())
    sizes = []
    for _ in range(5):
        total = total + (weight * 2).sum()
        sizes.append(autograd_graphs.measure_graph([total], counted=set()).n_nodes)
    # Each step adds an addition, a sum and a product; the leaf's own node is there once.
    assert [after - before for before, after in itertools.pairwise(sizes)] == [3] * 4
    assert sizes[0] == 4


@needs_saved_tensors
def test_a_hidden_state_that_is_never_detached_keeps_the_saved_bytes_of_each_step() -> None:
    cell = nn.RNNCell(WIDTH, WIDTH)
    hidden = torch.zeros(1, WIDTH)
    kept = []
    for _ in range(4):
        hidden = cell(torch.randn(1, WIDTH), hidden)
        kept.append(autograd_graphs.measure_graph([hidden], counted=set()).saved_bytes)
    growth = {after - before for before, after in itertools.pairwise(kept)}
    assert growth == {2 * WIDTH * 4}, "the input and the output of tanh, per step"


def test_a_leaf_has_no_graph() -> None:
    graph = autograd_graphs.measure_graph([torch.ones(3, requires_grad=True)], counted=set())
    assert (graph.n_nodes, graph.saved_bytes, graph.root) == (0, 0, "")


@needs_saved_tensors
def test_counted_storages_are_left_out_and_new_ones_are_added() -> None:
    weight = torch.ones(100, requires_grad=True)
    other_input = torch.ones(50)
    loss = (weight[:50] * other_input).exp().sum()
    counted = {weight.untyped_storage()._cdata, other_input.untyped_storage()._cdata}
    assert autograd_graphs.measure_graph([loss], counted=counted).saved_bytes == 200, (
        "exp's result alone"
    )
    assert len(counted) == 3
    assert autograd_graphs.measure_graph([loss], counted=counted).saved_bytes == 0


@needs_saved_tensors
def test_a_storage_is_counted_once_however_many_views_of_it_are_saved() -> None:
    base = torch.ones(100)
    weight = torch.ones(10, requires_grad=True)
    loss = sum(((weight * base[n : n + 10]).sum() for n in range(20)), torch.zeros(()))
    assert autograd_graphs.measure_graph([loss], counted=set()).saved_bytes == 400


@needs_saved_tensors
def test_a_parameter_that_its_module_holds_is_not_held_by_a_graph() -> None:
    layer = nn.Linear(100, 100)
    loss = layer(torch.ones(1, 100)).exp().sum()
    held = autograd_graphs.measure_graph([loss], counted=set())
    del layer
    alone = autograd_graphs.measure_graph([loss], counted=set())
    assert held.saved_bytes == 2 * 400, "the inputs of the layer, and what exp returns"
    assert alone.saved_bytes == 2 * 400 + 100 * 100 * 4 + 400, "the weight and the bias as well"


@needs_saved_tensors
def test_a_shared_part_of_two_graphs_is_counted_once() -> None:
    weight = torch.ones(100, requires_grad=True)
    shared = weight.exp()
    losses = [shared.square().sum(), shared.tanh().sum()]
    counted = {weight.untyped_storage()._cdata}
    assert autograd_graphs.measure_graph([*losses, weight], counted=counted).saved_bytes == 2 * 400
    assert autograd_graphs.measure_graph(losses, counted=counted).saved_bytes == 0


@needs_saved_tensors
def test_backward_frees_saved_tensors_and_leaves_the_nodes() -> None:
    weight = torch.ones(100, requires_grad=True)
    loss = weight.exp().sum()
    before = autograd_graphs.measure_graph([loss], counted=set())
    loss.backward()
    after = autograd_graphs.measure_graph([loss], counted={weight.untyped_storage()._cdata})
    assert before.saved_bytes == 400
    assert (after.n_nodes, after.saved_bytes) == (before.n_nodes, 0)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        ctx.save_for_backward(x)
        ctx.scale = torch.ones(30)
        ctx.number = 3
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        return grads[0] * ctx.number


@needs_saved_tensors
def test_tensors_on_the_ctx_of_a_custom_function_are_counted() -> None:
    x = torch.ones(10, requires_grad=True)
    assert autograd_graphs.measure_graph([_Scale.apply(x)], counted=set()).saved_bytes == 120


@needs_saved_tensors
@pytest.mark.parametrize("packed", ["tensor", "tuple", "nested", "dict", "file name"])
def test_no_user_hook_runs_and_packed_tensors_are_counted(packed: str) -> None:
    called = []

    def pack(tensor: torch.Tensor) -> object:
        copy = torch.zeros(64)
        return {
            "tensor": copy,
            "tuple": (tensor.device, copy),
            "nested": ("cpu", [copy, None]),
            "dict": {"copy": copy},
            "file name": "/tmp/saved.pt",  # noqa: S108
        }[packed]

    def unpack(_: object) -> torch.Tensor:
        called.append("unpack")
        raise RuntimeError

    weight = torch.ones(10, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = weight.exp().sum()
    counted = {weight.untyped_storage()._cdata}
    assert autograd_graphs.measure_graph([loss], counted=counted).saved_bytes == (
        0 if packed == "file name" else 256
    )
    assert called == []


def test_where_torch_does_not_show_what_is_saved_no_hook_runs_and_no_part_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autograd_graphs, "shows_saved_tensors", lambda: False)
    called = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        called.append("unpack")
        return tensor

    weight = torch.ones(10, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = _Scale.apply(weight).exp().sum()
    graph = autograd_graphs.measure_graph([loss], counted=set())
    assert (graph.n_nodes, graph.saved_bytes, graph.root) == (4, 0, "SumBackward0")
    assert called == []


def test_a_checkpointed_layer_is_not_recomputed() -> None:
    calls = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp().tanh()

    x = torch.ones(10, requires_grad=True)
    loss = checkpoint(layer, x, use_reentrant=False).sum()
    autograd_graphs.measure_graph([loss], counted=set())
    assert len(calls) == 1
    loss.backward()
    assert len(calls) == 2


def test_a_long_graph_needs_no_recursion_and_stops_at_its_limit() -> None:
    x = torch.ones(1, requires_grad=True)
    total = x * 1
    for _ in range(10_000):
        total = total + 1
    assert autograd_graphs.measure_graph([total], counted=set()).n_nodes == 10_002
    short = autograd_graphs.measure_graph([total], counted=set(), limit=100)
    assert (short.n_nodes, short.is_exact) == (100, False)


DEEP = """
import sys
import torch
from profkit.capture.memory.holders.autograd_graphs import measure_graph

n_steps, apart = int(sys.argv[1]), int(sys.argv[2])
total = torch.ones(2, requires_grad=True) * 1
for step in range(1, n_steps + 1):
    total = (total * 2.0).tanh()
    if step % apart == 0:
        graph = measure_graph([total], counted=set())
print(graph.n_nodes, graph.is_exact)
del total
print("ended")
"""


@pytest.mark.parametrize(("n_steps", "apart"), [(60_000, 60_000), (60_000, 500)])
def test_a_walk_over_a_very_deep_graph_does_not_overflow_the_stack(
    n_steps: int, apart: int, tmp_path: Path
) -> None:
    ended = start_forked(tmp_path, "-c", DEEP, str(n_steps), str(apart))
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == "ended"


def test_walks_are_bounded_if_nodes_keep_their_python_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autograd_graphs._state, "n_cut_walks", 0)
    monkeypatch.setattr(autograd_graphs, "_nodes_keep_python_objects", lambda: False)
    assert autograd_graphs.safe_depth() == sys.maxsize
    monkeypatch.setattr(autograd_graphs, "_nodes_keep_python_objects", lambda: True)
    deepest = autograd_graphs.safe_depth()
    assert 1_000 < deepest < 40_000
    autograd_graphs.note_cut_walk()
    assert autograd_graphs.safe_depth() < deepest / 100
    for _ in range(100):
        autograd_graphs.note_cut_walk()
    assert autograd_graphs.safe_depth() == 0


def test_a_walk_keeps_no_tensor_alive() -> None:
    kept = torch.ones(10)
    gone = weakref.ref(kept)
    loss = (torch.ones(10, requires_grad=True) * kept).sum()
    autograd_graphs.measure_graph([loss], counted=set())
    del kept
    assert gone() is not None
    del loss
    assert gone() is None


def test_a_walk_keeps_no_node_class_alive() -> None:
    def once() -> weakref.ref[type]:
        own_function: Any = type("Own", (_Scale,), {})
        loss = own_function.apply(torch.ones(3, requires_grad=True))
        autograd_graphs.measure_graph([loss], counted=set())
        return weakref.ref(own_function)

    gone = once()
    gc.collect()
    assert gone() is None


class _Refuses(torch.Tensor):
    calls: Sequence[object] = ()

    @classmethod
    def __torch_function__(
        cls, function: object, types: object, args: object = (), kwargs: object = None
    ) -> object:
        cls.calls = [*cls.calls, function]
        raise RuntimeError


def test_torch_function_of_a_subclass_is_not_called() -> None:
    weight = torch.ones(10, requires_grad=True)
    loss = (weight * 2).as_subclass(_Refuses)
    _Refuses.calls = ()
    assert autograd_graphs.measure_graph([loss], counted=set()).n_nodes >= 2
    assert autograd_graphs.storage_of(loss) is not None
    assert autograd_graphs.base_of(loss) is not None
    assert autograd_graphs.gradient_of(loss) is None
    assert _Refuses.calls == ()


def test_a_tensor_without_a_storage_has_no_bytes() -> None:
    indices = torch.tensor([[0, 1], [1, 0]])
    sparse = torch.sparse_coo_tensor(indices, torch.ones(2), (2, 2), check_invariants=True)
    assert autograd_graphs.storage_of(sparse) is None


def test_reading_a_gradient_does_not_warn() -> None:
    weight = torch.ones(3, requires_grad=True)
    inner = weight * 2
    kept = weight * 3
    kept.retain_grad()
    (inner + kept).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert autograd_graphs.gradient_of(inner) is None
        assert autograd_graphs.gradient_of(kept) is kept.grad
        assert autograd_graphs.gradient_of(weight) is weight.grad


def test_graphs_with_most_of_their_nodes_in_common_have_one_number() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    outputs = [net(torch.ones(2, 4)) for _ in range(3)]
    scores = [output.softmax(1).max() for output in outputs]
    other_losses = [net(torch.ones(2, 4)).sum() for _ in range(3)]
    roots = [autograd_graphs.grad_fns_of(tensors) for tensors in (outputs, other_losses, scores)]
    assert autograd_graphs.number_graphs(roots) == [1, 2, 1]
