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
    has_gpu: bool = True,
) -> TraceBuilder:
    """Steps of a product and of a loop over tensors, 10 µs per operator and 1 µs of Python."""
    b = TraceBuilder(stacks=True, device_names=("NVIDIA H200",) if has_gpu else ())
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "update_average"):
            if has_gpu:
                b.launch("aten::mm", kernel="gemm", host_ns=1_000_000, device_ns=500, dims=[[8, 8]])
            else:
                b.compute("aten::mm", 1_000_000, dims=[[8, 8]])
            with (
                b.op(within) if within else nullcontext(),
                b.annotation(mark) if mark else nullcontext(),
            ):
                for shape in shapes * n_rounds:
                    for name in names:
                        b.advance(1_000)
                        if on_gpu and has_gpu:
                            launch(b, name, dims=[shape])
                        else:
                            b.compute(name, 10_000, dims=[shape])

    return b


def test_it_costs_nine_tenths_of_the_operators_and_python(found: Found) -> None:
    (finding,) = found(build_averaging(), RULE)
    # Nothing follows the last step, in which a kernel of 1.5 µs takes longer than its launch.
    assert finding.cost.ns == 3 * (40 * 9_000 + 39 * 1_000) - 39 * 500
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "medium", 120)
    assert finding.message == (
        "The loop in update_average (train.py:10) runs 40 operators per step on one tensor after "
        "the other, of 4 shapes. They take 400 µs per step (28%) on the host for 20.0 µs per step "
        "of kernels."
    )
    assert finding.fix.startswith("Call `torch._foreach_lerp_` once with lists of all tensors")
    assert "AveragedModel" in finding.fix


@pytest.mark.parametrize(
    ("names", "saved_ns"),
    [
        (("aten::mul_", "aten::add_"), 40 * (2_000 + 3_200) + 39 * 1_000),
        (("aten::lerp_",) * 2, 39 * 1_000),
    ],
)
def test_on_a_cpu_averages_cost_calls_and_two_passes_of_five(
    found: Found, names: tuple[str, ...], saved_ns: int
) -> None:
    (finding,) = found(build_averaging(names, has_gpu=False), RULE)
    assert finding.cost.per_step_ns == saved_ns
    assert finding.cost.basis == "estimate"
    assert "They take 400 µs per step (28%)." in finding.message


def test_norms_of_gradients_have_an_operator_for_lists(found: Found) -> None:
    (finding,) = found(build_averaging(("aten::linalg_vector_norm",)), RULE)
    assert finding.fix == "Call `torch._foreach_norm` once with a list of all tensors."


def build_clipping(*, name: str = "aten::pow", n_tensors: int = 20, gap: int = 0) -> TraceBuilder:
    """Steps of a product and of gradients' norms by hand, on a CPU and without source lines."""
    b = TraceBuilder(device_names=())
    shapes = (SHAPES * n_tensors)[:n_tensors]
    for _ in range(3):
        with b.step():
            b.compute("aten::mm", 1_000_000, dims=[[8, 8]])
            for shape in shapes:
                b.advance(1_000)
                b.compute(name, 12_000, dims=[shape])
                b.compute("aten::sum", 12_000, dims=[shape])
                b.compute("aten::item", 1_000, dims=[[]])
                for _ in range(gap):
                    b.compute("aten::addmm", 1_000, dims=[[8, 8]])
            for shape in shapes:
                b.compute("aten::mul_", 5_000, dims=[shape])

    return b


def test_clipping_by_hand_costs_its_reads_and_half_of_the_work(found: Found) -> None:
    (finding,) = found(build_clipping(), RULE)
    # An operator takes 2 µs to call. Powers and sums take half of the other 10 µs.
    assert finding.cost.per_step_ns == 20 * 1_000 + 19 * 1_000 + 40 * 5_000
    assert finding.message.startswith("A loop runs 80 operators per step on one tensor after")
    assert finding.fix.startswith(
        "Call `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`"
    )


@pytest.mark.parametrize(
    "b",
    [
        build_clipping(n_tensors=8),
        build_clipping(gap=4),  # a layer each
        build_clipping(name="aten::exp"),  # no norm
    ],
)
def test_sums_that_are_no_norms_of_a_loop_are_silent(found: Found, b: TraceBuilder) -> None:
    assert found(b, RULE) == ()


@pytest.mark.parametrize(
    "b",
    [
        build_averaging(shapes=([64, 64],) * 4),  # over time
        build_averaging(n_rounds=2),  # 16 operators
        build_averaging(("aten::mul", "aten::add")),  # of a network
        build_averaging(within="aten::lstm"),
        build_averaging(mark="Optimizer.step#SGD.step"),
        build_averaging(on_gpu=False),
        build_averaging(("aten::mul", "aten::add"), has_gpu=False),  # of a network on a CPU
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
