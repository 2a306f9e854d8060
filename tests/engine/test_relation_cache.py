"""Relations in the cache are those that were computed, or none: it is input like any other."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.engine.context import Context
from profkit.engine.relation_cache import RelationCache
from profkit.readers.cache import Cache, Entry
from profkit.readers.progress import Stages
from profkit.testing import TraceBuilder
from tests.cached import use_cache
from tests.traces import load_trace

RECORDED = sorted((Path(__file__).parents[2] / "traces").glob("*/*.pt.trace.json.gz"))
RELATIONS = (
    "tree", "source", "op_work", "work_categories", "modules", "syncs", "graph", "critical_path",
)  # fmt: skip


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Context]:
    use_cache(tmp_path / "cache", monkeypatch)

    def again(path: Path) -> Context:
        return Context(load_trace(path), kept=RelationCache.of(Cache(), [path]))

    return again


@pytest.fixture
def path(tmp_path: Path) -> Path:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "main"), b.module("Linear_0"):
            b.launch(
                "aten::mm",
                kernel="gemm",
                host_ns=5_000,
                device_ns=200_000,
                input_dims=[[8, 8], [8, 8]],
                input_types=["float", "float"],
            )
            b.item()
    return b.write(tmp_path / "a.pt.trace.json")


def same(one: object, other: object) -> bool:
    """Return whether two relations are equal, with the types of their columns."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if is_dataclass(one):
        pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
        return all(same(*pair) for pair in pairs)
    return one == other


@pytest.mark.parametrize("recorded", RECORDED[::6], ids=lambda path: path.parent.name)
def test_a_second_look_has_the_same_relations(
    recorded: Path, opened: Callable[[Path], Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(recorded)
    expected = {name: getattr(first, name) for name in RELATIONS}
    monkeypatch.setattr(RelationCache, "store", None)
    second = opened(recorded)
    assert all(same(getattr(second, name), expected[name]) for name in RELATIONS)


@pytest.mark.parametrize("name", RELATIONS)
def test_what_is_not_of_the_recording_is_computed_again(
    name: str, path: Path, opened: Callable[[Path], Context]
) -> None:
    first = opened(path)
    expected, kept, cache = getattr(first, name), first.kept, Cache()
    assert kept is not None
    key = kept.key.named(name)
    entry = cache.find(key)
    assert entry is not None
    changed = [Entry(entry.data[:-1], entry.arrays), Entry(entry.data, {})]

    for number, array in entry.arrays.items():
        wrong: list[Any] = [array[:-1], array.astype(np.float64)]
        # Columns of these types are rows, numbers of something, or kinds.
        if array.dtype in {np.dtype(np.int32), np.dtype(np.uint8)}:
            wrong.append(with_one(array, np.iinfo(array.dtype).max))
        if array.dtype == np.int32:
            wrong.append(with_one(array, -2))
        changed += [Entry(entry.data, {**entry.arrays, number: row}) for row in wrong]

    for wrong_content in changed:
        cache.store(key, lambda content=wrong_content: content, Stages())  # type: ignore[misc]
        cached = getattr(opened(path), name)
        assert same(cached, expected)
        restored = cache.find(key)
        assert restored is not None
        assert restored.data == entry.data, "the entry was replaced"


def with_one(array: Any, value: int) -> Any:  # noqa: ANN401  (arrays)
    changed = array.copy()
    changed[-1] = value
    return changed


def test_cycles_are_not_relations(path: Path, opened: Callable[[Path], Context]) -> None:
    ctx = opened(path)
    tree, graph = ctx.tree, ctx.graph
    parent = tree.parent.copy()
    parent[tree.rows[0]] = tree.rows[-1]
    assert tree.fits(ctx.events)
    assert not replace(tree, parent=parent).fits(ctx.events)
    assert not replace(tree, depth=tree.depth + 1).fits(ctx.events)
    before = graph.first.before.copy()
    before[graph.heads[1]] = graph.heads[-1]
    assert graph.fits(ctx.events)
    assert not replace(graph, first=replace(graph.first, before=before)).fits(ctx.events)
    for heads in (graph.heads[:-1], graph.heads[1:], graph.heads[::-1].copy()):
        assert not replace(graph, heads=heads).fits(ctx.events)


def test_a_file_that_changes_has_no_old_relations(
    path: Path, opened: Callable[[Path], Context]
) -> None:
    ctx = opened(path)
    path.write_bytes(path.read_bytes() + b" ")
    assert ctx.kept is not None
    assert not ctx.kept.is_current
    assert len(ctx.tree.rows)
    assert Cache().find(ctx.kept.key.named("tree")) is None
