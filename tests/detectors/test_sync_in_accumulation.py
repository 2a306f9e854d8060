"""COM009 sync-in-accumulation."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.detectors.ranks import COMM_STREAM, NCCL

RULE = "sync-in-accumulation"
US = 1_000


def reduce_gradients(b: TraceBuilder, dur_ns: int) -> None:
    """Add an all-reduce of NCCL that a hook of autograd starts after all launches."""
    with (
        b.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
        b.op("c10d::allreduce_"),
        b.annotation("nccl:all_reduce"),
    ):
        ident = b.call("LaunchKernel", 4 * US)
        b.kernel(NCCL, dur_ns, correlation=ident, stream=COMM_STREAM, at_ns=b.free_at_ns())


def build_program(
    n_passes: int, *, reducing: tuple[int, ...], n_forwards: int = 1, update: bool = True
) -> TraceBuilder:
    """Steps of DDP with some backward passes, of which some reduce gradients.

    Args:
        reducing: The passes that do.
        n_forwards: Forward passes before each backward pass.
        update: Whether the optimizer's steps are recorded.
    """
    b = TraceBuilder(stacks=True, head={"distributedInfo": {"rank": 0, "world_size": 2}})
    for _ in range(3):
        with b.step(), b.frame("train.py", 20, "train_step"):
            for number in range(n_passes):
                for _ in range(n_forwards):
                    with b.annotation("DistributedDataParallel.forward"):
                        b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=200 * US)
                with b.op("autograd::engine::evaluate_function: MmBackward0"):
                    b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=300 * US)
                if number in reducing:
                    reduce_gradients(b, 400 * US)
                    b.wait_for_event(b.free_at_ns())
            if update:
                with b.annotation("Optimizer.step#SGD.step"):
                    b.launch(
                        "aten::_foreach_add_", kernel="foreach", host_ns=10 * US, device_ns=50 * US
                    )
            b.synchronize()

    return b


def test_all_passes_but_the_last_one_need_not_reduce(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    (finding,) = found(build_program(4, reducing=(0, 1, 2, 3)), RULE)
    assert finding.n == 3 * 3
    assert finding.cost.per_step_ns == pytest.approx(3 * 400 * US, rel=0.05)
    assert finding.cost.basis == "replay"
    assert finding.severity == "warning"
    assert "reduces its gradients about 4 times per optimizer step" in finding.message
    assert "take 1.20 ms per step" in finding.message
    assert finding.locations[0].line == 20


@pytest.mark.parametrize(
    "silent",
    [
        build_program(4, reducing=(3,)),
        build_program(1, reducing=(0,)),
        build_program(1, reducing=(0,), n_forwards=3),
        build_program(4, reducing=(0, 1, 2, 3), update=False),
    ],
    ids=["no_sync", "no accumulation", "several forward passes", "no optimizer steps"],
)
def test_it_is_silent_where_gradients_are_reduced_once(
    found: Callable[..., tuple[Finding, ...]], silent: TraceBuilder
) -> None:
    assert found(silent, RULE) == ()


def test_it_is_silent_where_each_model_has_its_own_optimizer(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    b = build_program(1, reducing=(0,))
    for _ in range(2):
        with b.step():
            for _ in range(2):
                with b.annotation("DistributedDataParallel.forward"):
                    b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=200 * US)
                reduce_gradients(b, 400 * US)
                with b.annotation("Optimizer.step#SGD.step"):
                    b.compute("aten::add", 10 * US)
    assert found(b, RULE) == ()


def test_it_is_skipped_without_operators(
    analyzed: Callable[..., Report], device_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "COM009"
