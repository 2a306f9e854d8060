"""Which tensors are alive is told to the byte, and nothing is kept alive by it."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from profkit.capture.memory.monitor.live_tensors import Amount, LiveTensors


@pytest.fixture
def census() -> Iterator[LiveTensors]:
    made = LiveTensors()
    made.begin()
    yield made
    made.end()


def bytes_of(amounts: dict[Any, Amount], dtype: str = "float64") -> int:
    """All bytes of a dtype; nobody else uses 64-bit floats here."""
    return sum(amount.bytes for kind, amount in amounts.items() if kind.dtype == dtype)


def test_a_storage_counts_once_however_many_views_it_has(census: LiveTensors) -> None:
    before = bytes_of(census.look(1, full=True))
    base = torch.zeros(100, 10, dtype=torch.float64)
    views = [base[i] for i in range(50)]
    assert bytes_of(census.look(2)) - before == 8000
    del base
    assert bytes_of(census.look(3)) - before == 8000
    del views
    assert bytes_of(census.look(4)) == before


def test_tensors_that_the_collector_has_moved_on_are_not_lost(census: LiveTensors) -> None:
    before = bytes_of(census.look(1, full=True))
    kept = torch.zeros(1000, dtype=torch.float64)
    gc.collect()
    gc.collect()
    assert bytes_of(census.look(2)) - before == 8000
    del kept


def test_what_was_there_at_first_is_looked_through_once(census: LiveTensors) -> None:
    filler = [[] for _ in range(50_000)]  # type: ignore[var-annotated]
    gc.disable()  # A collection would move them on by itself.
    try:
        census.look(1, full=True)
        young = [one for n in (0, 1) for one in gc.get_objects(generation=n)]
        ids = {id(one) for one in young}
    finally:
        gc.enable()
    assert not any(id(one) in ids for one in filler)
    assert gc.get_freeze_count() == 0


def test_what_the_program_has_frozen_stays_frozen(census: LiveTensors) -> None:
    gc.freeze()
    try:
        n_frozen = gc.get_freeze_count()
        census.look(1, full=True)
        assert gc.get_freeze_count() == pytest.approx(n_frozen, rel=0.01)
    finally:
        gc.unfreeze()


def test_what_is_told_agrees_with_a_look_at_all_objects(census: LiveTensors) -> None:
    census.look(1, full=True)
    kept: list[Tensor] = []
    for step in range(2, 30):
        kept.append(torch.zeros(step, dtype=torch.float64))
        if step % 7 == 0:
            gc.collect()
        if step % 5 == 0:
            del kept[: len(kept) // 2]
        followed = bytes_of(census.look(step))
        everything = {
            one.untyped_storage()._cdata: one.untyped_storage().nbytes()
            for one in gc.get_objects()
            if type(one) is Tensor and one.dtype == torch.float64
        }
        assert followed == sum(everything.values())


def test_only_what_outlives_the_next_step_has_aged(census: LiveTensors) -> None:
    census.look(1, full=True)
    kept = torch.zeros(1000, dtype=torch.float64)
    aged = []
    for step in (2, 3, 4):
        amounts = census.look(step)
        aged.append(sum(a.aged_bytes for k, a in amounts.items() if k.dtype == "float64"))
    assert [n - aged[0] for n in aged] == [0, 0, 8000]
    del kept


def test_neither_tensors_nor_their_storages_are_kept_alive(census: LiveTensors) -> None:
    weight = torch.zeros(10, 10, requires_grad=True)
    made = weight.exp()
    storage = torch.multiprocessing.reductions.StorageWeakRef(made.untyped_storage())
    tensor = weakref.ref(made)
    for step in (1, 2, 3, 4):
        census.look(step, full=step == 1)
    assert any(root is made for root in census.roots())
    del made
    assert tensor() is None
    assert storage.expired()
    assert census.roots() == [] or all(root is not None for root in census.roots())


def test_a_subclass_is_not_asked_for_anything(census: LiveTensors) -> None:
    class Touchy(Tensor):
        @classmethod
        def __torch_function__(cls, *_args: object, **_kwargs: object) -> object:
            raise AssertionError("the user's code was run")

    before = bytes_of(census.look(1, full=True))
    touchy = torch.zeros(500, dtype=torch.float64).as_subclass(Touchy)
    assert bytes_of(census.look(2)) - before == 4000
    assert bytes_of(census.look(3, full=True)) - before == 4000
    del touchy


def test_tensors_without_storage_and_objects_that_lie_do_not_disturb(census: LiveTensors) -> None:
    class Liar:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise RuntimeError("no class")

        def __eq__(self, _other: object) -> bool:
            raise RuntimeError("not equal")

        __hash__ = None  # type: ignore[assignment]

    odd = [torch.eye(3).to_sparse(), torch.zeros(3, device="meta"), Liar()]
    census.look(1, full=True)
    census.look(2)
    del odd


def test_the_collector_is_left_as_it_was(census: LiveTensors) -> None:
    gc.disable()
    try:
        census.look(1, full=True)
        assert not gc.isenabled()
    finally:
        gc.enable()
    census.look(2)
    assert gc.isenabled()
    census.end()
    assert not any(getattr(one, "__self__", None) is census for one in gc.callbacks)
