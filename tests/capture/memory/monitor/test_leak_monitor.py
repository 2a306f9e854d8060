"""Leaks are reported with allocation site, holder and leak; nothing else is reported."""

import asyncio
import atexit
import contextlib
import copy
import functools
import gc
import threading
import time
import tracemalloc
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from profkit.capture.memory.holders import holder_chains
from profkit.capture.memory.holders.autograd_graphs import GraphWalk, grad_fns_of
from profkit.capture.memory.holders.search import Search
from profkit.capture.memory.holders.untracked_containers import live_tensors
from profkit.capture.memory.monitor import (
    growth_inspections,
    leak_classifier,
    leak_monitor,
    sampler,
)
from profkit.capture.memory.monitor.allocation_sites import AllocationSampler
from profkit.capture.memory.monitor.budget import OVERDUE, Budget, Work
from profkit.capture.memory.monitor.leak_classifier import Evidence
from profkit.capture.memory.monitor.leak_inspector import Inspection, LeakInspector
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.live_tensors import LiveStorage, LiveTensors, TensorKind
from profkit.capture.memory.monitor.series import Sample, Series
from profkit.capture.process import signals
from profkit.capture.process.malloc_stats import Allocated
from profkit.model.leak_bytes import total_per_step_bytes
from profkit.model.live_memory import Chain, Leak, LiveMemory, TensorShape
from tests.capture.memory.saved_tensors import needs_saved_tensors

N_STEPS = 40
KEPT: list[object] = []
Body = Callable[[int], object]


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    KEPT.clear()
    gc.collect()
    monkeypatch.setattr(holder_chains, "Search", Unhurried)


class Unhurried(Search):
    """A search with time enough for the objects that other tests have left behind."""

    def __init__(
        self, targets: Sequence[object], own: Collection[int], limit: int, _budget_s: float
    ) -> None:
        super().__init__(targets, own, limit, budget_s=600.0)


# Results within the default budget depend on how many objects other tests have left behind, and on
# how fast the machine is.
AMPLE = Budget(
    free_s=dict.fromkeys(get_args(Work), 600.0), share=dict.fromkeys(get_args(Work), 1.0)
)


# Samples only where one is overdue; what follows from them is free.
FREE = Budget(
    free_s={"first": 600.0, "inspection": 600.0, "classify": 600.0},
    share=dict.fromkeys(get_args(Work), 0.0),
)


def monitored(
    body: Body, n_steps: int = N_STEPS, *, budget: Budget = AMPLE, tracemalloc: bool = False
) -> LiveMemory:
    monitor = LeakMonitor("test", "user", budget, tracemalloc=tracemalloc)
    for step in range(n_steps):
        body(step)
        monitor.step()
    return monitor.finish()


def only(live: LiveMemory) -> Leak:
    assert len(live.leaks) == 1, live.leaks
    return live.leaks[0]


def code_of(leak: Leak) -> str:
    assert leak.stack[0].file == __file__
    return leak.code


def limit_nodes(monkeypatch: pytest.MonkeyPatch, n_nodes: int) -> None:
    """Limit the counting of graphs to some nodes besides those that other tests have left."""
    left = GraphWalk().count(grad_fns_of(live_tensors()))
    monkeypatch.setattr(sampler, "MAX_NODES", left + n_nodes)


def holder_of(leak: Leak) -> str:
    return "".join(leak.chains[0].parts)


def test_a_list_of_tensors_is_reported_to_the_byte() -> None:
    ballast = torch.zeros(50 << 20, dtype=torch.uint8)
    live = monitored(lambda _: KEPT.append(torch.zeros(128, 128)))
    leak = only(live)
    assert (leak.kind, leak.device, leak.per_step_bytes) == ("tensors", "cpu", 65536)
    assert "KEPT.append(torch.zeros(128, 128))" in code_of(leak)
    assert ".KEPT[" in holder_of(leak)
    assert leak.shape == TensorShape("float32", (128, 128), 4)
    assert live.n_evaluated_steps == N_STEPS - 1
    del ballast


def test_after_a_step_of_very_many_operators_no_other_is_sampled_and_its_line_is_known() -> None:
    sampled: list[int] = []

    def body(step: int) -> None:
        KEPT.append(torch.zeros(128, 128))
        if torch._C._len_torch_dispatch_stack():
            sampled.append(step)
            time.sleep(0.2)

    free_s, share = {**AMPLE.free_s, "sites": 0.1}, {**AMPLE.share, "sites": 0.0}
    leak = only(monitored(body, budget=Budget(free_s, share)))
    assert "KEPT.append(torch.zeros(128, 128))" in code_of(leak)
    assert len(sampled) == 1


