"""What waits for the collector, against the collector itself."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.memory.holders.garbage import waiting
from profkit.capture.memory.holders.reference_cycles import components
from profkit.capture.memory.holders.unreachable import survey


@pytest.fixture(autouse=True)
def _by_hand() -> Iterator[None]:
    """The collector runs only when a test says so, and what is there already is left out."""
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


def test_a_cycle_with_a_tensor_waits_until_the_collector_has_come() -> None:
    _cycle(torch.zeros(256))
    found = waiting()
    assert (found.bytes, found.n) == (1024, 1)
    assert [group.cycle for group in found.groups] == [("Node", "list", "Node", "list", "Node")]
    del found
    gc.collect()
    assert waiting().n == 0


def test_what_is_reached_does_not_wait() -> None:
    def running() -> Iterator[int]:
        kept = Node()
        kept.held += [kept, torch.zeros(3)]
        yield 1

    steps = running()
    next(steps)
    local = Node()
    local.held += [local, torch.zeros(3)]
    assert waiting().n == 0
    assert next(steps, None) is None


def test_nothing_is_collected_finalized_or_told() -> None:
    told: list[object] = []

    class Finalized:
        def __init__(self) -> None:
            self.me = self
            self.kept = torch.zeros(4)

        def __del__(self) -> None:
            told.append("finalized")

    one = Finalized()
    tensor = weakref.ref(one.kept, lambda _: told.append("freed"))
    weak = weakref.ref(one, lambda _: told.append("gone"))
    del one
    assert waiting().n == 1
    assert told == []
    assert weak() is not None
    assert tensor() is not None
    gc.collect()
    assert sorted(told) == ["finalized", "freed", "gone"]  # type: ignore[type-var]


def test_what_a_look_finds_can_be_collected_after_it() -> None:
    _cycle(kept := torch.zeros(4))
    gone = weakref.ref(kept)
    del kept
    assert waiting().groups[0].examples[0] is gone()
    gc.collect()
    assert gone() is None


def test_the_collector_is_left_as_it_was() -> None:
    assert not gc.isenabled()
    waiting()
    assert not gc.isenabled()
    gc.enable()
    waiting()
    assert gc.isenabled()


def test_a_storage_that_stays_is_not_freed_and_one_that_is_shared_is_freed_once() -> None:
    stays = torch.zeros(100)
    goes = torch.zeros(50)
    _cycle(stays[:10], goes[:5], goes[5:])
    del goes
    found = waiting()
    assert (found.bytes, found.n) == (200, 3)
    assert stays.numel() == 100


def test_what_a_graph_that_waits_has_saved_by_name_waits_too() -> None:
    weight = torch.ones(100, requires_grad=True)
    data = torch.ones(50)
    part = weight[:50] * data
    _cycle((part * part).sum())
    del data, part
    assert waiting().bytes == 200 + 200 + 4


def test_gradients_of_what_stays_stay() -> None:
    weight = torch.ones(100, requires_grad=True)
    (weight * 2).sum().backward()
    assert weight.grad is not None
    _cycle(weight.grad.view(10, 10))
    assert waiting().bytes == 0


def test_what_only_a_waiting_graph_keeps_waits_with_it() -> None:
    weight = torch.ones(100, requires_grad=True)
    _cycle(weight.exp().sum())
    assert waiting().bytes == 400 + 4


def test_what_a_live_graph_keeps_too_stays() -> None:
    weight = torch.ones(100, requires_grad=True)
    inner = weight.exp()
    loss = inner.sum()
    _cycle(inner)
    del inner
    assert waiting().bytes == 0
    assert loss.grad_fn is not None


def _through_a_list() -> None:
    kept: list[object] = [torch.zeros(1)]
    kept.append(kept)


def _through_itself() -> None:
    one = Node()
    one.held = [torch.zeros(1)]
    vars(one)["me"] = one


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
    one = Node()
    vars(one)["callback"] = one.__init__  # type: ignore[misc]
    vars(one)["kept"] = torch.zeros(1)


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
def test_a_cycle_is_told_by_its_types_and_its_functions_names(
    leave: object, cycle: tuple[str, ...]
) -> None:
    assert callable(leave)
    leave()
    found = waiting()
    assert [group.cycle for group in found.groups] == [cycle]
    assert found.bytes == 4


def test_cycles_of_one_make_are_one_group_the_most_bytes_first() -> None:
    for n in range(1, 6):
        _cycle(torch.zeros(n))
    kept: list[object] = [torch.zeros(100)]
    kept.append(kept)
    del kept
    found = waiting()
    assert [(group.bytes, group.n) for group in found.groups] == [(400, 1), (60, 5)]
    assert len(found.groups[1].ids) == 5
    examples = found.groups[1].examples
    assert [one.numel() for one in examples if isinstance(one, torch.Tensor)] == [5, 4, 3]


edges = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30)


@given(edges=edges, kept=st.sets(st.integers(0, 11), max_size=3))
def test_what_is_unreachable_is_what_the_collector_would_collect(
    edges: list[tuple[int, int]], kept: set[int]
) -> None:
    nodes = [Node() for _ in range(12)]
    for holder, held in edges:
        nodes[holder].held.append(nodes[held])
    numbers = {id(node): n for n, node in enumerate(nodes)}
    roots = [nodes[n] for n in sorted(kept)]
    nodes.clear()
    found = {numbers[id(one)] for one in survey().unreachable if id(one) in numbers}
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        collected = {numbers[id(one)] for one in gc.garbage if id(one) in numbers}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    del roots
    gc.collect()
    assert found == collected


@given(edges=edges)
def test_two_nodes_are_in_one_component_when_each_leads_to_the_other(
    edges: list[tuple[int, int]],
) -> None:
    held = [[b for a, b in edges if a == n] for n in range(12)]
    reached = [{n} for n in range(12)]
    for _ in range(12):
        for a, b in edges:
            reached[a] |= reached[b]
    found = components(held)
    for a in range(12):
        for b in range(12):
            assert (found[a] == found[b]) == (a in reached[b] and b in reached[a])


def test_a_chain_of_many_objects_needs_no_recursion() -> None:
    n = 20_000
    assert len(set(components([[k + 1] for k in range(n - 1)] + [[]]))) == n
    assert set(components([[(k + 1) % n] for k in range(n)])) == {0}


WHOLE_PROGRAM = """
import gc, sys
import torch
from profkit.capture.memory.garbage import waiting
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
found = waiting()
n, n_bytes = found.n, found.bytes
del found
before = sum(1 for one in gc.get_objects() if isinstance(one, torch.Tensor))
gc.set_debug(gc.DEBUG_SAVEALL)
gc.collect()
waited = [one for one in gc.garbage if isinstance(one, torch.Tensor)]
storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in waited}
print(n, len(waited), n_bytes, sum(storages.values()))
"""


def test_the_figures_of_a_whole_program_are_those_of_the_collector() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHOLE_PROGRAM], capture_output=True, text=True, check=True
    )
    n, n_collected, n_bytes, n_collected_bytes = map(int, done.stdout.split())
    assert n == n_collected > 0
    assert n_bytes == n_collected_bytes > 0
