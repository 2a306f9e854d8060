"""Calls with which the driver gives and takes device memory, and why it is called so often."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.windows import in_windows
from profkit.index.distinct import distinct
from profkit.index.host.varying_shapes import find_new_shapes
from profkit.index.runtime_calls import ALLOCATOR, names_matching, rows_named
from profkit.model.events import NO_ROW, Category, Mask, Rows
from profkit.patterns import regex

_DEVICE_MEMORY: Final = regex(
    r"^(cuda|hip)(Malloc|Free)(_v\d+)?$|^cuMem(Create|Map|Unmap|Release)$"
)
_FREE: Final = regex(r"Free|Unmap|Release")
_EMPTY: Final = regex(r"^aten::empty(_strided)?$")
_MIN_ALLOCATIONS: Final = 50
_MIN_PER_KERNEL: Final = 0.2
"""Allocations per kernel from which nothing is cached. With a cache there are none in later steps.
Recordings of a first call, which fills it, have one for every 3 to 15 kernels, and few frees."""
_MIN_FREES_PER_KERNEL: Final = 0.05
"""Single frees per kernel. A cache is emptied as a whole: its frees follow each other."""
_MIN_EMPTY_SHARE: Final = 0.5
"""Share of the operators for empty tensors, some of which are for tensors on the host."""
_MAX_SHAPES: Final = 8
"""New shapes of a line that do not count: some sizes of batches, and the last one of a loader."""
_MIN_STEPS: Final = 3
_MIN_EXPLAINED_SHARE: Final = 0.8
"""Share of the allocations in later steps that happen in steps with new shapes."""


@dataclass(frozen=True)
class DriverCalls:
    """Calls for device memory.

    Attributes:
        rows: Rows of runtime or driver calls, ascending. Shape ``(k,)``.
        is_free: Which of them free. Shape ``(k,)``.
    """

    rows: Rows
    is_free: Mask

    @property
    def n_frees(self) -> int:
        """Number of calls that free."""
        return int(self.is_free.sum())

    def select(self, mask: Mask) -> "DriverCalls":
        """Return the calls of a mask of shape ``(k,)``."""
        return DriverCalls(self.rows[mask], self.is_free[mask])


def driver_calls(ctx: Context) -> DriverCalls:
    """Find all calls of the driver for device memory."""
    rows = ALLOCATOR.rows(ctx.events)
    rows = rows[names_matching(ctx.events, _DEVICE_MEMORY)[ctx.events.name[rows]]]
    return DriverCalls(rows, names_matching(ctx.events, _FREE)[ctx.events.name[rows]])


def find_uncached_calls(ctx: Context) -> DriverCalls | None:
    """Find the calls in the windows, if the driver keeps allocating and freeing single tensors."""
    calls = driver_calls(ctx)
    calls = calls.select(in_windows(ctx, calls.rows))
    n_allocations = len(calls.rows) - calls.n_frees

    kernels = ctx.events.kernels
    n_kernels = int(in_windows(ctx, kernels).sum())
    if n_allocations < max(_MIN_ALLOCATIONS, _MIN_PER_KERNEL * n_kernels):
        return None
    if _n_single_frees(ctx, calls) < _MIN_FREES_PER_KERNEL * n_kernels:
        return None

    is_empty = rows_named(ctx.events, _EMPTY, Category.OP)
    n_empty = int(in_windows(ctx, np.flatnonzero(is_empty)).sum())

    op = ctx.innermost_op[calls.rows[~calls.is_free]]
    op = op[op != NO_ROW]
    n_allocating = len(distinct(op[is_empty[op]]))
    return None if n_allocating < _MIN_EMPTY_SHARE * n_empty else calls


def _n_single_frees(ctx: Context, calls: DriverCalls) -> int:
    """Count frees before which the program allocated or launched something since the last one."""
    starts_ns = ctx.events.ts_ns[calls.rows]
    order = np.argsort(starts_ns, kind="stable")
    launch = distinct(ctx.launches.launch[ctx.launches.launch != NO_ROW])
    n_launched = np.searchsorted(np.sort(ctx.events.ts_ns[launch]), starts_ns[order])

    # Frees in a row, without a launch between them, empty the cache as a whole.
    is_free = calls.is_free[order]
    follows = np.append(False, is_free[:-1] & (np.diff(n_launched) == 0))
    return int((is_free & ~follows).sum())


@dataclass(frozen=True)
class ShapeGrowth:
    """Allocations in steps in which shapes of inputs are new.

    Attributes:
        calls: The calls that allocate. Rows, ascending.
        shapes: The calls of operators with new shapes, of lines with many. Rows in order of time.
        n_shapes: How many new shapes the first of these lines and operators has.
    """

    calls: Rows
    shapes: Rows
    n_shapes: int


def find_growth_by_shapes(ctx: Context) -> ShapeGrowth | None:
    """Find allocations in later steps, if nothing is freed and most steps have new shapes."""
    later = driver_calls(ctx)
    later = later.select(ctx.step_of(later.rows) > 0)
    if not len(later.rows) or later.n_frees or not len(ctx.events.input_dims.rows):
        return None

    step_of_rows = ctx.step_of(np.arange(len(ctx.events)))
    growth = find_new_shapes(ctx.events, ctx.tree, ctx.source.frame, step_of_rows)
    count = np.bincount(growth.group)
    large_groups = np.flatnonzero(count > _MAX_SHAPES)
    rows = growth.rows[np.isin(growth.group, large_groups)]

    steps = distinct(step_of_rows[rows])
    calls = later.rows[np.isin(step_of_rows[later.rows], steps)]
    if len(steps) < _MIN_STEPS or len(calls) < _MIN_EXPLAINED_SHARE * len(later.rows):
        return None

    first = growth.group[growth.rows == rows[0]]
    return ShapeGrowth(calls, rows, int(count[first[0]]))
