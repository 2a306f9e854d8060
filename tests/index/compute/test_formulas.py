"""FLOPs and bytes of operators, against shapes that were worked out by hand."""

import json

import pytest

from profkit.index.compute.formulas import CallWork, formula
from profkit.index.compute.inputs import OpInputs, broadcast, kernel_element_bytes, parse_inputs

F, H, L, F8 = "float", "c10::Half", "long int", "c10::Float8_e4m3fn"
NONE = ["", ""]


def work(name: str, *inputs: tuple[list[object], str] | str) -> CallWork | None:
    """Return the work of a call: an input is a shape with a type, or a value as text."""
    dims = [[] if isinstance(given_input, str) else given_input[0] for given_input in inputs]
    types = ["Scalar" if isinstance(given_input, str) else given_input[1] for given_input in inputs]
    values = [given_input if isinstance(given_input, str) else "" for given_input in inputs]
    given = parse_inputs(json.dumps(dims), json.dumps(types), json.dumps(values))
    compute = formula(f"aten::{name}")
    assert given is not None
    assert compute is not None
    return compute(given)


CONVOLUTION = ("[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1")
TRANSPOSED = ("[2, 2]", "[0, 0]", "[1, 1]", "True", "[1, 1]", "2")
IMAGE, KERNEL = ([2, 3, 16, 16], F), ([8, 3, 3, 3], F)
QUERY, KEY, VALUE = ([2, 8, 10, 16], H), ([2, 2, 30, 16], H), ([2, 2, 30, 32], H)


