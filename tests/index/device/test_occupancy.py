"""What a kernel's name tells of tensor cores, and means that weigh time."""

import math

import numpy as np
import pytest

from profkit.index.device.occupancy import mean_by_time, names_tensor_cores

ON_TENSOR_CORES = {
    "cuBLAS of Volta": "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
    "cuBLAS of Ampere": "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn",
    "cuBLAS for bytes": "ampere_igemm_int8_i16832gemm_128x128_tn",
    "cuBLAS of Hopper": "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNN",
    "cuDNN": "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwc_g1_tensor16x8x8_kernel",
    "CUTLASS": "cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(Params)",
    "CUTLASS, mangled": "_ZN7cutlass4gemm4warp11MmaTensorOpINS0_9GemmShapeILi64EEE",
    "CuTe": "gemm<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>>",
    "warp groups": "kernel_64x64x16gmma_bf16",
    "attention": "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Params)",
    "FlashAttention 3": "void cutlass::device_kernel<flash::enable_sm90_or_later<"
    "flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2> > > >(Params)",
    "FlashAttention 4": "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100"
    "FlashAttentionForwardSm100_object_at__tensorptrbf16gmemalign_0",
    "cuBLAS of Blackwell, in 4 bits": "cutlass3x_sm100_bstensorop_s256x256x64gemm_"
    "block_scaled_ue4m3xf4_ue4m3xf4_f32_f16_f16_256x256x256_0_tnn_align32_o_vs16_2sm",
    "attention of CUTLASS": "fmha_cutlassF_f32_aligned_64x64_rf_sm80(Params)",
    "Tensile": "Cijk_Alik_Bljk_BBS_BH_MT64x32x128_MI16x16x1_SN",
    "Composable Kernel": "_ZN2ck16tensor_operation6device23kernel_gemm_xdl_cshuffle",
    "MIOpen": "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32",
}
NOT_TOLD = {
    "cuBLAS": "ampere_sgemm_128x64_nn",
    "cuDNN": "volta_scudnn_128x128_relu_interior_nn_v1",
    "cuDNN, which says so": "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_ffma_execute_kernel",
    "CUTLASS": "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)",
    "MIOpen's arithmetic": "SubTensorOpWithScalar1d",
    "Composable Kernel's room": "_ZN2ck16tensor_operation6device17kernel_layer_norm",
    "attention on ordinary cores": "fmha_cutlassF_f32_aligned_64x64_rf_sm75(Params)",
    "cuBLAS of Blackwell, in float32": "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_"
    "128x128x16_1x1x1_3_tnn_align1_bias_f32_relu",
    "attention's last step": "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64>>",
    "Triton": "triton_tem_fused_mm_0",
    "one of PyTorch's": "void at::native::vectorized_elementwise_kernel<4, GeluFunctor>(int)",
}


@pytest.mark.parametrize("name", ON_TENSOR_CORES.values(), ids=ON_TENSOR_CORES)
def test_names_of_tensor_core_kernels_are_recognized(name: str) -> None:
    assert names_tensor_cores(name)


@pytest.mark.parametrize("name", NOT_TOLD.values(), ids=NOT_TOLD)
def test_other_names_show_no_tensor_cores(name: str) -> None:
    assert not names_tensor_cores(name)


def test_the_mean_is_weighted_by_time_and_ignores_unknown_values() -> None:
    figures = np.array([0.25, math.nan, 1.0])
    assert mean_by_time(figures, np.array([300, 5_000, 100])) == pytest.approx(0.4375)


def test_without_known_values_there_is_no_mean() -> None:
    assert mean_by_time(np.array([math.nan]), np.array([7])) is None
    assert mean_by_time(np.zeros(0), np.zeros(0, dtype=np.int64)) is None
    assert mean_by_time(np.array([0.5]), np.array([0])) is None
