"""Operators that an optimizer, or the program itself, runs for one tensor after the other."""

import re
from collections.abc import Iterator
from functools import reduce
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.families.operator_loops import list_called_operators
from profkit.index.distinct import distinct, marked
from profkit.index.intervals import EMPTY, Intervals, union, unite
from profkit.index.runtime_calls import names_matching
from profkit.model.events import NO_ROW, Category, Mask, Rows
from profkit.model.torch_names import OPTIMIZER_STEP
from profkit.patterns import regex

KEPT_ON_GPU: Final = 0.1
"""Share of the operators' time on the host that remains with one operator for all: in recordings of
ResNets one ``_foreach_`` operator for 62 tensors took as long as two to six operators for one
tensor (3 to 10 %), and longer where the host waited meanwhile. The basis of the cost is an estimate
for this reason."""
_DISPATCH_NS: Final = 2_000
"""Most that the host spends on an operator beside its work, while it is recorded."""
_MAX_PAUSE_NS: Final = 100_000
"""Python takes some microseconds from one operator of a loop to the next. What takes longer is
another thing, such as a line of a log, or a thread without a core."""

_NORM: Final = regex(r"^aten::(norm|linalg_vector_norm)$")
_POWER: Final = regex(r"^aten::(pow|square|mul|abs)$")
_SUM: Final = regex(r"^aten::(sum|max|amax)$")
_READ: Final = regex(r"^aten::item$")
_MAX_GAP: Final = 2
"""Operators between two of one loop at most, such as an addition to a sum."""
_MIN_NORMS: Final = 10
"""Norms that follow each other: a network may compute a few by hand."""


def find_python_between(ctx: Context, ops: Rows) -> Intervals:
    """Find Python's time between each two operators of a loop that follow each other.

    One operator for all tensors leaves it out. Time with another operator in it does not count.

    Args:
        ops: Operators within no other operator.
    """
    events = ctx.events
    is_outermost = events.category == Category.OP
    outermost = np.flatnonzero(is_outermost & (ctx.tree.enclosing(is_outermost) == NO_ROW))
    is_of_loop = marked(ops, len(events))

    pieces = [EMPTY]
    for lane in distinct(events.lane[ops]).tolist():
        rows = outermost[events.lane[outermost] == lane]
        rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
        starts_ns, ends_ns = events.end_ns[rows[:-1]], events.ts_ns[rows[1:]]
        is_between = is_of_loop[rows[:-1]] & is_of_loop[rows[1:]]
        is_between &= (ends_ns > starts_ns) & (ends_ns - starts_ns <= _MAX_PAUSE_NS)
        pieces.append(union(starts_ns[is_between], ends_ns[is_between]))
    return reduce(unite, pieces)


def find_norms(ctx: Context) -> tuple[Rows, Rows]:
    """Find norms of one tensor after the other, as of gradients, that are written by hand.

    Such as ``gradient.pow(2).sum().item()``. Norms that a backward pass goes through are left out,
    as they are parts of a loss.

    Returns:
        The operators that compute these norms, and the reads of the results, by ``norm()`` too.
        Ascending, shapes ``(k,)`` and ``(l,)``.
    """
    has_backward = marked(ctx.forward_ops[ctx.forward_ops != NO_ROW], len(ctx.events))[:-1]
    computing, reading = [np.zeros(0, dtype=np.intp)], [np.zeros(0, dtype=np.intp)]
    for called in list_called_operators(ctx):
        is_power, is_sum, is_norm, is_read = (
            _are_named(ctx, called, pattern) & ~has_backward[called]
            for pattern in (_POWER, _SUM, _NORM, _READ)
        )
        powers = np.flatnonzero(is_power[:-1] & is_sum[1:])
        for loop in split_runs(powers, _MAX_GAP + 2):
            if len(loop) >= _MIN_NORMS:
                computing += [called[loop], called[loop + 1]]
                is_norm[loop + 1] = True
        reading.append(called[1:][is_norm[:-1] & is_read[1:]])

    return np.sort(np.concatenate(computing)), np.sort(np.concatenate(reading))


def _are_named(ctx: Context, rows: Rows, pattern: re.Pattern[str]) -> Mask:
    return np.asarray(names_matching(ctx.events, pattern)[ctx.events.name[rows]])


def find_dense_loops(ctx: Context, rows: Rows, min_operators: int) -> Rows:
    """Select the operators that follow each other, without the rest of the program in between.

    Args:
        rows: Operators within no other operator.
        min_operators: How many make a loop.
    """
    is_row = marked(rows, len(ctx.events))
    loops = [np.zeros(0, dtype=np.intp)]
    for called in list_called_operators(ctx):
        places = np.flatnonzero(is_row[called])
        runs = split_runs(places, _MAX_GAP + 1)
        loops += [called[run] for run in runs if len(run) >= min_operators]
    return np.sort(np.concatenate(loops))


def split_runs(places: Rows, max_distance: int) -> Iterator[Rows]:
    """Split ascending places where two of them are farther apart."""
    yield from np.split(places, np.flatnonzero(np.diff(places) > max_distance) + 1)


def kept_on_cpu(ctx: Context, ops: Rows, kept_of_work: float) -> float:
    """Return the share of some operators' time on a CPU that one operator for all still takes.

    Args:
        ops: Operators, each of one tensor.
        kept_of_work: The share that remains of what grows with the tensors: fused updates read and
            write each of them once.
    """
    dur_ns = ctx.events.dur_ns[ops]
    # The shortest operators are those of biases, with next to no work.
    dispatch_ns = min(_DISPATCH_NS, int(np.quantile(dur_ns, 0.1)))
    work_ns = int(np.maximum(dur_ns - dispatch_ns, 0).sum())
    return kept_of_work * work_ns / max(1, int(dur_ns.sum()))


def select_called(ctx: Context, calls: Rows, ops: Rows) -> tuple[Rows, Rows]:
    """Select the operators that some calls of ``step()`` call themselves.

    Operators within operators, as of a closure's layers, are not the optimizer's own.

    Args:
        calls: The annotations of optimizers' steps.
        ops: Operators.

    Returns:
        The call of ``step()`` around each operator, and the operator. Shape ``(k,)`` each.
    """
    is_call = marked(calls, len(ctx.events))
    is_outer = is_call[:-1] | (ctx.events.category == Category.OP)

    caller = ctx.tree.enclosing(is_outer)[ops]
    is_direct = is_call[caller]
    return caller[is_direct].astype(np.intp), ops[is_direct]


def optimizer_of(name: str) -> str:
    """Return the class of the optimizer whose step has a name like ``Optimizer.step#SGD.step``."""
    return OPTIMIZER_STEP.sub("", name).removesuffix(".step")
