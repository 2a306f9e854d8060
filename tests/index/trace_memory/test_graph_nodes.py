"""Nodes of the graph, counted on real programs against torch's own graph."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import profkit
from profkit.engine.context import Context
from profkit.index.trace_memory.graph_nodes import GraphNodes, find_graph_nodes
from profkit.model.trace import Trace


def nodes_of(folder: Path, program: Callable[[], object]) -> GraphNodes:
    """Return the nodes that a program made, as a trace of it tells."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        program()
        torch.ones(2, requires_grad=True)  # an operator more, so that the last node is seen
        torch.zeros(1).add(1)
    path = folder / "program.json"
    recorded.export_chrome_trace(str(path))
    trace = profkit.load(path)
    assert isinstance(trace, Trace)
    ctx = Context(trace=trace)
    return find_graph_nodes(ctx.events, ctx.tree)


def behind(result: torch.Tensor) -> int:
    """Nodes behind a result, those that only collect gradients left out."""
    seen, waiting = set(), [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return sum("AccumulateGrad" not in type(node).__name__ for node in seen)


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.GELU(),
        nn.LayerNorm(16),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, 1),
    )


def test_every_node_is_counted_and_used_by_its_backward_pass(
    network: nn.Module, tmp_path: Path
) -> None:
    expected = behind(network(torch.ones(4, 8)).mean())
    nodes = nodes_of(tmp_path, lambda: network(torch.ones(4, 8)).mean().backward())
    assert int(nodes.n.sum()) == expected
    assert nodes.is_used.all()
    assert (nodes.run == -1).all()


def test_a_graph_without_a_backward_pass_is_one_run_of_unused_nodes(
    network: nn.Module, tmp_path: Path
) -> None:
    expected = behind(network(torch.ones(4, 8)).mean())
    nodes = nodes_of(tmp_path, lambda: network(torch.ones(4, 8)).mean())
    assert int(nodes.n.sum()) == expected
    assert not nodes.is_used.any()
    assert set(nodes.run.tolist()) == {0}


def test_a_backward_pass_separates_runs(network: nn.Module, tmp_path: Path) -> None:
    def program() -> None:
        network(torch.ones(4, 8)).mean()
        network(torch.ones(4, 8)).mean().backward()
        network(torch.ones(4, 8)).mean()

    nodes = nodes_of(tmp_path, program)
    assert sorted(set(nodes.run.tolist())) == [-1, 0, 1]
    counts = [int(nodes.n[nodes.run == number].sum()) for number in (-1, 0, 1)]
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_is_no_node(
    network: nn.Module, tmp_path: Path, mode: Callable[[], torch.no_grad]
) -> None:
    def program() -> None:
        with mode():
            network(torch.ones(4, 8)).mean()

    assert len(nodes_of(tmp_path, program)) == 0


def test_a_frozen_network_creates_no_nodes(network: nn.Module, tmp_path: Path) -> None:
    network.requires_grad_(False)  # noqa: FBT003  (torch's signature)
    assert len(nodes_of(tmp_path, lambda: network(torch.ones(4, 8)).mean())) == 0
