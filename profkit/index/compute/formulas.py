"""FLOPs and bytes of operators, from the shapes of their inputs.

A FLOP is an addition, a multiplication, or a function of one element such as a square root; a
multiplication and an addition of a matrix product are two. Bytes are what a kernel without any
cache has to move at least: each tensor that it reads and each that it writes, once.

Matrix products, convolutions and attention are counted as ``torch.utils.flop_counter`` counts them,
except that causal attention counts half, and that the gradient of a grouped convolution's weight
takes as much as its forward pass. Work that cancels out (the zeros of padding) counts as well.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from profkit.dataclass import dataclass
from profkit.index.compute.inputs import OpInputs, Shape, broadcast, n_elements
from profkit.patterns import regex


@dataclass(frozen=True)
class CallWork:
    """What one call of an operator computes.

    Attributes:
        flops: Floating-point operations.
        n_bytes: Bytes read and written; None where the type of a tensor is not known.
        n_untyped: Elements read and written where torch does not record their type, as in lists of
            tensors; they are all of one type, and ``n_bytes`` is None.
    """

    flops: int
    n_bytes: int | None
    n_untyped: int = 0


_N_OPTIONS: Final = 4
Formula = Callable[[OpInputs], CallWork | None]
"""Returns None where the inputs are not enough."""


def _bytes(inputs: OpInputs, outputs: Iterable[Shape], *, like: int = 0) -> int | None:
    """Return the bytes of all input tensors, and of outputs with the type of one of the inputs.

    Args:
        like: The place of that input.
    """
    out_bytes = inputs.element_bytes(like)
    if out_bytes is None or any(size is None for _, size in inputs.tensors):
        return None
    read = sum(n_elements(shape) * (size or 0) for shape, size in inputs.tensors)
    return read + out_bytes * sum(map(n_elements, outputs))


def _product(inputs: OpInputs, *, first: int = 0) -> CallWork | None:
    """Compute the work of a product of matrices, of stacks of matrices, or of matrix and vector.

    Args:
        first: The place of the first factor.
    """
    left, right = inputs.shape(first), inputs.shape(first + 1)
    if not left or not right or left[-1] != (right[-2] if len(right) > 1 else right[0]):
        return None
    if len(left) > 2 and len(right) > 2 and left[:-2] != right[:-2]:  # noqa: PLR2004
        return None
    out = left[:-1] + right[-1:] if len(right) > 1 else left[:-1]
    return CallWork(2 * n_elements(out) * left[-1], _bytes(inputs, [out], like=first))


def _linear(inputs: OpInputs) -> CallWork | None:
    rows, weight = inputs.shape(0), inputs.shape(1)
    if not rows or not weight or rows[-1] != weight[-1]:
        return None
    out = (*rows[:-1], *weight[:-1])
    return CallWork(2 * n_elements(out) * rows[-1], _bytes(inputs, [out]))


def _grouped_product(inputs: OpInputs) -> CallWork | None:
    """Compute the work of products of groups of rows, columns or inner elements."""
    left, right = inputs.shape(0), inputs.shape(1)
    if not left or not right or left[-1] != right[-2]:
        return None
    is_stacked = len(left) > 2 and len(right) > 2  # noqa: PLR2004
    rows = n_elements(left[:-1]) if is_stacked or len(left) == 2 else left[-2]  # noqa: PLR2004
    # Without stacks the groups share the inner dimension: their results are as many matrices.
    flops = 2 * rows * left[-1] * right[-1]
    if len(left) == len(right) == 2:  # noqa: PLR2004
        return CallWork(flops, None)
    return CallWork(flops, _bytes(inputs, [(rows, right[-1])]))


def _scaled(inputs: OpInputs, *, product: Formula, place: int) -> CallWork | None:
    """Compute the work of a product of matrices in float8 or less, with a result of another type.

    Args:
        place: The place of the result's type.
    """
    work, size = product(inputs), inputs.element_bytes(0)
    out = _SCALAR_TYPES.get(_number(inputs.value(place)))
    left = inputs.shape(0)
    if work is None or work.n_bytes is None or size is None or out is None or not left:
        return work

    # A product has two FLOPs per inner element: so many elements does its result have.
    n_out = work.flops // (2 * (left[-1] or 1))
    return CallWork(work.flops, work.n_bytes + (out - size) * n_out)


def _convolution(inputs: OpInputs) -> CallWork | None:
    source, weight, transposed = inputs.shape(0), inputs.shape(1), inputs.value(6)
    if not source or not weight or len(source) != len(weight) or not isinstance(transposed, bool):
        return None

    options = [_spread(inputs.value(place), len(source) - 2) for place in (3, 4, 5, 7)]
    sizes = _transposed_sizes if transposed else _convolved_sizes
    spatial = sizes(source[2:], weight[2:], *(option for option in options if option is not None))
    if spatial is None:
        return None

    channels = weight[1] * _number(inputs.value(8)) if transposed else weight[0]
    # Each element of the smaller side meets each element of the weight once.
    n_places = n_elements(source[2:] if transposed else spatial)
    flops = 2 * source[0] * n_places * n_elements(weight)
    return CallWork(flops, _bytes(inputs, [(source[0], channels, *spatial)]))


def _convolved_sizes(source: Shape, kernel: Shape, *options: Sequence[int]) -> Shape | None:
    """Return the spatial shape of a convolution's output, or None if the options do not fit.

    Args:
        options: Stride, padding, dilation and output padding, a number per dimension.

    Source: the formula of ``torch.nn.Conv2d``.
    """
    if len(options) != _N_OPTIONS or not all(options[0]):
        return None
    shape = tuple(
        (size + 2 * pad - space * (width - 1) - 1) // by + 1
        for size, width, by, pad, space, _ in zip(source, kernel, *options, strict=True)
    )
    return shape if min(shape, default=0) >= 0 else None


def _transposed_sizes(source: Shape, kernel: Shape, *options: Sequence[int]) -> Shape | None:
    """Return the spatial shape of a transposed convolution's output, or None.

    Source: the formula of ``torch.nn.ConvTranspose2d``.
    """
    if len(options) != _N_OPTIONS:
        return None
    shape = tuple(
        (size - 1) * by - 2 * pad + space * (width - 1) + more + 1
        for size, width, by, pad, space, more in zip(source, kernel, *options, strict=True)
    )
    return shape if min(shape, default=0) >= 0 else None


def _spread(value: object, n: int) -> list[int] | None:
    """Expand an option of a convolution to ``n`` dimensions, as one number holds for all."""
    if not isinstance(value, list) or not all(type(size) is int for size in value):
        return None
    sizes = value * n if len(value) == 1 else value
    return sizes if len(sizes) == n else None


def _convolution_backward(inputs: OpInputs) -> CallWork | None:
    """Compute a backward pass: each gradient of input and weight takes as much as forward."""
    grad, source, weight = (inputs.shape(place) for place in range(3))
    transposed, wanted = inputs.value(7), inputs.value(10)
    if grad is None or source is None or weight is None or not isinstance(transposed, bool):
        return None
    if not isinstance(wanted, list) or len(wanted) < 2:  # noqa: PLR2004
        return None

    at = source if transposed else grad
    flops = 2 * at[0] * n_elements(at[2:]) * n_elements(weight) * sum(map(bool, wanted[:2]))
    gradients = [
        shape for shape, is_wanted in zip((source, weight), wanted, strict=False) if is_wanted
    ]
    return CallWork(flops, _bytes(inputs, gradients))


def _attention(inputs: OpInputs, *, causal: int, first: int = 0) -> CallWork | None:
    """Compute attention of queries, keys and values of shape (batch, heads, length, size).

    Args:
        causal: The place of ``is_causal``.
        first: The place of the queries: 1 for the backward pass, which begins with a gradient.
    """
    query, key, value = (inputs.shape(first + place) for place in range(3))
    if not query or not key or not value or not len(query) == len(key) == len(value) == 4:  # noqa: PLR2004
        return None

    scores = n_elements(query[:-1]) * key[-2]
    # Backward: the scores again, and the gradients of values, scores, queries and keys.
    inner = 3 * query[-1] + 2 * value[-1] if first else query[-1] + value[-1]
    flops = 2 * scores * inner // (2 if inputs.value(causal) is True else 1)
    out = [query, key, value] if first else [(*query[:-1], value[-1])]
    return CallWork(flops, _bytes(inputs, out, like=first))


def _pointwise(inputs: OpInputs, *, flops: int) -> CallWork | None:
    """Compute the work of an operator with some FLOPs per element of its result."""
    shapes = [shape for shape, _ in inputs.tensors]
    if not shapes:
        return None
    out = broadcast(shapes)
    return CallWork(flops * n_elements(out), _bytes(inputs, [out]))


def _each_of_list(inputs: OpInputs, *, flops: int, fused: bool = False) -> CallWork | None:
    """Compute a pointwise operator over lists of tensors, which writes as many as the first.

    Args:
        fused: Whether it is an optimizer's step, which writes all lists but the second, gradients.
    """
    lists = inputs.lists
    if not lists or not lists[0]:
        return None
    sizes = [sum(map(n_elements, shapes)) for shapes in lists]
    n_written = sum(sizes) - sizes[1] if fused and len(sizes) > 1 else sizes[0]
    return _of_lists(inputs, flops * sizes[0], sum(sizes) + n_written)


def _of_lists(inputs: OpInputs, flops: int, n_moved: int) -> CallWork:
    """Return the work of an operator that moves some elements of lists of tensors.

    Source: ``torch/csrc/profiler/util.cpp`` (``TensorList`` in place of types).
    """
    sizes = {size for shape, size in inputs.tensors if shape}
    if sizes == {None}:
        return CallWork(flops, None, n_moved)
    size = sizes.pop() if len(sizes) == 1 else None
    return CallWork(flops, None if size is None else size * n_moved)


def _like(inputs: OpInputs, *, flops: int, place: int = 0) -> CallWork | None:
    """Compute an operator whose result has the shape of an input, with FLOPs per element."""
    shape = inputs.shape(place)
    if shape is None:
        return None
    return CallWork(flops * n_elements(shape), _bytes(inputs, [shape], like=place))


def _reduction(inputs: OpInputs) -> CallWork | None:
    shape, dims = inputs.shape(0), inputs.value(1)
    if shape is None:
        return None
    dims = [dims] if isinstance(dims, int) and not isinstance(dims, bool) else dims
    reduced = (
        {_number(dim) % len(shape) for dim in dims} if isinstance(dims, list) and shape else None
    )
    kept = tuple(size for place, size in enumerate(shape) if reduced and place not in reduced)
    return CallWork(n_elements(shape), _bytes(inputs, [kept]))


def _embedding(inputs: OpInputs) -> CallWork | None:
    """Compute a lookup in a table, of which only the wanted rows are read."""
    table, places = inputs.shape(0), inputs.shape(1)
    size, place_size = inputs.element_bytes(0), inputs.element_bytes(1)
    if table is None or places is None or size is None or place_size is None:
        return None
    rows = n_elements(places)
    return CallWork(0, rows * (place_size + 2 * size * n_elements(table[1:])))


def _bags(inputs: OpInputs) -> CallWork | None:
    """Compute sums of rows of a table, one for each bag."""
    table, places, bags = inputs.shape(0), inputs.shape(1), inputs.shape(2)
    looked_up = _embedding(inputs)
    if looked_up is None or looked_up.n_bytes is None or not table or places is None:
        return None
    row, size = n_elements(table[1:]), inputs.element_bytes(0) or 0
    n_rows = n_elements(places)
    # Rows are read; only the sums are written.
    n_written = n_elements(bags) - n_rows if bags else 0
    return CallWork(n_rows * row, looked_up.n_bytes + n_written * row * size)


def _embedding_backward(inputs: OpInputs) -> CallWork | None:
    grad, n_rows = inputs.shape(0), inputs.value(2)
    if not grad or not isinstance(n_rows, int):
        return None
    return CallWork(n_elements(grad), _bytes(inputs, [(n_rows, grad[-1])]))


def _written(inputs: OpInputs) -> CallWork | None:
    """Compute a fill, which writes the tensor and does not read it."""
    shape, size = inputs.shape(0), inputs.element_bytes(0)
    return None if shape is None or size is None else CallWork(0, n_elements(shape) * size)


def _joined(inputs: OpInputs) -> CallWork | None:
    """Compute a concatenation, which reads and writes every element."""
    n_joined = sum(n_elements(shape) for shape, _ in inputs.tensors)
    return _of_lists(inputs, 0, 2 * n_joined) if n_joined else None


def _copied(inputs: OpInputs) -> CallWork | None:
    """Compute a copy between tensors that may have different types."""
    target, source = inputs.shape(0), inputs.shape(1)
    if target is None or source is None:
        return None
    sizes = inputs.element_bytes(0) or 0, inputs.element_bytes(1) or 0
    return CallWork(0, n_elements(target) * sizes[0] + n_elements(source) * sizes[1])


def _number(value: object) -> int:
    return value if isinstance(value, int) else 1


_SCALAR_TYPES: Final = {5: 2, 6: 4, 15: 2}
"""Bytes of an element by the number of its type: half, float and bfloat16.

