"""KER018 pairwise-broadcast: all pairs of rows are combined in a large tensor, and reduced.

What it finds:
    A product, difference or cosine of two tensors that are broadcast against each other, such as
    (n, 1, d) and (1, m, d), to a tensor many times as large as both, whose last dimension is then
    reduced. Only where nothing else is computed of the large tensor than what a matrix product or
    ``torch.cdist`` computes without it.

Why it matters:
    The large tensor is written and read by each operator, and retained for the backward pass: the
    time is that of its bytes. A matrix product reads both inputs and writes the result. The cost is
    a replay in which these operators take an assumed tenth.

How to fix it:
    Products: ``a @ b.mT``. Cosines: the same of normalized rows. Distances: ``torch.cdist(a, b)``.

Example:
    ::

        similarity = F.cosine_similarity(a[:, None], b[None], dim=-1)
        distance = (a[:, None] - b[None]).square().sum(-1)

Use instead:
    ::

        similarity = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT
        distance = torch.cdist(a, b).square()

Reads:
    Operators with their shapes (``Input Dims``, ``ts_ns`` and ``dur_ns`` in nanoseconds), their
    kernels, the steps, the source lines.

When to ignore this:
    The rows are few, or differences of nearly equal rows matter: ``torch.cdist`` computes large
    distances by a matrix product, which rounds more (``compute_mode``).

Source:
    ``torch.cdist``, ``torch.nn.functional.cosine_similarity`` and "Broadcasting semantics" in
    PyTorch's documentation; ``aten/src/ATen/native/Distance.cpp``.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.compute.inputs import OpInputs, Shape, broadcast, n_elements, parse_inputs
from profkit.index.device.syncs import outermost_calls
from profkit.index.distinct import distinct, united
from profkit.index.intervals import covered_by
from profkit.rule import (
    MISSING,
    Category,
    Context,
    Finding,
    Location,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    dataclass,
    find_computing,
    find_rows,
    format_bytes,
    in_windows,
    known_locations,
    measure_saving,
    needs,
    regex,
    time_with_share,
)

INFO = RuleInfo(
    id="KER018",
    name="pairwise-broadcast",
    title="Pairs of rows are combined in a large tensor",
    severity="warning",
    needs=(needs.SHAPES,),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a broadcast is a finding.

    Attributes:
        min_growth_ratio: Minimum size of the result as a multiple of the larger input. With a few
            rows on one side, a matrix product is not much faster.
        min_elements_count: Minimum elements of the result: smaller ones stay in a cache.
        min_saved_share: Minimum share of the steps that the fix saves.
        assumed_kept_share: Assumed share of their time that the operators take as a product.
    """

    min_growth_ratio: float = 8.0
    min_elements_count: int = 100_000
    min_saved_share: float = 0.05
    assumed_kept_share: float = 0.1


_COMBINES: Final = regex(r"^aten::(mul|sub|rsub|cosine_similarity)$")
_COSINE: Final = "aten::cosine_similarity"
_PRODUCT: Final = "aten::mul"
_REDUCES: Final = regex(r"^aten::(sum|mean|norm|linalg_vector_norm)$")
_FITS: Final = regex(
    r"^aten::(mul|sub|rsub|div|pow|square|abs|neg|sqrt|sum|mean|norm|linalg_vector_norm|expand"
    r"|cosine_similarity|add|fill|zero|copy|clone|view|reshape|detach|to|_to_copy|contiguous"
    r"|sum_to_size|ones_like|zeros_like|empty_like|result_type|clamp_min|masked_fill|eq|sgn"
    r"|unsqueeze|squeeze|select|slice|as_strided|_unsafe_view|is_nonzero|size)_?$|Backward\d*$"
    r"|^autograd::|^torch::autograd"
)
"""Operators on the large tensor that a matrix product or ``torch.cdist`` replaces, or that move it.
Any other needs the tensor itself, such as ``tanh`` in additive attention."""
_MIN_RANK: Final = 3

_FIXES: Final = {
    _COSINE: (
        "Multiply normalized rows: `F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT`, which has "
        "the cosines of all pairs."
    ),
    _PRODUCT: "Multiply matrices: `a @ b.mT` has the sums of the products of all pairs.",
}
_FIX_DISTANCE: Final = (
    "Use `torch.cdist(a, b)`, which has the distances of all pairs (`p=1` for absolute "
    "differences); `.square()` of it where their squares are wanted."
)


