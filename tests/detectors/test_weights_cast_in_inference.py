"""weights-cast-in-inference finds casts of parameters where nothing trains them."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "weights-cast-in-inference"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
LAYERS = 3
X, W, B = [8, 64], [256, 64], [256]


def cast(
    b: TraceBuilder,
    shape: list[int],
    kind: str,
    device_ns: int,
    sequence: int | None = None,
    target: str = "",
) -> None:
    dims, types, values = [shape, []], [kind, "Scalar"], ["", target]
    with (
        b.op("aten::to", self_ns=1_000, dims=dims, types=types, values=values, sequence=sequence),
        b.op("aten::_to_copy", dims=dims, types=types),
    ):
        b.launch("aten::copy_", kernel="copy", host_ns=5_000, device_ns=device_ns)


def inference(
    *tensors: list[int],
    kind: str = "float",
    op: str = "aten::linear",
    gradients: bool = False,
    n_steps: int = 3,
    target: str = "",
) -> TraceBuilder:
    """Steps of three layers at line 7, each with a cast of some tensors in 20 µs on the GPU."""
    b = TraceBuilder(stacks=True, shapes=True)
    for _ in range(n_steps):
        with b.step(), b.frame("net.py", 7, "forward"):
            for number in range(LAYERS):
                sequence = number if gradients else None
                with b.op(op, dims=[X, W, B], sequence=sequence):
                    for shape in tensors:
                        cast(b, shape, kind, 20_000, sequence, target)
                    b.launch("aten::addmm", kernel="gemm", host_ns=6_000, device_ns=30_000)
            b.synchronize()
    return b


def test_it_costs_the_time_of_the_casts(found: Found) -> None:
    (finding,) = found(inference(W, B), RULE)
    # The GPU, which is busy without end, has six casts of 20 µs per step.
    assert finding.cost.per_step_ns == pytest.approx(6 * 20_000, abs=6_000)
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "medium", 18)
    assert finding.evidence["host_ns"] == 18 * 6_000
    assert finding.evidence["device_ns"] == 18 * 20_000
    (where,) = finding.locations
    assert (where.file, where.line) == ("net.py", 7)
    assert finding.message == (
        "Float32 weights and biases are cast in forward (net.py:7) 6 times per step, though "
        "nothing trains them. This takes the host 36.0 µs per step, and the GPU 120 µs per step."
    )
    assert "`model.half()` or `model.bfloat16()`" in finding.fix


@pytest.mark.parametrize(
    ("target", "method"),
    [
        ("5", "model.half()"),
        ("15", "model.bfloat16()"),
        ("6", "model.half()` or `model.bfloat16()"),
    ],
)
def test_the_fix_casts_to_the_same_type(found: Found, target: str, method: str) -> None:
    (finding,) = found(inference(W, B, target=target), RULE)
    assert finding.fix.startswith(f"Cast the model once with `{method}`, and its inputs")


def test_casts_of_activations_are_not_reported(found: Found) -> None:
    assert found(inference(X, X), RULE) == ()


def test_casts_back_to_float32_are_not_reported(found: Found) -> None:
    assert found(inference(W, B, kind="c10::BFloat16"), RULE) == ()


def test_a_weight_of_the_inputs_shape_cannot_be_known(found: Found) -> None:
    b = TraceBuilder(shapes=True)
    for _ in range(3):
        with b.step():
            for _ in range(9):
                with b.op("aten::linear", dims=[W, W, B]):
                    cast(b, W, "float", 20_000)
    assert found(b, RULE) == ()


@pytest.mark.parametrize("op", ["aten::matmul", "aten::layer_norm", "aten::bmm"])
def test_casts_in_other_operators_are_not_reported(found: Found, op: str) -> None:
    assert found(inference(W, B, op=op), RULE) == ()


def test_casts_that_the_program_writes_are_not_reported(found: Found) -> None:
    b = TraceBuilder(shapes=True)
    for _ in range(3):
        with b.step():
            for _ in range(9):
                cast(b, W, "float", 20_000)
                b.launch("aten::linear", kernel="gemm", host_ns=6_000, device_ns=30_000)
    assert found(b, RULE) == ()


def test_training_needs_them(found: Found) -> None:
    b = inference(W, B)
    with b.step(), b.annotation("Optimizer.step#SGD.step"):
        b.compute("aten::add_", 9_000)
    assert found(b, RULE) == ()


def test_where_gradients_are_on_the_confidence_is_low(found: Found) -> None:
    (finding,) = found(inference(W, B, gradients=True), RULE)
    assert (finding.severity, finding.confidence) == ("note", "low")


def test_a_few_casts_are_not_reported(found: Found) -> None:
    assert found(inference(W, B), RULE, min_casts_count=7) == ()
    assert found(inference(W, B), RULE, min_saved_share=0.9) == ()


def test_without_shapes_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "KER012"
