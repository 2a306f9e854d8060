"""Elementwise kernels of PyTorch, and chains of them."""

from typing import Final

import numpy as np

from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import are_in_updates
from profkit.index.launches import Launches
from profkit.index.runtime_calls import rows_named
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Mask, Rows
from profkit.patterns import regex

_ELEMENTWISE: Final = regex(r"\b(vectorized_(templated_)?|unrolled_|legacy_)?elementwise_kernel")
"""Source: ``aten/src/ATen/native/cuda/CUDALoops.cuh``."""
_COPY: Final = regex(r"^aten::copy_$")
_CAST: Final = regex(r"^aten::_to_copy$")
_LAYOUT: Final = regex(r"^aten::(contiguous|reshape|flatten)$")


def elementwise_kernels(events: EventTable) -> Mask:
    """Find rows of PyTorch's elementwise kernels, copies and casts among them. Shape ``(n,)``."""
    return rows_named(events, _ELEMENTWISE, Category.KERNEL)


def plain_copies(events: EventTable, tree: CallTree) -> Mask:
    """Return which rows are copies that are not part of a cast. Shape ``(n,)``."""
    is_cast = tree.nearest(rows_named(events, _CAST, Category.OP)) != NO_ROW
    return np.asarray(rows_named(events, _COPY, Category.OP) & ~is_cast)


def find_layout_copies(events: EventTable, tree: CallTree, launches: Launches) -> tuple[Rows, Rows]:
    """Find kernels that copy a tensor into another layout because the program asks for one.

    These are copies by ``contiguous()``, or by ``reshape()`` and ``flatten()`` where a view is
    impossible, called by no other operator. Casts and ``clone()`` do not count.

    Returns:
        The kernels, and the operator that the program called for each.
    """
    is_layout = rows_named(events, _LAYOUT, Category.OP)
    if not is_layout.any():
        return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)

    op, called = launches.op, tree.outermost_op
    is_layout_copy = (op != NO_ROW) & plain_copies(events, tree)[op] & is_layout[called[op]]
    is_layout_copy &= events.category[launches.work] == Category.KERNEL
    return launches.work[is_layout_copy], called[op[is_layout_copy]].astype(np.intp)


def find_fusible_chains(
    events: EventTable, tree: CallTree, launches: Launches
) -> tuple[Rows, Rows]:
    """Find elementwise kernels that one thread launches into one stream with nothing in between.

    Chains have neither copies into another layout nor an optimizer's kernels.

    Returns:
        The kernels of chains of two or more, and the number of the chain of each.
    """
    order = launches.in_order(events)
    work, op = launches.work[order], launches.op[order]

    in_optimizer = are_in_updates(events, tree)
    is_fusible = elementwise_kernels(events)[work]
    is_fusible &= ~plain_copies(events, tree)[op] & ~in_optimizer[op]

    lane, stream = events.lane[launches.launch[order]], events.stream.at(work)
    # A kernel joins a chain if it follows another on the same thread and stream.
    joins = np.zeros(len(work), dtype=np.bool_)
    joins[1:] = (
        is_fusible[1:] & is_fusible[:-1] & (lane[1:] == lane[:-1]) & (stream[1:] == stream[:-1])
    )
    joins &= stream != MISSING

    chain = np.cumsum(~joins, dtype=np.intp)
    is_fusible &= joins | np.append(joins[1:], False)
    return work[is_fusible], chain[is_fusible]
