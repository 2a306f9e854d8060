"""float32-matmul finds matrix products on CUDA cores where TF32 would be faster."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.catalogue.random_programs import briefly

RULE = "float32-matmul"
FULL = "ampere_sgemm_128x64_tn"
ROUNDED = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(Params)"
BF16 = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
CONVOLVED = "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>(int)"
CONVOLVED_TF32 = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_tensor16x8x8_kernel"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
A100, H200, B300 = (8, 0), (9, 0), (10, 3)


def on(
    *capabilities: tuple[int, int] | None, runtime: str = "cuda", stacks: bool = False
) -> TraceBuilder:
    """Build a recording of devices of some compute capabilities."""
    devices = [
        {"id": index, "name": f"NVIDIA {index}"}
        | (
            {}
            if capability is None
            else {"computeMajor": capability[0], "computeMinor": capability[1]}
        )
        for index, capability in enumerate(capabilities)
    ]
    return TraceBuilder(head={"deviceProperties": devices}, runtime=runtime, stacks=stacks)


def training(
    kernel: str = FULL,
    *capabilities: tuple[int, int] | None,
    op: str = "aten::addmm",
    device_ns: int = 800_000,
    other_ns: int = 200_000,
    steps: bool = True,
) -> TraceBuilder:
    """Three steps, each a product at line 12 and other work at line 20; the host keeps ahead."""
    b = on(*(capabilities or (H200,)), stacks=True)
    for _ in range(3):
        around = b.step() if steps else b.annotation("turn")
        with around, b.frame("train.py", 12, "main"):
            b.launch(op, kernel=kernel, host_ns=9_000, device_ns=device_ns)
            with b.frame("train.py", 20, "activate"):
                b.launch("aten::relu", kernel="relu", host_ns=9_000, device_ns=other_ns)
            b.synchronize()
    return b


def test_it_costs_what_the_ratio_of_the_peaks_leaves_of_the_kernels_time(found: Found) -> None:
    (finding,) = found(training(), RULE)
    # The H100's paper: 66.9 TFLOPS in float32, 494.7 in TF32 without sparsity.
    assert finding.cost.ns == pytest.approx(3 * 800_000 * (1 - 66.9 / 494.7), rel=0.001)
    assert finding.cost.per_step_ns == 800_000 - 108_108  # 800 µs / 7.4
    assert finding.cost.basis == "estimate"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 3)
    assert finding.evidence["kernel_ns"] == 2_400_000
    assert finding.evidence["busy_share"] == 0.8

    (location,) = finding.locations
    assert (location.file, location.line, location.op) == ("train.py", 12, "aten::addmm")
    assert finding.message == (
        "Matrices are multiplied in full float32 in main (train.py:12), once per step, on CUDA "
        "cores instead of tensor cores. This takes 800 µs per step (80% of the GPU's busy time)."
    )
    assert 'torch.set_float32_matmul_precision("high")' in finding.fix
    assert sum(end - start for start, end in finding.spans) == 2_400_000


@pytest.mark.parametrize("kernel", [ROUNDED, BF16], ids=["TF32", "bfloat16"])
def test_the_fixes_are_not_reported(found: Found, kernel: str) -> None:
    assert found(training(kernel), RULE) == ()


@pytest.mark.parametrize(
    "kernel",
    ["volta_dgemm_64x64_nn", "ampere_cgemm_64x64_nt", "volta_fp16_sgemm_fp16_128x128_nt",
     "cutlass_simt_igemm_s8_128x128_32x2_nt_align1", "ampere_sgemm_32x32_sliced1x4_tn",
     "void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4>()", "triton_mm"],
)  # fmt: skip
def test_other_arithmetic_and_products_with_a_vector_are_not_reported(
    found: Found, kernel: str
) -> None:
    assert found(training(kernel), RULE) == ()


def test_a_library_that_may_use_tf32_and_does_so_elsewhere_has_its_reasons(found: Found) -> None:
    b = training()
    assert len(found(b, RULE)) == 1
    with b.step():
        b.launch("aten::mm", kernel=ROUNDED, host_ns=9_000, device_ns=20_000)
    assert found(b, RULE) == ()


def test_convolutions_in_tf32_do_not_speak_for_products(found: Found) -> None:
    b = training()
    with b.step():
        b.launch("aten::cudnn_convolution", kernel=CONVOLVED_TF32, host_ns=9_000, device_ns=20_000)
    assert len(found(b, RULE)) == 1


def convolving(n: int) -> TraceBuilder:
    """Three steps of some convolutions each."""
    b = on(H200)
    for _ in range(3):
        with b.step():
            for _ in range(n):
                b.launch(
                    "aten::cudnn_convolution", kernel=CONVOLVED, host_ns=5_000, device_ns=50_000
                )
            b.synchronize()
    return b


def test_convolutions_that_cudnn_may_have_chosen_itself_are_a_note_of_low_confidence(
    found: Found,
) -> None:
    b = convolving(10)
    (finding,) = found(b, RULE)
    assert (finding.severity, finding.confidence) == ("note", "low")
    # A step ends at 5 + 500 µs; without the convolutions when the last one is launched, at 50.
    assert (finding.cost.ns, finding.cost.basis) == (3 * 455_000, "upper-bound")
    assert finding.fix.startswith("Remove `torch.backends.cudnn.allow_tf32 = False`")
    with b.step():
        b.launch("aten::cudnn_convolution", kernel=CONVOLVED_TF32, host_ns=9_000, device_ns=20_000)
    assert found(b, RULE) == ()


def test_a_few_convolutions_are_cudnns_choice(found: Found) -> None:
    assert found(convolving(9), RULE) == ()


@pytest.mark.parametrize("capability", [(8, 6), (8, 9), (12, 0), (99, 0)])
def test_where_tf32_may_gain_nothing_it_is_a_note_that_says_autocast(
    found: Found, capability: tuple[int, int]
) -> None:
    (finding,) = found(training(FULL, capability), RULE)
    assert (finding.severity, finding.confidence) == ("note", "medium")
    # A step ends at 9 + 800 + 200 µs; without the product the rest runs from 18 to 218.
    assert (finding.cost.ns, finding.cost.basis) == (3 * (1_009_000 - 218_000), "upper-bound")
    assert "torch.autocast" in finding.fix
    assert "set_float32_matmul_precision" not in finding.fix


@pytest.mark.parametrize("capability", [A100, H200, (10, 0), B300])
def test_on_these_tf32_is_many_times_as_fast(found: Found, capability: tuple[int, int]) -> None:
    (finding,) = found(training(FULL, capability), RULE)
    assert (finding.severity, finding.cost.basis) == ("warning", "estimate")


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (6, 1)])
def test_a_device_without_tf32_has_nothing_better(
    found: Found, capability: tuple[int, int]
) -> None:
    assert found(training(FULL, capability), RULE) == ()


@pytest.mark.parametrize(("other_ns", "n"), [(800_000 * 19, 1), (800_000 * 19 + 1_000, 0)])
def test_a_twentieth_of_the_busy_time_is_the_threshold(found: Found, other_ns: int, n: int) -> None:
    assert len(found(training(other_ns=other_ns), RULE)) == n


@pytest.mark.parametrize(("device_ns", "n"), [(10_000, 1), (9_999, 0)])
def test_tiny_products_do_not_count(found: Found, device_ns: int, n: int) -> None:
    assert len(found(training(device_ns=device_ns, other_ns=1_000), RULE)) == n


def test_what_hardly_shortens_a_step_is_a_note(found: Found) -> None:
    b = on(H200)
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel=FULL, host_ns=9_000, device_ns=100_000)
            b.advance(20_000_000)
    (finding,) = found(b, RULE)
    assert finding.severity == "note"
    assert finding.cost.ns == 0  # The host alone takes 20 ms.


def test_work_of_two_devices_at_once_is_counted_once(found: Found) -> None:
    b = on(A100, H200)
    for _ in range(3):
        with b.step():
            for device in (0, 1):
                b.launch("aten::mm", kernel=FULL, host_ns=5_000, device_ns=500_000, device=device)
            b.synchronize()
            b.synchronize(device=1)
    (finding,) = found(b, RULE)
    # The second device begins when its launch is through, 5 µs after the first.
    assert finding.evidence["kernel_ns"] == 3 * 505_000
    assert finding.n == 6


def test_of_two_devices_the_one_that_uses_tf32_is_left_out(found: Found) -> None:
    b = on(A100, A100)
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel=FULL, host_ns=5_000, device_ns=500_000)
            b.launch("aten::mm", kernel=ROUNDED, host_ns=5_000, device_ns=500_000, device=1)
            b.launch("aten::mm", kernel=FULL, host_ns=5_000, device_ns=500_000, device=1)
            b.synchronize(device=1)
    (finding,) = found(b, RULE)
    assert finding.n == 3


def test_the_costliest_lines_come_first(found: Found) -> None:
    b = on(H200, stacks=True)
    for _ in range(2):
        with b.step():
            for line, device_ns in ((1, 100_000), (2, 400_000), (3, 200_000), (4, 300_000)):
                with b.frame("net.py", line, f"layer{line}"):
                    b.launch("aten::mm", kernel=FULL, host_ns=9_000, device_ns=device_ns)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert [location.line for location in finding.locations] == [2, 4, 3]


def test_a_backward_pass_is_at_the_line_of_its_forward_pass(found: Found) -> None:
    b = on(H200, stacks=True)
    with b.step(), b.frame("train.py", 7, "main"):
        with b.op("aten::addmm", self_ns=9_000, sequence=5):
            b.kernel(FULL, 100_000, correlation=b.call("LaunchKernel", 4_000))
        node = {"sequence": 5}
        with b.thread(2000), b.op("AddmmBackward0", **node) as event:
            assert event.args is not None
            event.args["Fwd thread id"] = 1
            b.launch("aten::mm", kernel=FULL, host_ns=9_000, device_ns=200_000)
        b.synchronize()
    (finding,) = found(b, RULE)
    assert [(place.file, place.line) for place in finding.locations] == [("train.py", 7)]
    assert finding.evidence["kernel_ns"] == 300_000


def test_without_stacks_the_operator_is_named_and_without_steps_the_whole_counts(
    found: Found,
) -> None:
    b = on(H200)
    for _ in range(4):
        b.launch("aten::mm", kernel=FULL, host_ns=9_000, device_ns=100_000)
    (finding,) = found(b, RULE)
    assert finding.locations[0].op == "aten::mm"
    assert finding.cost.per_step_ns is None
    assert finding.message.startswith(
        "Matrices are multiplied in full float32, 4 times, on CUDA cores instead of tensor cores. "
        "This takes 400 µs ("
    )


def test_kernels_of_a_graph_have_a_cost_and_no_line(found: Found) -> None:
    b = on(H200)
    for _ in range(3):
        with b.step():
            b.graph_launch([(FULL, 300_000), ("relu", 50_000)])
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.locations == ()
    assert finding.evidence["kernel_ns"] == 900_000


def test_a_factorization_multiplies_in_float32_whatever_is_allowed(found: Found) -> None:
    assert found(training(op="aten::linalg_qr"), RULE) == ()


def test_work_outside_of_steps_is_none_of_theirs(found: Found) -> None:
    b = training(ROUNDED.replace("tensorop_s1688gemm", "tensorop_h16816gemm"))
    b.launch("aten::mm", kernel=FULL, host_ns=9_000, device_ns=900_000)
    assert found(b, RULE) == ()
    b = training()
    b.launch("aten::mm", kernel=FULL, host_ns=9_000, device_ns=900_000)
    (finding,) = found(b, RULE)
    assert (finding.n, finding.evidence["kernel_ns"]) == (3, 2_400_000)


def test_a_device_that_nobody_describes_makes_it_unchecked(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(training(FULL, None), RULE).unchecked
    assert unchecked.reason == "The compute capability of an NVIDIA GPU was not recorded."


def test_on_rocm_whose_numbers_mean_something_else_it_is_skipped(analyzed: Analyzed) -> None:
    b = on((9, 4), runtime="hip")
    b.launch("aten::mm", kernel=FULL, host_ns=9_000, device_ns=900_000)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "KER002"


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.reason == "No kernels or copies of a GPU were recorded."


def length_ns(step: list[tuple[str, int]], speed: float) -> float:
    """Return the length of a step whose slow products run at some multiple of their speed."""
    host_ns = device_ns = 0.0
    for kernel, ns in step:
        host_ns += 1_000
        is_slow = kernel == FULL and ns >= 10_000
        device_ns = max(host_ns, device_ns) + (ns / speed if is_slow else ns)
    return max(host_ns, device_ns)


@briefly
@given(
    durations=st.lists(
        st.lists(st.tuples(st.sampled_from([FULL, BF16, "relu"]), st.integers(1, 900_000)),
                 min_size=1, max_size=6),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_any_program_costs_what_faster_products_save_on_host_and_device(
    tmp_path_factory: pytest.TempPathFactory, durations: list[list[tuple[str, int]]]
) -> None:
    b = on(H200)
    for step in durations:
        with b.step():
            for kernel, device_ns in step:
                b.launch("aten::mm", kernel=kernel, host_ns=1_000, device_ns=device_ns)
            b.synchronize()
    path = b.write(tmp_path_factory.mktemp("any") / "t.json")
    findings = analyze(path, select=[RULE], strict=True).findings
    slow = [sum(ns for kernel, ns in step if kernel == FULL and ns >= 10_000) for step in durations]

    busy = sum(ns for step in durations for _, ns in step)
    assert bool(findings) == (sum(slow) > 0 and sum(slow) >= 0.05 * busy)

    for finding in findings:
        assert finding.evidence["kernel_ns"] == sum(slow)
        n_kernels = sum(map(len, durations))
        saved_ns = sum(length_ns(step, 1) - length_ns(step, 7.4) for step in durations)
        # The switch between two kernels takes 1 µs where the recording does not show it.
        assert finding.cost.ns == pytest.approx(saved_ns, abs=1_000 * n_kernels)
        assert sum(end - start for start, end in finding.spans) == sum(slow)
