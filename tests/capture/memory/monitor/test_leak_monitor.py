"""What grows is told with its line, its holder and its pace; what does not is not told."""

import copy
import gc
import tracemalloc
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from profkit.capture.memory.monitor import leak_monitor
from profkit.capture.memory.monitor.budget import Budget, Work
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.model.live_memory import Leak, LiveMemory

N_STEPS = 40
KEPT: list[object] = []
Body = Callable[[int], object]


@pytest.fixture(autouse=True)
def _empty() -> None:
    KEPT.clear()
    gc.collect()


# What is told within a budget depends on how many objects other tests have left behind.
AMPLE = Budget(
    free_s=dict.fromkeys(("full", "look", "graphs", "closer", "host", "collector", "judge"), 600.0)
)


def watched(body: Body, n_steps: int = N_STEPS, *, lines_of_python: bool = False) -> LiveMemory:
    watcher = LeakMonitor("test", "user", AMPLE, lines_of_python=lines_of_python)
    for step in range(n_steps):
        body(step)
        watcher.step()
    return watcher.finish()


def only(live: LiveMemory) -> Leak:
    assert len(live.leaks) == 1, live.leaks
    return live.leaks[0]


def code_of(growth: Leak) -> str:
    assert growth.stack[0].file == __file__
    return growth.code


def holder_of(growth: Leak) -> str:
    return "".join(growth.chains[0].parts)


def test_a_list_that_keeps_tensors_is_told_to_the_byte() -> None:
    ballast = torch.zeros(50 << 20, dtype=torch.uint8)
    live = watched(lambda _: KEPT.append(torch.zeros(128, 128)))
    growth = only(live)
    assert (growth.kind, growth.device, growth.per_step_bytes) == ("tensors", "cpu", 65536)
    assert "KEPT.append(torch.zeros(128, 128))" in code_of(growth)
    assert ".KEPT[" in holder_of(growth)
    assert growth.shape == "(128, 128) float32"
    assert live.n_evaluated_steps == N_STEPS - 1
    del ballast


def test_a_holder_in_the_program_is_named_before_a_nearer_one_in_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "also", [], raising=False)
    mine: dict[str, dict[str, dict[str, list[Tensor]]]] = {"of": {"the": {"program": []}}}
    KEPT.append(mine)

    def body(_: int) -> None:
        mine["of"]["the"]["program"].append(torch.zeros(4096))
        vars(torch)["also"].append(mine["of"]["the"]["program"][-1])

    first, *others = only(watched(body)).chains
    assert "['program']" in first.parts
    assert any(chain.parts[:2] == ("torch", ".also") for chain in others)


def test_who_holds_all_of_them_is_named_before_who_holds_the_last() -> None:
    last = torch.zeros(0)
    kept: dict[str, list[Tensor]] = {"all": []}
    KEPT.append(kept)

    def body(_: int) -> None:
        nonlocal last
        last = torch.zeros(4096)
        kept["all"].append(last)

    growth = only(watched(body))
    assert "['all']" in growth.chains[0].parts
    assert len(last) == 4096


@pytest.mark.parametrize("apart", [3, 8])
def test_what_is_kept_now_and_then_is_told_with_its_line_and_holder(apart: int) -> None:
    def body(step: int) -> None:
        if step % apart == 0:
            KEPT.append(torch.zeros(apart, 4096))  # made here

    growth = only(watched(body, 30 * apart))
    assert growth.per_step_bytes == pytest.approx(16384, rel=0.1)
    assert code_of(growth).endswith("# made here")
    assert ".KEPT[" in holder_of(growth)


def test_losses_kept_with_their_graphs_are_told_by_their_nodes() -> None:
    model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(_: int) -> None:
        loss = model(torch.ones(8, 4)).square().mean()  # made here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        KEPT.append(loss)

    growth = only(watched(body))
    assert growth.kind == "tensors"
    assert code_of(growth).endswith("# made here")
    assert ".KEPT[" in holder_of(growth)
    assert growth.graph is not None
    # mean, square, two layers and a relu, and their two transposes; the leaves are shared.
    assert growth.nodes_per_step == pytest.approx(7, abs=1)


