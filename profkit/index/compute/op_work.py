"""FLOPs and bytes of every recorded call of an operator, each counted once."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.compute.formulas import formula
from profkit.index.compute.inputs import ELEMENT_BYTES, parse_inputs
from profkit.index.distinct import distinct, numbered
from profkit.index.host.nesting import CallTree
from profkit.model.events import (
    MISSING,
    NO_ROW,
    EventTable,
    Int64s,
    Mask,
    Rows,
    SparseColumn,
    are_equally_long,
    is_within,
)

UNKNOWN: Final = -1
"""Bytes of a call, or the kind of its elements, that are not known."""
_MAX_WORK: Final = 1 << 60
_KINDS: Final = tuple(ELEMENT_BYTES)


@dataclass(frozen=True)
class OpWork:
    """The operators that do the work, none of which contains another.

    Attributes:
        rows: Calls of operators, ascending. Shape ``(k,)``.
        flops: Floating-point operations of each. Shape ``(k,)``.
        n_bytes: Bytes that each reads and writes at least, or :data:`UNKNOWN`. Shape ``(k,)``.
        n_untyped: Elements that each moves in lists of tensors, whose bytes are :data:`UNKNOWN`
            because torch does not record their type. Shape ``(k,)``.
        kind: Index into ``kinds``. Shape ``(k,)``.
        kinds: The type of the first tensor's elements, as recorded: ``c10::BFloat16``.
    """

    rows: Rows
    flops: Int64s
    n_bytes: Int64s
    n_untyped: Int64s
    kind: Int64s
    kinds: tuple[str, ...]

    def fits(self, events: EventTable) -> bool:
        """Return whether work from a cache may belong to some events."""
        return (
            are_equally_long(self.rows, self.flops, self.n_bytes, self.n_untyped, self.kind)
            and is_within(self.rows, 0, len(events) - 1)
            and is_within(self.kind, UNKNOWN, len(self.kinds) - 1)
            and all(is_within(column, UNKNOWN, _MAX_WORK) for column in (self.flops, self.n_bytes))
            and is_within(self.n_untyped, 0, _MAX_WORK)
        )


def measure_op_work(events: EventTable, tree: CallTree) -> OpWork:
    """Measure the work of all operators whose inputs were recorded.

    ``aten::linear`` contains ``aten::addmm``, and ``aten::convolution_backward`` a small sum: the
    operators within count, unless the operator itself computes more than they.
    """
    rows = np.asarray(events.input_dims.rows, dtype=np.intp)
    has_formula = np.zeros(len(events.names), dtype=np.bool_)
    for name in distinct(events.name[rows]).tolist():
        has_formula[name] = formula(events.names[name]) is not None
    rows = rows[has_formula[events.name[rows]]]

    # Programs repeat their calls, so that only distinct ones are parsed.
    first, call = _find_distinct_calls(events, rows)
    unknown = (UNKNOWN, UNKNOWN, 0, 0)
    texts = zip(*(_texts(events, column, rows[first]) for column in _inputs(events)), strict=True)
    names = events.name[rows[first]].tolist()
    figures = [
        _measure_call(events.names[name], inputs) or unknown
        for name, inputs in zip(names, texts, strict=True)
    ]
    columns = np.array(figures, dtype=np.int64).reshape(-1, 4)[call].T

    score = np.zeros(len(events), dtype=np.int64)
    score[rows] = 2 * columns[0] + 1  # a copy computes nothing, and still is work
    counts = _select_innermost_with_most(tree, score)[rows]
    flops, n_bytes, n_untyped, kind = columns[:, counts]
    return OpWork(rows[counts], flops, n_bytes, n_untyped, kind, _KINDS)


def _find_distinct_calls(events: EventTable, rows: Rows) -> tuple[Rows, Int64s]:
    """Find one call of each kind, and the kind of each call, by operator and inputs."""
    kind = events.name[rows].astype(np.int64)
    for column in _inputs(events):
        texts = column.at(rows)
        texts[texts == MISSING] = NO_ROW
        _, kind = numbered(kind * (len(events.names) + 1) + texts + 1)
    first = np.zeros(int(kind.max(initial=-1)) + 1, dtype=np.intp)
    first[kind[::-1]] = np.arange(len(rows))[::-1]
    return first, kind


def _measure_call(name: str, texts: tuple[str, ...]) -> tuple[int, int, int, int] | None:
    """Return FLOPs, bytes, untyped elements and kind of a call, or None if unknown.

    Args:
        texts: The shapes, types and values of its inputs, as recorded.
    """
    compute, inputs = formula(name), parse_inputs(*texts)
    work = None if compute is None or inputs is None else compute(inputs)

    # No device computes more within one call: larger sizes are made up.
    if (
        inputs is None
        or work is None
        or max(work.flops, work.n_bytes or 0, work.n_untyped) >= _MAX_WORK
    ):
        return None

    kinds = [name for name in inputs.types if isinstance(name, str) and name in ELEMENT_BYTES]
    kind = _KINDS.index(kinds[0]) if kinds else UNKNOWN
    n_bytes = UNKNOWN if work.n_bytes is None else work.n_bytes
    return work.flops, n_bytes, work.n_untyped, kind


def _inputs(events: EventTable) -> tuple[SparseColumn, SparseColumn, SparseColumn]:
    """Return the columns with the shapes, types and values of inputs."""
    return events.input_dims, events.input_types, events.concrete_inputs


def _texts(events: EventTable, column: SparseColumn, rows: Rows) -> list[str]:
    """Return the texts of a column for some rows, empty where a row has none."""
    numbers = column.at(rows).tolist()
    return ["" if number == MISSING else events.names[number] for number in numbers]


def _select_innermost_with_most(tree: CallTree, score: Int64s) -> Mask:
    """Select the rows with a higher score than all selected rows within them together.

    Args:
        score: Shape ``(n,)``; 0 for rows without a formula.
    """
    within = np.zeros(len(score), dtype=np.int64)
    counts = np.zeros(len(score), dtype=np.bool_)
    for level in reversed(tree.levels):
        counts[level] = score[level] > within[level]
        parents = tree.parent[level]
        has_parent = parents != NO_ROW
        best = np.maximum(score[level], within[level])[has_parent]
        np.add.at(within, parents[has_parent], best)

    # Rows within a selected row do not count.
    hidden = np.zeros(len(score), dtype=np.bool_)
    for level in tree.levels[1:]:
        above = tree.parent[level]
        hidden[level] = hidden[above] | counts[above]
    return counts & ~hidden