@pytest.mark.parametrize(
    ("name", "inputs", "flops", "n_bytes"),
    [
        ("mm", [([4, 8], F), ([8, 16], F)], 2 * 4 * 8 * 16, 4 * (32 + 128 + 64)),
        ("addmm", [([16], H), ([4, 8], H), ([8, 16], H), "1", "1"], 1024, 2 * (16 + 32 + 128 + 64)),
        ("bmm", [([3, 4, 8], F), ([3, 8, 16], F)], 3 * 1024, 3 * 4 * (32 + 128 + 64)),
        ("mv", [([4, 8], F), ([8], F)], 64, 4 * (32 + 8 + 4)),
        ("dot", [([8], F), ([8], F)], 16, 4 * (8 + 8 + 1)),
        ("linear", [([2, 5, 8], F), ([16, 8], F), ([16], F)], 2 * 10 * 8 * 16,
         4 * (80 + 128 + 16 + 160)),
        # Rows in groups; three experts of (8, 16).
        ("_grouped_mm", [([12, 8], H), ([3, 8, 16], H), ([3], L)], 2 * 12 * 8 * 16,
         2 * (96 + 384 + 192) + 24),
        # Groups of the inner dimension: their number, and so the output, is in no shape.
        ("_grouped_mm", [([4, 24], H), ([24, 16], H), ([3], L)], 2 * 4 * 24 * 16, None),
        ("convolution", [IMAGE, KERNEL, ([8], F), *CONVOLUTION], 2 * 2 * 64 * 8 * 27,
         4 * (1536 + 216 + 8 + 1024)),
        # Two groups of three channels to four: (16 - 1) * 2 + 2 + 1 + 1 = 34 wide.
        ("convolution", [([1, 6, 16, 16], F), ([6, 4, 3, 3], F), "", *TRANSPOSED],
         2 * 256 * 6 * 36, 4 * (1536 + 216 + 8 * 34 * 34)),
        ("convolution_backward",
         [([2, 8, 8, 8], F), IMAGE, KERNEL, "[8]", *CONVOLUTION, "[True, True, True]"],
         2 * 2 * 2 * 64 * 8 * 27, 4 * (1024 + 2 * (1536 + 216))),
        ("convolution_backward",
         [([2, 8, 8, 8], F), IMAGE, KERNEL, "[8]", *CONVOLUTION, "[False, True, True]"],
         2 * 2 * 64 * 8 * 27, 4 * (1024 + 1536 + 2 * 216)),
        # Eight heads of queries share two of keys: the work is that of eight.
        ("_scaled_dot_product_flash_attention", [QUERY, KEY, VALUE, "0.", "False"],
         2 * 16 * 10 * 30 * 48, 2 * (2560 + 1920 + 3840 + 5120)),
        ("_scaled_dot_product_flash_attention", [QUERY, KEY, VALUE, "0.", "True"],
         16 * 10 * 30 * 48, 2 * (2560 + 1920 + 3840 + 5120)),
        ("_scaled_dot_product_flash_attention_for_cpu_backward",
         [([2, 8, 10, 32], H), QUERY, KEY, VALUE, ([2, 8, 10, 32], H), ([2, 8, 10], F), "0.",
          "False"],
         2 * 16 * 10 * 30 * (3 * 16 + 2 * 32), 2 * (2 * 5120 + 2 * (2560 + 1920 + 3840)) + 640),
        ("add", [([4, 1, 8], F), ([3, 1], F), "1"], 96, 4 * (32 + 3 + 96)),
        ("add_", [([4, 8], F), ([8], F), "1"], 32, 4 * (32 + 8 + 32)),
        ("mul", [([4, 8], F), "2."], 32, 4 * 64),
        # A result in bfloat16 of matrices in float8, with two scales.
        ("_scaled_mm", [([4, 8], F8), ([8, 16], F8), ([], F), ([], F), "", "", "15", "False"],
         1024, 32 + 128 + 8 + 2 * 64),
        ("_scaled_grouped_mm",
         [([12, 8], F8), ([3, 8, 16], F8), ([12], F), ([3], F), ([3], "int"), "", "", "15"],
         2 * 12 * 8 * 16, 96 + 384 + 4 * 18 + 2 * 192),
        ("_softmax", [([4, 8], F), "-1", "False"], 5 * 32, 4 * 64),
        ("native_layer_norm", [([4, 8], F), "[8]", ([8], F), ([8], F), "1e-5"], 8 * 32,
         4 * (64 + 16)),
        ("_fused_rms_norm", [([4, 8], F), "[8]", ([8], F), ""], 4 * 32, 4 * (64 + 8)),
        ("_fused_rms_norm_backward", [([4, 8], F), ([4, 8], F), "[8]", ([4, 1], F), ([8], F)],
         9 * 32, 4 * (96 + 4 + 8)),
        ("miopen_batch_norm_backward", [([2, 3, 4], H), ([2, 3, 4], H), ([3], F)], 13 * 24,
         2 * 72 + 12),
        ("sum", [([4, 8], F), "[-1]", "True"], 32, 4 * (32 + 4)),
        ("mean", [([4, 8], F)], 32, 4 * (32 + 1)),
        # 14 of 50 rows are read and written.
        ("embedding", [([50, 16], F), ([2, 7], L), "-1"], 0, 14 * (8 + 2 * 4 * 16)),
        ("embedding_dense_backward", [([2, 7, 16], F), ([2, 7], L), "50", "-1", "False"], 224,
         4 * 224 + 8 * 14 + 4 * 800),
        # 14 rows are read and summed in three bags.
        ("_embedding_bag", [([50, 16], F), ([14], L), ([3], L)], 224, 14 * (8 + 4 * 16) + 3 * 64),
        ("zero_", [([4, 8], H)], 0, 64),
        ("copy_", [([4, 8], F), ([4, 8], H), "False"], 0, 32 * 6),
        ("clone", [([4, 8], H), "0"], 0, 128),
    ],
)  # fmt: skip
def test_work_follows_from_the_shapes(
    name: str, inputs: list[tuple[list[object], str] | str], flops: int, n_bytes: int | None
) -> None:
    assert work(name, *inputs) == CallWork(flops, n_bytes)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("mm", [([4, 8], F), ([7, 16], F)]),
        ("mm", [([4, 8], F)]),
        ("bmm", [([3, 4, 8], F), ([2, 8, 16], F)]),
        ("mm", ["1", "2"]),
        ("convolution", [IMAGE, KERNEL, ([8], F)]),  # torch before 2.1 records no stride
        ("convolution", [IMAGE, ([8, 3, 3], F), ([8], F), *CONVOLUTION]),
        ("convolution", [IMAGE, KERNEL, ([8], F), "[0, 0]", *CONVOLUTION[1:]]),
        ("convolution", [([2, 3, 1, 1], F), KERNEL, "", "[1, 1]", "[0, 0]", *CONVOLUTION[2:]]),
        ("_scaled_dot_product_flash_attention", [([4, 8], H), KEY, VALUE, "0.", "False"]),
        ("_foreach_add_", [([4, 8], F)]),
        ("add", ["1", "2"]),
    ],
)
def test_shapes_that_do_not_fit_have_no_work(
    name: str, inputs: list[tuple[list[object], str] | str]
) -> None:
    assert work(name, *inputs) is None


LIST: tuple[list[object], str] = ([[4, 8], [3]], "TensorList")
STEPS: tuple[list[object], str] = ([[], []], "TensorList")


