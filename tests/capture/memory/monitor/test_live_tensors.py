"""Live tensors are tracked to the byte, and none is kept alive."""

import gc
import tracemalloc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from profkit.capture.memory.monitor import live_tensors
from profkit.capture.memory.monitor.live_tensors import Amount, LiveTensors
from profkit.capture.memory.monitor.series import Sample, Series
from profkit.capture.process import devices


def bytes_of(amounts: dict[Any, Amount], dtype: str = "float64") -> int:
    """All bytes of a dtype; nothing else uses 64-bit floats here."""
    return sum(amount.bytes for kind, amount in amounts.items() if kind.dtype == dtype)


def test_a_storage_counts_once_however_many_views_it_has(live: LiveTensors) -> None:
    before = bytes_of(live.scan(1, full=True))
    base = torch.zeros(100, 10, dtype=torch.float64)
    views = [base[i] for i in range(50)]
    assert bytes_of(live.scan(2)) - before == 8000
    del base
    assert bytes_of(live.scan(3)) - before == 8000
    del views
    assert bytes_of(live.scan(4)) == before


def test_tensors_that_a_collection_has_promoted_are_tracked(live: LiveTensors) -> None:
    before = bytes_of(live.scan(1, full=True))
    kept = torch.zeros(1000, dtype=torch.float64)
    gc.collect()
    gc.collect()
    assert bytes_of(live.scan(2)) - before == 8000
    del kept


@pytest.mark.usefixtures("all_objects")
def test_objects_from_before_the_beginning_are_not_scanned_again() -> None:
    filler = [[] for _ in range(50_000)]  # type: ignore[var-annotated]
    live = LiveTensors()
    gc.disable()  # a collection would promote them by itself
    try:
        live.begin()
        young = [thing for n in (0, 1) for thing in gc.get_objects(generation=n)]
        ids = {id(tensor) for tensor in young}
    finally:
        live.end()
        gc.enable()
    assert not any(id(tensor) in ids for tensor in filler)
    assert gc.get_freeze_count() == 0


def test_objects_that_the_program_has_frozen_stay_frozen() -> None:
    live = LiveTensors()
    gc.freeze()
    try:
        n_frozen = gc.get_freeze_count()
        live.begin()
        assert gc.get_freeze_count() == pytest.approx(n_frozen, rel=0.01)
    finally:
        live.end()
        gc.unfreeze()


