"""Unreachable tensors, compared with what the garbage collector frees."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.memory.holders.garbage import find_garbage, scan_reachability
from profkit.capture.memory.holders.reference_cycles import find_components
from tests.capture.memory.saved_tensors import needs_saved_tensors


@pytest.fixture(autouse=True)
def _by_hand() -> Iterator[None]:
    """Run the collector only on request, and exclude existing objects."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


class Node:
    """Refers to others."""

    def __init__(self) -> None:
        self.held: list[object] = []


def _cycle(*kept: object) -> None:
    first, second = Node(), Node()
    first.held.append(second)
    second.held += [first, *kept]


def garbage_bytes() -> int:
    return sum(cycle.bytes for cycle in find_garbage())


def test_a_tensor_in_a_cycle_is_garbage_until_it_is_collected() -> None:
    _cycle(torch.zeros(256))
    (cycle,) = find_garbage()
    assert (cycle.bytes, len(cycle.ids)) == (1024, 1)
    assert cycle.cycle == ("Node", "list", "Node", "list", "Node")
    gc.collect()
    assert find_garbage() == []


def test_reachable_objects_are_not_garbage() -> None:
    def running() -> Iterator[int]:
        kept = Node()
        kept.held += [kept, torch.zeros(3)]
        yield 1

    steps = running()
    next(steps)
    local = Node()
    local.held += [local, torch.zeros(3)]
    assert find_garbage() == []
    assert next(steps, None) is None


def test_nothing_is_collected_and_no_finalizer_or_callback_runs() -> None:
    events: list[object] = []

    class Finalized:
        def __init__(self) -> None:
            self.me = self
            self.kept = torch.zeros(4)

        def __del__(self) -> None:
            events.append("finalized")

    finalized = Finalized()
    tensor = weakref.ref(finalized.kept, lambda _: events.append("freed"))
    weak = weakref.ref(finalized, lambda _: events.append("gone"))
    del finalized
    assert len(find_garbage()[0].ids) == 1
    assert events == []
    assert weak() is not None
    assert tensor() is not None
    gc.collect()
    assert sorted(events) == ["finalized", "freed", "gone"]  # type: ignore[type-var]


def test_garbage_that_was_found_can_be_collected() -> None:
    _cycle(kept := torch.zeros(4))
    gone = weakref.ref(kept)
    del kept
    assert find_garbage()[0].ids == {id(gone())}
    gc.collect()
    assert gone() is None


def test_the_collector_stays_enabled_or_disabled() -> None:
    assert not gc.isenabled()
    find_garbage()
    assert not gc.isenabled()
    gc.enable()
    find_garbage()
    assert gc.isenabled()


def test_live_storages_are_not_counted_and_shared_ones_are_counted_once() -> None:
    stays = torch.zeros(100)
    goes = torch.zeros(50)
    _cycle(stays[:10], goes[:5], goes[5:])
    del goes
    (cycle,) = find_garbage()
    assert (cycle.bytes, len(cycle.ids)) == (200, 3)
    assert stays.numel() == 100


@needs_saved_tensors
def test_tensors_saved_by_an_unreachable_graph_are_garbage() -> None:
    weight = torch.ones(100, requires_grad=True)
    data = torch.ones(50)
    part = weight[:50] * data
    _cycle((part * part).sum())
    del data, part
    assert garbage_bytes() == 200 + 200 + 4


def test_gradients_of_live_tensors_are_not_garbage() -> None:
    weight = torch.ones(100, requires_grad=True)
    (weight * 2).sum().backward()
    assert weight.grad is not None
    _cycle(weight.grad.view(10, 10))
    assert garbage_bytes() == 0


@needs_saved_tensors
def test_tensors_that_only_an_unreachable_graph_keeps_are_garbage() -> None:
    weight = torch.ones(100, requires_grad=True)
    _cycle(weight.exp().sum())
    assert garbage_bytes() == 400 + 4


@needs_saved_tensors
def test_tensors_that_a_live_graph_keeps_are_not_garbage() -> None:
    weight = torch.ones(100, requires_grad=True)
    inner = weight.exp()
    loss = inner.sum()
    _cycle(inner)
    del inner
    assert garbage_bytes() == 0
    assert loss.grad_fn is not None


def _through_a_list() -> None:
    kept: list[object] = [torch.zeros(1)]
    kept.append(kept)


def _through_itself() -> None:
    node = Node()
    node.held = [torch.zeros(1)]
    vars(node)["me"] = node


def _through_a_function() -> None:
    kept = torch.zeros(1)

    def again(n: int) -> object:
        return again(n - 1) if n else kept


def _through_two_functions() -> None:
    kept = torch.zeros(1)

    def even(n: int) -> object:
        return odd(n - 1) if n else kept

    def odd(n: int) -> object:
        return even(n - 1) if n else kept


