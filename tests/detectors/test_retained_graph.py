"""retained-graph reports tensors that retain their autograd graph, and the fix."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from profkit.model.finding import Finding
from profkit.model.growth import Growth
from profkit.model.leak_bytes import NODE_BYTES
from profkit.model.live_memory import Chain, Graph, Leak, TensorShape
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "retained-graph"
UNDER_NO_GRAD = (
    " If nothing trains with it, compute it under `torch.no_grad()`, which builds no graph."
)
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024

BEHIND = Graph(1400, 12_000 * KIB, "NllLossBackward0")
SAVED = Graph(0, 12_000 * KIB, "NllLossBackward0")
LOSSES = (
    Chain("module-global", ("__main__", ".losses", "[199]"), "list", 200, "losses", is_entry=True),
)
HIDDEN = (Chain("frame", ("hidden", " in main at train.py:12"), name="hidden"),)
STATES = (Chain("frame", ("h", "[0]", " in f"), name="h", scope=" in f", is_entry=True),)
STATE = (Chain("instance", ("net", ".state", " in f"), name="net.state", scope=" in f"),)


def test_a_list_of_losses_is_reported_with_its_line_its_holder_and_its_graph(
    found: Found, watched: Watched
) -> None:
    b = watched(
        chains=LOSSES,
        graph=BEHIND,
        nodes_per_step=7.0,
        shape=TensorShape("float32", (), 4),
        code="losses.append(measure(net(x), y))",
    )

    (finding,) = found(b, RULE)
    assert finding.message == (
        "Host memory grows by 69.2 KiB per step (steps 1 to 200): 200 tensors of shape () "
        "float32, allocated at train.py:31 and retained by `losses` (list, 200 entries). Each "
        "step adds 7 graph nodes, which save 60.0 KiB for backward."
    )
    assert finding.fix == (
        "Write `losses.append(measure(net(x), y).item())`, which stores only the value."
        + UNDER_NO_GRAD
    )
    assert finding.cost.per_step_bytes == 64 * KIB + 7 * NODE_BYTES
    assert finding.cost.bytes == 200 * 64 * KIB + 1400 * NODE_BYTES
    assert finding.cost.basis == "measured"
    assert finding.holders == (("__main__", ".losses", "[199]"),)
    assert (finding.locations[0].file, finding.locations[0].line) == ("/home/me/train.py", 31)
    assert finding.evidence["graph_nodes"] == 1400
    assert finding.evidence["graph_saved_bytes"] == 12_000 * KIB
    assert finding.evidence["stack"] == ["/home/me/train.py:31 main", "/home/me/train.py:40 go"]
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 200)


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        (
            {
                "kind": "graph",
                "n": 1,
                "code": "total = total + loss",
                "shape": TensorShape("float32", (), 4),
            },
            f"Write `total = total + loss.item()`, which stores only the value.{UNDER_NO_GRAD}",
        ),
        (
            {"kind": "graph", "n": 1, "code": "hidden = cell(x, hidden)", "chains": HIDDEN},
            "Detach the state between steps: `hidden = hidden.detach()`.",
        ),
        (
            {"kind": "graph", "n": 1, "code": "y, h = lstm(x, h)", "chains": STATES},
            "Detach the states between steps: `h = tuple(state.detach() for state in h)`.",
        ),
        (
            {"kind": "graph", "n": 1, "chains": STATE},
            "Detach the state between steps: `net.state = net.state.detach()`.",
        ),
        (
            {"kind": "graph", "n": 1},
            f"Store `.detach()` of each tensor in `losses`.{UNDER_NO_GRAD}",
        ),
        (
            {"code": "loss = measure(output, y)", "shape": TensorShape("float32", (), 4)},
            f"Store `loss.item()` in `losses` instead of `loss`.{UNDER_NO_GRAD}",
        ),
        (
            {
                "code": "loss = measure(output, y)",
                "shape": TensorShape("float32", (), 4),
                "device": "cuda:0",
            },
            f"Store `loss.detach()` in `losses` instead of `loss`.{UNDER_NO_GRAD}",
        ),
        (
            {"code": "out = net(x)", "shape": TensorShape("float32", (120, 3), 4), "chains": ()},
            f"Store `out.detach()` instead of `out`.{UNDER_NO_GRAD}",
        ),
        (
            {"code": "out, state = net(x)"},
            f"Store `.detach()` of each tensor in `losses`.{UNDER_NO_GRAD}",
        ),
    ],
)
def test_the_fix_speaks_the_programs_own_names(
    found: Found, watched: Watched, changes: dict[str, object], fix: str
) -> None:
    (finding,) = found(watched(**({"chains": LOSSES, "graph": BEHIND} | changes)), RULE)
    assert finding.fix == fix


def test_the_chart_has_the_bytes_of_the_cost(found: Found, watched: Watched) -> None:
    measured = Growth((1, 100, 200), (0, 50 * 64 * KIB, 200 * 64 * KIB), (0, 100, 200))
    (finding,) = found(watched(chains=LOSSES, graph=BEHIND, growth=measured), RULE)
    assert finding.growth is not None
    assert finding.growth.bytes[-1] == finding.cost.bytes
    assert finding.growth.bytes[1] == 50 * 64 * KIB + 700 * NODE_BYTES
    assert finding.growth.n == measured.n
    (bare,) = found(watched(chains=LOSSES, graph=SAVED, growth=measured), RULE)
    assert bare.growth == measured


def test_one_number_with_a_chain_of_nodes_is_reported_as_one(
    found: Found, watched: Watched
) -> None:
    b = watched(
        kind="graph",
        n=1,
        graph=Graph(90_000, 0, "AddBackward0", is_exact=False),
        chains=(Chain("module-global", ("__main__.total",), name="total"),),
    )
    (finding,) = found(b, RULE)
    assert ": the autograd graph of 1 tensor, allocated at train.py:31 and retained by " in (
        finding.message
    )
    assert finding.message.endswith("The autograd graph has at least 90,000 nodes.")


@pytest.mark.parametrize(
    ("per_step_bytes", "severity"),
    [(1024, "note"), (4095, "note"), (4096, "warning"), (8 << 20, "error")],
)
def test_a_small_retained_graph_is_a_warning(
    found: Found, watched: Watched, per_step_bytes: int, severity: str
) -> None:
    (finding,) = found(watched(graph=SAVED, per_step_bytes=per_step_bytes), RULE)
    assert finding.severity == severity


def test_less_than_a_kib_per_step_is_not_reported(found: Found, watched: Watched) -> None:
    assert found(watched(graph=SAVED, per_step_bytes=550, bytes=200 * 550), RULE) == ()


@pytest.mark.parametrize(
    ("changes", "confidence"),
    [
        ({}, "high"),
        ({"n_evaluated_steps": 19}, "medium"),
        ({"stack": (), "stack_basis": "unknown"}, "medium"),
        ({"chains": ()}, "medium"),
        ({"chains": (), "stack": (), "stack_basis": "unknown"}, "low"),
        ({"chains": (), "n_evaluated_steps": 19}, "low"),
    ],
)
def test_it_is_as_sure_as_what_is_known(
    found: Found, watched: Watched, changes: dict[str, object], confidence: str
) -> None:
    (finding,) = found(watched(**({"graph": BEHIND} | changes)), RULE)
    assert finding.confidence == confidence


def test_without_a_line_the_bytes_are_an_estimate_and_no_place_is_named(
    found: Found, watched: Watched
) -> None:
    (finding,) = found(watched(graph=BEHIND, stack=(), stack_basis="unknown"), RULE)
    assert finding.cost.basis == "estimate"
    assert finding.locations == ()
    assert "tensors, retained by `kept`" in finding.message


def test_what_is_not_sure_is_not_an_error(found: Found, watched: Watched) -> None:
    b = watched(graph=BEHIND, per_step_bytes=64 << 20, chains=())
    assert found(b, RULE)[0].severity == "warning"


def test_tensors_without_a_graph_are_reported_by_another_rule(
    found: Found, watched: Watched
) -> None:
    assert found(watched(), RULE) == ()


def test_several_lines_are_several_findings_the_larger_first(
    found: Found, watched: Watched
) -> None:
    b = watched(graph=SAVED)
    b.add(Leak("graph", "cuda:0", 1 << 20, 200 << 20, 1, 5, 200, graph=SAVED))
    first, second = found(b, RULE)
    assert (first.cost.per_step_bytes, second.cost.per_step_bytes) == (1 << 20, 64 * KIB)
    assert "Memory of cuda:0 grows by 1.00 MiB per step (steps 5 to 200)" in first.message


def test_nodes_that_saved_nothing_take_host_memory_too(found: Found, watched: Watched) -> None:
    b = watched(
        kind="graph",
        device="cuda:0",
        per_step_bytes=0,
        bytes=4,
        n=1,
        graph=Graph(2400, 0, "AddBackward0"),
        nodes_per_step=12.5,
    )

    (finding,) = found(b, RULE)
    assert finding.message.startswith(
        "Host memory grows by about 9.38 KiB per step (steps 1 to 200): the autograd graph "
    )
    assert finding.cost.per_step_bytes == 12.5 * NODE_BYTES
    assert finding.cost.basis == "estimate"
    assert finding.severity == "warning"


def test_after_too_few_steps_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM003"
    assert unchecked.remedy == "Let the program run for more steps."


def test_a_detached_number_that_would_retain_a_batch_is_read(
    found: Found, watched: Watched
) -> None:
    b = watched(
        chains=LOSSES,
        graph=BEHIND,
        code="losses.append(loss)",
        storage_bytes=1 << 20,
        device="cuda:0",
        shape=TensorShape("float32", (), 4),
    )
    (finding,) = found(b, RULE)
    assert finding.fix.startswith(
        "Write `losses.append(loss.item())`, which stores only the value."
    )


def test_holders_of_one_graph_are_one_finding_with_one_sum(found: Found, watched: Watched) -> None:
    scores = (Chain("module-global", ("__main__", ".scores", "[199]"), name="scores"),)
    b = watched(chains=LOSSES, graph=replace(BEHIND, number=9))
    b.add(replace(b.build().leaks[0], chains=scores, per_step_bytes=2 * KIB))
    (finding,) = found(b, RULE)
    assert "`losses` and `scores` hold the same graph: it is freed only if each" in finding.message
    assert finding.fix.endswith("Do the same for `scores`.")
    assert finding.cost.per_step_bytes == 66 * KIB
    assert len(finding.holders) == 2


def test_an_inference_loop_is_to_run_without_a_graph(found: Found, watched: Watched) -> None:
    b = watched(chains=LOSSES, graph=BEHIND, code="outputs.append(out)")
    b.step_definition = "module"
    (finding,) = found(b, RULE)
    assert finding.fix.startswith("Run the loop under `torch.no_grad()`")


def test_a_sum_or_state_of_an_inference_loop_is_to_be_computed_without_a_graph(
    found: Found, watched: Watched
) -> None:
    b = watched(kind="graph", n=1, chains=HIDDEN, graph=BEHIND, code="total += loss")
    b.step_definition = "loader"
    (finding,) = found(b, RULE)
    assert finding.fix == (
        "Run the loop under `torch.no_grad()`, or `torch.inference_mode()`: it trains nothing."
    )


def test_a_loop_with_a_backward_pass_is_not_told_to_do_without(
    found: Found, watched: Watched
) -> None:
    b = watched(kind="graph", n=1, chains=HIDDEN, graph=Graph(900, 0, "N"), code="total += loss")
    b.step_definition = "loader"
    (finding,) = found(b, RULE)
    assert finding.fix == "Write `total += loss.item()`, which stores only the value."


def test_what_remains_without_the_graph_is_stated(found: Found, watched: Watched) -> None:
    half = Graph(1400, 100 * 64 * KIB, "TanhBackward0")
    b = watched(chains=LOSSES, graph=half, nodes_per_step=7.0, code="losses.append(picture)")
    (finding,) = found(b, RULE)
    assert finding.fix == (
        f"Write `losses.append(picture.detach())`, which stores only the value.{UNDER_NO_GRAD} "
        "The values alone take about 32.0 KiB per step: clear `losses` after use, or keep only "
        "the last ones."
    )


def test_no_line_of_several_is_the_one_to_rewrite(found: Found, watched: Watched) -> None:
    graph = Graph(1400, 0, "AddBackward0", number=3)
    b = watched(chains=LOSSES, graph=graph, nodes_per_step=7.0, per_step_bytes=1 * KIB)
    first = b.build().leaks[0]
    b = watched(chains=LOSSES, graph=graph, code="loss = f(x)", per_step_bytes=2 * KIB)
    b.add(replace(first, stack=first.stack[1:], code="logits = net(x)"))
    (finding,) = found(b, RULE)
    assert finding.fix == "Store `.detach()` of each tensor in `losses`."


def test_a_long_line_is_shown_whole(found: Found, watched: Watched) -> None:
    code = "self.smooth_loss = (self.beta * self.smooth_loss + (1 - self.beta) * loss)"
    shape = TensorShape("float32", (), 4)
    b = watched(kind="graph", n=1, chains=HIDDEN, graph=Graph(9, 0, "N"), code=code, shape=shape)
    (finding,) = found(b, RULE)
    assert "(1 - self.beta) * loss).item()`" in finding.fix


def test_what_an_object_holds_beside_graphs_is_in_the_same_finding(
    found: Found, watched: Watched
) -> None:
    values = Chain("instance", ("buffer", ".values", "[9]"), "list", 200, "buffer.values")
    states = replace(values, parts=("buffer", ".states", "[9]"), name="buffer.states")
    b = watched(chains=(values,), graph=BEHIND, per_step_bytes=8 * KIB)
    b.add(replace(b.build().leaks[0], chains=(states,), graph=None, per_step_bytes=24 * KIB))
    (finding,) = found(b, RULE)
    assert finding.message.endswith(
        "This is the sum of `buffer.values` (8.00 KiB) and `buffer.states` (24.0 KiB)."
    )
    assert finding.fix == (
        "Clear `buffer.values` and `buffer.states` together after their values are used, which "
        "frees all of it."
    )
    assert (finding.cost.per_step_bytes, finding.severity) == (32 * KIB, "warning")
    assert found(b, "growing-container") == ()


def test_a_graph_that_is_little_of_what_an_object_holds_is_not_its_cause(
    found: Found, watched: Watched
) -> None:
    values = Chain("instance", ("buffer", ".values", "[9]"), "list", 200, "buffer.values")
    states = replace(values, parts=("buffer", ".states", "[9]"), name="buffer.states")
    b = watched(chains=(values,), graph=BEHIND, per_step_bytes=8 * KIB)
    b.add(replace(b.build().leaks[0], chains=(states,), graph=None, per_step_bytes=1 << 20))
    assert found(b, RULE) == ()
    (finding,) = found(b, "growing-container")
    assert finding.cost.per_step_bytes == (1 << 20) + 8 * KIB
