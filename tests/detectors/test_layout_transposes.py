"""layout-transposes finds the conversions of layout around convolutions."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "layout-transposes"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)"
TO_NCHW = "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false>(int)"


def convolutions(
    transposes: tuple[str, ...] = (TO_NHWC, TO_NHWC, TO_NCHW),
    *,
    op: str = "aten::cudnn_convolution",
    transpose_ns: int = 20_000,
    conv_ns: int = 200_000,
    host_ns: int = 5_000,
    runtime: str = "cuda",
) -> TraceBuilder:
    """Steps of a convolution of 200 µs with transposes of 20 µs each."""
    b = TraceBuilder(stacks=True, runtime=runtime)
    for _ in range(3):
        with b.step(), b.frame("model.py", 20, "forward"), b.op(op):
            for name, dur_ns in [*((name, transpose_ns) for name in transposes), ("conv", conv_ns)]:
                b.advance(host_ns)
                ident = b.call("LaunchKernel", 4_000)
                b.kernel(name, dur_ns, correlation=ident)
            b.synchronize()
    return b


def test_it_costs_the_time_of_the_transposes(found: Found) -> None:
    (finding,) = found(convolutions(), RULE)
    # The convolution starts when it is launched, 27 µs after the first transpose.
    assert finding.cost.per_step_ns == 60_000 - 27_000
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 9)
    assert finding.evidence["transposes_ns"] == 9 * 20_000
    (where,) = finding.locations
    assert (where.file, where.line) == ("model.py", 20)
    assert finding.message == (
        "Convolutions in forward (model.py:20) convert tensors between NCHW and NHWC, 3 times per "
        "step: 60.0 µs per step (23% of the GPU's busy time)."
    )
    assert "channels_last" in finding.fix
    assert "MIOPEN" not in finding.fix


@pytest.mark.parametrize("name", ["batched_transpose_32x32_half", "transpose_NCHW2CNHW_V2_2D_WG"])
def test_searches_of_miopen_need_an_environment_variable_too(found: Found, name: str) -> None:
    b = convolutions((name,), op="aten::miopen_convolution", runtime="hip")
    (finding,) = found(b, RULE)
    assert "PYTORCH_MIOPEN_SUGGEST_NHWC=1" in finding.fix


def test_channels_last_is_the_fix(found: Found) -> None:
    assert found(convolutions(()), RULE) == ()


@pytest.mark.parametrize("op", ["aten::copy_", "aten::mm", "mylib::to_nhwc"])
def test_other_operators_that_transpose_are_not_reported(found: Found, op: str) -> None:
    assert found(convolutions(op=op), RULE) == ()


@pytest.mark.parametrize("name", ["elementwise_kernel", "gemm_transpose_tn", "my_transpose_kernel"])
def test_other_kernels_of_a_convolution_are_not_reported(found: Found, name: str) -> None:
    assert found(convolutions((name,) * 3), RULE) == ()


def test_a_transpose_of_the_input_alone_is_not_reported(found: Found) -> None:
    assert found(convolutions((TO_NHWC,), conv_ns=700_000), RULE) == ()


def test_where_the_host_is_late_it_is_a_note(found: Found) -> None:
    (finding,) = found(convolutions(host_ns=500_000), RULE)
    assert finding.severity == "note"
    assert finding.cost.ns == 0


def test_transposes_outside_the_steps_do_not_count(found: Found) -> None:
    b = convolutions(())
    with b.op("aten::cudnn_convolution"):
        ident = b.call("LaunchKernel", 4_000)
        b.kernel(TO_NHWC, 900_000, correlation=ident)
    assert found(b, RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "KER006"
