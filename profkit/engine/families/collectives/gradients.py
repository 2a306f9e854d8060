"""The collectives that reduce gradients."""

from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.families.collectives.messages import after_backward
from profkit.engine.families.collectives.waits import CollectiveWaits
from profkit.index.runtime_calls import rows_named
from profkit.model.events import NO_ROW, Category, Mask
from profkit.model.torch_names import EVALUATE_FUNCTION
from profkit.patterns import regex

_ACCUMULATE: Final = regex(rf"^{EVALUATE_FUNCTION}torch::autograd::AccumulateGrad$")


def reduced_by_hooks(ctx: Context, waits: CollectiveWaits) -> Mask:
    """Return all-reduces that hooks of complete gradients start, as DDP's hooks do.

    Others in a backward pass belong to the model: tensor parallelism, ``SyncBatchNorm``. Shape of
    ``waits.rows``.

    Source: ``torch/csrc/distributed/c10d/reducer.cpp``: its hooks are post hooks of
    ``AccumulateGrad``.
    """
    is_hook = rows_named(ctx.events, _ACCUMULATE, Category.OP, Category.ANNOTATION)
    within = ctx.tree.nearest(is_hook)[waits.starter] != NO_ROW
    return np.asarray((waits.starter != NO_ROW) & within & _is_all_reduce(waits))


def reduced_after_backward(ctx: Context, waits: CollectiveWaits) -> Mask:
    """Return all-reduces that the program starts after a backward pass. Shape of ``waits.rows``."""
    return np.asarray(after_backward(ctx, waits) & _is_all_reduce(waits))


def _is_all_reduce(waits: CollectiveWaits) -> Mask:
    return np.array([kind == "all-reduce" for kind in waits.kinds], dtype=np.bool_)