@pytest.mark.usefixtures("all_objects")
def test_a_holder_in_the_program_is_named_before_a_nearer_one_in_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "also", [], raising=False)
    mine: dict[str, dict[str, dict[str, list[Tensor]]]] = {"of": {"the": {"program": []}}}
    KEPT.append(mine)

    def body(_: int) -> None:
        mine["of"]["the"]["program"].append(torch.zeros(4096))
        vars(torch)["also"].append(mine["of"]["the"]["program"][-1])

    first, *other_chains = only(monitored(body)).chains
    assert "['program']" in first.parts
    assert any(chain.parts[:2] == ("torch", ".also") for chain in other_chains)


def test_the_holder_of_all_tensors_is_named_before_the_holder_of_the_last() -> None:
    last = torch.zeros(0)
    kept: dict[str, list[Tensor]] = {"all": []}
    KEPT.append(kept)

    def body(_: int) -> None:
        nonlocal last
        last = torch.zeros(4096)
        kept["all"].append(last)

    leak = only(monitored(body))
    assert "['all']" in leak.chains[0].parts
    assert len(last) == 4096


def growth_per_step(leak: Leak) -> tuple[float, float]:
    """Objects and bytes per step from the first to the last point of what grows."""
    grown = leak.growth
    assert grown is not None
    n_steps = grown.steps[-1] - grown.steps[0]
    n = (grown.n[-1] - grown.n[0]) / n_steps if grown.n else 0.0
    return n, (grown.bytes[-1] - grown.bytes[0]) / n_steps


@pytest.mark.parametrize("interval", [3, 8])
def test_an_occasional_leak_is_reported_with_line_and_holder(interval: int) -> None:
    def body(step: int) -> None:
        if step % interval == 0:
            KEPT.append(torch.zeros(interval, 4096))  # allocated here

    leak = only(monitored(body, 30 * interval))
    assert leak.per_step_bytes == pytest.approx(16384, rel=0.1)
    n, n_bytes = growth_per_step(leak)
    assert n_bytes == pytest.approx(16384, rel=0.15)
    assert n == pytest.approx(1 / interval, rel=0.15)
    assert code_of(leak).endswith("# allocated here")
    assert ".KEPT[" in holder_of(leak)


def test_stored_losses_are_reported_with_their_graph_nodes() -> None:
    model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(_: int) -> None:
        loss = model(torch.ones(8, 4)).square().mean()  # allocated here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        KEPT.append(loss)

    leak = only(monitored(body))
    assert leak.kind == "tensors"
    assert code_of(leak).endswith("# allocated here")
    assert ".KEPT[" in holder_of(leak)
    assert leak.graph is not None
    # mean, square, two layers and a relu, and their two transposes; the leaves are shared.
    assert leak.nodes_per_step == pytest.approx(7, abs=1)


@pytest.mark.parametrize("is_shown", [True, False])
def test_growing_graphs_whose_saved_tensors_torch_does_not_show_are_said_to_be_unmeasured(
    monkeypatch: pytest.MonkeyPatch, *, is_shown: bool
) -> None:
    monkeypatch.setattr(leak_monitor, "shows_saved_tensors", lambda: is_shown)
    weight = torch.ones(100, requires_grad=True)
    live = monitored(lambda _: KEPT.append((weight * 2).sum()))
    assert ("what autograd graphs save" in " ".join(live.not_measured)) is not is_shown


@pytest.mark.usefixtures("all_objects")
@pytest.mark.slow
def test_outputs_saved_by_their_own_nodes_are_reported_with_the_holder_of_the_outputs() -> None:
    layer = nn.Linear(16, 256)

    def body(_: int) -> None:
        inner = torch.relu(layer(torch.ones(64, 16)))  # inner allocation
        KEPT.append(torch.tanh(inner * 2))  # allocated here

    leak = only(monitored(body))
    assert leak.kind == "tensors"
    assert code_of(leak).endswith("# allocated here")
    assert ".KEPT[" in holder_of(leak)
    assert leak.graph is not None
    # relu() saves its own output, which nothing else keeps; the layer saves its input.
    output, saved = 64 * 256 * 4, 64 * 256 * 4 + 64 * 16 * 4
    # Shared leaves are nodes too: a tenth of them if the inspection was after four steps.
    assert leak.per_step_bytes == pytest.approx(output + saved, rel=0.1)
    n, n_bytes = growth_per_step(leak)
    assert n == pytest.approx(1, rel=0.1)
    assert n_bytes == pytest.approx(output + saved, rel=0.1)
    # tanh, the product, relu, the layer and its transpose; the two leaves are shared.
    n_walked = (leak.graph.n_nodes - 2) / 5
    assert leak.graph.saved_bytes == pytest.approx(n_walked * saved, rel=0.02)


@needs_saved_tensors
def test_a_running_total_is_reported_as_one_growing_graph() -> None:
    weight = torch.ones(100, requires_grad=True)
    total = torch.zeros(())

    def body(_: int) -> None:
        nonlocal total
        total = total + weight.exp().sum()  # allocated here

    leak = only(monitored(body))
    assert leak.kind == "graph"
    assert code_of(leak).endswith("# allocated here")
    assert "total" in holder_of(leak)
    assert leak.nodes_per_step == 3
    assert leak.per_step_bytes == pytest.approx(400, rel=0.1)  # saved by exp()
    n, n_bytes = growth_per_step(leak)
    assert n == pytest.approx(3, rel=0.1)
    assert n_bytes == pytest.approx(400, rel=0.1)


