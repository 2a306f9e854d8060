"""Matrix products with their sizes, and whether their rows begin at multiples of 16 bytes."""

from functools import lru_cache
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.columns import Columns
from profkit.index.compute.inputs import ELEMENT_BYTES, parse_inputs
from profkit.index.compute.op_work import UNKNOWN, OpWork
from profkit.index.launches import Launches
from profkit.index.runtime_calls import map_names, rows_named
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int64s, Mask, Rows
from profkit.patterns import regex

LOAD_BYTES: Final = 16
"""Most that a thread loads at once; the unit of the tensor memory accelerator as well."""
_PRODUCT: Final = regex(r"^aten::(mm|bmm|addmm|baddbmm|_addmm_activation|_scaled_mm)$")
_WITH_BIAS: Final = regex(r"add")
_LOADS: Final = regex(r"_align[abc]?(\d+)|_ldg(\d+)")
"""Elements that a thread loads at once, in kernel names of CUTLASS and cuBLAS."""
_MUST_BE_ALIGNED: Final = regex(r"nvjet|sm90_xmma|gmma|tcgen05|sm1\d\d_(?!simt_)|(?<![a-z])tma")
"""Kernels that use the tensor memory accelerator, which needs strides of 16 bytes. Blackwell's for
CUDA cores (``cutlass3x_sm100_simt_sgemm_…_align1``) do not."""


@dataclass(frozen=True)
class Products(Columns):
    """Matrix products that ran as one kernel each: (batch, m, k) times (batch, k, n).

    Attributes:
        rows: The operators, ascending. Shape ``(p,)``.
        kernel: The kernel of each. Rows of shape ``(p,)``.
        sizes: m, k and n. Shape ``(p, 3)``.
        flops: Floating-point operations of each. Shape ``(p,)``.
        n_bytes: Bytes that each moves at least. Shape ``(p,)``.
        kind: Index into ``kinds`` of the type of the elements. Shape ``(p,)``.
        kinds: Types of elements as recorded: ``c10::BFloat16``.
        shapes: Number of the text of the shapes in the names of the events. Shape ``(p,)``.
    """

    rows: Rows
    kernel: Rows
    sizes: Int64s
    flops: Int64s
    n_bytes: Int64s
    kind: Int64s
    kinds: tuple[str, ...]
    shapes: Int64s

    @property
    def element_bytes(self) -> Int64s:
        """Return the bytes of an element of each. Shape ``(p,)``."""
        return np.array([ELEMENT_BYTES[kind] for kind in self.kinds], dtype=np.int64)[self.kind]


def find_products(events: EventTable, launches: Launches, work: OpWork) -> Products:
    """Find the products whose shapes were recorded, and whose only kernel is known."""
    is_known = rows_named(events, _PRODUCT, Category.OP)[work.rows]
    is_known &= (work.n_bytes != UNKNOWN) & (work.kind != UNKNOWN)

    place = np.full(len(events) + 1, NO_ROW, dtype=np.int64)
    place[work.rows[is_known]] = np.flatnonzero(is_known)
    is_kernel = (launches.op != NO_ROW) & (events.category[launches.work] == Category.KERNEL)
    at, kernels = place[launches.op[is_kernel]], launches.work[is_kernel]
    at, kernels = at[at != NO_ROW], kernels[at != NO_ROW]
    kernel = np.full(len(work.rows), NO_ROW, dtype=np.intp)
    kernel[at] = kernels

    # With several kernels, it is unknown which one multiplies.
    has_one_kernel = np.bincount(at, minlength=len(work.rows)) == 1
    rows = work.rows[has_one_kernel]
    sizes, shapes = _parse_sizes(events, rows)
    matmuls = Products(
        rows,
        kernel[has_one_kernel],
        sizes,
        work.flops[has_one_kernel],
        work.n_bytes[has_one_kernel],
        work.kind[has_one_kernel],
        work.kinds,
        shapes,
    )
    return matmuls.select(np.asarray((sizes > 0).all(axis=1)))


def _parse_sizes(events: EventTable, rows: Rows) -> tuple[Int64s, Int64s]:
    """Parse m, k and n of each product, or zeros; return them with the text of its shapes."""
    shapes = events.input_dims.at(rows)
    types = events.input_types.at(rows)
    key = (shapes * len(events.names) + events.name[rows]) if len(rows) else shapes
    _, first, call = np.unique(key, return_index=True, return_inverse=True)

    sizes = np.zeros((len(first), 3), dtype=np.int64)
    for number, at in enumerate(first.tolist()):
        if shapes[at] == MISSING or types[at] == MISSING:
            continue
        inputs = parse_inputs(events.names[shapes[at]], events.names[types[at]], "")
        begin = 1 if _WITH_BIAS.search(events.name_of(int(rows[at]))) else 0
        left = inputs.shape(begin) if inputs else None
        right = inputs.shape(begin + 1) if inputs else None
        if left and right and len(left) == len(right) > 1:
            sizes[number] = left[-2], left[-1], right[-1]

    return sizes[call], shapes


def pad(sizes: Int64s, element_bytes: Int64s) -> Int64s:
    """Round sizes up so that rows of as many elements begin at multiples of 16 bytes.

    Args:
        sizes: Shape ``(p, 3)``.
        element_bytes: Shape ``(p,)``.
    """
    unit = np.maximum(LOAD_BYTES // element_bytes, 1)[:, None]
    return np.asarray(-(-sizes // unit) * unit)


def find_misaligned(events: EventTable, matmuls: Products) -> Mask:
    """Find products that have rows that do not begin at multiples of 16 bytes. Shape ``(p,)``.

    The names of many kernels tell how much a thread loads at once. For other kernels k or n counts:
    rows are as long, unless a factor is transposed. m counts where the name tells.
    """
    element_bytes = matmuls.element_bytes
    # Only k and n are lengths of rows, unless a factor is transposed.
    is_odd = pad(matmuls.sizes, element_bytes) != matmuls.sizes
    loaded_elements = map_names(events, matmuls.kernel, _loads, np.int64)

    is_below = (loaded_elements * element_bytes < LOAD_BYTES) & is_odd.any(axis=1)
    return np.asarray(np.where(loaded_elements == UNKNOWN, is_odd[:, 1:].any(axis=1), is_below))


@lru_cache(maxsize=65536)
def _loads(kernel: str) -> int:
    """Return the elements that a thread loads at once, or :data:`UNKNOWN`."""
    if _MUST_BE_ALIGNED.search(kernel):
        return LOAD_BYTES
    widths = [int(aligned or loaded) for aligned, loaded in _LOADS.findall(kernel)]
    return min(widths, default=UNKNOWN)
