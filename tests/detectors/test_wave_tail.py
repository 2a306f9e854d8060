"""wave-tail finds products whose last blocks keep few multiprocessors busy, and bounds the cost."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "wave-tail"
GEMM = "void cutlass_80_tensorop_s1688gemm_256x128_32x3_tn_align4(Params)"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    n_blocks: int = 144, *, kernel: str = GEMM, device_ns: int = 300_000, n_sms: int = 108
) -> TraceBuilder:
    """Three steps of a product of some blocks at line 12, and of one whose blocks fit."""
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": n_sms}
    b = TraceBuilder(head={"deviceProperties": [device]}, stacks=True)
    for _ in range(3):
        with b.step(), b.frame("model.py", 12, "forward"):
            for name, blocks, dur_ns in ((kernel, n_blocks, device_ns), (GEMM, n_sms, 100_000)):
                with b.op("aten::mm", self_ns=4_000):
                    ident = b.call("LaunchKernel", 4_000)
                    per_sm = {"blocks per SM": blocks / n_sms}
                    b.kernel(name, dur_ns, correlation=ident, **per_sm)
            b.synchronize()
    return b


def test_it_costs_at_most_the_time_of_the_idle_multiprocessors(found: Found) -> None:
    (finding,) = found(training(), RULE)
    # 144 blocks on 108 multiprocessors take two rounds, which would hold 216.
    assert finding.cost.per_step_ns == 300_000 * (216 - 144) // 216
    assert finding.cost.basis == "upper-bound"
    assert (finding.severity, finding.confidence, finding.n) == ("note", "medium", 3)
    assert finding.evidence["lost_share"] == 0.25

    (where,) = finding.locations
    assert (where.file, where.line) == ("model.py", 12)
    assert finding.message == (
        "Products and convolutions in forward (model.py:12) have slightly more blocks than a "
        "multiple of the multiprocessors, such as `cutlass_80_tensorop_s1688gemm_256x128_32x3_tn_"
        "align4` with 1.33 for each. They take 300 µs per step; multiprocessors wait for the last "
        "blocks in up to 33% of it."
    )
    assert "(108)" in finding.fix


@pytest.mark.parametrize("n_blocks", [108, 216, 432, 200, 300])
def test_blocks_that_fit_are_not_reported(found: Found, n_blocks: int) -> None:
    assert found(training(n_blocks), RULE) == ()


@pytest.mark.parametrize("n_blocks", [1, 54, 107, 108])
def test_persistent_and_small_kernels_are_not_reported(found: Found, n_blocks: int) -> None:
    assert found(training(n_blocks), RULE) == ()


def test_of_many_rounds_the_last_one_does_not_matter(found: Found) -> None:
    assert found(training(109 * 20), RULE) == ()


@pytest.mark.parametrize(
    "kernel", ["vectorized_elementwise_kernel", "reduce_kernel", "fmha_cutlassF_bf16_aligned"]
)
def test_kernels_that_are_limited_by_memory_are_not_reported(found: Found, kernel: str) -> None:
    assert found(training(kernel=kernel), RULE) == ()


def test_short_kernels_are_not_reported(found: Found) -> None:
    assert found(training(device_ns=19_000), RULE, min_lost_share=0.0) == ()


def test_a_small_share_of_the_kernel_time_is_not_reported(found: Found) -> None:
    assert found(training(), RULE, min_lost_share=0.3) == ()


def test_where_the_host_is_late_it_is_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            ident = b.call("LaunchKernel", 4_000)
            b.kernel(GEMM, 300_000, correlation=ident, **{"blocks per SM": 1.33})
            b.advance(900_000)
    assert found(b, RULE) == ()


def test_without_blocks_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert (unchecked.rule, unchecked.reason) == (
        "KER010",
        "The number of blocks of kernels was not recorded.",
    )
