"""unfused-pointwise finds chains of elementwise kernels, and what fusing each of them saves."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "unfused-pointwise"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
)
CHAIN = (("aten::mul", 100_000), ("aten::add", 60_000), ("aten::relu", 80_000))


def network(
    chain: tuple[tuple[str, int], ...] = CHAIN,
    *,
    kernel: str = KERNEL,
    matmul_ns: int = 100_000,
    between: str = "",
    around: str = "region",
    streams: tuple[int, ...] = (7,),
) -> TraceBuilder:
    """Steps of a matmul and elementwise operators, whose kernels keep the device busy."""
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("model.py", 30, "forward"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=matmul_ns)
            with b.annotation(around):
                for number, (name, dur_ns) in enumerate(chain):
                    stream = streams[number % len(streams)]
                    b.launch(name, kernel=kernel, host_ns=5_000, device_ns=dur_ns, stream=stream)
                    if between:
                        b.launch(between, kernel="other", host_ns=5_000, device_ns=1_000)
            b.synchronize()
    return b


def test_each_chain_takes_as_long_as_its_longest_kernel(found: Found) -> None:
    (finding,) = found(network(), RULE)
    assert finding.cost.per_step_ns == 60_000 + 80_000
    assert finding.cost.basis == "estimate"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "medium", 9)
    assert finding.evidence["kernel_share"] == round(240 / 340, 4)
    assert finding.evidence["needless_ns"] == 3 * 140_000
    (where,) = finding.locations
    assert (where.file, where.line) == ("model.py", 30)
    assert finding.message == (
        "Elementwise kernels take 71% of the kernel time, and nothing is compiled. Chains of them "
        "in forward (model.py:30) take 240 µs per step, 140 µs per step of it beyond the longest "
        "kernel of each."
    )


@pytest.mark.parametrize(
    ("file", "has_functions"),
    [("transformers/models/qwen2/modeling_qwen2.py", False), ("net.py", True)],
)
def test_a_librarys_model_can_only_be_compiled(
    found: Found,
    file: str,
    has_functions: bool,  # noqa: FBT001
) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("model.py", 30, "run"), b.frame(file, 200, "forward"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            for name, dur_ns in CHAIN:
                b.launch(name, kernel=KERNEL, host_ns=5_000, device_ns=dur_ns)
            b.synchronize()

    (finding,) = found(b, RULE)
    assert ("`F.rms_norm`" in finding.fix) == has_functions


def test_kernels_that_convert_while_they_compute_count_on_amd_too(found: Found) -> None:
    # The main grad in float32 plus a gradient in bfloat16: CUDALoops.cuh of ROCm.
    kernel = (
        "void at::native::vectorized_templated_elementwise_kernel<4, "
        "at::native::CUDAFunctor_add<float>, at::native::memory::LoadWithCast<2> >(int)"
    )
    (finding,) = found(network(kernel=kernel), RULE)
    assert finding.cost.per_step_ns == 60_000 + 80_000


def test_two_chains_keep_a_kernel_each(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(2):
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
                b.launch("aten::mul", kernel=KERNEL, host_ns=5_000, device_ns=50_000)
                b.launch("aten::add", kernel=KERNEL, host_ns=5_000, device_ns=50_000)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == 100_000


@pytest.mark.parametrize(
    "name", ["triton_poi_fused_add_0", "Torch-Compiled Region: 0/0", "CompiledFunction"]
)
def test_a_compiled_program_is_not_reported(found: Found, name: str) -> None:
    b = network()
    b.launch(name, kernel=name, host_ns=5_000, device_ns=1_000)
    assert found(b, RULE) == ()


def test_single_elementwise_kernels_between_others_are_not_a_chain(found: Found) -> None:
    assert found(network(between="aten::mm"), RULE) == ()


def test_kernels_of_several_streams_are_not_a_chain(found: Found) -> None:
    assert found(network(streams=(7, 13)), RULE) == ()


def test_a_single_fused_kernel_is_the_fix(found: Found) -> None:
    assert found(network((("aten::mul", 100_000),)), RULE) == ()


def test_other_kernels_are_not_elementwise(found: Found) -> None:
    assert found(network(kernel="void at::native::reduce_kernel<512, 1>(int)"), RULE) == ()


def test_a_small_share_of_the_kernel_time_is_not_reported(found: Found) -> None:
    assert found(network(matmul_ns=1_000_000), RULE) == ()


def test_an_optimizer_that_is_not_fused_has_a_rule_of_its_own(found: Found) -> None:
    assert found(network(around="Optimizer.step#SGD.step"), RULE) == ()


def test_copies_into_another_layout_are_in_no_chain(found: Found) -> None:
    assert found(network((("aten::copy_", 100_000), ("aten::copy_", 100_000))), RULE) == ()


def test_a_device_that_waits_for_the_host_saves_nothing(found: Found) -> None:
    assert found(network(tuple((name, 2_000) for name, _ in CHAIN), matmul_ns=100), RULE) == ()


def test_chains_outside_the_steps_do_not_count(found: Found) -> None:
    b = network((("aten::mul", 100_000),))
    for name, dur_ns in CHAIN:
        b.launch(name, kernel=KERNEL, host_ns=5_000, device_ns=dur_ns)
    assert found(b, RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "KER007"
