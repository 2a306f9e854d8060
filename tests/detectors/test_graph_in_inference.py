"""graph-in-inference finds graphs that are freed unused, and none that may be used later."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.capture_info import CaptureInfo, StepKind
from profkit.model.finding import Finding
from profkit.model.live_memory import Graph
from profkit.model.report import Report
from profkit.testing import LiveBuilder, TraceBuilder

RULE = "graph-in-inference"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MIB = 1 << 20
LAYERS = 4


class Program:
    """A network of four layers, each of which keeps a mebibyte for its backward."""

    def __init__(self, *, stacks: bool = True) -> None:
        self.b = TraceBuilder(stacks=stacks, memory=True, device_names=())
        self.n_nodes = 0
        self.stacks = stacks

    def frame(self, file: str, line: int, function: str) -> AbstractContextManager[object]:
        """Return a Python call, where the recording has stacks."""
        return self.b.frame(file, line, function) if self.stacks else nullcontext()

    def forward(self, *, gradients: bool = True) -> tuple[list[int], list[int]]:
        """Add a forward pass, and return its nodes and what they keep."""
        nodes, kept = [], []
        with self.frame("net.py", 5, "forward"):
            for _ in range(LAYERS):
                with self.b.op("aten::linear", sequence=self.n_nodes if gradients else None):
                    kept.append(self.b.alloc(MIB, device=None))
                    self.b.advance(1_000)
                nodes.append(self.n_nodes)
                self.n_nodes += gradients
        return nodes, kept

    def backward(self, nodes: list[int], kept: list[int], *, tells: bool = True) -> None:
        """Add a backward pass through some nodes, which releases what they kept."""
        for node, block in zip(reversed(nodes), reversed(kept), strict=True):
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            with self.b.op(name, sequence=node if tells else None, self_ns=1_000) as event:
                event.args = {**(event.args or {}), "Fwd thread id": 1}
                self.b.free(block)

    def train(self, *, tells: bool = True) -> None:
        with self.frame("train.py", 10, "train"):
            self.backward(*self.forward(), tells=tells)
            with self.b.annotation("Optimizer.step#SGD.step"):
                self.b.advance(500)

    def evaluate(self, *, gradients: bool = True, loss: bool = True) -> list[int]:
        """Add a forward pass and a loss, and return what they keep."""
        with self.frame("train.py", 40, "evaluate"):
            _, kept = self.forward(gradients=gradients)
            if loss:
                with self.b.op("aten::mse_loss", sequence=self.n_nodes if gradients else None):
                    self.b.advance(500)
                self.n_nodes += gradients
        return kept

    def drop(self, kept: list[int]) -> None:
        for block in kept:
            self.b.free(block)


def training(*, gradients: bool, dropped: bool = True, n_steps: int = 3) -> TraceBuilder:
    program = Program()
    for _ in range(n_steps):
        with program.b.step():
            program.train()
            kept = program.evaluate(gradients=gradients)
            if dropped:
                program.drop(kept)
    with program.b.step():
        program.train()
    return program.b


def test_an_evaluation_with_gradients_on_is_found_at_its_own_line(found: Found) -> None:
    # Each evaluation makes five nodes and keeps four mebibytes: one layer's own is read by the
    # loss and then its result.
    (finding,) = found(training(gradients=True), RULE)
    assert finding.n == 3 * (LAYERS + 1)
    assert finding.cost.bytes == LAYERS * MIB
    assert finding.cost.basis == "upper-bound"
    assert finding.severity == "warning"
    assert finding.confidence == "high"
    (where,) = finding.locations
    assert (where.file, where.line, where.function) == ("train.py", 40, "evaluate")
    assert finding.message == (
        "An autograd graph is built in evaluate (train.py:40) that no backward pass uses. Its 15 "
        "nodes (about 3.8 times per step) saved up to 4.00 MiB at one time."
    )


def test_without_gradients_it_is_cured(found: Found) -> None:
    assert found(training(gradients=False), RULE) == ()


def test_a_retained_graph_is_a_leak_and_not_reported_here(found: Found) -> None:
    assert found(training(gradients=True, dropped=False), RULE) == ()


def test_inference_alone_is_found_without_any_backward_pass(found: Found) -> None:
    program = Program()
    for _ in range(3):
        with program.b.step():
            program.drop(program.evaluate())
    (finding,) = found(program.b, RULE)
    # Where one pass follows another, what the last layer took is gone too soon to be told apart.
    assert finding.cost.bytes == (LAYERS - 1) * MIB


def test_a_training_step_that_the_recording_cuts_off_is_silent(found: Found) -> None:
    program = Program()
    for _ in range(3):
        with program.b.step():
            program.train()
    with program.b.frame("train.py", 10, "train"):
        program.forward()
    assert found(program.b, RULE) == ()


def test_losses_that_are_summed_and_go_backward_together_are_silent(found: Found) -> None:
    program = Program()
    for _ in range(2):
        graphs = []
        for _ in range(3):
            with program.b.step():
                graphs.append(program.forward())
        with program.b.step():
            for graph in graphs:
                program.backward(*graph)
    assert found(program.b, RULE) == ()


def test_a_backward_pass_beyond_the_recording_is_silent(found: Found) -> None:
    program = Program()
    for _ in range(3):
        with program.b.step():
            program.evaluate()
    assert found(program.b, RULE) == ()


def test_a_backward_pass_without_recorded_nodes_may_have_used_them(found: Found) -> None:
    program = Program()
    for _ in range(3):
        with program.b.step():
            program.train(tells=False)
    assert found(program.b, RULE) == ()


def test_what_a_backward_pass_computes_again_is_not_a_graph_of_its_own(found: Found) -> None:
    program = Program()
    for _ in range(3):
        with program.b.step():
            nodes, kept = program.forward()
            name = "autograd::engine::evaluate_function: CheckpointBackward"
            with program.b.op(name, sequence=nodes[-1]) as event:
                event.args = {**(event.args or {}), "Fwd thread id": 1}
                program.drop(program.evaluate())
            program.backward(nodes, kept)
    assert found(program.b, RULE) == ()


def alone(training_flag: str = "") -> Program:
    """Build one forward pass without steps, whose graph is alive at the end."""
    program = Program()
    program.evaluate()
    if training_flag:
        with program.b.op("aten::dropout", values=["", "0.1", training_flag]):
            program.b.advance(10)
    return program


def test_a_graph_that_is_alive_after_a_forward_pass_in_evaluation_mode_is_found(
    found: Found,
) -> None:
    (finding,) = found(alone("False").b, RULE)
    # The last layer's own is the result.
    assert finding.cost.bytes == (LAYERS - 1) * MIB
    assert (finding.severity, finding.confidence) == ("warning", "medium")
    assert finding.message == (
        "An autograd graph is built in forward (net.py:5) that no backward pass uses in this "
        "recording. Its 4 nodes hold 3.00 MiB when it ends."
    )


@pytest.mark.parametrize("training_flag", ["", "True"])
def test_where_it_may_be_the_forward_pass_of_a_training_step_it_is_a_note(
    found: Found, training_flag: str
) -> None:
    (finding,) = found(alone(training_flag).b, RULE)
    assert (finding.severity, finding.confidence) == ("note", "low")


@pytest.mark.parametrize(("steps", "n"), [("module", 1), ("loader", 0), ("optimizer", 0)])
def test_a_live_graph_of_steps_that_are_calls_of_a_module_is_a_note(
    found: Found, steps: StepKind, n: int
) -> None:
    program = Program()
    program.b.capture = CaptureInfo(version="1", name="generate", steps=steps)
    for _ in range(3):
        with program.b.step():
            program.evaluate()
    findings = found(program.b, RULE)
    assert [finding.confidence for finding in findings] == ["low"] * n


@pytest.mark.parametrize(("nodes_per_step", "n"), [(50.0, 0), (0.0, 1)])
def test_a_graph_that_the_memory_monitor_has_found_to_grow_is_one_finding(
    watched: Callable[..., LiveBuilder], tmp_path: Path, nodes_per_step: float, n: int
) -> None:
    alone("").b.write(tmp_path / "eval.pt.trace.json")
    graph = Graph(9_000, 1024, "AddmmBackward0") if nodes_per_step else None
    watched(graph=graph, nodes_per_step=nodes_per_step).write(tmp_path / "eval.memory.json")
    report = analyze(tmp_path / "eval.pt.trace.json", select=[RULE, "retained-graph"])
    assert [finding.name for finding in report.findings].count(RULE) == n
    assert [finding.name for finding in report.findings].count("retained-graph") == 1 - n


def test_without_steps_what_was_freed_before_the_end_does_not_count(found: Found) -> None:
    program = Program()
    kept = program.evaluate()
    program.b.free(kept[0])
    (finding,) = found(program.b, RULE)
    assert finding.cost.bytes == (LAYERS - 2) * MIB


def test_a_forward_pass_alone_in_a_recording_of_training_is_silent(found: Found) -> None:
    program = Program()
    program.train()
    program.evaluate()
    assert found(program.b, RULE) == ()


def test_a_figure_beside_the_loss_is_too_little(found: Found) -> None:
    program = Program()
    for _ in range(3):
        with program.b.step():
            nodes, kept = program.forward()
            for _ in range(2):
                with program.b.op("aten::softmax", sequence=program.n_nodes):
                    block = program.b.alloc(MIB, device=None)
                    program.b.advance(1_000)
                program.n_nodes += 1
            program.backward(nodes, kept)
            program.b.free(block)
    assert found(program.b, RULE) == ()


def test_operators_with_gradients_on_that_make_no_node_are_not_a_graph(found: Found) -> None:
    program = Program()
    for _ in range(3):
        with program.b.step():
            kept = []
            for _ in range(9):
                with program.b.op("aten::linear", sequence=7):
                    kept.append(program.b.alloc(MIB, device=None))
                    program.b.advance(1_000)
            program.drop(kept)
    assert found(program.b, RULE) == ()


def test_small_graphs_are_not_reported_and_larger_ones_are_a_note(found: Found) -> None:
    slow = training(gradients=True)
    assert found(slow, RULE, min_kept_bytes=5 * MIB) == ()
    (finding,) = found(slow, RULE, warning_kept_bytes=5 * MIB)
    assert finding.severity == "note"


def test_evaluation_outside_the_steps_does_not_count(found: Found) -> None:
    program = Program()
    for _ in range(3):
        with program.b.step():
            program.train()
        program.drop(program.evaluate())
    assert found(program.b, RULE) == ()


def test_without_lines_the_operator_is_named(found: Found) -> None:
    program = Program(stacks=False)
    for _ in range(3):
        with program.b.step():
            program.train()
            program.drop(program.evaluate())
    (finding,) = found(program.b, RULE)
    assert finding.confidence == "medium"
    assert finding.locations[0].op in {"aten::linear", "aten::mse_loss"}


def test_of_two_lines_that_evaluate_one_network_both_are_named(found: Found) -> None:
    program = Program()
    for _ in range(3):
        with program.b.step():
            program.train()
            program.drop(program.evaluate())
            with program.b.frame("train.py", 60, "sample"):
                _, kept = program.forward()
                for _ in range(2):
                    with program.b.op("aten::exp", sequence=program.n_nodes):
                        program.b.advance(10)
                    program.n_nodes += 1
            program.drop(kept)
    (finding,) = found(program.b, RULE)
    assert [where.line for where in finding.locations] == [60, 40]


def test_without_allocations_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "MEM013"
