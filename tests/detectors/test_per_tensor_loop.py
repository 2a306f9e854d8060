"""per-tensor-loop finds loops over tensors on a GPU, and none over time or within operators."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "per-tensor-loop"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
SHAPES = ([64, 64], [64], [128, 64], [128])


def launch(b: TraceBuilder, name: str, **inputs: Any) -> None:  # noqa: ANN401  (of several types)
    b.launch(name, kernel="elementwise", host_ns=10_000, device_ns=500, **inputs)


def build_averaging(
    names: tuple[str, ...] = ("aten::mul_", "aten::add_"),
    *,
    shapes: tuple[list[int], ...] = SHAPES,
    n_rounds: int = 5,
    within: str = "",
    mark: str = "",
    on_gpu: bool = True,
) -> TraceBuilder:
    """Steps of a product and of a loop over tensors, 10 µs per operator and 1 µs of Python."""
    b = TraceBuilder(stacks=True, device_names=("NVIDIA H200",))
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "update_average"):
            b.launch("aten::mm", kernel="gemm", host_ns=1_000_000, device_ns=500, dims=[[8, 8]])
            with (
                b.op(within) if within else nullcontext(),
                b.annotation(mark) if mark else nullcontext(),
            ):
                for shape in shapes * n_rounds:
                    for name in names:
                        b.advance(1_000)
                        if on_gpu:
                            launch(b, name, dims=[shape])
                        else:
                            b.compute(name, 10_000)

    return b


def test_it_costs_nine_tenths_of_the_operators_host_time(found: Found) -> None:
    (finding,) = found(build_averaging(), RULE)
    assert finding.cost.per_step_ns == 40 * 9_000
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "medium", 120)
    assert finding.message == (
        "The loop in update_average (train.py:10) runs 40 operators per step on one tensor after "
        "the other, of 4 shapes. They take 400 µs per step (28%) on the host for 20.0 µs per step "
        "of kernels."
    )
    assert "`torch._foreach_mul_` and `torch._foreach_add_` once" in finding.fix
    assert "AveragedModel" in finding.fix


def test_norms_of_gradients_have_an_operator_for_lists(found: Found) -> None:
    (finding,) = found(build_averaging(("aten::linalg_vector_norm",)), RULE)
    assert finding.fix == "Call `torch._foreach_norm` once with lists of all tensors."


@pytest.mark.parametrize(
    "b",
    [
        build_averaging(shapes=([64, 64],) * 4),  # over time
        build_averaging(n_rounds=2),  # 16 operators
        build_averaging(("aten::mul", "aten::add")),  # of a network
        build_averaging(within="aten::lstm"),
        build_averaging(mark="Optimizer.step#SGD.step"),
        build_averaging(on_gpu=False),
    ],
)
def test_other_operators_are_silent(found: Found, b: TraceBuilder) -> None:
    assert found(b, RULE) == ()


def test_without_shapes_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=("NVIDIA H200",))
    with b.step():
        launch(b, "aten::mul_")
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "KER014"