def _through_a_method() -> None:
    node = Node()
    vars(node)["callback"] = node.__init__  # type: ignore[misc]
    vars(node)["kept"] = torch.zeros(1)


def _through_an_exception() -> None:
    kept = torch.zeros(1)
    try:
        int("x" * kept.numel())
    except ValueError as error:
        caught = error
    assert caught is not None


def _through_hooks_of_a_module() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    model.register_forward_hook(lambda *_: model)


@pytest.mark.parametrize(
    ("leave", "cycle"),
    [
        (_through_a_list, ("list", "list")),
        (_through_itself, ("Node", "Node")),
        (
            _through_a_function,
            ("function again", "cell again of its closure", "function again"),
        ),
        (
            _through_two_functions,
            (
                "function even", "cell odd of its closure",
                "function odd", "cell even of its closure", "function even",
            ),
        ),
        (_through_a_method, ("Node", "method", "Node")),
        (_through_an_exception, ("ValueError", "traceback", "frame", "ValueError")),
        (
            _through_hooks_of_a_module,
            ("Linear", "OrderedDict", "function <lambda>", "cell model of its closure", "Linear"),
        ),
    ],
)  # fmt: skip
def test_a_cycle_is_described_by_types_and_function_names(
    leave: object, cycle: tuple[str, ...]
) -> None:
    assert callable(leave)
    leave()
    (garbage,) = find_garbage()
    assert garbage.cycle == cycle
    assert garbage.bytes == 4


def test_cycles_of_the_same_types_are_one_group_the_most_bytes_first() -> None:
    for n in range(1, 6):
        _cycle(torch.zeros(n))
    kept: list[object] = [torch.zeros(100)]
    kept.append(kept)
    del kept
    assert [(cycle.bytes, len(cycle.ids)) for cycle in find_garbage()] == [(400, 1), (60, 5)]


edges = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30)


@given(edges=edges, kept=st.sets(st.integers(0, 11), max_size=3))
def test_unreachable_objects_agree_with_the_collector(
    edges: list[tuple[int, int]], kept: set[int]
) -> None:
    nodes = [Node() for _ in range(12)]
    for holder, held in edges:
        nodes[holder].held.append(nodes[held])
    numbers = {id(node): n for n, node in enumerate(nodes)}
    roots = [nodes[n] for n in sorted(kept)]
    nodes.clear()
    unreachable = {
        numbers[id(thing)] for thing in scan_reachability().unreachable if id(thing) in numbers
    }
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        collected = {numbers[id(thing)] for thing in gc.garbage if id(thing) in numbers}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    del roots
    gc.collect()

    assert unreachable == collected


@given(edges=edges)
def test_two_nodes_are_in_one_component_if_each_leads_to_the_other(
    edges: list[tuple[int, int]],
) -> None:
    held = [[b for a, b in edges if a == n] for n in range(12)]
    reached = [{n} for n in range(12)]
    for _ in range(12):
        for a, b in edges:
            reached[a] |= reached[b]
    components = find_components(held)
    for a in range(12):
        for b in range(12):
            assert (components[a] == components[b]) == (a in reached[b] and b in reached[a])


def test_a_chain_of_many_objects_needs_no_recursion() -> None:
    n = 20_000
    assert len(set(find_components([[k + 1] for k in range(n - 1)] + [[]]))) == n
    assert set(find_components([[(k + 1) % n] for k in range(n)])) == {0}


WHOLE_PROGRAM = """
import gc, sys
import torch
from profkit.capture.memory.holders.garbage import find_garbage
gc.collect()
gc.disable()

class Trainer:
    def __init__(self, n):
        self.model = torch.nn.Sequential(torch.nn.Linear(n, n), torch.nn.ReLU())
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model.trainer = [self]
        self.losses = []

    def step(self):
        loss = self.model(torch.randn(3, 8)).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

alive = Trainer(8)
for _ in range(3):
    one = Trainer(8)
    for _ in range(4):
        one.step()
        alive.step()
del one
found = find_garbage()
n, n_bytes = sum(len(one.ids) for one in found), sum(one.bytes for one in found)
before = sum(1 for one in gc.get_objects() if isinstance(one, torch.Tensor))
gc.set_debug(gc.DEBUG_SAVEALL)
gc.collect()
waited = [one for one in gc.garbage if isinstance(one, torch.Tensor)]
storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in waited}
print(n, len(waited), n_bytes, sum(storages.values()))
"""


@pytest.mark.slow
def test_number_and_bytes_in_a_whole_program_agree_with_the_collector() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHOLE_PROGRAM], capture_output=True, text=True, check=True
    )
    n, n_collected, n_bytes, n_collected_bytes = map(int, done.stdout.split())
    assert n == n_collected > 0
    assert n_bytes == n_collected_bytes > 0
