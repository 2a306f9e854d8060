"""misaligned-matmul finds products that padding makes faster, by aligned ones of the recording."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.index.compute.products import find_misaligned, find_products
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.traces import read_context

RULE = "misaligned-matmul"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
ALIGNED = "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn_align8"
ODD = "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn_align1"
TF32, TF32_ODD = (f"cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align{n}" for n in (4, 1))
Sizes = tuple[int, int, int]


def multiply(
    b: TraceBuilder, sizes: Sizes, kernel: str, device_ns: int, kind: str = "c10::BFloat16"
) -> None:
    m, k, n = sizes
    b.launch(
        "aten::mm",
        kernel=kernel,
        host_ns=8_000,
        device_ns=device_ns,
        dims=[[m, k], [k, n]],
        types=[kind] * 2,
    )


def training(
    sizes: Sizes = (1024, 1024, 1001),
    kernel: str = ODD,
    *,
    device_ns: int = 400_000,
    kind: str = "c10::BFloat16",
    other: str = ALIGNED,
    name: str = "NVIDIA H200",
) -> TraceBuilder:
    """Three steps of a product at line 12, and an aligned one of 1024 x 1024 in 100 µs."""
    b = TraceBuilder(shapes=True, stacks=True, device_names=(name,))
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "main"):
            multiply(b, (1024, 1024, 1024), other, 100_000, kind)
            with b.frame("model.py", 12, "head"):
                multiply(b, sizes, kernel, device_ns, kind)
            b.synchronize()
    return b


def test_padded_it_is_as_fast_as_the_aligned_one(found: Found) -> None:
    (finding,) = found(training(), RULE)
    # Padded to 1,008 columns at the rate of 1,024 in 100 µs: 98.4 µs, and a hundredth is rounded.
    assert finding.cost.per_step_ns == pytest.approx(400_000 - 100_000 * 1008 / 1024, abs=4_000)
    assert finding.cost.basis == "estimate"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "medium", 3)
    assert finding.evidence["kernel_share"] == 0.8
    (where,) = finding.locations
    assert (where.file, where.line) == ("model.py", 12)
    assert finding.message == (
        "Matrix products in head (model.py:12) with sizes that are no multiple of 16 bytes take "
        "400 µs per step, at 5.25 TFLOP/s where aligned ones of comparable sizes allow 21. One "
        "multiplies 1,024 x 1,024 with 1,024 x 1,001 in bfloat16."
    )
    assert finding.fix == ("Pad sizes to multiples of 8 elements, such as 1,001 to 1,008.")


@pytest.mark.parametrize("sizes", [(1024, 1024, 1008), (1024, 1000, 1024), (1024, 1024, 1024)])
def test_padded_sizes_are_not_reported(found: Found, sizes: Sizes) -> None:
    assert found(training(sizes, ALIGNED), RULE) == ()


def test_a_kernel_that_loads_whole_rows_is_not_reported(found: Found) -> None:
    assert found(training((1001, 1024, 1024), ALIGNED), RULE) == ()
    assert found(training((1024, 1024, 1001), "nvjet_hsh_256x128_64x4_1x2_h_bz_TNT"), RULE) == ()


def test_a_transposed_factor_is_found_by_the_kernels_name(found: Found) -> None:
    (finding,) = found(training((1001, 1024, 1024), ODD), RULE)
    assert "such as 1,001 to 1,008" in finding.fix


def test_in_float32_four_elements_are_enough(found: Found) -> None:
    assert found(training((1024, 1024, 1004), TF32, kind="float", other=TF32), RULE) == ()
    (finding,) = found(training((1024, 1024, 1001), TF32_ODD, kind="float", other=TF32), RULE)
    assert "multiples of 4 elements, such as 1,001 to 1,004" in finding.fix


def test_a_product_that_lost_its_tensor_cores_is_found(found: Found) -> None:
    (finding,) = found(
        training((1024, 1024, 1001), "ampere_sgemm_128x128_tn", kind="float", other=TF32), RULE
    )
    assert finding.severity == "warning"


def test_on_blackwell_too_a_product_on_cuda_cores_beside_tf32_is_found(found: Found) -> None:
    odd = "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x128x16_1x1x1_3_tnn_align1_bias_f32"
    (finding,) = found(training(kernel=odd, kind="float", other=TF32, name="NVIDIA B200"), RULE)
    assert finding.n == 3
    (finding,) = found(training(kernel=odd, kind="float", other="nvjet_sss_tf32_128x256"), RULE)
    assert finding.n == 3


def test_halves_that_fall_back_to_float32_for_their_sizes_are_found(found: Found) -> None:
    odd = "void magma_sgemmEx_kernel<float, __nv_bfloat16, __nv_bfloat16, false, 6, 4, 6>(int)"
    (finding,) = found(training((1024, 1023, 1024), odd, other="nvjet_sm90_tst_128x256"), RULE)
    assert finding.n == 3


def test_where_nothing_runs_on_tensor_cores_alignment_does_not_matter(found: Found) -> None:
    kernel = "ampere_sgemm_128x128_tn"
    assert found(training((1024, 1024, 1001), kernel, kind="float", other=kernel), RULE) == ()


@pytest.mark.parametrize("sizes", [(1, 1024, 1001), (1024, 1024, 1), (1024, 3, 1001)])
def test_products_with_vectors_are_not_reported(found: Found, sizes: Sizes) -> None:
    assert found(training(sizes), RULE) == ()


def test_one_that_is_as_fast_as_aligned_ones_is_not_reported(found: Found) -> None:
    assert found(training(device_ns=105_000), RULE) == ()


def test_larger_products_say_nothing_of_smaller_ones(found: Found) -> None:
    assert found(training((256, 256, 251), device_ns=50_000, name="unknown"), RULE) == ()


def test_without_aligned_products_the_peaks_of_the_device_are_the_bound(found: Found) -> None:
    b = TraceBuilder(shapes=True, device_names=("NVIDIA H200",))
    for _ in range(3):
        with b.step():
            multiply(b, (4096, 4096, 4095), ODD, 1_000_000)
            b.synchronize()
    (finding,) = found(b, RULE)
    # 2 * 4096**3 FLOPs at 989.4 TFLOP/s take 139 µs.
    assert finding.cost.per_step_ns == pytest.approx(1_000_000 - 138_900, abs=10_000)
    assert (finding.severity, finding.cost.basis) == ("note", "upper-bound")
    assert "the device's peaks allow" in finding.message


def test_a_small_share_of_the_kernel_time_is_not_reported(found: Found) -> None:
    assert found(training(), RULE, min_kernel_share=0.9) == ()


def test_without_shapes_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    with b.step():
        b.launch("aten::mm", kernel=ODD, host_ns=8_000, device_ns=400_000)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert (unchecked.rule, unchecked.reason) == (
        "KER009",
        "The shapes of operators' inputs were not recorded.",
    )


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=(), shapes=True)
    with b.step(), b.op("aten::mm", self_ns=9_000, dims=[[8, 9], [9, 8]]):
        pass
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "KER009"


def test_a_batched_product_with_a_bias_has_the_sizes_of_its_factors(tmp_path: Path) -> None:
    b = TraceBuilder(shapes=True)
    b.launch(
        "aten::baddbmm",
        kernel=ODD,
        host_ns=8_000,
        device_ns=10_000,
        dims=[[4, 16, 30], [4, 16, 24], [4, 24, 30], [], []],
        types=["float", "float", "float", "Scalar", "Scalar"],
    )
    ctx = read_context(b, tmp_path)
    products = find_products(ctx.events, ctx.launches, ctx.op_work)
    assert products.sizes.tolist() == [[16, 24, 30]]
    assert products.flops.tolist() == [4 * 2 * 16 * 24 * 30]
    assert find_misaligned(ctx.events, products).tolist() == [True]
