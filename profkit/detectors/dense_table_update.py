"""KER015 dense-table-update: the optimizer updates all rows of a table of which few were read.

What it finds:
    Steps of an optimizer on a CPU whose operators work on a whole embedding table, although each
    step reads few of its rows. Rows that are read twice count twice, and tables of the same shape
    count as one, so that a step never reads more rows than the message says. A table that a matrix
    product uses too, as the output layer of a language model does, is no finding: its gradient has
    values in all rows.

Why it matters:
    By default the gradient of an embedding has a value for each row of the table, zeros for the
    rows that were not read, and the optimizer updates each row from it. The time grows with the
    size of the table and not with that of the batch. The cost is what the steps take less in a
    replay of the recording in which the optimizer's operators on the table, and the operator that
    makes its gradient, take the share of their time that sparse updates took in measurements.

How to fix it:
    Make the table with ``nn.Embedding(..., sparse=True)`` or ``nn.EmbeddingBag(..., sparse=True)``,
    and give it to an optimizer of its own: ``torch.optim.SparseAdam`` in place of ``Adam``.
    ``SGD`` and ``Adagrad`` take sparse gradients as they are.

Example:
    ::

        self.items = nn.Embedding(1_000_000, 64)
        optimizer = torch.optim.Adam(model.parameters())

Use instead:
    ::

        self.items = nn.Embedding(1_000_000, 64, sparse=True)
        of_table = torch.optim.SparseAdam(model.items.parameters())
        of_rest = torch.optim.Adam(model.head.parameters())

Reads:
    Operators (``name``, ``Input Dims``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the annotations
    of optimizers, source lines.

When to ignore this:
    Rows that a batch does not read shall be updated too, by momentum or weight decay; or something
    in between takes no sparse gradients, such as the ``weight_decay`` of ``SGD``.

Source:
    ``torch.nn.Embedding`` (``sparse``) and ``torch.optim.SparseAdam`` in PyTorch's documentation;
    ``aten/src/ATen/native/Embedding.cpp`` (``embedding_dense_backward_cpu``).
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from profkit.engine.families.embedding_tables import (
    MAX_READ_SHARE,
    UpdatedTable,
    find_updated_tables,
)
from profkit.engine.families.tensor_loops import optimizer_of, select_called
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import are_optimizer_steps, rows_named
from profkit.rule import (
    MISSING,
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
    listed,
    measure_saving,
    needs,
    regex,
    time_with_share,
)

INFO = RuleInfo(
    id="KER015",
    name="dense-table-update",
    title="Optimizer updates all rows of a table of which few were read",
    severity="warning",
    needs=(needs.STEPS, needs.OPERATORS, needs.SHAPES),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When the update of a table is a finding.

    Attributes:
        max_read_share: Maximum share of a table's rows that a step reads.
        min_saved_share: Minimum share of the steps that the fix saves, which needs a second
            optimizer.
    """

    max_read_share: float = MAX_READ_SHARE
    min_saved_share: float = 0.05


_FUSED: Final = regex(r"^aten::_fused_")
_NORM: Final = regex(r"^aten::(linalg_vector_norm|norm|_foreach_norm)$")
_KEPT_PER_SHARE: Final = 8.0
"""Share of the time of gradient and update that remains, per share of the rows that were read.
Measured with torch 2.13 on one core for tables of 20,000 to 200,000 rows and 16 to 128 columns, of
which 1 to 10 % were read: Adam 1 to 9, SGD 1 to 11, Adagrad 1 to 12."""
_KEPT_PER_SHARE_OF_FUSED: Final = 25.0
"""The same for ``fused=True``, which leaves less to save: Adam 5 to 60."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each optimizer that updates tables whole."""
    # Tables of one optimizer have one cause and one fix.
    tables_of: dict[bytes, list[UpdatedTable]] = {}
    for table in find_updated_tables(ctx):
        if table.is_hardly_read(thresholds.max_read_share):
            calls = _find_optimizer_calls(ctx, table.update_rows)
            tables_of.setdefault(calls.tobytes(), []).append(table)

    for tables in tables_of.values():
        yield from _build_finding(ctx, thresholds, tables)


def _find_optimizer_calls(ctx: Context, update_rows: Rows) -> Rows:
    """Return the calls of an optimizer's ``step()`` that run some operators, ascending."""
    steps = np.flatnonzero(are_optimizer_steps(ctx.events))
    return np.unique(select_called(ctx, steps, update_rows)[0]).astype(np.intp)