Source: ``c10/core/ScalarType.h``.
"""
_FLOPS_PER_ELEMENT: Final = {
    1: "add sub rsub mul div neg abs sqrt rsqrt exp log pow square sin cos tanh erf reciprocal "
       "sign relu clamp clamp_min clamp_max minimum maximum threshold_backward where floor ceil "
       "round leaky_relu hardtanh masked_fill remainder fmod",
    2: "dropout native_dropout elu softplus tanh_backward hardswish",
    3: "addcmul addcdiv lerp sigmoid_backward logaddexp leaky_relu_backward",
    4: "sigmoid",
    5: "silu gelu mish",
    7: "silu_backward gelu_backward",
}  # fmt: skip
"""Operations of an operator's formula, a function of one element being one."""
_FLOPS_LIKE: Final = {
    "_softmax": (5, 0), "_log_softmax": (5, 0),
    "_softmax_backward_data": (4, 0), "_log_softmax_backward_data": (4, 0),
    "native_layer_norm": (8, 0), "native_group_norm": (8, 0), "native_batch_norm": (8, 0),
    "cudnn_batch_norm": (8, 0), "miopen_batch_norm": (8, 0), "_fused_rms_norm": (4, 0),
    "native_layer_norm_backward": (13, 1), "native_group_norm_backward": (13, 1),
    "native_batch_norm_backward": (13, 1), "cudnn_batch_norm_backward": (13, 0),
    "_native_batch_norm_legit": (8, 0), "_batch_norm_with_update": (8, 0),
    "miopen_batch_norm_backward": (13, 0), "_fused_rms_norm_backward": (9, 1),
    "cumsum": (1, 0),
}  # fmt: skip
"""FLOPs per element of one of the inputs, and its place. A normalization takes the mean (1), the
variance (3), the normalized value (2), and a weight and a bias (2); its backward pass the two means
of the gradient (5), the gradients of the input (5) and of weight and bias (3). RMS norm has
neither mean nor bias."""
_FUSED_OPTIMIZERS: Final = {
    "_fused_sgd": 4,
    "_fused_adagrad": 7,
    "_fused_adam": 13,
    "_fused_adamw": 14,
}
"""FLOPs per parameter: Adam's two averages (3 and 4), its root and quotient (3), the update (3)."""
_CAUSAL: Final = {
    "_scaled_dot_product_flash_attention": (4, 11),
    "_scaled_dot_product_efficient_attention": (6, 11),
    "_scaled_dot_product_cudnn_attention": (6, 14),
    "_scaled_dot_product_flash_attention_for_cpu": (4, 7),
}
"""The places of ``is_causal`` in the schemas of the forward and the backward operator."""


