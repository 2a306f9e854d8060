"""Attention that runs as two batched matrix products with a softmax between them."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.columns import build_empty
from profkit.index.device.elementwise import plain_copies
from profkit.index.distinct import distinct, marked
from profkit.index.host.nesting import CallTree
from profkit.index.host.source import find_forward_of_backward
from profkit.index.launches import Launches
from profkit.index.runtime_calls import rows_named
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Mask, Rows
from profkit.patterns import regex

_PRODUCT: Final = regex(r"^aten::(bmm|baddbmm)(_)?$")
_SOFTMAX: Final = regex(r"^aten::(_?softmax|_safe_softmax)$")
_ELEMENTWISE: Final = regex(
    r"^aten::(add|sub|rsub|mul|div|neg|masked_fill|where|(native_|_fused_)?dropout|bernoulli|copy"
    r"|fill|maximum|minimum|clamp\w*|tanh|ge|gt|le|lt|eq|ne|logical_\w+|bitwise_\w+|tril|triu|any"
    r"|all)_?$"
)
"""Operators between the products: scale, mask, cast, dropout; ``copy_`` also for other layouts."""
_MAX_BETWEEN: Final = 8
"""Most kernels on either side of the softmax: scale, position bias, mask, their casts, dropout."""
_VIEW: Final = regex(
    r"^(aten::(_?unsafe_view|_?reshape(_alias)?|view\w*|[tT]|transpose|permute|expand\w*|as_strided"
    r"|select|slice|narrow|unbind|split\w*|chunk|unflatten|flatten|(un)?squeeze|detach|alias"
    r"|resolve_\w+|result_type|empty\w*|resize_|to)|detach)$"
)
"""Operators that compute nothing."""


@dataclass(frozen=True)
class Attentions:
    """Attention that is not fused.

    Attributes:
        softmax: The operator that launched the softmax of each. Shape ``(a,)``.
        products: Rows of kernels, or operators on a CPU, of the products and of their backward
            passes.
        between: Rows of those of the softmax, scale, mask, casts and dropout, and of their backward
            passes.
        of_product: The attention of each of ``products``. Shape of ``products``.
        of_between: The attention of each of ``between``. Shape of ``between``.
    """

    softmax: Rows
    products: Rows
    between: Rows
    of_product: Rows
    of_between: Rows

    def select(self, mask: Mask) -> "Attentions":
        """Select the attentions of a mask of shape ``(a,)``."""
        number = np.cumsum(mask) - 1
        in_product, in_between = mask[self.of_product], mask[self.of_between]
        return Attentions(
            self.softmax[mask],
            self.products[in_product],
            self.between[in_between],
            number[self.of_product[in_product]],
            number[self.of_between[in_between]],
        )


def find_host_work(events: EventTable, tree: CallTree) -> Launches:
    """Find the operators that compute on a CPU, each as work that it launches itself."""
    is_op = events.category == Category.OP
    is_named = np.zeros(len(events), dtype=np.bool_)
    for pattern in (_PRODUCT, _SOFTMAX, _ELEMENTWISE):
        is_named |= rows_named(events, pattern, Category.OP)

    # A division by a number converts it first, within the operator: the outermost one computes.
    is_inside = tree.enclosing(is_named) != NO_ROW
    is_candidate = is_op & ~is_inside & ~rows_named(events, _VIEW, Category.OP)
    parents = tree.enclosing(is_candidate)[is_candidate]
    is_parent = marked(parents[parents != NO_ROW], len(events))[:-1]
    rows = np.flatnonzero(is_candidate & (is_named | ~is_parent))
    return Launches(rows, rows.astype(np.int32), rows.astype(np.int32))


def find_attentions(events: EventTable, tree: CallTree, launches: Launches) -> Attentions:
    """Find each softmax with a batched product launched before and after it, on one thread.

    Between them only elementwise operators launch work, so that other uses of a softmax, such as a
    gate's or a loss's, are not attention.

    Args:
        launches: Of a device, or the :func:`find_host_work` of a CPU.
    """
    order = launches.in_order(events)
    op, lane = launches.op[order], events.lane[launches.launch[order]]

    is_product, is_softmax, is_elementwise = (
        rows_named(events, pattern, Category.OP)[op]
        for pattern in (_PRODUCT, _SOFTMAX, _ELEMENTWISE)
    )

    products: list[Int32s] = []
    between: list[Int32s] = []
    softmax: list[int] = []
    for place in np.flatnonzero(is_softmax).tolist():
        sides = [
            _find_product(place, way, lane, is_product, is_elementwise | is_softmax)
            for way in (-1, 1)
        ]
        first, last = sides
        # A softmax may launch several kernels.
        if first is not None and last is not None and op[place] not in softmax[-1:]:
            softmax.append(int(op[place]))
            products.append(op[[first, last]])
            between.append(distinct(op[first + 1 : last]))

    return _add_backward(events, tree, launches, softmax, products, between)


def _find_product(
    place: int, way: int, lane: Int32s, is_product: Mask, may_be_between: Mask
) -> int | None:
    """Find the nearest product before (-1) or after (1) a softmax, past elementwise operators."""
    for distance in range(1, _MAX_BETWEEN + 1):
        at = place + way * distance
        if not 0 <= at < len(lane) or lane[at] != lane[place]:
            return None
        if is_product[at]:
            return at
        if not may_be_between[at]:
            return None
    return None


def _add_backward(
    events: EventTable,
    tree: CallTree,
    launches: Launches,
    softmax: list[int],
    products: list[Int32s],
    between: list[Int32s],
) -> Attentions:
    """Build the attentions from operators, adding the kernels of their backward passes."""
    if not softmax:
        return build_empty(Attentions)

    is_layout = plain_copies(events, tree)
    has_op = launches.op != NO_ROW
    maker = np.where(has_op, find_forward_of_backward(events, tree)[launches.op], NO_ROW)

    # A copy into another layout would stay with fused attention.
    kernels = []
    for groups in (products, [ops[~is_layout[ops]] for ops in between]):
        owner = np.full(len(events), NO_ROW, dtype=np.intp)
        for number, ops in enumerate(groups):
            owner[ops] = number
        forward = np.where(has_op, owner[launches.op], NO_ROW)
        attention = np.where(maker == NO_ROW, forward, owner[maker])
        has_attention = attention != NO_ROW
        kernels.append((launches.work[has_attention], attention[has_attention]))

    (product_rows, of_product), (between_rows, of_between) = kernels
    rows = np.array(softmax, dtype=np.intp)
    return Attentions(rows, product_rows, between_rows, of_product, of_between)
