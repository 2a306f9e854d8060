"""The operators that the steps of optimizers call themselves, and the optimizers' names."""

import numpy as np

from profkit.engine.context import Context
from profkit.model.events import NO_ROW, Category, Rows
from profkit.model.torch_names import OPTIMIZER_STEP


def select_called(ctx: Context, calls: Rows, ops: Rows) -> tuple[Rows, Rows]:
    """Select the operators that some calls of ``step()`` call themselves.

    Operators within operators, as of a closure's layers, are not the optimizer's own.

    Args:
        calls: The annotations of optimizers' steps.
        ops: Operators.

    Returns:
        The call of ``step()`` around each operator, and the operator. Shape ``(k,)`` each.
    """
    is_call = np.zeros(len(ctx.events), dtype=np.bool_)
    is_call[calls] = True

    caller = ctx.tree.enclosing(is_call | (ctx.events.category == Category.OP))[ops]
    is_direct = (caller != NO_ROW) & is_call[caller]
    return caller[is_direct].astype(np.intp), ops[is_direct]


def optimizer_of(name: str) -> str:
    """Return the class of the optimizer whose step has a name like ``Optimizer.step#SGD.step``."""
    return OPTIMIZER_STEP.sub("", name).removesuffix(".step")