@pytest.mark.slow
def test_tracked_bytes_agree_with_a_scan_of_all_objects(live: LiveTensors) -> None:
    live.scan(1, full=True)
    kept: list[Tensor] = []

    for step in range(2, 30):
        kept.append(torch.zeros(step, dtype=torch.float64))
        if step % 7 == 0:
            gc.collect()
        if step % 5 == 0:
            del kept[: len(kept) // 2]
        tracked = bytes_of(live.scan(step))
        everything = {
            thing.untyped_storage()._cdata: thing.untyped_storage().nbytes()
            for thing in gc.get_objects()
            if type(thing) is Tensor and thing.dtype == torch.float64
        }
        assert tracked == sum(everything.values())


def test_what_existed_before_is_found_later_and_added_to_the_samples_so_far() -> None:
    old = [torch.zeros(1000, dtype=torch.float64), torch.zeros(500, dtype=torch.float64)]
    weight = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    graph = weight.exp()
    kept: list[Tensor] = []
    live, series = LiveTensors(), Series()
    live.begin()
    try:
        for step in range(1, 6):
            kept += [torch.zeros(100, dtype=torch.float64)] * (step > 1)
            series.add(Sample(step, 0, live.scan(step), n_nodes=7, graph_bytes=5))
        assert [bytes_of(sample.amounts) for sample in series.samples] == [
            n * 800 for n in range(5)
        ]
        earlier = live.find_earlier(1, 6)
        series.add_earlier(earlier)
    finally:
        live.end()
    everything = {
        thing.untyped_storage()._cdata: thing.untyped_storage().nbytes()
        for thing in gc.get_objects()
        if type(thing) is Tensor and thing.dtype == torch.float64
    }

    # All but the four tensors that were made after the first step.
    n_old = sum(everything.values()) - 4 * 800
    assert n_old >= 12_000
    assert [bytes_of(sample.amounts) for sample in series.samples] == [
        n_old + n * 800 for n in range(5)
    ]

    aged = [sum(amount.aged_n for amount in sample.amounts.values()) for sample in series.samples]
    assert aged[0] == aged[1] == 0
    assert aged[2] > 0
    assert earlier.n_nodes >= 2
    assert series.samples[0].n_nodes == 7 + earlier.n_nodes
    assert series.samples[0].graph_bytes == 5 + earlier.graph_bytes
    del old, graph


def test_an_accumulated_sum_that_is_found_late_is_the_oldest_changed_graph() -> None:
    weight = torch.zeros(10, requires_grad=True)
    total = weight.exp().sum()
    constant = weight.cos()
    live = LiveTensors()
    live.begin()
    try:
        later = [weight.sin() for _ in range(3)]
        total += later[0].sum()
        live.scan(2)
        live.find_earlier(1, 3)

        # Whether a graph changed is not known in the step in which it was found.
        at_once = live.changed_roots(3)
        assert {id(total), id(constant)} < set(map(id, at_once))
        assert [id(tensor) for tensor in at_once[-3:]] == [id(tensor) for tensor in later]

        total += later[1].sum()
        live.scan(4)
        ids = list(map(id, live.changed_roots(4)))
        assert id(constant) not in ids
        assert [tensor_id for tensor_id in ids if tensor_id in map(id, [total, *later])] == [
            id(total),
            *map(id, later),
        ]
    finally:
        live.end()


def test_the_memory_that_tracking_takes_is_reported_and_limited(
    live: LiveTensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.scan(1, full=True)
    kept = [torch.zeros(3) for _ in range(2_000)]
    before = live.most_bytes
    tracemalloc.start()
    live.scan(2)
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert live.most_bytes - before == pytest.approx(allocated, rel=0.3)
    limit = sum(1 for _ in live.storages()) + 10
    monkeypatch.setattr(live_tensors, "MAX_STORAGES", limit)
    kept += [torch.zeros(3) for _ in range(100)]
    live.scan(3)
    assert sum(1 for _ in live.storages()) == limit
    assert live.has_more


def test_only_storages_that_survive_the_next_step_are_aged(live: LiveTensors) -> None:
    live.scan(1, full=True)
    kept = torch.zeros(1000, dtype=torch.float64)
    aged = []
    for step in (2, 3, 4):
        amounts = live.scan(step)
        aged.append(sum(a.aged_bytes for k, a in amounts.items() if k.dtype == "float64"))
    assert [n - aged[0] for n in aged] == [0, 0, 8000]
    del kept


def test_neither_tensors_nor_their_storages_are_kept_alive(live: LiveTensors) -> None:
    weight = torch.zeros(10, 10, requires_grad=True)
    made = weight.exp()
    storage = torch.multiprocessing.reductions.StorageWeakRef(made.untyped_storage())
    tensor = weakref.ref(made)
    for step in (1, 2, 3, 4):
        live.scan(step, full=step == 1)
    assert any(root is made for root in live.roots())
    del made
    assert tensor() is None
    assert storage.expired()
    assert live.roots() == [] or all(root is not None for root in live.roots())


@pytest.mark.parametrize("swaps_all", [False, True])
def test_modules_can_swap_tensors_that_are_tracked(
    live: LiveTensors, *, swaps_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``torch.utils.swap_tensors`` refuses tensors that have weak references."""
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", swaps_all)
    model = torch.nn.Linear(4, 4)
    model(torch.ones(1, 4)).sum().backward()
    live.scan(1, full=True)
    live.scan(2)
    if swaps_all:
        before = model.weight
        model.double()
        assert model.weight is before
        assert model.weight.grad is not None
        assert model.weight.grad.dtype == torch.float64
    torch.utils.swap_tensors(model.weight, torch.nn.Parameter(torch.ones(2, 2)))
    assert model.weight.shape == (2, 2)


def test_no_code_of_a_subclass_runs(live: LiveTensors) -> None:
    class Touchy(Tensor):
        @classmethod
        def __torch_function__(cls, *_args: object, **_kwargs: object) -> object:
            raise AssertionError("the user's code was run")

    before = bytes_of(live.scan(1, full=True))
    touchy = torch.zeros(500, dtype=torch.float64).as_subclass(Touchy)
    assert bytes_of(live.scan(2)) - before == 4000
    assert bytes_of(live.scan(3, full=True)) - before == 4000
    del touchy


def test_tensors_without_storage_and_hostile_objects_are_skipped(live: LiveTensors) -> None:
    class Liar:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise RuntimeError("no class")

        def __eq__(self, _other: object) -> bool:
            raise RuntimeError("not equal")

        __hash__ = None  # type: ignore[assignment]

    odd = [torch.eye(3).to_sparse(), torch.zeros(3, device="meta"), Liar()]
    live.scan(1, full=True)
    live.scan(2)
    del odd


def test_the_collector_is_left_as_it_was(live: LiveTensors) -> None:
    gc.disable()
    try:
        live.scan(1, full=True)
        assert not gc.isenabled()
    finally:
        gc.enable()
    live.scan(2)
    assert gc.isenabled()
    live.end()
    assert not any(getattr(callback, "__self__", None) is live for callback in gc.callbacks)


def test_pinned_storages_are_of_one_kind_from_their_first_sample_on(
    live: LiveTensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "modules_in_use", lambda: [True])
    monkeypatch.setattr(torch.UntypedStorage, "is_pinned", lambda storage: storage.nbytes() == 8000)

    def pinned(amounts: dict[Any, Amount]) -> list[tuple[int, int]]:
        return [
            (amount.bytes, amount.aged_bytes)
            for kind, amount in amounts.items()
            if kind.device == "pinned"
        ]

    live.scan(1, full=True)
    kept = [torch.zeros(1000, dtype=torch.float64)]
    assert pinned(live.scan(2)) == [(8000, 0)]
    # The samples may be far apart: what came since is young, and of the same kind.
    kept += [torch.zeros(1000, dtype=torch.float64) for _ in range(3)]
    assert pinned(live.scan(40)) == [(32_000, 8000)]
    assert pinned(live.scan(80)) == [(32_000, 32_000)]
    del kept
