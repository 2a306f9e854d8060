"""In which arithmetic a kernel multiplies is told by its name, and not by what looks like it."""

from collections.abc import Callable

import pytest

from profkit.engine.context import Context
from profkit.index.device.matmul_precision import float32_matmuls, matmul_precision
from profkit.testing import TraceBuilder

FLOAT32 = {
    "cuBLAS of Ampere": "ampere_sgemm_128x64_tn",
    "cuBLAS of Volta": "volta_sgemm_64x64_nt",
    "cuBLAS of Ampere, from XMMA": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize256x64x8_stage3"
    "_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
    "cuBLAS of Ampere, from CUTLASS": "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_"
    "align1>(cutlass_80_simt_sgemm_256x128_8x4_nn_align1::Params)",
    "CUTLASS, mangled": "_ZN7cutlass6KernelI42cutlass_80_simt_sgemm_128x32_8x5_nn_align1EEvNT_",
    "cuBLAS of Blackwell": "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_64x64x16_1x1x1_3_tnn_"
    "align1_bias_f32_relu",
    "cuDNN": "ampere_scudnn_128x64_relu_xregs_large_nn_v1",
    "cuDNN, later": "_5x_cudnn_ampere_scudnn_128x32_relu_interior_nn_v1",
    "cuDNN's Winograd": "ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
    "cuDNN, from XMMA": "sm80_xmma_fprop_implicit_gemm_indexed_f32f32_f32f32_f32_nhwckrsc_nhwc_"
    "tilesize32x32x8_stage3_warpsize1x2x1_g1_ffma_aligna4_alignc4_execute_kernel",
    "cuDNN's implicit product": "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1,"
    " false, true, true>(int, int, int, float const*)",
    "the same, mangled": "_Z23implicit_convolve_sgemmIffLi1024ELi5ELi5ELi3ELi3ELi3ELi1ELb0EEviiiPK",
    "cuDNN's explicit product": "void explicit_convolve_sgemm<float, int, 1024, 5, 5, 3>(int)",
    "a gradient of weights": "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5>(int)",
    "a gradient of inputs": "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3>(int)",
    "CUTLASS's convolution": "cutlass_simt_sfprop_optimized_128x128_8x2_nhwc",
    "cuBLAS, for shallow ones": "void magma_sgemmEx_kernel<float, float, float, true, false>()",
}
TF32 = {
    "CUTLASS": "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)",
    "CUTLASS's convolution": "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_"
    "optimized_tf32_64x128_32x3_nhwc_align4>(Params)",
    "XMMA": "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x16_stage6_warpsize2x2x1_"
    "tensor16x8x8_execute_kernel__5x_cublas",
    "XMMA's convolution": "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_"
    "tilesize64x64x64_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn_train",
    "CUTLASS of Hopper": "cutlass3x_sm90_tensorop_s64x128x8gemm_f32_f32_f32_f32_f32_128x128x32",
    "cuBLAS of Hopper": "nvjet_sss_tf32_128x256_TNT",
}
NEITHER = {
    "halves, added up in float32": "volta_fp16_sgemm_fp16_128x128_nt",
    "halves of Ampere": "ampere_fp16_sgemm_fp16_64x64_sliced1x2_nn",
    "float64": "volta_dgemm_64x64_nn",
    "float64 on tensor cores": "void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nt>",
    "complex": "ampere_cgemm_64x64_nt",
    "complex, batched": "ampere_gcgemm_64x64_nt",
    "CUTLASS, complex": "cutlass_80_simt_cgemm_64x64_8x5_nn_align1",
    "bytes": "turing_int8_i8816gemm_int8_128x128_ldg16_nt",
    "CUTLASS, bytes": "cutlass_simt_igemm_s8_128x128_32x2_nt_align1",
    "halves on tensor cores": "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nn",
    "bfloat16 of CUTLASS": "cutlass_75_tensorop_s1688gemm_bf16_64x64_tn_align1",
    "halves of CUTLASS": "cutlass_tensorop_s1688gemm_f16_256x128_32x2_nt_align8",
    "bfloat16 of Ampere": "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn",
    "bfloat16 of Hopper": "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
    "bfloat16 of XMMA": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_kernel",
    "a convolution of halves": "void implicit_convolve_sgemm<__half, __half, 1024, 5, 5>(int)",
    "the same, mangled": "_Z23implicit_convolve_sgemmI6__halfS0_Li1024ELi5EEviiiPK",
    "a gradient of halves": "void cudnn::cnn::wgrad_alg0_engine<__half, 128, 6, 7, 3, 3, 5>(int)",
    "a matrix and a vector": "void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4>()",
    "a small product": "ampere_sgemm_32x32_sliced1x4_tn",
    "the end of a split product": "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>()",
    "Winograd's transform": "void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>",
    "a convolution by channel": "void conv2d_grouped_direct_kernel<float, float, float, float>()",
    "a kernel of the user's": "my_sgemm_naive(float*, float*, float*)",
    "XMMA, by another instruction": "sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tensor16x8x8_kernel",
    "Triton": "triton_tem_fused_mm_0",
    "Tensile": "Cijk_Ailk_Bljk_SB_MT128x128x16_MI16x16x4_SN",
    "CUTLASS, halves in float32": "cutlass3x_sm100_simt_sgemm_f16_f16_f32_f16_f16_64x64x16",
    "bfloat16 on CUDA cores": "void magma_sgemmEx_kernel<float, __nv_bfloat16, float, false, 6>(",
    "elementwise": "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>(int)",
}


