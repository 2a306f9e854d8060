"""Embedding tables that steps read and optimizers update."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.tensor_loops import select_called
from profkit.engine.windows import find_rows, in_windows, select_on_cpu
from profkit.index.compute.inputs import Shape, n_elements, parse_inputs
from profkit.index.distinct import distinct
from profkit.index.runtime_calls import are_optimizer_steps
from profkit.model.events import MISSING, Category, Rows
from profkit.patterns import regex

MAX_READ_SHARE: Final = 0.1
"""Maximum share of a table's rows that a step reads, for sparse updates to take much less."""
_READS: Final = regex(r"^aten::(embedding|_embedding_bag)$")
_GRADIENTS: Final = regex(r"^aten::(embedding_dense_backward|_embedding_bag_dense_backward)$")
_PRODUCTS: Final = regex(r"^aten::(linear|matmul|mm|addmm|bmm|baddbmm|t|transpose)$")
_N_DIMENSIONS: Final = 2


@dataclass(frozen=True)
class UpdatedTable:
    """An embedding table that the steps read and an optimizer updates.

    Attributes:
        n_rows: Its rows.
        n_columns: Its columns.
        n_read: The most rows that a step reads; a row that is read twice counts twice.
        gradients: The operators that make its gradient. Rows.
        updates: The optimizers' operators on it, and its share of the elements that they update.
    """

    n_rows: int
    n_columns: int
    n_read: int
    gradients: Rows
    updates: tuple[tuple[Rows, float], ...]

    @property
    def update_rows(self) -> Rows:
        """Return the optimizers' operators on it."""
        return _join([rows for rows, _ in self.updates])

    def is_hardly_read(self, max_read_share: float) -> bool:
        """Return whether it is updated whole although the steps read few of its rows."""
        # Without an operator that makes a dense gradient, the gradient is sparse already.
        is_dense = len(self.gradients) > 0 and len(self.updates) > 0
        return is_dense and 0 < self.n_read <= max_read_share * self.n_rows


def find_updated_tables(ctx: Context) -> Iterator[UpdatedTable]:
    """Yield the embedding tables that the steps read on a CPU, one for each shape."""
    if not len(ctx.steps):
        return
    indices_of_table: dict[Shape, dict[Shape, Rows]] = {}
    for (table, indices, *_), rows in _by_shapes(ctx, find_rows(ctx, _READS, Category.OP), 2):
        if len(table) == _N_DIMENSIONS and not (_is_list(table) or _is_list(indices)):
            indices_of_table.setdefault(table, {})[indices] = rows
    if not indices_of_table:
        return

    # Each of these passes over all operators, so they come only where there is a table.
    gradients = tuple(_by_shapes(ctx, find_rows(ctx, _GRADIENTS, Category.OP), 2))
    updates = tuple(_by_shapes(ctx, _find_updates(ctx)))
    products = tuple(_by_shapes(ctx, find_rows(ctx, _PRODUCTS, Category.OP)))
    operands = {operand for shapes, _ in products for operand in shapes}

    for table, calls in indices_of_table.items():
        # The gradient of what a matrix product uses too has values in all rows.
        if table in operands or table[::-1] in operands:
            continue
        n_rows, n_columns = table
        yield UpdatedTable(
            n_rows=n_rows,
            n_columns=n_columns,
            n_read=_count_read_rows(ctx, calls),
            gradients=_join([rows for shapes, rows in gradients if _fits(shapes, table, calls)]),
            updates=tuple(
                (rows, share)
                for shapes, rows in updates
                if (share := _share_of_table(shapes[0], table)) > 0
            ),
        )


def _count_read_rows(ctx: Context, calls: dict[Shape, Rows]) -> int:
    """Return the most rows of a table that a step reads, from the shapes of its indices."""
    n_read = np.zeros(len(ctx.steps), dtype=np.int64)
    for indices, rows in calls.items():
        n_calls = np.bincount(ctx.step_of(rows), minlength=len(ctx.steps))
        n_read += n_calls * n_elements(indices)
    return int(n_read.max(initial=0))


def _find_updates(ctx: Context) -> Rows:
    """Find the operators that optimizers call themselves on a CPU."""
    calls = np.flatnonzero(are_optimizer_steps(ctx.events))
    _, ops = select_called(ctx, calls, np.flatnonzero(ctx.events.category == Category.OP))
    return select_on_cpu(ctx, ops[in_windows(ctx, ops)])


def _by_shapes(
    ctx: Context, rows: Rows, n_inputs: int = 1
) -> Iterator[tuple[tuple[Any, ...], Rows]]:
    """Yield operators by the shapes of their inputs, those with fewer inputs left out.

    Yields:
        A shape, a list of shapes, or ``()`` for each input; and the operators.
    """
    numbers = ctx.events.input_dims.at(rows)
    for number in distinct(numbers[numbers != MISSING]).tolist():
        inputs = parse_inputs(ctx.events.names[number], "", "")
        if inputs is not None and len(inputs.shapes) >= n_inputs:
            yield inputs.shapes, rows[numbers == number]


def _fits(shapes: tuple[Any, ...], table: Shape, calls: dict[Shape, Rows]) -> bool:
    """Return whether an operator makes the gradient of a table that was read with some indices."""
    gradient, indices = shapes[0], shapes[1]
    return gradient[-1:] == table[-1:] and indices in calls


def _share_of_table(updated: Any, table: Shape) -> float:  # noqa: ANN401  (a shape, or several)
    """Return the table's share of the elements that an operator updates."""
    if not _is_list(updated):
        return float(updated == table)
    # One operator for all parameters takes as long for each as it has elements.
    n_all = sum(map(n_elements, updated))
    return sum(n_elements(shape) for shape in updated if shape == table) / max(1, n_all)


def _is_list(shape: Any) -> bool:  # noqa: ANN401  (a shape, or several)
    return any(isinstance(member, tuple) for member in shape)


def _join(parts: list[Rows]) -> Rows:
    return np.concatenate([np.zeros(0, dtype=np.intp), *parts]).astype(np.intp)
