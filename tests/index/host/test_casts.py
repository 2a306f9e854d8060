"""Casts are told from other copies by kernels' names, and what needs float32 by operators'."""

import re
from pathlib import Path

import pytest
import torch

from profkit.index.host.casts import find_cast_type, needs_float32

_COPY = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
_WITHIN = "{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::"


def unrolled(kind: str, load: str = "LoadWithCast<1>", copy: str = _COPY) -> str:
    return (
        f"void at::native::unrolled_elementwise_kernel<{copy}::{_WITHIN}{{lambda({kind})#1}}, "
        f"std::array<char*, 2ul>, 4, at::native::memory::{load}>(int, {copy})"
    )


def strided(kind: str, impl: str, kernel: str = "elementwise_kernel<128, 4, ") -> str:
    return (
        f"void at::native::{kernel}at::native::{impl}<{_COPY}::{_WITHIN}{{lambda({kind})#1}}>"
        "(at::TensorIteratorBase&)::{lambda(int)#1}>(int)"
    )


def named(function: str, kind: str) -> str:
    return (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::{function}"
        f"(at::TensorIteratorBase&)::{{lambda({kind})#1}}, std::array<char*, 2ul> >(int)"
    )


CASTS = {
    "to bfloat16": (named("bfloat16_copy_kernel_cuda", "float"), "bfloat16"),
    "to half": (named("float16_copy_kernel_cuda", "float"), "float16"),
    "to float32": (unrolled("float"), "float32"),
    "to bfloat16, of old": (unrolled("c10::BFloat16"), "bfloat16"),
    "to half, of old": (unrolled("c10::Half"), "float16"),
    "to float32, of old": (
        unrolled("float", copy="at::native::(anonymous namespace)::direct_copy_kernel_cuda(int)"),
        "float32",
    ),
    "to float32, in strides": (strided("float", "gpu_kernel_impl"), "float32"),
    "to float32, in strides on ROCm": (
        strided("float", "gpu_kernel_impl", "elementwise_kernel_manual_unroll<128, 4, "),
        "float32",
    ),
    "to float32 on ROCm": (
        named("bfloat16tofloat32_copy_kernel_cuda", "c10::BFloat16") + " [clone .kd]",
        "float32",
    ),
    "from half on ROCm": (named("float16tofloat32_copy_kernel_cuda", "c10::Half"), "float32"),
}
NO_CASTS = {
    "a copy in strides": strided("float", "gpu_kernel_impl_nocast"),
    "a copy without a cast": unrolled("float", "LoadWithoutCast"),
    "to long": unrolled("long"),
    "to bool": unrolled("bool"),
    "to double": unrolled("double"),
    "to complex": unrolled("c10::complex<float>"),
    "to eight bits": named("float8_copy_kernel_cuda", "float"),
    "arithmetic with a cast": unrolled("float", copy="at::native::CUDAFunctor_add<float>"),
    "elementwise": named("gelu_kernel_cuda", "float"),
    "a kernel of another device's": "at::native::xpu::CastScalarFunc<c10::BFloat16, float>",
}


@pytest.mark.parametrize(("name", "kind"), CASTS.values(), ids=CASTS)
def test_casting_kernels_are_recognized(name: str, kind: str) -> None:
    assert find_cast_type(name) == kind


@pytest.mark.parametrize("name", NO_CASTS.values(), ids=NO_CASTS)
def test_kernels_without_a_cast_are_not_recognized(name: str) -> None:
    assert find_cast_type(name) is None


def computed_in_float32() -> list[str]:
    """Return what autocast computes in float32, as the installed PyTorch has it."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = header.read_text()
    lists = re.findall(
        r"#define AT_FORALL_FP32(?:_SET_OPT_DTYPE)?\(_\)(.*?)\n\n", text, flags=re.DOTALL
    )
    return [op for argument_list in lists for op in re.findall(r"_\((\w+)", argument_list)]


def test_operators_that_autocast_computes_in_float32_need_it() -> None:
    ops = computed_in_float32()
    assert len(ops) > 60
    assert {"softmax", "layer_norm", "nll_loss", "rsqrt", "sum"} <= set(ops)
    assert [op for op in ops if not needs_float32(f"aten::{op}")] == []


@pytest.mark.parametrize(
    "op",
    ["mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "conv2d", "cudnn_convolution", "mean",
     "var_mean", "native_batch_norm", "_fused_rms_norm", "view_as_complex", "cos", "sin", "cumsum",
     "_softmax", "einsum", "_scaled_dot_product_flash_attention", "cross_entropy_loss", "mv",
     "_efficient_attention_forward", "logsumexp", "_fft_r2c", "std"],
)  # fmt: skip
def test_sums_norms_rotations_and_matmuls_need_float32(op: str) -> None:
    assert needs_float32(f"aten::{op}")


@pytest.mark.parametrize(
    "op",
    ["relu", "threshold", "clamp_min", "gelu", "silu", "tanh", "sigmoid", "add", "mul", "sub",
     "native_dropout", "cat", "view", "expand", "transpose", "reshape", "clone", "contiguous",
     "logical_and", "where", "masked_fill", "t", "detach", "to", "_to_copy", "copy_", "empty",
     "empty_strided", "select", "slice", "permute", "unbind", "chunk", "split", "as_strided",
     "leaky_relu", "div", "neg", "abs", "_unsafe_view", "resolve_conj", "result_type"],
)  # fmt: skip
def test_copies_and_elementwise_operators_do_not_need_float32(op: str) -> None:
    assert not needs_float32(f"aten::{op}")
