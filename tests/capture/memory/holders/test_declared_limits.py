"""A container's limit, and how it is emptied, are read in the program's source and classes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn, zeros
from torch.utils.data import Dataset, IterableDataset

from profkit.capture.memory.holders.declared_limits import find_declared_limit
from profkit.capture.memory.holders.emptying_methods import find_emptying_method
from tests.capture.memory.worlds import World, of, text


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ("if len(items) > 40:\n    items.pop(0)", 40),
        ("while len(items) >= MOST:\n    del items[next(iter(items))]", 7),
        ("if len(items) == MOST:\n    items.popleft()\nitems.append(1)", 7),
        ("import heapq\nif len(items) > 40:\n    heapq.heappop(items)", 40),
        ("if len(items) < MOST:\n    items.append(1)", 7),
        ("if len(items) < MOST:\n    items.append(1)\nitems.append(2)", 0),
        ("if len(items) > 40:\n    print(items)", 0),
        ("if len(others) > 40:\n    others.pop(0)", 0),
        ("if len(items) > unknown:\n    items.pop(0)", 0),
        ("if len(items) < 40:\n    items.pop(0)", 0),
        ("items.clear()", 0),
        ("if len(items) > 40:\n    items.pop(0", 0),
    ],
)
def test_a_bound_is_a_comparison_beside_a_removal(tmp_path: Path, source: str, limit: int) -> None:
    file = tmp_path / "train.py"
    file.write_text(source)
    assert find_declared_limit("items", None, {"__file__": str(file), "MOST": 7}) == limit


CACHE = """\
class Cache:
    most = 40
    def __init__(self):
        self.items = {}
    def add(self, key, value):
        self.items[key] = value
        if len(self.items) > self.most:
            del self.items[next(iter(self.items))]
cache = Cache()
"""


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ("cache.add('a', made())", 40),
        ("cache.most = 90\ncache.add('a', made())", 90),
        ("cache.items = dict.fromkeys(range(50), made())", None),
    ],
)
def test_a_limit_of_an_object_counts_as_long_as_it_holds(
    world: World, tmp_path: Path, more: str, limit: int | None
) -> None:
    (tmp_path / "world.py").write_text(CACHE)
    (chain,) = of(world(CACHE + more))[:1]
    assert (chain.name, chain.container_limit) == ("world.cache.items", limit)


METRIC = """\
class Accuracy:
    def __init__(self):
        self.hits, self.other = [made()], []
    def {name}(self):
        self.{attribute}.clear()
accuracy = Accuracy()
"""


@pytest.mark.parametrize(
    ("name", "attribute", "method"),
    [("reset", "hits", "reset"), ("clear_all", "hits", "clear_all"), ("reset", "other", ""),
     ("update", "hits", "")],
)  # fmt: skip
def test_the_method_that_empties_an_attribute_is_found(
    world: World, name: str, attribute: str, method: str
) -> None:
    (chain,) = of(world(METRIC.format(name=name, attribute=attribute)))
    assert chain.emptied_by == method


@pytest.mark.parametrize(
    ("body", "method"),
    [
        ("return not self.hits", ""),
        ("print(self.hits[0])", ""),
        ("self.other = self.hits", ""),
        ("self.hits = []", "empty"),
        ("del self.hits[:]", "empty"),
        ("self.__init__()", "empty"),
    ],
)
def test_a_method_that_only_reads_an_attribute_does_not_empty_it(
    world: World, body: str, method: str
) -> None:
    source = METRIC.replace("self.{attribute}.clear()", body)
    (chain,) = of(world(source.format(name="empty")))
    assert chain.emptied_by == method


def test_a_queue_is_not_emptied_by_asking_whether_it_is_empty() -> None:
    waiting: asyncio.Queue[int] = asyncio.Queue()
    entries = vars(waiting)["_queue"]
    assert find_emptying_method([waiting, vars(waiting), entries]) == ""


def test_all_states_of_a_metric_of_torchmetrics_are_emptied_by_reset() -> None:
    torchmetrics = pytest.importorskip("torchmetrics", reason="needs torchmetrics")
    metric = torchmetrics.CatMetric()
    metric.update(1.0)
    assert find_emptying_method([metric, vars(metric), metric.value]) == "reset"
    assert find_emptying_method([nn.Linear(1, 1), zeros(1)]) == ""


class Pictures(Dataset[Any]):
    def __init__(self, key: object) -> None:
        self.cache = {key: zeros(2)}


class Stream(IterableDataset[Any]):
    def __init__(self, key: object) -> None:
        self.cache = {key: zeros(2)}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.cache)


@pytest.mark.parametrize(
    ("dataset", "is_by_sample"),
    [(Pictures, True), (Stream, False)],
)
def test_a_map_style_data_set_has_an_entry_for_each_sample(
    world: World, dataset: type[Pictures | Stream], *, is_by_sample: bool
) -> None:
    module = world("pictures = None")
    vars(module)["pictures"] = dataset(3)
    vars(module)["tracked"](vars(module)["pictures"].cache[3])
    assert of(module)[0].is_by_sample is is_by_sample
    vars(module)["pictures"] = dataset((3, 1))
    vars(module)["tracked"](vars(module)["pictures"].cache[3, 1])
    assert not of(module)[0].is_by_sample


def test_what_a_library_reaches_is_named_by_the_class_of_the_program(world: World) -> None:
    module = world(
        "class Model:\n    def __init__(self):\n        self.outs = [made()]\n"
        "import logging\nlogging.kept_for_test = types.SimpleNamespace(owner=Model())"
    )
    try:
        chain = of(module)[0]
        assert (chain.name, chain.is_library) == ("Model.outs", False)
        assert text(chain) == "Model.outs[0]"
    finally:
        vars(vars(module)["logging"]).pop("kept_for_test")


def test_what_a_program_adds_to_a_thread_is_not_freed_with_it(world: World) -> None:
    module = world(
        "class Evaluator(threading.Thread):\n    pass\n"
        "worker = Evaluator()\nworker.results = [made()]"
    )
    (chain,) = of(module)
    assert (chain.name, chain.kind) == ("world.worker.results", "instance")