def test_outputs_that_their_own_nodes_have_saved_are_told_by_who_holds_the_outputs() -> None:
    layer = nn.Linear(16, 256)

    def body(_: int) -> None:
        inner = torch.relu(layer(torch.ones(64, 16)))  # made within
        KEPT.append(torch.tanh(inner * 2))  # made here

    growth = only(watched(body))
    assert growth.kind == "tensors"
    assert code_of(growth).endswith("# made here")
    assert ".KEPT[" in holder_of(growth)
    assert growth.graph is not None
    # What relu() has saved is its own output, which nobody else keeps; the layer saves its input.
    output, saved = 64 * 256 * 4, 64 * 256 * 4 + 64 * 16 * 4
    # Shared leaves are nodes too: a tenth of them where the closer look was after four steps.
    assert growth.per_step_bytes == pytest.approx(output + saved, rel=0.1)
    # tanh, the product, relu, the layer and its transpose; the two leaves are shared.
    n_walked = (growth.graph.n_nodes - 2) / 5
    assert growth.graph.saved_bytes == pytest.approx(n_walked * saved, rel=0.01)


def test_a_running_total_is_told_as_one_graph_that_grows() -> None:
    weight = torch.ones(100, requires_grad=True)
    total = torch.zeros(())

    def body(_: int) -> None:
        nonlocal total
        total = total + weight.exp().sum()  # made here

    growth = only(watched(body))
    assert growth.kind == "graph"
    assert code_of(growth).endswith("# made here")
    assert "total" in holder_of(growth)
    assert growth.nodes_per_step == 3
    assert growth.per_step_bytes == pytest.approx(400, rel=0.1)  # what exp() saved


def test_a_graph_that_stays_as_it_is_does_not_hide_the_one_that_grows() -> None:
    weight = torch.ones(100, requires_grad=True)
    standing = weight
    for _ in range(4 * N_STEPS):
        standing = standing.exp()
    total = torch.zeros(())

    def body(_: int) -> None:
        nonlocal total
        total = total + weight.exp().sum()  # made here

    growth = only(watched(body))
    assert code_of(growth).endswith("# made here")
    assert "total" in holder_of(growth)
    assert growth.graph is not None
    assert growth.graph.root == "AddBackward0"
    assert standing.grad_fn is not None


def test_a_tensor_that_is_made_anew_and_larger_is_told() -> None:
    seen = torch.zeros(0, 64)

    def body(_: int) -> None:
        nonlocal seen
        seen = torch.cat([seen, torch.zeros(32, 64)])  # made here

    growth = only(watched(body))
    assert (growth.n, growth.per_step_bytes) == (1, 8192)
    assert code_of(growth).endswith("# made here")
    assert "seen" in holder_of(growth)


