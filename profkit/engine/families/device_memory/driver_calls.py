"""Calls with which the driver gives and takes device memory, and whether any of it is cached."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.windows import in_windows
from profkit.index.runtime_calls import ALLOCATOR, names_matching, rows_named
from profkit.model.events import NO_ROW, Category, Mask, Rows

_DEVICE_MEMORY: Final = re.compile(
    r"^(cuda|hip)(Malloc|Free)(_v\d+)?$|^cuMem(Create|Map|Unmap|Release)$"
)
_FREE: Final = re.compile(r"Free|Unmap|Release")
_EMPTY: Final = re.compile(r"^aten::empty(_strided)?$")
_MIN_ALLOCATIONS: Final = 50
_MIN_PER_KERNEL: Final = 0.2
"""Allocations per kernel from which nothing is cached. With a cache there are none in later steps.
Recordings of a first call, which fills it, have one for every 3 to 15 kernels, and few frees."""
_MIN_FREES_PER_KERNEL: Final = 0.05
"""Single frees per kernel. A cache is emptied as a whole: its frees follow each other."""
_MIN_EMPTY_SHARE: Final = 0.5
"""Share of the operators for empty tensors, some of which are for tensors on the host."""


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
        """The calls of a mask of shape ``(k,)``."""
        return DriverCalls(self.rows[mask], self.is_free[mask])


def driver_calls(ctx: Context) -> DriverCalls:
    """All of them."""
    rows = ALLOCATOR.rows(ctx.events)
    rows = rows[names_matching(ctx.events, _DEVICE_MEMORY)[ctx.events.name[rows]]]
    return DriverCalls(rows, names_matching(ctx.events, _FREE)[ctx.events.name[rows]])


def uncached_calls(ctx: Context) -> DriverCalls | None:
    """The calls in the windows, if the driver allocates and frees single tensors all the time."""
    calls = driver_calls(ctx)
    calls = calls.select(in_windows(ctx, calls.rows))
    n_allocations = len(calls.rows) - calls.n_frees
    kernels = ctx.events.rows_of(Category.KERNEL)
    n_kernels = int(in_windows(ctx, kernels).sum())
    if n_allocations < max(_MIN_ALLOCATIONS, _MIN_PER_KERNEL * n_kernels):
        return None
    if _n_single_frees(ctx, calls) < _MIN_FREES_PER_KERNEL * n_kernels:
        return None
    empty = rows_named(ctx.events, _EMPTY, Category.OP)
    n_empty = int(in_windows(ctx, np.flatnonzero(empty)).sum())
    op = ctx.innermost_op[calls.rows[~calls.is_free]]
    op = op[op != NO_ROW]
    n_allocating = len(np.unique(op[empty[op]]))
    return None if n_allocating < _MIN_EMPTY_SHARE * n_empty else calls


def _n_single_frees(ctx: Context, calls: DriverCalls) -> int:
    """Frees before which the program allocated or launched something since the last one."""
    starts_ns = ctx.events.ts_ns[calls.rows]
    order = np.argsort(starts_ns, kind="stable")
    launch = np.unique(ctx.launches.launch[ctx.launches.launch != NO_ROW])
    n_launched = np.searchsorted(np.sort(ctx.events.ts_ns[launch]), starts_ns[order])
    is_free = calls.is_free[order]
    follows = np.append(False, is_free[:-1] & (np.diff(n_launched) == 0))
    return int((is_free & ~follows).sum())