@pytest.mark.parametrize(
    "grow",
    [
        torch.exp,
        # Makes views in C++, for which a walk of the graph creates Python objects.
        lambda constant: torch.einsum("ij,jk->ik", constant, constant),
    ],
    ids=["exp", "einsum"],
)
def test_a_constant_graph_does_not_hide_a_growing_one(grow: Callable[[Tensor], Tensor]) -> None:
    weight = torch.eye(10, requires_grad=True)
    constant: Tensor = weight
    for _ in range(4 * N_STEPS):
        constant = grow(constant)
    total = torch.zeros(())

    def body(_: int) -> None:
        nonlocal total
        total = total + weight.exp().sum()  # allocated here

    leak = only(monitored(body))
    assert code_of(leak).endswith("# allocated here")
    assert "total" in holder_of(leak)
    assert leak.graph is not None
    assert leak.graph.root == "AddBackward0"
    assert constant.grad_fn is not None


def test_a_tensor_that_is_reallocated_larger_is_reported() -> None:
    seen = torch.zeros(0, 64)

    def body(_: int) -> None:
        nonlocal seen
        seen = torch.cat([seen, torch.zeros(32, 64)])  # allocated here

    leak = only(monitored(body))
    assert (leak.n, leak.per_step_bytes) == (1, 8192)
    assert code_of(leak).endswith("# allocated here")
    assert "seen" in holder_of(leak)


def test_a_longer_tensor_is_found_beside_a_larger_one_that_does_not_grow() -> None:
    late: list[Tensor] = []
    seen = torch.zeros(64, 64)

    def body(step: int) -> None:
        nonlocal seen
        if step == 2:
            late.append(torch.zeros(1 << 20))
        longer = torch.empty(len(seen) + 32, 64)  # allocated here
        longer[: len(seen)] = seen
        seen = longer

    leak = only(monitored(body))
    assert (leak.n, leak.per_step_bytes, leak.is_enlarged) == (1, 8192, True)
    assert code_of(leak).endswith("# allocated here")
    assert "seen" in holder_of(leak)
    assert leak.bytes < 4 << 20


def test_the_holder_of_a_longer_tensor_is_named_before_the_holder_of_a_view() -> None:
    seen, last_value = torch.zeros(0, 64), torch.zeros(())

    def body(_: int) -> None:
        nonlocal seen, last_value
        seen = torch.cat([seen, torch.zeros(32, 64)])  # allocated here
        last_value = seen[-32:, 0].unbind()[-1]

    leak = only(monitored(body))
    assert code_of(leak).endswith("# allocated here")
    assert "seen" in holder_of(leak)
    assert last_value.shape == ()


def test_two_longer_tensors_each_have_their_line_holder_and_share() -> None:
    kept = {"keys": torch.zeros(8, 64), "values": torch.zeros(8, 64)}
    KEPT.append(kept)

    def body(_: int) -> None:
        kept["keys"] = torch.cat([kept["keys"], torch.ones(32, 64)])  # keys
        kept["values"] = torch.cat([kept["values"], torch.ones(32, 64)])  # values

    leaks = {code_of(leak)[-6:].strip("# "): leak for leak in monitored(body).leaks}
    assert leaks.keys() == {"keys", "values"}
    assert all(leak.per_step_bytes == 8192 for leak in leaks.values())
    for leak in leaks.values():
        assert growth_per_step(leak)[1] == pytest.approx(8192, rel=0.05)
    assert all(f"['{name}']" in holder_of(leak) for name, leak in leaks.items())


def test_larger_and_larger_batches_that_are_freed_are_not_a_leak() -> None:
    batch = torch.zeros(0)
    layer = nn.Linear(64, 1)

    def body(step: int) -> None:
        nonlocal batch
        batch = torch.ones(32 * (step + 1), 64)
        layer(batch).sum().backward()

    assert monitored(body).leaks == ()
    assert len(batch)


def test_longer_and_longer_episodes_with_graphs_are_not_a_leak() -> None:
    """Episodes of an agent that survives longer and longer."""
    weight = nn.Parameter(torch.ones(1))
    values: list[Tensor] = []

    def body(step: int) -> None:
        values[:] = [(weight * i).tanh() for i in range(2 * step + 8)]

    assert monitored(body, 60).leaks == ()
    assert values


def test_larger_and_larger_batches_in_a_queue_are_not_a_leak() -> None:
    prefetched: deque[Tensor] = deque(maxlen=4)
    live = monitored(lambda step: prefetched.append(torch.ones(32 * (step + 40), 64)), 60)
    assert live.leaks == ()