def _build_formulas() -> dict[str, Formula]:
    by_name: dict[str, Formula] = {
        **dict.fromkeys(("mm", "bmm", "mv", "dot", "_int_mm"), _product),
        **dict.fromkeys(
            ("addmm", "baddbmm", "addmv", "_addmm_activation"), partial(_product, first=1)
        ),
        "_scaled_mm": partial(_scaled, product=_product, place=6),
        "_grouped_mm": _grouped_product,
        "_scaled_grouped_mm": partial(_scaled, product=_grouped_product, place=7),
        "linear": _linear,
        **dict.fromkeys(("convolution", "_convolution"), _convolution),
        "convolution_backward": _convolution_backward,
        **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduction),
        "embedding": _embedding,
        "embedding_dense_backward": _embedding_backward,
        **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bags),
        **dict.fromkeys(("fill", "zero"), _written),
        "cat": _joined,
        "clone": partial(_like, flops=0),
        "copy": _copied,
    }

    for name, (forward, backward) in _CAUSAL.items():
        by_name[name] = partial(_attention, causal=forward)
        by_name[f"{name}_backward"] = partial(_attention, causal=backward, first=1)
    for flops, names in _FLOPS_PER_ELEMENT.items():
        for name in names.split():
            by_name[name] = partial(_pointwise, flops=flops)
            by_name[f"_foreach_{name}"] = partial(_each_of_list, flops=flops)
    for name, (flops, place) in _FLOPS_LIKE.items():
        by_name[name] = partial(_like, flops=flops, place=place)
    for name, flops in _FUSED_OPTIMIZERS.items():
        by_name[name] = partial(_each_of_list, flops=flops, fused=True)
    return by_name


_FORMULAS: Final = _build_formulas()
_PRODUCT: Final = regex(
    r"aten::(linear|dot|\w*m[mv](_activation)?|_?convolution(_backward)?|_scaled_dot_product\w+)$"
)
_PREFIX: Final = "aten::"


def is_product(name: str) -> bool:
    """Return whether an operator multiplies matrices, for which devices have the fastest units."""
    return _PRODUCT.match(name) is not None


def formula(name: str) -> Formula | None:
    """Return the formula of an operator, which an in-place operator shares.

    Args:
        name: As recorded: ``aten::addmm``.
    """
    if not name.startswith(_PREFIX):
        return None
    plain = name.removeprefix(_PREFIX)
    return _FORMULAS.get(plain) or _FORMULAS.get(plain.removesuffix("_"))