@pytest.mark.parametrize(
    ("name", "inputs", "flops", "n_untyped"),
    [
        ("_foreach_addcdiv_", [LIST, LIST, LIST, "1"], 3 * 35, 4 * 35),
        ("_foreach_mul_", [LIST, "0.9"], 35, 2 * 35),
        # Parameters, gradients, two averages: all are read, and all but the gradients written.
        ("_fused_adamw_", [LIST, LIST, LIST, LIST, ([], "TensorList"), STEPS], 14 * 35,
         7 * 35 + 4),
        ("_fused_sgd_", [LIST, LIST, LIST], 4 * 35, 5 * 35),
        ("cat", [([[4, 8], [2, 8]], "TensorList"), "0"], 0, 2 * 48),
    ],
)  # fmt: skip
def test_elements_of_lists_are_counted_without_their_type(
    name: str, inputs: list[tuple[list[object], str] | str], flops: int, n_untyped: int
) -> None:
    assert work(name, *inputs) == CallWork(flops, None, n_untyped)


def test_lists_with_recorded_types_have_bytes() -> None:
    dims, compute = "[[[4,8],[3]],[[4,8],[3]],[]]", formula("aten::_foreach_add_")
    assert compute is not None
    for types, n_bytes in (
        ('["c10::Half","c10::Half"]', 2 * 3 * 35),
        ('["float","c10::Half"]', None),
    ):
        given = parse_inputs(dims, f'[{types},{types},"Scalar"]', "")
        assert given is not None
        assert compute(given) == CallWork(35, n_bytes)


def test_types_of_another_number_than_the_tensors_are_not_known() -> None:
    given = parse_inputs("[[[4],[5]],[6]]", '[["float"],["float","float"]]', "")
    assert given is not None
    assert given.tensors == (((4,), 4), ((5,), None))
    assert given.lists == (((4,), (5,)), ())


ADAM = "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<{}, 4>>"
LISTS = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, {}>"


@pytest.mark.parametrize(
    ("kernel", "n_bytes"),
    [
        (ADAM.format("c10::BFloat16"), 2),
        (LISTS.format("BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float"), 4),
        (LISTS.format("at::native::UnaryOpFunctor<c10::Half, 2, 1, 1>, Sqrt<float>"), 2),
        ("CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int>", 2),
        ("CatArrayBatchedCopy_aligned16_contig<float, unsigned int, 1, 128, 1>", 4),
        ("vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>", None),
    ],
)
def test_the_type_of_lists_comes_from_their_kernel(kernel: str, n_bytes: int | None) -> None:
    assert kernel_element_bytes(kernel) == n_bytes


def test_bytes_of_an_unknown_type_are_not_known() -> None:
    assert work("mm", ([4, 8], F), ([8, 16], "c10::Float4_e2m1fn_x2")) is None
    assert work("add", ([4], F), ([[4]], "TensorList")) == CallWork(4, None)


@pytest.mark.parametrize("name", ["aten::view", "mm", "c10d::allreduce_", "aten::_", "aten::"])
def test_other_names_have_no_formula(name: str) -> None:
    assert formula(name) is None


@pytest.mark.parametrize(
    "written",
    [("", "[]", "[]"), ("{}", "[]", ""), ("[1]", "[]", ""), ("[[-1]]", "[]", ""),
     ("[[1]]", "{}", ""), ("[[1.5]]", "[]", ""), ("[[1]]", '["float"]', "1"),
     ("[" * 20_000, "", ""), ("[[true]]", "[]", "")],
)  # fmt: skip
def test_inputs_that_torch_does_not_write_are_refused(written: tuple[str, str, str]) -> None:
    assert parse_inputs(*written) is None


def test_inputs_are_decoded() -> None:
    given = parse_inputs(
        "[[2,3],[],[[4],[5,6]],[]]",
        '["float","long int","TensorList","Scalar"]',
        '["","","","[True, 2]"]',
    )
    assert given is not None
    assert given.tensors == (((2, 3), 4), ((), 8), ((4,), None), ((5, 6), None))
    assert (given.shape(0), given.shape(1), given.shape(2)) == ((2, 3), (), None)
    assert (given.shape(3), given.shape(4)) == (None, None)
    assert (given.value(3), given.value(0), given.value(9)) == ([True, 2], None, None)
    assert OpInputs(((),), (F,)).shape(0) == ()


def test_shapes_are_broadcast() -> None:
    assert broadcast([(4, 1, 8), (3, 1)]) == (4, 3, 8)
    assert broadcast([(0, 3), (1,)]) == (0, 3)
    assert broadcast([]) == ()