class Unchanged(TorchDispatchMode):
    """A mode of the program, beside which operators are not recorded."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_state", [True, False])
def test_where_operators_cannot_be_recorded_an_attribute_is_state_and_a_variable_a_batch(
    *, is_state: bool
) -> None:
    batch = torch.zeros(0, 64)
    state = {"seen": torch.zeros(0, 64)}
    KEPT.append(state)

    def body(step: int) -> None:
        nonlocal batch
        longer = torch.zeros(32 * (step + 1), 64)
        if is_state:
            state["seen"] = longer
        else:
            batch = longer

    with Unchanged():
        leaks = monitored(body).leaks
    assert [(leak.is_enlarged, leak.per_step_bytes) for leak in leaks] == [(True, 8192)] * is_state
    assert batch is not None


def test_a_storage_that_is_resized_larger_is_reported() -> None:
    buffer = torch.zeros(16)

    leak = only(monitored(lambda step: buffer.resize_(4096 * (step + 1))))
    assert (leak.n, leak.is_enlarged) == (1, True)
    assert leak.per_step_bytes == pytest.approx(16384)
    assert "buffer" in holder_of(leak)


@pytest.mark.slow
def test_a_cache_that_is_full_at_half_of_the_run_is_not_reported_if_samples_are_rare() -> None:
    for n_steps in (150, 180, 220):
        KEPT.clear()
        monitor = LeakMonitor("test", "user", FREE)
        for step in range(n_steps):
            if step < n_steps // 2:
                KEPT.append([torch.zeros(4096) for _ in range(4)])
            monitor.step()
        assert monitor.finish().leaks == (), n_steps


def test_a_leak_is_told_up_to_the_last_step_that_shows_it() -> None:
    monitor = LeakMonitor("test", "user", FREE)
    for _ in range(100):
        KEPT.append(torch.zeros(4096))
        monitor.step()
    live = monitor.finish()
    leak = only(live)
    assert leak.last_step <= live.samples[-1].step
    # Those since the sample before the last one count too.
    assert leak.n == pytest.approx(leak.last_step, abs=3)
    assert leak.bytes == leak.n * 4096 * 4


@pytest.mark.slow
def test_a_total_that_starts_anew_is_not_a_leak_if_its_graph_is_too_large_to_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_nodes(monkeypatch, 100)
    weight = torch.ones(10, requires_grad=True)
    total = torch.zeros(())
    monitor = LeakMonitor("test", "user", FREE)
    for step in range(240):
        total = total + weight.exp().sum() if step % 60 else torch.zeros(())
        monitor.step()
    live = monitor.finish()
    assert live.leaks == ()
    assert any("more than" in reason for reason in live.not_measured)


def test_a_graph_too_large_to_count_is_still_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_nodes(monkeypatch, 100)
    weight = torch.ones(10, requires_grad=True)
    total = torch.zeros(())
    monitor = LeakMonitor("test", "user", AMPLE)
    for _ in range(120):
        total = total + weight.exp().sum()
        monitor.step()
    leak = only(monitor.finish())
    assert leak.kind == "graph"
    assert leak.nodes_per_step == pytest.approx(3)
    assert leak.last_step < 40


@pytest.mark.usefixtures("all_objects")
@pytest.mark.slow
def test_a_loss_kept_every_fifty_steps_is_reported() -> None:
    weight = torch.ones(10, requires_grad=True)

    def body(step: int) -> None:
        loss = (weight.exp() * 2).square().sum()
        for _ in range(20):
            loss = loss * 1.5  # allocated here
        if step % 50 == 0:
            KEPT.append(loss)

    leak = only(monitored(body, 2000))
    assert leak.n == pytest.approx(40, abs=6)
    assert leak.nodes_per_step == pytest.approx(24 / 50, rel=0.1)
    # The inspection walked the graphs of the first few; the amount is that of all.
    assert leak.graph is not None
    assert leak.graph.n_nodes == pytest.approx(24 * leak.n, rel=0.15)
    assert ".KEPT[" in holder_of(leak)
    assert code_of(leak).endswith("# allocated here")


def test_a_queue_that_is_read_too_slowly_has_the_line_that_fills_it() -> None:
    backlog: deque[Tensor] = deque()

    def body(step: int) -> None:
        backlog.append(torch.zeros(4096))  # allocated here
        if step % 2:
            backlog.popleft()

    leak = only(monitored(body, 80))
    assert code_of(leak).endswith("# allocated here")
    assert "backlog" in holder_of(leak)


class Meter:
    """An average whose graph grows."""

    avg = torch.zeros(())

    def update(self, value: Tensor) -> None:
        self.avg = 0.9 * self.avg + 0.1 * value


@pytest.mark.usefixtures("all_objects")
def test_the_graph_of_one_tensor_is_held_by_its_attribute_and_not_by_a_dict_on_the_way() -> None:
    KEPT.append({"loss": Meter(), "aux": Meter()})
    weight = torch.ones(64, requires_grad=True)
    leak = only(monitored(lambda _: KEPT[0]["loss"].update(weight.sum())))  # type: ignore[index]
    assert leak.kind == "graph"
    assert leak.chains[0].name.endswith("KEPT[0]['loss'].avg")
    assert leak.chains[0].container == ""


class Store:
    """What a program stores, with and without a limit."""

    def __init__(self, maxlen: int) -> None:
        self.recent: deque[tuple[Tensor, float]] = deque(maxlen=maxlen)
        self.all: list[Tensor] = []
        self.load = functools.lru_cache(maxsize=maxlen)(torch.full)


def test_what_fills_a_container_up_to_its_limit_is_not_a_leak() -> None:
    store = Store(1000)
    assert monitored(lambda _: store.recent.append((torch.zeros(4096), 0.5))).leaks == ()
    assert monitored(lambda step: store.load((4096,), float(step))).leaks == ()


def test_a_limit_that_takes_gigabytes_is_reported_with_them() -> None:
    store = Store(1_000_000)
    store.recent.extend([(torch.zeros(4096), 0.5)] * 500)  # not empty at first
    leak = only(monitored(lambda _: store.recent.append((torch.zeros(4096), 0.5))))
    assert leak.limit_bytes == 4096 * 4 * 1_000_000
    assert leak.chains[0].container_limit == 1_000_000
    store = Store(1_000_000)
    leak = only(monitored(lambda step: store.load((4096,), float(step))))
    assert leak.limit_bytes == pytest.approx(4096 * 4 * 1_000_000, rel=0.05)


def test_a_list_that_keeps_what_a_deque_drops_is_a_leak() -> None:
    store = Store(100)

    def body(_: int) -> None:
        store.all.append(torch.zeros(4096))
        store.recent.append((store.all[-1], 0.5))

    leak = only(monitored(body))
    assert leak.limit_bytes is None
    assert any(".all[" in "".join(chain.parts) for chain in leak.chains)


def test_graphs_in_a_deque_are_a_leak_whatever_its_limit() -> None:
    store, weight = Store(1000), torch.ones(4096, requires_grad=True)
    leak = only(monitored(lambda _: store.recent.append((weight * 2, 0.5))))
    assert leak.graph is not None
    assert leak.limit_bytes is None


def test_the_holder_retains_most_tensors_and_not_only_the_sampled_one() -> None:
    live, sites = LiveTensors(), AllocationSampler()
    live.begin()
    live.scan(1, full=True)
    sites.begin()
    in_use = torch.zeros(5000)  # allocated here
    sites.end(2)
    live.scan(2)
    for step in range(3, 10):
        KEPT.append(torch.zeros(5000))
        live.scan(step)
    kinds = {
        storage.kind for _, storage in live.storages() if storage.bytes == 20000 and storage.is_aged
    }
    ((group, inspected),) = LeakInspector(live, sites, 9, 1).inspect_groups(kinds).items()
    sites.retain(lambda _: False)
    live.end()
    assert group[1] is not None

    assert inspected.stack[0][0] == __file__
    assert ".KEPT[" in "".join(inspected.chains[0].parts)
    assert len(in_use) == 5000


@pytest.mark.parametrize("interval", [40, 70])
def test_growth_that_comes_rarely_has_its_line(interval: int) -> None:
    def body(step: int) -> None:
        if step % interval == interval // 2:
            KEPT.append(torch.zeros(interval, 4096))  # allocated here

    leak = only(monitored(body, 14 * interval))
    assert leak.per_step_bytes == pytest.approx(16384, rel=0.15)
    assert code_of(leak).endswith("# allocated here")
    assert ".KEPT[" in holder_of(leak)


@pytest.mark.slow
def test_a_leak_of_another_thread_has_its_line() -> None:
    def keep() -> None:
        KEPT.append(torch.zeros(4096))  # allocated here

    with ThreadPoolExecutor(1) as pool:
        leak = only(monitored(lambda _: pool.submit(keep).result(), 60))
    assert leak.per_step_bytes == 16384
    assert code_of(leak).endswith("# allocated here")
    assert ".KEPT[" in holder_of(leak)


@pytest.mark.usefixtures("all_objects")
@pytest.mark.slow
def test_finished_tasks_of_asyncio_are_named_by_what_refers_to_them() -> None:
    async def fetch() -> Tensor:
        return torch.zeros(4096)  # allocated here

    def body(_: int) -> None:
        task = loop.create_task(fetch())
        KEPT.append(task)
        loop.run_until_complete(task)

    loop = asyncio.new_event_loop()
    try:
        leak = only(monitored(body))
    finally:
        loop.close()
    assert leak.per_step_bytes == 16384
    assert code_of(leak).endswith("# allocated here")
    assert ".KEPT[" in holder_of(leak)
    assert holder_of(leak).endswith("].result()")


def at_exit(_: Tensor) -> None:
    """Registered with a tensor."""


@pytest.mark.slow
def test_what_atexit_refers_to_is_named_as_arguments_of_a_callback() -> None:
    try:
        leak = only(monitored(lambda _: atexit.register(at_exit, torch.zeros(4096))))
    finally:
        atexit.unregister(at_exit)
    assert leak.per_step_bytes == 16384
    assert "atexit.register" in code_of(leak)
    assert holder_of(leak).startswith("the arguments of a callback in C, such as that of `atexit`")


OF_THREAD = threading.local()


@pytest.mark.usefixtures("all_objects")
def test_a_value_of_a_thread_is_named_by_its_attribute() -> None:
    OF_THREAD.seen = []
    try:
        leak = only(monitored(lambda _: OF_THREAD.seen.append(torch.zeros(4096))))
    finally:
        del OF_THREAD.seen
    assert leak.per_step_bytes == 16384
    assert "OF_THREAD.seen.append" in code_of(leak)
    assert ".OF_THREAD.seen[" in holder_of(leak)
    assert leak.chains[0].kind == "thread"


def test_a_line_without_holder_takes_the_holder_of_other_tensors_of_its_kind() -> None:
    kind, site = TensorKind("cpu", "float32", 15, has_graph=False), ("train.py", 3, "main")
    chain = Chain("module-global", ("__main__", ".kept"))
    inspections = {(kind, site): Inspection(5), (kind, None): Inspection(9, chains=(chain,))}
    evidence = Evidence(Series(), LiveTensors(), AllocationSampler(), inspections)
    assert leak_classifier._find_inspection(evidence, kind, site).chains == (chain,)


def test_a_line_that_allocated_once_has_no_share_of_what_another_explains() -> None:
    kind = TensorKind("cpu", "float32", 15, has_graph=False)
    kept, bucket = ("train.py", 3, "main"), ("train.py", 5, "main")
    sampled = [LiveStorage(step, 4096, kind) for step in (10, 11, 12)]
    sited = {kept: sampled, bucket: [LiveStorage(10, 4096, kind)]}

    assert leak_classifier._find_single(sited, [*range(40), 10]) == {bucket}
    assert leak_classifier._find_single({kept: sampled}, [*range(40)]) == set()
    # As many more stay as a line that allocates in every third step would leave.
    assert leak_classifier._find_single(sited, [*range(40), *range(1, 40, 3)]) == set()


@pytest.mark.parametrize(
    ("heap_per_step", "told"),
    [(16_000, 16_384), (17_000, 16_384), (19_000, 19_000), (24_000, 16_384), (40_000, 16_384)],
)
def test_a_single_leak_grows_as_the_heap_does_unless_much_of_that_is_unknown(
    heap_per_step: int, told: int
) -> None:
    series = Series()
    for step in range(1, 41):
        series.add(Sample(step, 0, {}, heap=Allocated(heap_per_step * step, 0)))
    chain = Chain("module-global", ("__main__", ".kept", "[3]"))
    leak = Leak("tensors", "cpu", 16_384, 1 << 20, 40, 1, 40, chains=(chain,))
    (whole,) = leak_classifier._with_rest_of_heap(series, [leak])
    assert total_per_step_bytes(whole) == pytest.approx(told, rel=0.001)

    other = replace(leak, per_step_bytes=100, chains=(replace(chain, parts=("other",)),))
    for leaks in ([leak, other], [replace(leak, device="cuda:0")]):
        assert leak_classifier._with_rest_of_heap(series, leaks) == leaks


def test_holders_and_lines_survive_an_inspection_that_finds_none() -> None:
    chain = Chain("module-global", ("__main__", ".kept"))
    before = Inspection(5, (("train.py", 3, "main"),), chains=(chain,))
    empty = Inspection(9)
    assert growth_inspections._with_earlier(empty, before) == replace(before, step=9)
    hidden = Inspection(9, is_hidden=True)
    assert growth_inspections._with_earlier(hidden, before) is before
    in_cycle = Inspection(9, cycle=("Node", "Node"))
    assert growth_inspections._with_earlier(in_cycle, before).chains == ()
    closing = (("train.py", 8, "main"),)
    closed = replace(in_cycle, closed_at=closing)
    assert growth_inspections._with_earlier(in_cycle, closed).closed_at == closing


def test_tensors_of_one_line_have_a_shape_if_it_is_common() -> None:
    leaks = [
        Leak(
            "tensors", "cpu", 1, 1, 1, 1, 9, chains=(Chain("frame", ("kept", "[3]")),), shape=shape
        )
        for shape in (TensorShape("float32", dims, 4) for dims in ((8, 8), (8, 8), (64, 8)))
    ]
    assert leak_classifier._merge(leaks[:2])[0].shape == leaks[0].shape
    assert leak_classifier._merge(leaks)[0].shape is None


class Node:
    """One half of a cycle."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.me = self


