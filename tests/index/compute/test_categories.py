"""The category of kernels and operators, by names of every vendor and generation."""

import pytest

from profkit.index.compute.categories import classify_kernel, operator_category

CUTLASS = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)"
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, Array<char*, 3>>(int)"
)
COPYING = ELEMENTWISE.format("bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda}")
REDUCING = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>()"


@pytest.mark.parametrize(
    ("kernel", "operator", "category"),
    [
        ("volta_sgemm_128x64_nn", "aten::mm", "matmul"),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", None, "matmul"),
        ("turing_h1688gemm_128x128_ldg8_stages_32x1_tn", None, "matmul"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_tn", "aten::addmm", "matmul"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute", None, "matmul"),
        ("nvjet_sm103_tst_32x64_64x16_4x1_v_bz_splitK_TNN", None, "matmul"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_swiGlu", None, "matmul"),
        ("Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x288x64_MI16x16x1", None, "matmul"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(Params)", "aten::mm", "matmul"),
        (CUTLASS, "aten::mm", "matmul"),
        (CUTLASS, "aten::cudnn_convolution", "convolution"),
        (CUTLASS, "aten::_scaled_dot_product_efficient_attention", "attention"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", None, "convolution"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc", None, "convolution"),
        ("igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x32", None, "convolution"),
        ("void fft2d_r2c_32x32<float, cudnn::reduced_divisor_t>()", "aten::cudnn_convolution",
         "convolution"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false>()",
         "aten::cudnn_convolution", "copy"),
        ("batched_transpose_32x32_half", "aten::miopen_convolution", "copy"),
        ("SubTensorOpWithScalar1d", "aten::convolution_backward", "pointwise"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>()", None,
         "attention"),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", None, "attention"),
        ("cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_3", None, "attention"),
        ("_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelINS_", None, "attention"),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<KernelTraits<1>>()", None,
         "attention"),
        ("void flashinfer::PrefillWithKVCacheKernel<CollectiveMainloop<1>>()", None, "attention"),
        ("void flashinfer::PersistentVariableLengthMergeStatesKernel<8u>()", None, "attention"),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __half>()", None, "normalization"),
        ("void flashinfer::activation::act_and_mul_kernel<__half, &(silu(float))>()", None,
         "pointwise"),
        ("void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheHeadParallelismKernel<false>()", None,
         "pointwise"),
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>()", None, "reduction"),
        ("void flashinfer::AppendPagedKVCacheKernel<128u>()", None, "copy"),
        ("_fwd_grouped_kernel_stage1", None, "attention"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128>()", None, "normalization"),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float>()",
         "aten::native_layer_norm_backward", "normalization"),
        (REDUCING, "aten::native_group_norm", "normalization"),
        (REDUCING, "aten::mean", "reduction"),
        (REDUCING, "aten::convolution_backward", "reduction"),  # the gradient of the bias
        ("void (anonymous namespace)::softmax_warp_forward<c10::BFloat16>()", None, "reduction"),
        (ELEMENTWISE.format("CUDAFunctor_add<float>"), "aten::add_", "pointwise"),
        (ELEMENTWISE.format("CUDAFunctor_add<float>"), None, "pointwise"),
        (ELEMENTWISE.format("CUDAFunctor_add<float>"), "aten::addmm", "pointwise"),
        (COPYING, "aten::copy_", "copy"),
        (COPYING, None, "copy"),
        (ELEMENTWISE.format("FillFunctor<float>"), "aten::fill_", "copy"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>>()", None,
         "copy"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float>()",
         "aten::embedding", "embedding"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float>()",
         "aten::index_select", "copy"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, float, 4>>()",
         None, "optimizer"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>()", None, "pointwise"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int>()", "fbgemm::permute_2D_sparse_data",
         "copy"),
        ("triton_poi_fused_add_native_batch_norm_relu_3", None, "pointwise"),
        ("triton_poi_fused__to_copy_1", "CompiledFxGraph", "copy"),
        ("triton_per_fused_native_layer_norm_0", None, "normalization"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2", None, "normalization"),
        ("triton_red_fused__log_softmax_1", None, "reduction"),
        ("triton_tem_fused_addmm_relu_4", None, "matmul"),
        ("triton_tem_fused_flex_attention_0", None, "attention"),
        ("triton_tem_fused_convolution_2", None, "convolution"),
        ("triton_poi_fused_embedding_0", None, "embedding"),
        ("my_kernel", None, "other"),
        ("my_kernel", "aten::bmm", "matmul"),
        ("my_kernel", "mylib::paged_attention", "attention"),
    ],
)  # fmt: skip
def test_a_kernel_has_the_category_of_its_work(
    kernel: str, operator: str | None, category: str
) -> None:
    assert classify_kernel(kernel, operator) == category


@pytest.mark.parametrize(
    ("operator", "category"),
    [
        ("aten::addmm", "matmul"), ("aten::_scaled_mm", "matmul"), ("aten::linear", "matmul"),
        ("aten::mkldnn_rnn_layer", "matmul"), ("AddmmBackward0", "matmul"),
        ("aten::mkldnn_convolution", "convolution"), ("aten::_convert_weight", "other"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::gelu_backward", "pointwise"), ("aten::_foreach_addcdiv_", "pointwise"),
        ("aten::bernoulli_", "pointwise"), ("aten::lt", "pointwise"),
        ("aten::native_batch_norm", "normalization"), ("aten::_fused_rms_norm", "normalization"),
        ("aten::_log_softmax", "reduction"), ("aten::max_pool2d_with_indices", "reduction"),
        ("aten::nll_loss_forward", "reduction"), ("aten::linalg_vector_norm", "reduction"),
        ("aten::embedding_dense_backward", "embedding"), ("aten::_fused_adamw_", "optimizer"),
        ("aten::copy_", "copy"), ("aten::index_put_", "copy"), ("aten::cat", "copy"),
        ("c10d::allreduce_", "communication"), ("aten::empty", "other"), ("aten::view", "other"),
    ],
)  # fmt: skip
def test_an_operator_has_the_category_of_its_name(operator: str, category: str) -> None:
    assert operator_category(operator) == category
