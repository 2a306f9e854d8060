"""Which collectives are started by a backward pass, or by the program after one."""

import re
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.families.collectives.waits import CollectiveWaits
from profkit.index.runtime_calls import rows_named
from profkit.model.events import NO_ROW, RECORD_FUNCTIONS, Mask
from profkit.model.torch_names import BACKWARD, EVALUATED_ADDITION, EVALUATED_NODE

_MAX_DIFFERENCE_SHARE: Final = 0.02
"""A recording may begin or end within a step."""
_ALL_REDUCE: Final = frozenset({"all-reduce"})


def are_started_within(ctx: Context, waits: CollectiveWaits, pattern: re.Pattern[str]) -> Mask:
    """Return which collectives started inside an event of such a name. Shape of ``waits.rows``."""
    around = ctx.tree.nearest(rows_named(ctx.events, pattern, *RECORD_FUNCTIONS))
    return np.asarray((waits.starter != NO_ROW) & (around[waits.starter] != NO_ROW))


def after_backward(ctx: Context, waits: CollectiveWaits) -> Mask:
    """Return which collectives the program started after a backward pass of the same step.

    A recording without steps is one step. A collective that an operator starts, such as a layer
    that averages over ranks, does not reduce gradients. Shape of ``waits.rows``.
    """
    events = ctx.events
    backward = np.sort(events.end_ns[rows_named(events, BACKWARD, *RECORD_FUNCTIONS)])
    if not len(backward):
        return np.zeros(len(waits.rows), dtype=np.bool_)

    is_started = waits.starter != NO_ROW
    at_ns = events.ts_ns[waits.starter]
    place = np.searchsorted(backward, at_ns, side="right") - 1
    last_ns = backward[np.maximum(place, 0)]

    same_step = ctx.steps.of(last_ns) == ctx.steps.of(at_ns)
    by_itself = ctx.tree.op_around[waits.starter] == NO_ROW
    return np.asarray(is_started & (place >= 0) & same_step & by_itself)


def reduced_by_hooks(ctx: Context, waits: CollectiveWaits) -> Mask:
    """Return all-reduces that hooks of complete gradients start, as DDP's hooks do.

    Others in a backward pass belong to the model: tensor parallelism, ``SyncBatchNorm``. Shape of
    ``waits.rows``.

    Source: ``torch/csrc/distributed/c10d/reducer.cpp``: its hooks are post hooks of
    ``AccumulateGrad``.
    """
    return are_started_within(ctx, waits, EVALUATED_ADDITION) & waits.are_of_kinds(_ALL_REDUCE)


def reduced_one_by_one(ctx: Context, waits: CollectiveWaits) -> Mask:
    """Return all-reduces in the backward pass, outside of hooks, that are one for each gradient.

    A compiled backward pass may reduce each gradient itself. Layers of the model that reduce over
    ranks have more gradients than reductions: tensor parallelism, ``SyncBatchNorm``. Shape of
    ``waits.rows``.
    """
    in_backward = are_started_within(ctx, waits, EVALUATED_NODE) & waits.are_of_kinds(_ALL_REDUCE)
    in_backward &= ~reduced_by_hooks(ctx, waits)
    gradients = np.flatnonzero(rows_named(ctx.events, EVALUATED_ADDITION, *RECORD_FUNCTIONS))
    n_gradients = np.count_nonzero(ctx.step_of(gradients) >= 0)
    starters = waits.starter[in_backward].astype(np.intp)
    n_reductions = np.count_nonzero(ctx.step_of(starters) >= 0)
    is_for_each = abs(n_reductions - n_gradients) <= _MAX_DIFFERENCE_SHARE * n_gradients
    return np.asarray(in_backward & is_for_each)


def reduced_after_backward(ctx: Context, waits: CollectiveWaits) -> Mask:
    """Return all-reduces that the program starts after a backward pass. Shape of ``waits.rows``."""
    return after_backward(ctx, waits) & waits.are_of_kinds(_ALL_REDUCE)
