"""KER019 one-hot-product: one-hot vectors are multiplied by a matrix, instead of an embedding.

What it finds:
    Indices that ``F.one_hot`` turns into vectors as long as there are classes, and a matrix product
    with these vectors.

Why it matters:
    The product of a one-hot vector and a matrix is a row of the matrix. An embedding reads that row
    alone; the product multiplies all other rows by zero, the vectors take as much memory as all
    classes of each index, and the backward pass multiplies them once more. The cost is a replay in
    which these operators take the share of the values that an embedding reads and writes, and at
    most an assumed tenth.

How to fix it:
    ``nn.Embedding`` on the indices. The weight of an ``nn.Linear`` without a bias, transposed, is
    the weight of the embedding.

Example:
    ::

        hidden = self.linear(F.one_hot(words, vocabulary).float())

Use instead:
    ::

        self.embedding = nn.Embedding(vocabulary, width)
        hidden = self.embedding(words)

Reads:
    Operators with their shapes (``Input Dims``, ``ts_ns`` and ``dur_ns`` in nanoseconds), their
    kernels, the steps, the source lines.

When to ignore this:
    The vectors are also needed for something else than the product, or are no longer one-hot when
    they are multiplied, such as smoothed labels.

Source:
    ``torch.nn.functional.one_hot``, ``torch.nn.Embedding`` in PyTorch's documentation.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.compute.inputs import Shape, n_elements
from profkit.index.compute.shaped import by_shapes, tensor_shape
from profkit.index.device.syncs import outermost_calls
from profkit.index.distinct import distinct, united
from profkit.index.intervals import covered_by
from profkit.rule import (
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
    format_count,
    known_locations,
    measure_saving,
    needs,
    regex,
    time_with_share,
)

INFO = RuleInfo(
    id="KER019",
    name="one-hot-product",
    title="One-hot vectors are multiplied by a matrix",
    severity="warning",
    needs=(needs.SHAPES,),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a product with one-hot vectors is a finding.

    Attributes:
        min_classes_count: Minimum classes: with a few dozen, the product is as fast as a lookup.
        min_saved_share: Minimum share of the steps that the fix saves.
        assumed_kept_share: Assumed share of their time that an embedding takes at most: with few
            classes and indices, that of operators with little work.
    """

    min_classes_count: int = 64
    min_saved_share: float = 0.05
    assumed_kept_share: float = 0.1


_ONE_HOT: Final = regex(r"^aten::one_hot$")
_CONVERTS: Final = regex(r"^aten::(to|_to_copy|type|type_as)$")
_PASSES: Final = 4
"""Passes of an embedding and its gradient over what they read and write."""
_MULTIPLIES: Final = regex(r"^aten::(linear|matmul|mm|addmm|bmm)$")


@dataclass(frozen=True)
class _Product:
    """Products of one line with one-hot vectors.

    Attributes:
        indices: The shape of the indices.
        n_classes: The length of a vector.
        made: The operators that make the vectors.
        rows: The products, backward ones too.
    """

    indices: Shape
    n_classes: int
    made: Rows
    rows: Rows


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that multiplies one-hot vectors by a matrix."""
    for location, product in _find_products(ctx, thresholds):
        rows = outermost_calls(ctx.events, ctx.tree, united(product.made, product.rows))
        computing = find_computing(ctx, rows)
        kept = min(thresholds.assumed_kept_share, _read_share(product))
        change = ProgramChange(scaled=((computing, kept),))
        saving = measure_saving(ctx, change, "estimate")
        if not saving.reaches(thresholds.min_saved_share):
            continue

        spent = covered_by(ctx.events, computing)
        yield saving.finding(
            INFO,
            confidence="medium",
            message=(
                f"Indices of {product.indices} become one-hot vectors of "
                f"{format_count(product.n_classes)} classes, which are multiplied by a "
                f"matrix{at(location)}. Both take {time_with_share(ctx, spent.total_ns)}."
            ),
            fix=(
                f"Look the indices up by `nn.Embedding({product.n_classes}, width)`, in place of "
                "`F.one_hot` and the product."
            ),
            locations=known_locations(location),
            rows=product.rows,
            evidence={
                "n_classes": product.n_classes,
                "bytes": n_elements(product.indices) * product.n_classes * 4,
                "spent_ns": spent.total_ns,
            },
            spans=spent.pairs(),
        )


def _read_share(product: _Product) -> float:
    """Return the share of the values that an embedding reads and writes, of those of the product.

    Each index reads one of the matrix's rows. The gradient of the matrix is filled and written
    once, where the product reads it for each index.
    """
    n_indices = max(1, n_elements(product.indices))
    return _PASSES * (1 / product.n_classes + 1 / n_indices)


def _find_products(ctx: Context, thresholds: Thresholds) -> Iterator[tuple[Location, _Product]]:
    """Yield the products with one-hot vectors, by line and shape of the indices."""
    one_hot = find_rows(ctx, _ONE_HOT, Category.OP)
    converted = find_rows(ctx, _CONVERTS, Category.OP)
    multiplied = find_rows(ctx, _MULTIPLIES, Category.OP)

    for indices, made in _by_first_shape(ctx, one_hot):
        for vectors, conversions in _by_first_shape(ctx, converted):
            # torch counts with integers and multiplies floats: each vector is converted.
            is_made = vectors[:-1] == indices and _follow(ctx, made, conversions)
            if not is_made or vectors[-1] < thresholds.min_classes_count:
                continue
            rows = _with_shapes(ctx, multiplied, indices, vectors[-1])
            for location, line_rows in ctx.by_line(rows):
                # A matrix that only looks like the vectors is multiplied before they are made.
                if line_rows.min() > made.min():
                    yield (
                        location,
                        _Product(indices, vectors[-1], united(made, conversions), line_rows),
                    )


def _by_first_shape(ctx: Context, rows: Rows) -> Iterator[tuple[Shape, Rows]]:
    """Yield some operators by the shape of their first input, where it is known."""
    rows_by_shape: dict[Shape, list[Rows]] = defaultdict(list)
    for inputs, same in by_shapes(ctx.events, rows):
        shape = tensor_shape(inputs, 0)
        if shape:
            rows_by_shape[shape].append(same)
    for shape, groups in rows_by_shape.items():
        yield shape, np.sort(np.concatenate(groups))


def _follow(ctx: Context, made: Rows, conversions: Rows) -> bool:
    """Return whether each conversion comes right after vectors were made, in the same thread."""
    events = ctx.events
    made_ns = np.sort(events.ts_ns[made])
    place = np.searchsorted(made_ns, events.ts_ns[conversions], side="right") - 1
    return bool((place >= 0).all()) and len(distinct(place)) == len(made)


def _with_shapes(ctx: Context, rows: Rows, indices: Shape, n_classes: int) -> Rows:
    """Return the products of which a factor has the shape of the vectors, flat or transposed."""
    n_rows = n_elements(indices)
    vectors = {(*indices, n_classes), (n_rows, n_classes), (n_classes, n_rows)}
    fitting = [
        same
        for inputs, same in by_shapes(ctx.events, rows)
        if any(tensor_shape(inputs, place) in vectors for place in range(len(inputs.shapes)))
    ]
    return np.sort(np.concatenate(fitting)) if fitting else rows[:0]
