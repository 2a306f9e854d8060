"""Names from a recording are shown harmlessly, and short enough to tell them apart."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.names import middle_cut, short_kernel, short_path, tail_cut, visible


@given(st.text())
def test_nothing_that_is_shown_steers_a_terminal(text: str) -> None:
    shown = visible(text)
    unsafe = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert [char for char in shown if unicodedata.category(char) in unsafe - {"Cf"}] == []
    assert {char for char in shown if unicodedata.category(char) == "Cf"} <= {"\u200d"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("aten::mm", "aten::mm"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb", "a\\nb"),
        ("\u202eevil", "\\u202eevil"),
        ("面白い", "面白い"),
        ("\udcff", "\\udcff"),
    ],
)
def test_safe_text_stays_and_the_rest_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("volta_sgemm_64x64_nt", "volta_sgemm_64x64_nt"),
        (
            (
                "void at::native::vectorized_elementwise_kernel<4, "
                "at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >"
                "(int, at::native::CUDAFunctor_add<float>)"
            ),
            "vectorized_elementwise_kernel<…CUDAFunctor_add…>",
        ),
        (
            (
                "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast"
                "<at::native::BinaryFunctor<float, float, float, "
                "at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)>(int)"
            ),
            "elementwise_kernel<…MulFunctor…>",
        ),
        (
            (
                "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::"
                "(anonymous namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>(at::native::X)"
            ),
            "CatArrayBatchedCopy<…>",
        ),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic"),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)",
            "Kernel<…cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4…>",
        ),
        (
            "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightIfE",
            "kernel_batched_gemm_xdlops_bwd_weight<…>",
        ),
        (
            "std::enable_if<(((8)>(0))), void>::type a::fused_add_rms_norm_kernel<float, 8>(int)",
            "fused_add_rms_norm_kernel<…>",
        ),
        ("", ""),
        ("void", "void"),
        ("<<<>>>", "<<<>>>"),
        ("_ZN", "_ZN"),
        ("operator()", "operator"),
    ],
)
def test_a_kernel_keeps_what_tells_it_from_others(name: str, short: str) -> None:
    assert short_kernel(name) == short


def test_a_functor_goes_before_the_kernels_own_name_is_cut() -> None:
    name = "void vectorized_elementwise_kernel<4, CUDAFunctor_add<float> >(int)"
    assert short_kernel(name, 40) == "vectorized_elementwise_kernel<…>"


@given(st.text(max_size=60), st.integers(1, 50))
def test_a_short_name_is_never_wider_than_asked(name: str, width: int) -> None:
    assert len(short_kernel(name, width)) <= width


@given(st.text(), st.integers(1, 40))
def test_a_cut_keeps_both_ends_and_the_width(text: str, width: int) -> None:
    cut = middle_cut(text, width)
    assert len(cut) <= width
    if len(text) <= width:
        assert cut == text
    elif width >= 4:
        assert cut[0] == text[0]
        assert cut[-1] == text[-1]
        assert "…" in cut


@pytest.mark.parametrize(
    ("file", "base", "short"),
    [
        ("/home/me/project/train.py", "/home/me/project", "train.py"),
        ("/home/me/project2/train.py", "/home/me/project", "/home/me/project2/train.py"),
        ("C:\\work\\lib\\a.py", "C:\\work", "lib/a.py"),
        ("train.py", "", "train.py"),
    ],
)
def test_a_path_inside_the_base_is_relative_to_it(file: str, base: str, short: str) -> None:
    assert short_path(file, base) == short


@given(st.text("ab/.:1", min_size=1, max_size=60), st.integers(1, 40))
def test_a_path_cut_short_ends_as_it_ended(path: str, width: int) -> None:
    cut = tail_cut(path, width)
    assert len(cut) <= width
    if len(path) <= width:
        assert cut == path
    elif cut.startswith("…/"):
        assert path.endswith(cut[1:])


def test_a_path_is_cut_between_folders() -> None:
    path = "/opt/lib/torchtitan/models/llama3/model.py:340"
    assert tail_cut(path, 40) == "…/torchtitan/models/llama3/model.py:340"
    assert tail_cut(path, 30) == "…/models/llama3/model.py:340"
    assert tail_cut(path, 27) == "…/llama3/model.py:340"
    assert tail_cut(path, 11) == "model.p…340"