def _build_finding(
    ctx: Context, thresholds: Thresholds, tables: Sequence[UpdatedTable]
) -> Iterator[Finding]:
    """Yield the finding on the tables of an optimizer, if sparse updates save enough."""
    change = ProgramChange(scaled=tuple(_merge_scaled_rows(ctx, tables)))
    saving = measure_saving(ctx, change, "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    events = ctx.events
    updates, gradients = (
        np.unique(np.concatenate(rows))
        for rows in zip(*((table.update_rows, table.gradients) for table in tables), strict=True)
    )
    calls = _find_optimizer_calls(ctx, updates)
    name = optimizer_of(events.name_of(int(calls[0])))
    locations = find_costliest_lines(ctx, calls)
    rows = np.union1d(gradients, updates)
    spent = covered_by(events, rows)
    yield saving.finding(
        INFO,
        confidence="medium",
        message=(
            f"`{name}.step()`{at_first(locations)} updates all {_describe_tables(tables)} "
            f"them at most. The update and its dense gradient take "
            f"{time_with_share(ctx, spent.total_ns)}."
        ),
        fix=_suggest_fix(ctx, name, tables, updates),
        locations=locations,
        rows=rows,
        n=len(calls),
        evidence={
            "table_rows": sum(table.n_rows for table in tables),
            "table_columns": max(table.n_columns for table in tables),
            "read_rows_per_step": sum(table.n_read for table in tables),
            "gradient_ns": covered_by(events, gradients).total_ns,
            "update_ns": covered_by(events, updates).total_ns,
        },
        spans=spent.pairs(),
    )


def _describe_tables(tables: Sequence[UpdatedTable]) -> str:
    """Return ``10,000 rows of an embedding table in each step, which reads 100 of``."""
    n_rows = sum(table.n_rows for table in tables)
    n_read = sum(table.n_read for table in tables)
    what = "an embedding table"
    if len(tables) > 1:
        sizes = listed([format_count(table.n_rows) for table in tables])
        what = f"embedding tables ({sizes})"
    return (
        f"{format_count(n_rows)} rows of {what} in each step, which reads {format_count(n_read)} of"
    )


def _merge_scaled_rows(
    ctx: Context, tables: Sequence[UpdatedTable]
) -> Iterator[tuple[Rows, float]]:
    """Yield the operators on tables, and the share of their time that remains of each."""
    kept: dict[int, float] = {}
    for table in tables:
        (gradients, gradient_share), *updates = _scaled_rows(ctx, table)
        # A gradient of this shape may be of another table, of which more is read.
        for row in gradients.tolist():
            kept[row] = max(kept.get(row, 0.0), gradient_share)
        # An operator that updates several tables takes less for each of them.
        for rows, share in updates:
            for row in rows.tolist():
                kept[row] = max(0.0, kept.get(row, 1.0) - (1 - share))

    by_share: dict[float, list[int]] = {}
    for row, share in kept.items():
        by_share.setdefault(share, []).append(row)
    for share, numbers in by_share.items():
        yield np.array(sorted(numbers), dtype=np.intp), share


def _scaled_rows(ctx: Context, table: UpdatedTable) -> Iterator[tuple[Rows, float]]:
    """Yield the operators on a table, and the share of their time that remains."""
    read_share = table.n_read / table.n_rows
    is_fused = rows_named(ctx.events, _FUSED, Category.OP)
    kept = min(1.0, _KEPT_PER_SHARE * read_share)
    kept_of_fused = min(1.0, _KEPT_PER_SHARE_OF_FUSED * read_share)

    # What was measured of fused updates has the gradient in it.
    has_fused = any(is_fused[rows].any() for rows, _ in table.updates)
    yield table.gradients, kept_of_fused if has_fused else kept
    for rows, share in table.updates:
        yield rows[~is_fused[rows]], 1 - share * (1 - kept)
        yield rows[is_fused[rows]], 1 - share * (1 - kept_of_fused)


def _suggest_fix(
    ctx: Context, optimizer: str, tables: Sequence[UpdatedTable], updates: Rows
) -> str:
    """Suggest sparse gradients, and to leave out what in the program does not take them."""
    what, its = "tables with `sparse=True`, so that their gradients have", "their"
    table = "the tables"
    if len(tables) == 1:
        what, its = "table with `sparse=True`, so that its gradient has", "its"
        table = "the table"
    fix = f"Make the {what} the rows alone that were read"

    if optimizer in {"SGD", "Adagrad"}:
        is_fused = rows_named(ctx.events, _FUSED, Category.OP)[updates].any()
        without = " without `fused=True`" if is_fused else ""
        fix += f"; `torch.optim.{optimizer}`{without} then updates no others"
    else:
        them = "it" if its == "its" else "them"
        fix += f", and give {them} to an optimizer of {its} own, `torch.optim.SparseAdam`"

    if any(_is_clipped(ctx, table.n_rows, table.n_columns) for table in tables):
        fix += f". Leave {table} out of `clip_grad_norm_`, which takes no sparse gradients"
    return f"{fix}."


def _is_clipped(ctx: Context, n_rows: int, n_columns: int) -> bool:
    """Return whether the program computes the norm of a table's gradient."""
    norms = find_rows(ctx, _NORM, Category.OP)
    shape = f"[{n_rows},{n_columns}]"
    dims = np.unique(ctx.events.input_dims.at(norms)).tolist()
    # Files differ in the spaces between numbers.
    texts = [ctx.events.names[number].replace(" ", "") for number in dims if number != MISSING]
    return any(shape in text for text in texts)
