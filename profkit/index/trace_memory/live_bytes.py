"""Allocations: each ``[memory]`` event that takes paired with the one that gives back."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from profkit.model.events import MISSING, Int64s, Mask, MemoryTable, Rows

DEVICE_TYPES: Final = {
    0: "cpu", 1: "cuda", 6: "cuda", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia",
    20: "privateuseone",
}  # fmt: skip
"""PyTorch calls ROCm's devices ``cuda`` too. Source: ``c10/core/DeviceType.h``."""


def device_label(device_type: int, device: int) -> str:
    """A device as PyTorch writes it: ``cpu``, ``cuda:0``."""
    name = DEVICE_TYPES.get(device_type, f"device{device_type}")
    return name if device < 0 else f"{name}:{device}"


@dataclass(frozen=True)
class Allocations:
    """The allocations of the window, in the order of time.

    Attributes:
        table: The ``[memory]`` events.
        alloc: Places of the allocations in it. Shape ``(a,)``.
        free: For each the place of its free, or -1 when it is not in the window. Shape ``(a,)``.
        n_frees_of_earlier: Frees of blocks that were allocated before the window.
        has_addresses: Whether frees can be joined to allocations at all.
    """

    table: MemoryTable
    alloc: Rows
    free: Rows
    n_frees_of_earlier: int
    has_addresses: bool

    @cached_property
    def unfreed(self) -> Mask:
        """Which allocations the window does not free. Shape ``(a,)``."""
        return np.asarray(self.free < 0)

    @cached_property
    def n_bytes(self) -> Int64s:
        """Bytes of each. Shape ``(a,)``."""
        return self.table.n_bytes[self.alloc]


def pair_allocations(table: MemoryTable) -> Allocations:
    """Pair allocations with their frees by device and address.

    Of one address the events are in turn an allocation and its free; a free without an allocation
    before it is of a block from before the window, and an allocation without a free after it is
    unfreed.
    """
    takes = table.n_bytes > 0
    alloc = np.flatnonzero(takes)
    free = np.full(len(table), -1, dtype=np.intp)
    has = bool(len(table)) and bool((table.address != MISSING).any())
    if not has:
        return Allocations(table, alloc, free[alloc], 0, has_addresses=False)
    real = np.flatnonzero(table.n_bytes != 0)
    order = real[
        np.lexsort((real, table.address[real], table.device[real], table.device_type[real]))
    ]
    here, after = order[:-1], order[1:]
    same = (
        (table.address[here] == table.address[after])
        & (table.device[here] == table.device[after])
        & (table.device_type[here] == table.device_type[after])
    )
    pair = same & takes[here] & ~takes[after]
    free[here[pair]] = after[pair]
    n_frees = int((table.n_bytes < 0).sum())
    return Allocations(table, alloc, free[alloc], n_frees - int(pair.sum()), has_addresses=True)


def peaks(table: MemoryTable) -> dict[str, int]:
    """The highest ``Total Allocated`` by device, in bytes; devices without figures are left out."""
    found: dict[str, int] = {}
    known = table.total_allocated != MISSING
    for device_type in np.unique(table.device_type[known]).tolist():
        of_type = known & (table.device_type == device_type)
        for device in np.unique(table.device[of_type]).tolist():
            here = of_type & (table.device == device)
            found[device_label(device_type, device)] = int(table.total_allocated[here].max())
    return found