@pytest.mark.slow
def test_uncollected_cycles_are_reported_as_garbage() -> None:
    def body(_: int) -> None:
        Node(torch.zeros(4096))  # allocated here

    gc.disable()
    try:
        leak = only(monitored(body))
    finally:
        gc.enable()
    assert (leak.kind, leak.per_step_bytes) == ("garbage", 16384)
    assert code_of(leak).endswith("# allocated here")
    assert any("Node" in name for name in leak.cycle)
    assert leak.chains == ()


@pytest.mark.slow
def test_an_autograd_cycle_is_reported_with_the_line_that_closes_it() -> None:
    model = nn.Linear(64, 64)
    weights: list[weakref.ref[Tensor]] = []

    def body(_: int) -> None:
        copied = copy.deepcopy(model)
        weights.append(weakref.ref(copied.weight))
        loss = copied(torch.ones(8, 64)).square().sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch itself warns about it
            loss.backward(create_graph=True)  # allocated here
        torch.nn.utils.get_total_norm(
            parameter.grad for parameter in copied.parameters() if parameter.grad is not None
        )

    leak = only(monitored(body))
    gc.collect()
    alive = [weight for reference in weights if (weight := reference()) is not None]
    for weight in alive:
        weight.grad = None
    assert len(alive) == N_STEPS
    assert leak.kind == "garbage"
    assert leak.cycle == ("Parameter.grad", "Tensor.grad_fn", "AccumulateGrad", "Parameter.grad")
    assert code_of(leak).endswith("# allocated here")
    assert leak.chains == ()
    # A weight, its gradient, and two biases; other saved tensors have 8 rows each.
    assert 2 * 64 * 64 * 4 < leak.per_step_bytes < 2 * 64 * 64 * 4 + 8 * 8 * 64 * 4
    assert leak.nodes_per_step > 1


