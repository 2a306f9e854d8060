"""Operators that an optimizer, or the program itself, runs for one tensor after the other."""

from functools import reduce
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.distinct import distinct, marked
from profkit.index.intervals import EMPTY, Intervals, union, unite
from profkit.model.events import NO_ROW, Category, Rows
from profkit.model.torch_names import OPTIMIZER_STEP

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
