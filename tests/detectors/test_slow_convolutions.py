"""slow-convolutions finds convolutions on a CPU that run without oneDNN."""

from collections.abc import Callable
from typing import Any

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "slow-convolutions"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

SLOW = "aten::_slow_conv2d_forward"
FAST = "aten::mkldnn_convolution"


def program(operator: str, kind: str | None = None, *, dur_ns: int = 8_000_000) -> TraceBuilder:
    """Three steps of 10 ms with a convolution."""
    b = TraceBuilder(stacks=True, shapes=kind is not None, device_names=())
    inputs: dict[str, Any] = {"dims": [[8, 3, 48, 48]], "types": [kind]} if kind else {}
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "forward"):
            with b.op("aten::conv2d"), b.op(operator, self_ns=dur_ns, **inputs):
                pass
            b.compute("aten::relu", 10_000_000 - dur_ns)
    return b


@pytest.mark.parametrize(
    ("kind", "text", "fix"),
    [
        ("c10::Half", " in float16", "no fast convolution in float16"),
        ("c10::BFloat16", " in bfloat16", "leave out `torch.autocast`"),
        ("float", "", '`torch.device("mps")`'),
        (None, "", "mkldnn"),
    ],
)
def test_it_costs_what_fast_convolutions_save(
    found: Found, kind: str | None, text: str, fix: str
) -> None:
    (finding,) = found(program(SLOW, kind), RULE)
    assert finding.message == (
        f"Convolutions{text} in forward (train.py:10) run once per step in PyTorch's general, slow "
        "operator, which takes 8.00 ms per step (80%)."
    )
    assert (finding.cost.per_step_ns, finding.cost.basis) == (7_200_000, "estimate")
    assert fix in finding.fix


def test_convolutions_of_onednn_are_fast(found: Found) -> None:
    assert found(program(FAST, "float"), RULE) == ()


def test_a_small_convolution_that_torch_leaves_out_of_onednn_is_its_own_choice(
    found: Found,
) -> None:
    b = program(SLOW)
    with b.step():
        b.compute(FAST, 5_000_000)
    assert found(b, RULE) == ()


def test_float64_has_no_fast_precision(found: Found) -> None:
    assert found(program(SLOW, "double"), RULE) == ()


def test_short_ones_are_not_worth_a_change(found: Found) -> None:
    assert found(program(SLOW, "c10::Half", dur_ns=500_000), RULE) == ()


def test_a_gpu_without_cudnn_runs_kernels_in_them(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch(SLOW, kernel="im2col", host_ns=1_000_000, device_ns=900_000)
            b.synchronize()
    assert found(b, RULE) == ()


def test_it_is_skipped_without_operators(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    assert analyzed(device_alone, RULE).unchecked[0].rule == "KER013"