class Node:
    """One half of a cycle."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.me = self


def test_cycles_that_wait_for_the_collector_are_told_as_such() -> None:
    def body(_: int) -> None:
        Node(torch.zeros(4096))  # made here

    gc.disable()
    try:
        growth = only(watched(body))
    finally:
        gc.enable()
    assert (growth.kind, growth.per_step_bytes) == ("garbage", 16384)
    assert code_of(growth).endswith("# made here")
    assert any("Node" in name for name in growth.cycle)
    assert growth.chains == ()


def test_a_ring_of_autograds_is_told_with_the_line_that_closes_it() -> None:
    model = nn.Linear(64, 64)
    weights: list[weakref.ref[Tensor]] = []

    def body(_: int) -> None:
        copied = copy.deepcopy(model)
        weights.append(weakref.ref(copied.weight))
        loss = copied(torch.ones(8, 64)).square().sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch itself warns of it
            loss.backward(create_graph=True)  # made here
        torch.nn.utils.get_total_norm(
            one.grad for one in copied.parameters() if one.grad is not None
        )

    growth = only(watched(body))
    gc.collect()
    alive = [weight for one in weights if (weight := one()) is not None]
    for weight in alive:
        weight.grad = None
    assert len(alive) == N_STEPS
    assert growth.kind == "garbage"
    assert growth.cycle == ("Parameter.grad", "Tensor.grad_fn", "AccumulateGrad", "Parameter.grad")
    assert code_of(growth).endswith("# made here")
    assert growth.chains == ()
    # A weight, its gradient, and two biases; what else the graphs keep are 8 rows each.
    assert 2 * 64 * 64 * 4 < growth.per_step_bytes < 2 * 64 * 64 * 4 + 8 * 8 * 64 * 4
    assert growth.nodes_per_step > 1


class Filled:
    """A cache that is filled by a third of the steps."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}

    def __call__(self, step: int) -> None:
        key = min(step, N_STEPS // 3)
        if key not in self.kept:
            self.kept[key] = torch.zeros(4096)


class Recent:
    """The last few."""

    def __init__(self) -> None:
        self.kept: deque[Tensor] = deque(maxlen=10)

    def __call__(self, _: int) -> None:
        self.kept.append(torch.zeros(4096))


class Cleared:
    """A list that is cleared now and then."""

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


@pytest.mark.parametrize("clean", [Filled, Recent, Cleared, Trained])
def test_what_does_not_leak_is_not_told(clean: Callable[[], Body]) -> None:
    live = watched(clean())
    assert live.leaks == ()
    assert live.n_evaluated_steps > 0


def test_what_fills_and_stops_is_not_told_where_looks_are_too_dear() -> None:
    nothing: dict[Work, float] = dict.fromkeys(get_args(Work), 0.0)
    watcher = LeakMonitor("test", "user", Budget(nothing, nothing))
    for step in range(200):
        if step < N_STEPS:
            KEPT.append(torch.zeros(1 << 18))
        watcher.step()
    live = watcher.finish()
    assert live.samples[-1].step > 200 / 1.5 - 1
    assert live.leaks == ()
    assert live.n_evaluated_steps
    assert len(live.samples) < 20


def test_figures_of_a_step_are_those_of_the_program() -> None:
    before = sum(
        {
            one.untyped_storage()._cdata: one.untyped_storage().nbytes()
            for one in gc.get_objects()
            if isinstance(one, Tensor) and one.layout == torch.strided
        }.values()
    )
    live = watched(lambda _: KEPT.append(torch.zeros(1000)), 12)
    told = [sum((look.tensor_bytes or {}).values()) - before for look in live.samples]
    assert told == [4000 * look.step for look in live.samples]
    assert all((look.host_rss_bytes or 0) > 1 << 20 for look in live.samples)
    assert live.cost.total_ns > 0
    assert live.cost.n_samples == len(live.samples)


def test_recorded_steps_are_not_disturbed() -> None:
    watcher = LeakMonitor("test", "user")
    for step in range(20):
        KEPT.append(torch.zeros(1000))
        (watcher.skip if 5 <= step < 12 else watcher.step)()
    looked_at = {look.step for look in watcher.finish().samples}
    assert looked_at.isdisjoint(range(6, 13))
    assert watcher.n_steps == 20


def test_a_fault_of_the_watcher_ends_the_watching_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> None:
        raise KeyError("a bug")

    watcher = LeakMonitor("test", "user")
    watcher.step()
    monkeypatch.setattr(leak_monitor, "suspects", broken)
    for _ in range(5):
        watcher.step()
    live = watcher.finish()
    assert live.not_measured
    assert "stopped watching memory" in capsys.readouterr().err


def test_too_few_steps_are_not_judged() -> None:
    live = watched(lambda _: KEPT.append(torch.zeros(10_000)), 5)
    assert (live.n_evaluated_steps, live.leaks) == (0, ())


@pytest.mark.parametrize("is_asked", [True, False])
def test_pythons_own_objects_are_told_with_their_line_if_that_was_asked_for(
    *, is_asked: bool
) -> None:
    live = watched(
        lambda step: KEPT.append([f"{step} {n}" * 400 for n in range(200)]),  # made here
        lines_of_python=is_asked,
    )
    growth = only(live)
    assert (growth.kind, growth.type) == ("host", "str")
    assert ".KEPT" in holder_of(growth)
    assert growth.code.endswith("# made here") is is_asked
    assert bool(growth.stack) is is_asked
    assert not tracemalloc.is_tracing()


def test_watching_leaves_nothing_behind() -> None:
    n_callbacks = len(gc.callbacks)
    watched(lambda _: None, 12)
    assert len(gc.callbacks) == n_callbacks
