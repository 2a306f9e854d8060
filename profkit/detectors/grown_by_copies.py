"""KER024 grown-by-copies: a loop appends to a tensor by ``torch.cat``, which copies all of it.

What it finds:
    Calls of ``torch.cat`` of which each gets the result of the one before and a smaller tensor, at
    least three in a row, while no other operator reads the result.

Why it matters:
    A tensor cannot grow in place. Each call allocates a larger one and copies all earlier rows, so
    that the time of a loop grows with the square of its length. The cost is what the steps take
    less in a replay in which each call takes the share of its time that the new rows have: an
    estimate. It is for the recorded calls. Later ones have a longer input, and cost more.

How to fix it:
    Append the tensors to a list, and call ``torch.cat`` once after the loop. If the length is
    known, write into a tensor that was made before it.

Example:
    ::

        result = torch.zeros(0, 256)
        for batch in batches:
            result = torch.cat([result, model(batch)])

Use instead:
    ::

        parts = [model(batch) for batch in batches]
        result = torch.cat(parts)

Reads:
    Operators with their shapes (``Input Dims``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the
    device work that they launch, the steps, the source lines, the samples of Python stacks.

When to ignore this:
    The result is needed after each call, by something that is no operator.

Source:
    ``torch.cat`` in PyTorch's documentation: it returns a new tensor.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.sampled_python import locate_by_samples
from profkit.index.compute.inputs import Shape, n_elements
from profkit.index.compute.shaped import by_shapes, list_shapes, tensor_shape
from profkit.index.distinct import are_among
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    find_rows,
    format_count,
    in_windows,
    measure_saving,
    needs,
    regex,
    time_with_share,
)

INFO = RuleInfo(
    id="KER024",
    name="grown-by-copies",
    title="A tensor grows by copies of all of it",
    severity="warning",
    needs=(needs.OPERATORS, needs.SHAPES),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a growing tensor is a finding.

    Attributes:
        min_calls_count: Minimum calls in a row of which each gets the result of the one before.
        min_saved_share: Minimum share of the steps that the fix saves.
        warning_share: Share from which it is a warning.
    """

    min_calls_count: int = 3
    min_saved_share: float = 0.02
    warning_share: float = 0.05


_CAT: Final = regex(r"^aten::(cat|concat|concatenate|vstack|hstack)$")


@dataclass(frozen=True)
class _Growth:
    """Calls that append tensors of one shape to one of another shape.

    Attributes:
        before: The shape of the larger one.
        after: The shape of the result.
        rows: The calls.
    """

    before: Shape
    after: Shape
    rows: Rows

    @property
    def new_share(self) -> float:
        """Return the share of the result that is appended."""
        return 1 - n_elements(self.before) / n_elements(self.after)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if a tensor grows by copies."""
    growths = _find_chain(list(_list_growths(ctx)), thresholds.min_calls_count)
    if not growths or _are_read(ctx, {growth.after for growth in growths}):
        return

    saving = measure_saving(ctx, _leave_new_rows(ctx, growths), "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    rows = np.sort(np.concatenate([growth.rows for growth in growths]))
    spent = covered_by(ctx.events, rows)
    locations = locate_by_samples(ctx, spent.total_ns) or find_costliest_lines(ctx, rows)
    first, last = n_elements(growths[0].before), n_elements(growths[-1].after)
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"The loop{at_first(locations)} appends to a tensor by `torch.cat`, which copies all "
            f"of it in each call: from {format_count(first)} to {format_count(last)} elements in "
            f"{format_count(len(rows))} recorded calls, which take "
            f"{time_with_share(ctx, spent.total_ns)}."
        ),
        fix=(
            "Append the tensors to a list, and call `torch.cat` once after the loop; or write them "
            "into a tensor of the final size that is made before it."
        ),
        locations=locations,
        rows=rows,
        evidence={"first_elements": first, "last_elements": last, "spent_ns": spent.total_ns},
        spans=spent.pairs(),
    )


def _list_growths(ctx: Context) -> Iterator[_Growth]:
    """Yield the calls that join a tensor with a smaller one, by their shapes."""
    rows = find_rows(ctx, _CAT, Category.OP)
    rows = rows[in_windows(ctx, rows) & (ctx.tree.op_around[rows] == NO_ROW)]

    for inputs, of_shapes in by_shapes(ctx.events, rows):
        shapes = sorted(list_shapes(inputs, 0), key=n_elements)
        if len(shapes) != 2 or len(shapes[0]) != len(shapes[1]):  # noqa: PLR2004  (before, and new)
            continue
        new, before = shapes
        sizes = enumerate(zip(new, before, strict=True))
        grown = [place for place, (added, size) in sizes if added != size]
        # Two equal shapes do not tell which dimension grows.
        if len(grown) == 1 and n_elements(new):
            after = tuple(
                size + new[place] if place in grown else size for place, size in enumerate(before)
            )
            yield _Growth(before, after, of_shapes)


def _find_chain(growths: list[_Growth], min_calls: int) -> list[_Growth]:
    """Find the longest chain of growths of which each begins with the result of the one before."""
    # The last tensor of a loop is often shorter, and its calls are fewer.
    by_before = {growth.before: growth for growth in sorted(growths, key=lambda g: len(g.rows))}
    results = {growth.after for growth in by_before.values()}

    longest: list[_Growth] = []
    for first in by_before.values():
        if first.before in results:
            continue
        chain = [first]
        # Each result is larger than the one before, so this ends.
        while (following := by_before.get(chain[-1].after)) is not None:
            chain.append(following)
        longest = max(longest, chain, key=len)
    return longest if len(longest) >= min_calls else []


def _leave_new_rows(ctx: Context, growths: list[_Growth]) -> ProgramChange:
    """Return the change that leaves the calls the time of what they append."""
    dur_ns = ctx.events.dur_ns
    new_ns = sum(growth.new_share * float(dur_ns[growth.rows].sum()) for growth in growths)
    rows = np.sort(np.concatenate([growth.rows for growth in growths]))
    new_share = new_ns / max(1, int(dur_ns[rows].sum()))

    # A CPU copies in the operators themselves, a device in the kernels that they launch.
    work, launching = ctx.launched_by(rows)
    on_cpu = rows[~are_among(rows, launching)]
    scaled = ((part, new_share) for part in (on_cpu, work) if len(part))
    return ProgramChange(scaled=tuple(scaled))


def _are_read(ctx: Context, shapes: set[Shape]) -> bool:
    """Return whether operators read the grown tensors, as a network's layers or attention do."""
    is_called = ctx.tree.is_op & (ctx.tree.op_around == NO_ROW)
    is_called &= ~rows_named(ctx.events, _CAT, Category.OP)
    rows = np.flatnonzero(is_called)
    return any(
        tensor_shape(inputs, place) in shapes
        for inputs, _ in by_shapes(ctx.events, rows[in_windows(ctx, rows)])
        for place in range(len(inputs.shapes))
    )
