"""The search forward finds what the search backward finds, or returns nothing."""

import gc
import weakref
from types import ModuleType

import pytest
import torch

from profkit.capture.memory.holders import forward_search, holder_chains, untracked_containers
from profkit.capture.memory.holders.forward_search import count_references, search_forward
from profkit.capture.process.objects import instances
from tests.capture.memory.worlds import World, text

MODULES = {
    "a list": "history = [made()]\n",
    "two holders": "one = made()\nbox = Holder()\nbox.kept = [one]\nlast = one\ndel one\n",
    "a container with two names": "one = [[made()]]\nother = [one[0]]\n",
    "two readers of a stream": (
        "import itertools\nfirst, second = itertools.tee([[made()]])\nnext(first)\n"
    ),
    "twice in a list": "one = made()\nboth = [one, one]\ndel one\n",
    "an attribute of a class": "class Net:\n    cache = {}\nNet.cache['k'] = made()\n",
    "a closure": (
        "def outer():\n    kept = [made()]\n    return lambda: kept\nhook = outer()\ndel outer\n"
    ),
    "a suspended generator": (
        "def batches():\n    kept = made()\n    yield 1\n    print(kept)\n"
        "running = batches()\nnext(running)\n"
    ),
    "the middle of a long list": (
        "long = [[n] for n in range(3_000)]\nlong.insert(1_500, made())\n"
    ),
    "a long dict": "long = {n: [n] for n in range(3_000)}\nlong['last'] = {'k': made()}\n",
}
UNKNOWN = {
    "an entry in the middle of a long list": (
        "long = [[n] for n in range(3_000)]\nlong[1_500].append(made())\n"
    ),
    "a module of a library": "import colorsys\nvars(colorsys)['_kept'] = made()\n",
}


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lift the limit: the modules of earlier tests have many objects."""
    monkeypatch.setattr(forward_search, "_MAX_OBJECTS", 10**7)
    monkeypatch.setattr(forward_search, "_MAX_ENTRIES", 10**8)


def chains_of(module: ModuleType, *, forward: bool) -> list[str]:
    """Return the chains to the module's object, found only forward or only backward."""
    reference = weakref.ref(module.ref())
    n_references = count_references([reference]) if forward else None
    targets = [module.ref()]
    if forward:
        assert n_references is not None
        assert search_forward(targets, (), n_references) is not None
    (holding,) = holder_chains.find_holdings(targets, n_references=n_references, budget_s=60.0)
    return [text(chain) for chain in holding.chains]


def test_both_names_of_a_shared_container_hold_what_it_has(world: World) -> None:
    module = world(MODULES["a container with two names"])
    assert sorted(chains_of(module, forward=True)) == ["world.one[0][0]", "world.other[0][0]"]


@pytest.mark.parametrize("source", MODULES.values(), ids=MODULES.keys())
def test_it_finds_the_same_chains_as_the_search_backward(world: World, source: str) -> None:
    module = world(source)
    forward = chains_of(module, forward=True)
    assert forward
    assert set(forward) == set(chains_of(module, forward=False))


def test_it_goes_no_further_once_every_reference_is_found(world: World) -> None:
    module = world(
        "history = [made()]\ninnermost = []\ndeep = [innermost]\ndel innermost\n"
        "for _ in range(50):\n    deep = [deep]\n"
    )
    n_references = count_references([weakref.ref(module.ref())])
    chains = search_forward([module.ref()], (), n_references)
    assert chains is not None
    assert id(module.history) in chains.nodes
    inner = module.deep
    while inner:
        (inner,) = inner
    assert id(inner) not in chains.nodes


@pytest.mark.parametrize("source", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_it_returns_nothing_if_any_reference_is_missing(world: World, source: str) -> None:
    module = world(source)
    n_references = count_references([weakref.ref(module.ref())])
    try:
        assert search_forward([module.ref()], (), n_references) is None
    finally:
        vars(__import__("colorsys")).pop("_kept", None)


def test_references_come_from_the_program() -> None:
    kept = torch.zeros(1)
    assert count_references([weakref.ref(kept)]) == {id(kept): 1}
    more = [kept, kept]
    assert count_references([weakref.ref(kept)]) == {id(kept): 3}
    del more


def test_all_tensors_are_found_by_their_classes() -> None:
    class Picture(torch.Tensor):
        pass

    weight = torch.nn.Parameter(torch.zeros(3))
    kept = [weight, weight.exp(), weight.exp().as_subclass(Picture), torch.zeros(9)[2:]]
    types = untracked_containers.tensor_types()
    expected = sorted(map(id, instances(gc.get_objects(), types)))
    assert sorted(map(id, untracked_containers.live_tensors())) == expected
    assert {id(tensor) for tensor in kept} <= set(expected)
