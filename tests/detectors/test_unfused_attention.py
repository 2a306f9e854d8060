"""unfused-attention finds products with a softmax between them, and what lies between them."""

from collections.abc import Callable
from typing import Any

import pytest

from profkit.model.capture_info import CaptureInfo, OpLines
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


@pytest.mark.parametrize(
    ("between", "arguments"),
    [
        (("aten::mul", "aten::_softmax"), "(q, k, v)`"),
        (("aten::mul", "aten::add", "aten::_softmax"), "(q, k, v, attn_mask=...)`"),
        (
            ("aten::div", "aten::tril", "aten::masked_fill", "aten::_softmax"),
            "(q, k, v, is_causal=True)`",
        ),
        (("aten::mul", "aten::_softmax", "aten::native_dropout"), "(q, k, v, dropout_p=...)`"),
        (("aten::_softmax",), "(q, k, v, scale=1.0)`"),  # T5, or a query that is scaled before
        (("aten::_softmax", "aten::mul"), "(q, k, v, scale=1.0)`"),
    ],
)
def test_the_programs_own_attention_is_told_what_to_call_with_which_arguments(
    found: Found, between: tuple[str, ...], arguments: str
) -> None:
    (finding,) = found(network(("aten::bmm", *between, "aten::bmm")), RULE)
    assert finding.fix == (
        f"Call `torch.nn.functional.scaled_dot_product_attention{arguments} in place of the "
        "products and the softmax."
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


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "KER005"


BATCHED: dict[str, Any] = {"dims": [[16, 1024, 64], [16, 64, 1024]], "types": ["c10::BFloat16"] * 2}


def build_of_shapes(product_ns: int, between_ns: int, *, is_fused: bool = False) -> TraceBuilder:
    """Build steps of a projection and attention by hand, or of one fused kernel, in bfloat16."""
    b = TraceBuilder(shapes=True)

    for _ in range(3):
        with b.step():
            b.launch("aten::add", kernel="add", host_ns=10_000, device_ns=900_000)
            if is_fused:
                b.launch("aten::_flash", kernel="flash", host_ns=10_000, device_ns=2 * product_ns)
            else:
                b.launch("aten::bmm", kernel="g", host_ns=10_000, device_ns=product_ns, **BATCHED)
                b.launch("aten::_softmax", kernel="s", host_ns=10_000, device_ns=between_ns)
                b.launch("aten::bmm", kernel="g", host_ns=10_000, device_ns=product_ns, **BATCHED)
            b.synchronize()
    return b


def test_the_upper_end_is_the_difference_to_a_program_with_a_fused_kernel(
    found: Found, analyzed: Analyzed
) -> None:
    """Products that write their scores are slow: 2.1 GFLOPs each, in 6.2 µs at 35% of the peak."""
    (finding,) = found(build_of_shapes(100_000, 300_000), RULE)
    fused_ns = round(2 * 16 * 1024 * 64 * 1024 / (0.35 * 989.4e12) * 1e9)
    before, after = (
        sum(step.dur_ns for step in analyzed(b, RULE).summary.steps)
        for b in (build_of_shapes(100_000, 300_000), build_of_shapes(fused_ns, 0, is_fused=True))
    )
    assert finding.cost.ns == 3 * 300_000
    # In hundredths, and beside the microsecond from one kernel to the next.
    assert finding.cost.high_ns == pytest.approx(before - after, abs=3 * 4_000)


def test_products_as_fast_as_a_fused_kernel_stay(found: Found) -> None:
    (finding,) = found(build_of_shapes(5_000, 300_000), RULE)
    assert finding.cost.high_ns == finding.cost.ns


def build_on_cpu(
    between: tuple[str, ...] = ("aten::div", "aten::softmax"),
    *,
    around: str = "aten::matmul",
    product_ns: int = 1_000_000,
) -> TraceBuilder:
    """Build steps of a layer of 4 FLOPs per ns, and of attention between views and casts."""
    b = TraceBuilder(shapes=True, device_names=())
    layer: dict[str, Any] = {"dims": [[1024, 512], [512, 1024]], "types": ["float"] * 2}
    product: dict[str, Any] = {"dims": [[16, 128, 64], [16, 64, 128]], "types": ["float"] * 2}

    for _ in range(3):
        with b.step():
            b.compute("aten::mm", 268_435_456, **layer)
            with b.op(around):
                b.compute("aten::bmm", product_ns, **product)
                b.compute("aten::transpose", 1_000)
                for name in between:
                    with b.op(name, self_ns=19_000_000):
                        # The number that a division is by is converted within it.
                        b.compute(
                            "aten::copy_" if name == "aten::div" else "aten::empty", 1_000_000
                        )
                b.compute("aten::_unsafe_view", 1_000)
                b.compute("aten::bmm", product_ns, **product)
    return b


def test_on_a_cpu_it_costs_the_operators_between_the_products(found: Found) -> None:
    (finding,) = found(build_on_cpu(product_ns=50_000_000), RULE)
    assert finding.cost.per_step_ns == 2 * 20_000_000
    # Each product of 33.6 MFLOPs takes 8.4 of 50 ms at the layer's rate, in hundredths.
    assert finding.cost.high_ns == 3 * (40_000_000 + 2 * 50_000_000 * 83 // 100)
    assert finding.confidence == "medium"
    assert "runs as separate operators" in finding.message


@pytest.mark.parametrize(
    ("between", "around"),
    [
        (("aten::softmax",), "aten::_scaled_dot_product_attention_math"),
        (("aten::sort", "aten::softmax"), "aten::matmul"),
        (("aten::div",), "aten::matmul"),
    ],
)
def test_a_cpu_has_no_fused_attention_for_it(
    found: Found, between: tuple[str, ...], around: str
) -> None:
    assert found(build_on_cpu(between, around=around), RULE) == ()


@pytest.mark.parametrize(
    ("around", "fix"),
    [
        ("aten::_scaled_dot_product_attention_math", "Set the dropout of the attention to 0, such"),
        ("aten::matmul", "Call `torch.nn.functional.scaled_dot_product_attention(q, k, v)` wi"),
    ],
)
def test_dropout_prevents_fused_attention_on_a_cpu(found: Found, around: str, fix: str) -> None:
    between = ("aten::div", "aten::softmax", "aten::dropout")
    (finding,) = found(build_on_cpu(between, around=around), RULE)
    assert finding.cost.per_step_ns == 3 * 20_000_000
    assert "runs as separate operators because of its dropout, once per step" in finding.message
    assert finding.fix.startswith(fix)


def test_attention_with_and_without_dropout_are_two_findings(found: Found) -> None:
    b = build_on_cpu()
    with b.step(), b.op("aten::_scaled_dot_product_attention_math"):
        product: dict[str, Any] = {"dims": [[16, 128, 64], [16, 64, 128]], "types": ["float"] * 2}
        b.compute("aten::bmm", 1_000_000, **product)
        b.compute("aten::softmax", 40_000_000)
        b.compute("aten::dropout", 20_000_000)
        b.compute("aten::bmm", 1_000_000, **product)
    findings = found(b, RULE)
    assert ["dropout" in finding.message for finding in findings] == [False, True]
    assert [finding.cost.ns for finding in findings] == [3 * 40_000_000, 60_000_000]


@pytest.mark.parametrize(
    ("file", "function", "fix"),
    [
        ("transformers/models/bert/modeling_bert.py", "forward", "Load the model with `attn_impl"),
        ("timm/models/vision_transformer.py", "forward", "Call `timm.layers.set_fused_attn(True)"),
        ("x_transformers/attend.py", "forward", "Pass `attn_flash=True` to the layers"),
        ("torch/nn/functional.py", "multi_head_attention_forward", "Pass `need_weights=False` to"),
        ("torch/nn/functional.py", "softmax", "Call `torch.nn.functional.scaled_dot_product_att"),
    ],
)
def test_a_librarys_model_has_an_option_for_it(
    found: Found, file: str, function: str, fix: str
) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 4, "main"), b.frame(file, 40, function):
            for name in BY_HAND:
                b.launch(name, kernel="kernel", host_ns=10_000, device_ns=100_000)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize(
    ("libraries", "fix"),
    [
        (["timm", "torch"], "Call `timm.layers.set_fused_attn(True)"),
        (["timm", "torch", "transformers"], "Call `torch.nn.functional.scaled_dot_product_att"),
        (["torch"], "Call `torch.nn.functional.scaled_dot_product_att"),
    ],
)
def test_without_calls_the_only_library_with_models_has_it(
    found: Found, libraries: list[str], fix: str
) -> None:
    names = ("aten::bmm", "aten::mul", "aten::_softmax", "aten::bmm")
    lines = OpLines(
        same_window=False,
        names=["aten::bmm", "aten::mul", "aten::_softmax"],
        frames=[("/work/train.py", 12, "main", 1)],
        modules=[],
        name=[0, 1, 2, 0],
        parent=[-1] * 4,
        thread=[1] * 4,
        external_id=[-1] * 4,
        frame=[0] * 4,
        module=[-1] * 4,
        in_library=[0, 1, 2, 3],
    )
    info = CaptureInfo(
        version="1", name="train", steps="optimizer", libraries=libraries, lines=lines
    )

    b = TraceBuilder(capture=info)
    for _ in range(3):
        with b.step():
            for name in names:
                b.launch(name, kernel="kernel", host_ns=10_000, device_ns=100_000)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.fix.startswith(fix)