@dataclass(frozen=True)
class _Pairs:
    """A function of the program in which operators of one name broadcast two tensors.

    Attributes:
        combine: The operator's name.
        inputs: The shapes of both tensors.
        result: The shape of their result.
        element_bytes: Bytes of an element, or None if it is not known.
        rows: The operators.
    """

    combine: str
    inputs: tuple[Shape, Shape]
    result: Shape
    element_bytes: int | None
    rows: Rows


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line at which pairs are combined in a large tensor."""
    for location, pairs in _find_pairs(ctx, thresholds):
        rows = _find_work(ctx, location, pairs)
        if not len(rows):
            continue

        computing = find_computing(ctx, rows)
        change = ProgramChange(scaled=((computing, thresholds.assumed_kept_share),))
        saving = measure_saving(ctx, change, "estimate")
        if not saving.reaches(thresholds.min_saved_share):
            continue

        spent = covered_by(ctx.events, computing)
        first, second = pairs.inputs
        n_bytes = n_elements(pairs.result) * (pairs.element_bytes or 0)
        size = f", {format_bytes(n_bytes)}," if n_bytes else ""
        yield saving.finding(
            INFO,
            confidence="medium",
            message=(
                f"Tensors of {first} and {second} are broadcast to {pairs.result}{size}"
                f"{at(location)} and reduced again, which takes "
                f"{time_with_share(ctx, spent.total_ns)}."
            ),
            fix=_FIXES.get(pairs.combine, _FIX_DISTANCE),
            locations=known_locations(location),
            rows=pairs.rows,
            evidence={
                "shape": list(pairs.result),
                "bytes": n_bytes,
                "spent_ns": spent.total_ns,
            },
            spans=spent.pairs(),
        )


def _find_pairs(ctx: Context, thresholds: Thresholds) -> Iterator[tuple[Location, _Pairs]]:
    """Yield the operators that broadcast two tensors to a much larger one, by line and shapes."""
    rows = find_rows(ctx, _COMBINES, Category.OP)
    dims = ctx.events.input_dims.at(rows)

    for number in distinct(dims[dims != MISSING]).tolist():
        of_shapes = rows[dims == number]
        inputs = _read_inputs(ctx, int(of_shapes[0]))
        pair = None if inputs is None else _pair_of(inputs)
        if inputs is None or pair is None or not _is_large(pair, thresholds):
            continue

        result, element_bytes = broadcast([*pair]), inputs.element_bytes(0)
        for location, line_rows in ctx.by_line(of_shapes):
            combine = ctx.events.name_of(int(line_rows[0]))
            yield location, _Pairs(combine, pair, result, element_bytes, line_rows)


def _read_inputs(ctx: Context, row: int) -> OpInputs | None:
    """Return the inputs of an operator, or None without their shapes."""
    events = ctx.events
    dims, types = (
        int(column.at(np.array([row]))[0]) for column in (events.input_dims, events.input_types)
    )
    if dims == MISSING:
        return None
    return parse_inputs(events.names[dims], "" if types == MISSING else events.names[types], "")


def _pair_of(inputs: OpInputs) -> tuple[Shape, Shape] | None:
    """Return the shapes of the first two inputs, if both are tensors of enough dimensions."""
    shapes = [
        shape for shape in inputs.shapes[:2] if shape and all(isinstance(n, int) for n in shape)
    ]
    if len(shapes) < 2 or max(map(len, shapes)) < _MIN_RANK:  # noqa: PLR2004
        return None
    return shapes[0], shapes[1]  # type: ignore[return-value]


def _is_large(pair: tuple[Shape, Shape], thresholds: Thresholds) -> bool:
    """Return whether both tensors are repeated, to a result that is much larger than either."""
    n_result = n_elements(broadcast([*pair]))
    min_elements = thresholds.min_growth_ratio * max(map(n_elements, pair))
    return n_result >= max(thresholds.min_elements_count, min_elements)


def _find_work(ctx: Context, location: Location, pairs: _Pairs) -> Rows:
    """Find the operators on the large tensor in the same function, backward ones too.

    None where one of them needs the tensor itself, or nothing reduces it.
    """
    events, frames = ctx.events, ctx.source.frames
    in_function = np.array(
        [(frame.file, frame.function) == (location.file, location.function) for frame in frames]
        + [location.file is None],
        dtype=np.bool_,
    )
    rows = events.rows_of(Category.OP)
    rows = rows[in_windows(ctx, rows) & in_function[ctx.source.frame[rows]]]

    dims = events.input_dims.at(rows)
    texts = distinct(dims[dims != MISSING]).tolist()
    large = [number for number in texts if _has_shape(events.names[number], pairs.result)]
    on_large = rows[np.isin(dims, large)]

    names = {events.names[number] for number in distinct(events.name[on_large]).tolist()}
    is_reduced = pairs.combine == _COSINE or any(_REDUCES.search(name) for name in names)
    if not is_reduced or not all(_FITS.search(name) for name in names):
        return np.zeros(0, dtype=np.intp)
    return outermost_calls(events, ctx.tree, united(on_large, pairs.rows))


def _has_shape(dims: str, shape: Shape) -> bool:
    """Return whether one of an operator's inputs has a shape."""
    inputs = parse_inputs(dims, "", "")
    return inputs is not None and shape in inputs.shapes
