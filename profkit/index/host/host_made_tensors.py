"""Tensors that the program creates on the host right before copying them to a device."""

from typing import Final

import numpy as np

from profkit.index.host.nesting import CallTree
from profkit.index.runtime_calls import rows_named
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Int64s, Mask
from profkit.patterns import regex

_CREATING: Final = regex(
    r"^aten::(empty|zeros|ones|full|arange|linspace|logspace|eye|scalar_tensor|tril_indices"
    r"|triu_indices|rand|randn|randint|randperm|normal|bernoulli|new_zeros|new_ones"
    r"|new_full|new_empty|zeros_like|ones_like|full_like|rand_like|randn_like)$"
)
"""Operators that create a tensor. ``torch.tensor`` appears as ``empty`` in a trace; tensors of
``torch.from_numpy`` are created elsewhere and count as data.

Source: ``torch/csrc/utils/tensor_new.cpp`` (``internal_new_from_data``).
"""
_FILLING: Final = regex(rf"{_CREATING.pattern}(?<!empty)$")
"""Operators that compute the tensor's values, which a device can do as well."""
_MAX_BYTES_PER_NS: Final = 100
"""Above any host's memory bandwidth: an operator that is faster has not filled the tensor."""
_MIN_FILLING_NS: Final = 100_000
"""Shortest operator that counts as filling a tensor of unknown size."""
SMALL_BYTES: Final = 1 << 20
"""Up to this size a tensor counts as a constant or mask, above it as data."""
_MAX_DISTANCE: Final = 4
"""Operators searched before a copy: in ``torch.ones(3).tril().mul(2).to(device)`` the creating
operator is three before."""


def find_creating_ops(events: EventTable, tree: CallTree, frame: Int32s, owners: Int32s) -> Int32s:
    """Find the operator that created the tensor of each copying operator, or :data:`NO_ROW`.

    It is among the few operators before the copy on the same thread, called by the same source
    line; without source lines it must be the immediately preceding operator. Operators of a loader
    or of another annotation in between break the chain.

    Args:
        frame: Source line of every row as a number, or -1. Shape ``(n,)``.
        owners: Outermost copying operators. Shape ``(k,)``, as the result.
    """
    tops = tree.rows[_find_top_level(events, tree)[tree.rows]]
    creates = rows_named(events, _CREATING, Category.OP)
    place = np.zeros(len(events), dtype=np.int64)
    place[tops] = np.arange(len(tops))

    top = tree.outermost_op[owners]
    around = tree.nearest(events.category == Category.ANNOTATION)

    creator = np.full(len(owners), NO_ROW, dtype=np.int32)
    is_chain = np.ones(len(owners), dtype=np.bool_)
    for back in range(1, _MAX_DISTANCE + 1):
        at = place[top] - back
        before = tops[np.maximum(at, 0)]
        # The chain ends at another line or annotation.
        is_same_line = (frame[before] == frame[top]) & (around[before] == around[top])
        is_near = is_same_line & ((frame[top] >= 0) | (back == 1))
        is_op = events.category[before] == Category.OP
        is_chain &= (at >= 0) & (events.lane[before] == events.lane[top]) & is_near & is_op
        is_creator = is_chain & creates[before] & (creator == NO_ROW)
        creator[is_creator] = before[is_creator]

    return creator


def are_made(
    events: EventTable, makers: Int32s, n_bytes: Int64s, max_bytes: int = SMALL_BYTES
) -> Mask:
    """Return which copied tensors the program could create on a device instead of on the host.

    Tensors of given values (``torch.tensor``) are constants if they are small, else data.

    Args:
        makers: Result of :func:`find_creating_ops`. Shape ``(k,)``, as the result.
        n_bytes: The tensors' sizes; :data:`MISSING` where they are not known. Shape ``(k,)``.
        max_bytes: Size up to which a tensor is small.
    """
    is_known = n_bytes != MISSING
    least_ns = np.where(is_known, n_bytes // _MAX_BYTES_PER_NS, _MIN_FILLING_NS)
    fills = rows_named(events, _FILLING, Category.OP)[makers] & (events.dur_ns[makers] >= least_ns)
    return np.asarray((makers != NO_ROW) & ((is_known & (n_bytes <= max_bytes)) | fills))


def _find_top_level(events: EventTable, tree: CallTree) -> Mask:
    """Find outermost operators, and annotations, which break a chain of operators."""
    is_outer = tree.is_op & (tree.op_around == NO_ROW)
    return np.asarray(is_outer | (events.category == Category.ANNOTATION))
