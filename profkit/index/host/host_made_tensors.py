"""Tensors that the program makes on the host right before it copies them to a device."""

import re
from typing import Final

import numpy as np

from profkit.index.host.nesting import CallTree
from profkit.index.runtime_calls import rows_named
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Mask

_MAKER: Final = re.compile(
    r"^aten::(empty|zeros|ones|full|arange|linspace|logspace|eye|scalar_tensor|tril_indices"
    r"|triu_indices|rand|randn|randint|randperm|normal|bernoulli|new_zeros|new_ones"
    r"|new_full|new_empty|zeros_like|ones_like|full_like|rand_like|randn_like)$"
)
"""Operators that make a tensor from nothing. ``torch.tensor`` leaves ``empty`` in a trace; what
``torch.from_numpy`` wraps was made elsewhere, and is data.

Source: ``torch/csrc/utils/tensor_new.cpp`` (``internal_new_from_data``).
"""
SMALL_BYTES: Final = 1 << 20
"""Up to this size, in bytes, a tensor is a constant or a mask; above it is data."""
_LOOK_BACK: Final = 4
"""Operators before a copy that are looked at: ``torch.ones(3).tril().mul(2).to(device)`` has its
maker three before."""


def creating_ops(events: EventTable, tree: CallTree, frame: Int32s, owners: Int32s) -> Int32s:
    """For each copying operator the operator that made its tensor just before, or :data:`NO_ROW`.

    The maker is among the few operators before the copy on its thread, called by the same line of
    the user's code. Where no lines are known it must be the very operator before. What a loader or
    another annotation did in between breaks the chain.

    Args:
        frame: The user's line of every row as a number, or -1. Shape ``(n,)``.
        owners: Outermost copying operators. Shape ``(k,)``.

    Returns:
        Shape ``(k,)``.
    """
    tops = tree.rows[_top_level(events, tree)[tree.rows]]
    makes = rows_named(events, _MAKER, Category.OP)
    place = np.zeros(len(events), dtype=np.int64)
    place[tops] = np.arange(len(tops))
    top = tree.outermost(events.category == Category.OP)[owners]
    around = tree.nearest(events.category == Category.ANNOTATION)
    found = np.full(len(owners), NO_ROW, dtype=np.int32)
    open_still = np.ones(len(owners), dtype=np.bool_)
    for back in range(1, _LOOK_BACK + 1):
        at = place[top] - back
        before = tops[np.maximum(at, 0)]
        same_line = (frame[before] == frame[top]) & (around[before] == around[top])
        near = same_line & ((frame[top] >= 0) | (back == 1))
        is_op = events.category[before] == Category.OP
        open_still &= (at >= 0) & (events.lane[before] == events.lane[top]) & near & is_op
        hit = open_still & makes[before] & (found == NO_ROW)
        found[hit] = before[hit]
    return found


def _top_level(events: EventTable, tree: CallTree) -> Mask:
    """Operators that no operator contains, and annotations, which break a chain of operators."""
    is_op = events.category == Category.OP
    within = tree.enclosing(is_op) != NO_ROW
    return np.asarray((is_op & ~within) | (events.category == Category.ANNOTATION))
