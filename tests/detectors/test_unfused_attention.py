"""unfused-attention finds products with a softmax between them, and what lies between them."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "unfused-attention"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
BY_HAND = ("aten::bmm", "aten::mul", "aten::_softmax", "aten::native_dropout", "aten::bmm")


def network(
    operators: tuple[str, ...] = BY_HAND,
    *,
    around: str = "aten::matmul",
    linear_ns: int = 400_000,
    device_ns: int = 100_000,
) -> TraceBuilder:
    """Steps of a linear layer and one layer of attention, each kernel of 100 µs."""
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("model.py", 40, "forward"):
            b.launch("aten::addmm", kernel="gemm", host_ns=10_000, device_ns=linear_ns)
            with b.op(around):
                for name in operators:
                    b.launch(name, kernel="kernel", host_ns=10_000, device_ns=device_ns)
            b.synchronize()
    return b


def test_it_costs_the_kernels_between_the_products(found: Found) -> None:
    (finding,) = found(network(), RULE)
    # Three kernels of 100 µs, each with the 1 µs to the next.
    assert finding.cost.per_step_ns == 300_000
    assert finding.cost.basis == "estimate"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 3)
    assert finding.evidence["products_ns"] == 3 * 200_000
    assert finding.evidence["between_ns"] == 3 * 300_000
    (where,) = finding.locations
    assert (where.file, where.line) == ("model.py", 40)
    assert finding.message == (
        "Attention in forward (model.py:40) runs as separate kernels, once per step: its products, "
        "softmax and what is between take 500 µs per step (56% of the GPU's busy time), 300 µs per "
        "step of it without the products."
    )


def test_the_backward_passes_of_what_is_between_count_too(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for number, name in enumerate(("aten::bmm", "aten::_softmax", "aten::bmm")):
                with b.op(name, sequence=number, self_ns=6_000):
                    ident = b.call("LaunchKernel", 4_000)
                    b.kernel("kernel", 100_000, correlation=ident)
            with b.thread(3000):
                for number, name in ((2, "Bmm"), (1, "Softmax"), (0, "Bmm")):
                    with b.op(f"autograd::engine::evaluate_function: {name}Backward0") as event:
                        event.args |= {"Sequence number": number, "Fwd thread id": 1}  # type: ignore[operator]
                        b.launch("aten::grad", kernel="kernel", host_ns=10_000, device_ns=150_000)
            b.synchronize()

    (finding,) = found(b, RULE)
    assert finding.evidence["between_ns"] == 3 * (100_000 + 150_000)
    assert finding.evidence["products_ns"] == 3 * 2 * (100_000 + 150_000)
    assert finding.cost.per_step_ns == 250_000


@pytest.mark.parametrize(
    "operators",
    [
        ("aten::_flash_attention_forward",),
        ("aten::_efficient_attention_forward",),
        ("aten::addmm", "aten::_softmax", "aten::topk"),  # a gate
        ("aten::mm", "aten::_softmax", "aten::mm"),
        ("aten::bmm", "aten::_softmax"),
        ("aten::bmm", "aten::addmm", "aten::_softmax", "aten::bmm"),
        ("aten::bmm", "aten::_log_softmax", "aten::bmm"),
        ("aten::bmm", "aten::relu", "aten::bmm"),
        ("aten::bmm", "aten::sort", "aten::_softmax", "aten::bmm"),
    ],
)
def test_a_fused_kernel_is_the_fix_and_other_softmaxes_are_not_attention(
    found: Found, operators: tuple[str, ...]
) -> None:
    assert found(network(operators), RULE) == ()


def test_copies_into_another_layout_remain_and_casts_do_not(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::bmm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            with b.op("aten::_to_copy"):
                b.launch("aten::copy_", kernel="cast", host_ns=10_000, device_ns=30_000)
            b.launch("aten::_softmax", kernel="softmax", host_ns=10_000, device_ns=100_000)
            with b.op("aten::clone"):
                b.launch("aten::copy_", kernel="copy", host_ns=10_000, device_ns=70_000)
            b.launch("aten::bmm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.evidence["between_ns"] == 3 * 130_000


@pytest.mark.parametrize(
    ("around", "said"),
    [
        ("aten::_scaled_dot_product_attention_math", "sdpa_kernel"),
        ("aten::_native_multi_head_attention", "`need_weights=False`"),
        ("aten::matmul", "`torch.nn.functional.scaled_dot_product_attention("),
    ],
)
def test_the_fix_is_for_the_caller(found: Found, around: str, said: str) -> None:
    (finding,) = found(network(around=around), RULE)
    assert said in finding.fix


def test_attention_that_takes_little_is_not_reported(found: Found) -> None:
    (finding,) = found(network(linear_ns=6_500_000), RULE)
    assert finding.severity == "note"
    assert found(network(linear_ns=20_000_000), RULE) == ()


def test_kernels_that_wait_for_their_launches_save_nothing(found: Found) -> None:
    assert found(network(linear_ns=1_000, device_ns=500), RULE) == ()


def test_attention_outside_the_steps_does_not_count(found: Found) -> None:
    b = network(("aten::add",))
    for name in BY_HAND:
        b.launch(name, kernel="kernel", host_ns=10_000, device_ns=900_000)
    assert found(b, RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "KER005"


def test_a_model_of_transformers_is_loaded_with_fused_attention(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with (
            b.step(),
            b.frame("train.py", 4, "main"),
            b.frame("transformers/models/bert/modeling_bert.py", 40, "forward"),
        ):
            for name in BY_HAND:
                b.launch(name, kernel="kernel", host_ns=10_000, device_ns=100_000)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.fix.startswith('Load the model with `attn_implementation="sdpa"`')
    assert "functional" not in finding.fix