class Filled:
    """A cache that is filled by a third of the steps."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}

    def __call__(self, step: int) -> None:
        key = min(step, N_STEPS // 3)
        if key not in self.kept:
            self.kept[key] = torch.zeros(4096)


class Recent:
    """A bounded buffer."""

    def __init__(self) -> None:
        self.kept: deque[Tensor] = deque(maxlen=10)

    def __call__(self, _: int) -> None:
        self.kept.append(torch.zeros(4096))


class Cleared:
    """A list that is cleared regularly."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def __call__(self, step: int) -> None:
        if step % 9 == 0:
            self.kept.clear()
        self.kept.append(torch.zeros(4096))


class Trained:
    """A training step with batches of random length and an optimizer's state."""

    def __init__(self) -> None:
        self.model = nn.Linear(32, 32)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.lengths = torch.Generator().manual_seed(0)
        self.losses: list[float] = []
        self.curve: list[Tensor] = []

    def __call__(self, _: int) -> None:
        n = int(torch.randint(1, 500, (), generator=self.lengths))
        loss = self.model(torch.ones(n, 32)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.curve.append(loss.detach())


@pytest.mark.slow
@pytest.mark.parametrize("clean", [Filled, Recent, Cleared, Trained])
def test_programs_without_leaks_are_not_reported(clean: Callable[[], Body]) -> None:
    live = monitored(clean())
    assert live.leaks == ()
    assert live.n_evaluated_steps > 0


def test_a_buffer_that_fills_and_stops_is_not_reported_if_samples_are_too_expensive() -> None:
    nothing: dict[Work, float] = dict.fromkeys(get_args(Work), 0.0)
    monitor = LeakMonitor("test", "user", Budget(nothing, nothing))
    for step in range(200):
        if step < N_STEPS:
            KEPT.append(torch.zeros(1 << 18))
        monitor.step()
    live = monitor.finish()
    assert live.samples[-1].step > 200 / OVERDUE - 1
    assert live.leaks == ()
    assert live.n_evaluated_steps
    assert len(live.samples) < 20


@needs_saved_tensors
def test_what_graphs_save_is_measured_to_the_end_if_samples_are_too_expensive() -> None:
    monitor = LeakMonitor("test", "user", FREE)
    for _ in range(400):
        monitor.step()
    steps = [sample.step for sample in monitor.finish().samples if sample.graph_bytes is not None]
    # Each at twice the step of the one before, at the latest when the next sample is overdue.
    assert all(late <= 2 * OVERDUE * early + 1 for early, late in pairwise(steps))
    assert steps[-1] >= 400 / (2 * OVERDUE)


def test_samples_measure_the_program() -> None:
    before = sum(
        {
            thing.untyped_storage()._cdata: thing.untyped_storage().nbytes()
            for thing in gc.get_objects()
            if issubclass(type(thing), Tensor) and thing.layout == torch.strided
        }.values()
    )
    live = monitored(lambda _: KEPT.append(torch.zeros(1000)), 12)
    gained = [sum((sample.tensor_bytes or {}).values()) - before for sample in live.samples]
    assert gained == [4000 * sample.step for sample in live.samples]
    assert all((sample.host_rss_bytes or 0) > 1 << 20 for sample in live.samples)
    assert live.cost.total_ns > 0
    assert live.cost.n_samples == len(live.samples)


def test_traced_steps_are_not_sampled() -> None:
    monitor = LeakMonitor("test", "user")
    for step in range(20):
        KEPT.append(torch.zeros(1000))
        (monitor.skip if 5 <= step < 12 else monitor.step)()
    sampled = {sample.step for sample in monitor.finish().samples}
    assert sampled.isdisjoint(range(6, 13))
    assert monitor.n_steps == 20


def test_an_error_of_the_monitor_ends_monitoring_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> None:
        raise KeyError("a bug")

    monitor = LeakMonitor("test", "user")
    monitor.step()
    monkeypatch.setattr(growth_inspections, "suspected_kinds", broken)
    for _ in range(5):
        monitor.step()
    live = monitor.finish()
    assert live.not_measured
    assert "stopped monitoring memory" in capsys.readouterr().err


def test_what_a_signal_handler_of_the_program_raises_is_not_an_error_of_the_monitor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_signalled = False

    @contextlib.contextmanager
    def deferred() -> Iterator[None]:
        """Stand for a signal that arrives in the block, and whose handler runs after it."""
        yield
        if is_signalled:
            raise TimeoutError

    monkeypatch.setattr(signals, "held", deferred)
    monitor = LeakMonitor("test", "user", AMPLE)
    monitor.step()
    is_signalled = True
    for act in (monitor.step, monitor.skip, monitor.leaks):
        with pytest.raises(TimeoutError):
            act()
    is_signalled = False
    monitor.step()
    live = monitor.finish()
    assert [sample.step for sample in live.samples] == [1, 2, 4]
    assert live.not_measured == ()
    assert capsys.readouterr().err == ""


def test_an_error_of_the_monitor_ends_what_it_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise KeyError("a bug")

    monitor = LeakMonitor("test", "user", AMPLE)
    for _ in range(N_STEPS):
        KEPT.append(torch.zeros(4096))
        monitor.step()
        if monitor._instruments.sites.is_on:
            break
    assert torch._C._len_torch_dispatch_stack() == 1
    monkeypatch.setattr(monitor._instruments.live_tensors, "scan", broken)
    n_callbacks = len(gc.callbacks)
    monitor.step()
    assert torch._C._len_torch_dispatch_stack() == 0
    monitor.discard()
    assert len(gc.callbacks) == n_callbacks - 1


def test_too_few_steps_are_not_evaluated() -> None:
    live = monitored(lambda _: KEPT.append(torch.zeros(10_000)), 5)
    assert (live.n_evaluated_steps, live.leaks) == (0, ())


@pytest.mark.slow
@pytest.mark.parametrize("is_enabled", [True, False])
def test_python_objects_have_an_allocation_site_with_tracemalloc(*, is_enabled: bool) -> None:
    kept: list[list[str]] = []
    live = monitored(
        lambda step: kept.append([f"{step} {n}" * 400 for n in range(200)]),  # allocated here
        tracemalloc=is_enabled,
    )
    leak = only(live)
    assert (leak.kind, leak.type) == ("host", "str")
    assert "kept" in holder_of(leak)
    assert leak.code.endswith("# allocated here") or not is_enabled
    assert not tracemalloc.is_tracing()


@pytest.mark.slow
@pytest.mark.parametrize("is_recorded", [True, False])
def test_tracing_of_allocations_ends_before_a_step_is_recorded(*, is_recorded: bool) -> None:
    is_due = False
    monitor = LeakMonitor("test", "user", AMPLE, is_tracing=lambda: is_due)

    def is_traced() -> bool:
        return monitor._instruments.host.growth._tracing.is_on

    for step in range(60):
        KEPT.append([f"{step} {n}" * 400 for n in range(20)])
        monitor.step()
        # The heap is measured by operator first: what no operator allocates is traced.
        if is_traced():
            break
    assert is_traced()
    is_due = True
    (monitor.skip if is_recorded else monitor.step)()
    assert not is_traced()
    assert not monitor._instruments.host.is_sampling
    (traced,) = monitor._instruments.series.traced
    assert (traced.first, traced.last) == (step + 1, step + 2)
    assert traced.tracing_bytes > 0
    for _ in range(20):
        KEPT.append([f"{step} {n}" * 400 for n in range(20)])
        monitor.step()
        assert not is_traced()
    monitor.discard()


def test_monitoring_removes_its_callbacks() -> None:
    n_callbacks = len(gc.callbacks)
    monitored(lambda _: None, 12)
    assert len(gc.callbacks) == n_callbacks


def test_a_view_of_an_older_tensor_is_not_its_allocation() -> None:
    kept: list[Tensor] = []
    KEPT.append(kept)

    def body(_: int) -> None:
        kept.append(torch.zeros(4096))  # allocated here
        for row in kept:
            row[0].item()

    assert code_of(only(monitored(body))).endswith("# allocated here")
