"""COM008 unused-parameter-search."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "unused-parameter-search"
US = 1_000
SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"


def program(
    search_ns: int, *, steps: tuple[int, ...] = (0, 1, 2, 3), name: str = SEARCH
) -> TraceBuilder:
    """Steps of DDP, of which some search the graph after the forward pass."""
    b = TraceBuilder(stacks=True, device_names=())
    for step in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            with b.annotation("DistributedDataParallel.forward"):
                b.compute("aten::mm", 900 * US)
                if step in steps:
                    b.compute(name, search_ns)
            b.compute("autograd::engine::evaluate_function: MmBackward0", 2_000 * US)
    return b


@pytest.mark.parametrize(("search_ns", "severity"), [(100 * US, "warning"), (10 * US, "note")])
def test_it_costs_the_time_of_the_search(
    found: Callable[..., tuple[Finding, ...]], search_ns: int, severity: str
) -> None:
    (finding,) = found(program(search_ns), RULE)
    assert (finding.n, finding.cost.per_step_ns, finding.cost.basis) == (4, search_ns, "replay")
    assert finding.severity == severity
    assert finding.locations[0].file == "train.py"
    assert "searches the autograd graph for unused parameters once per step" in finding.message


@pytest.mark.parametrize(
    "silent",
    [
        program(0, steps=()),
        program(100 * US, steps=(0,)),
        program(100 * US, name="torch.distributed.ddp.reducer::copy_bucket_to_grad"),
    ],
    ids=["without the search", "static graph", "another operator of the reducer"],
)
def test_it_is_silent_where_steps_do_not_search(
    found: Callable[..., tuple[Finding, ...]], silent: TraceBuilder
) -> None:
    assert found(silent, RULE) == ()


def test_a_program_without_ddp_is_silent(
    found: Callable[..., tuple[Finding, ...]], host_alone: TraceBuilder
) -> None:
    assert found(host_alone, RULE) == ()


def test_it_is_skipped_without_operators(
    analyzed: Callable[..., Report], device_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "COM008"
