"""Operators that an optimizer, or the program itself, runs for one tensor after the other."""

from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.distinct import marked
from profkit.model.events import Category, Rows
from profkit.model.torch_names import OPTIMIZER_STEP

KEPT_ON_GPU: Final = 0.1
"""Share of the operators' time on the host that remains with one operator for all: in recordings of
ResNets one ``_foreach_`` operator for 62 tensors took as long as two to six operators for one
tensor (3 to 10 %), and longer where the host waited meanwhile. The basis of the cost is an estimate
for this reason."""


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