@pytest.mark.parametrize("name", FLOAT32.values(), ids=FLOAT32)
def test_kernels_that_multiply_in_float32_are_recognized(name: str) -> None:
    assert matmul_precision(name) == "float32"


@pytest.mark.parametrize("name", TF32.values(), ids=TF32)
def test_kernels_that_round_to_tf32_are_recognized(name: str) -> None:
    assert matmul_precision(name) == "tf32"


@pytest.mark.parametrize("name", NEITHER.values(), ids=NEITHER)
def test_other_kernels_are_not_float32_matmuls(name: str) -> None:
    assert matmul_precision(name) is None


@pytest.mark.parametrize(
    ("op", "kernel", "by_cudnn"),
    [
        ("aten::mm", "ampere_sgemm_128x64_tn", False),
        ("aten::cudnn_convolution", "ampere_sgemm_128x64_tn", True),
        ("aten::convolution_backward", "ampere_scudnn_128x64_relu_nn_v1", True),
        ("aten::_cudnn_rnn", "ampere_sgemm_128x64_tn", True),
        ("Torch-Compiled Region: 0/0", "ampere_sgemm_128x64_tn", False),
        (None, "ampere_sgemm_128x64_tn", False),
        (None, "ampere_scudnn_128x64_relu_nn_v1", True),
    ],
)
def test_cudnn_is_recognized_by_operator_or_kernel(
    read: Callable[[TraceBuilder], Context],
    op: str | None,
    kernel: str,
    by_cudnn: bool,  # noqa: FBT001
) -> None:
    b = TraceBuilder()
    if op is None:
        b.kernel(kernel, 50_000, correlation=b.call("GraphLaunch", 4_000))
    else:
        b.launch(op, kernel=kernel, host_ns=9_000, device_ns=50_000)
    ctx = read(b)
    assert float32_matmuls(ctx.events, ctx.launches).by_cudnn.tolist() == [by_cudnn]


@pytest.mark.parametrize(
    "op",
    ["aten::linalg_cholesky_ex", "aten::_linalg_svd", "aten::linalg_qr", "aten::geqrf",
     "aten::_linalg_eigh", "aten::linalg_lu_factor_ex", "aten::triangular_solve",
     "aten::linalg_inv_ex"],
)  # fmt: skip
def test_factorizations_are_excluded(read: Callable[[TraceBuilder], Context], op: str) -> None:
    b = TraceBuilder()
    b.launch(op, kernel="ampere_sgemm_128x64_tn", host_ns=9_000, device_ns=50_000)
    with b.op("aten::linalg_multi_dot"):
        b.launch("aten::mm", kernel="ampere_sgemm_64x64_nn", host_ns=9_000, device_ns=50_000)
    ctx = read(b)
    matmul_rows = float32_matmuls(ctx.events, ctx.launches)
    assert [ctx.events.name_of(row) for row in matmul_rows.rows.tolist()] == [
        "ampere_sgemm_64x64_nn"
    ]
