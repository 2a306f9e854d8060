"""Allocations of a trace's ``[memory]`` events, paired with their frees."""

from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.columns import Columns
from profkit.index.distinct import distinct
from profkit.index.host.steps import NO_STEP, Steps
from profkit.index.sums import sum_by_key
from profkit.model.events import MISSING, Int32s, Int64s, Mask, MemoryTable, Rows

DEVICE_TYPES: Final = {
    0: "cpu",
    1: "cuda",
    6: "cuda",
    12: "xpu",
    13: "mps",
    15: "hpu",
    19: "mtia",
    20: "privateuseone",
}
"""ROCm devices are named ``cuda`` as well. Source: ``c10/core/DeviceType.h``."""


def device_label(device_type: int, device: int) -> str:
    """Return a device in PyTorch's notation: ``cpu``, ``cuda:0``."""
    name = DEVICE_TYPES.get(device_type, f"device{device_type}")
    return name if device < 0 else f"{name}:{device}"


@dataclass(frozen=True)
class Allocations:
    """The allocations of the window, in time order.

    Attributes:
        table: The ``[memory]`` events.
        alloc: Indices of the allocations in it. Shape ``(a,)``.
        free: Index of the free of each, or -1 where the window has none. Shape ``(a,)``.
        n_frees_of_earlier: Number of frees of blocks allocated before the window.
        has_addresses: Whether frees can be matched to allocations.
    """

    table: MemoryTable
    alloc: Rows
    free: Rows
    n_frees_of_earlier: int
    has_addresses: bool

    @cached_property
    def unfreed(self) -> Mask:
        """Return which allocations have no free in the window. Shape ``(a,)``."""
        return np.asarray(self.free < 0)

    @cached_property
    def n_bytes(self) -> Int64s:
        """Return the size of each allocation. Shape ``(a,)``."""
        return self.table.n_bytes[self.alloc]


def pair_allocations(table: MemoryTable) -> Allocations:
    """Pair allocations with their frees by device and address.

    Events of one address alternate between allocation and free. A free without a preceding
    allocation belongs to a block from before the window.
    """
    is_alloc = table.n_bytes > 0
    alloc = np.flatnonzero(is_alloc)
    free = np.full(len(table), -1, dtype=np.intp)
    has_addresses = bool(len(table)) and bool((table.address != MISSING).any())
    if not has_addresses:
        return Allocations(table, alloc, free[alloc], 0, has_addresses=False)

    # Sorted by address, then time, an allocation and its free follow each other.
    rows = np.flatnonzero(table.n_bytes != 0)
    keys = (rows, table.address[rows], table.device[rows], table.device_type[rows])
    order = rows[np.lexsort(keys)]

    earlier, later = order[:-1], order[1:]
    is_same_address = (
        (table.address[earlier] == table.address[later])
        & (table.device[earlier] == table.device[later])
        & (table.device_type[earlier] == table.device_type[later])
    )
    is_pair = is_same_address & is_alloc[earlier] & ~is_alloc[later]
    free[earlier[is_pair]] = later[is_pair]

    n_frees = int((table.n_bytes < 0).sum())
    return Allocations(table, alloc, free[alloc], n_frees - int(is_pair.sum()), has_addresses=True)


def peaks(table: MemoryTable) -> dict[str, int]:
    """Find the highest ``Total Allocated`` by device, in bytes, where it was recorded."""
    peak_bytes: dict[str, int] = {}
    has_total = table.total_allocated != MISSING
    for device_type in distinct(table.device_type[has_total]).tolist():
        of_type = has_total & (table.device_type == device_type)
        for device in distinct(table.device[of_type]).tolist():
            of_device = of_type & (table.device == device)
            peak_bytes[device_label(device_type, device)] = int(
                table.total_allocated[of_device].max()
            )
    return peak_bytes


@dataclass(frozen=True)
class UnfreedInSteps(Columns):
    """Allocations that begin in a step and are not freed in the recording.

    Attributes:
        place: Indices in the ``[memory]`` table. Shape ``(k,)``.
        step: Shape ``(k,)``.
        n_bytes: Shape ``(k,)``.
    """

    place: Int32s
    step: Int32s
    n_bytes: Int64s

    def bytes_by_step(self, n_steps: int) -> Int64s:
        """Return the unfreed bytes of each step. Shape ``(n_steps,)``."""
        return sum_by_key(n_steps, self.step, self.n_bytes)


def unfreed_in_steps(allocations: Allocations, steps: Steps) -> UnfreedInSteps:
    """Find the allocations of the steps that the recording does not free."""
    place = allocations.alloc[allocations.unfreed]
    step = steps.of(allocations.table.ts_ns[place])
    in_step = step != NO_STEP
    place = place[in_step].astype(np.int32)
    return UnfreedInSteps(place, step[in_step], allocations.table.n_bytes[place])


def growth_per_step_bytes(by_step: Int64s) -> int:
    """Return the median of the steps' unfreed bytes, or 0 if a step leaves nothing.

    A source line that allocates lasting memory only in some steps fills a cache or initializes
    something: an optimizer creates its state in the first step only, and live variables at the end
    of the recording were allocated in the last step.
    """
    if not len(by_step) or int(by_step.min()) <= 0:
        return 0
    return int(np.median(by_step))


@dataclass(frozen=True)
class WindowPeak:
    """The peak of one device's, or the host's, live bytes among the window's allocations.

    Attributes:
        device_type: PyTorch's device type.
        device: Ordinal of the device; -1 on the host.
        ts_ns: Time of the peak, in nanoseconds from the trace's start.
        n_bytes: Live bytes at the peak.
        live: Indices in :attr:`Allocations.alloc` of the live allocations. Shape ``(k,)``.
    """

    device_type: int
    device: int
    ts_ns: int
    n_bytes: int
    live: Rows


def find_window_peaks(allocations: Allocations) -> tuple[WindowPeak, ...]:
    """Find the peak of every device, without any if frees cannot be matched."""
    table = allocations.table
    if not allocations.has_addresses:
        return ()

    alloc, free = allocations.alloc, allocations.free
    kind, ordinal = table.device_type[alloc], table.device[alloc]
    window_peaks = []
    for device_type, device in sorted(set(zip(kind.tolist(), ordinal.tolist(), strict=True))):
        of_device = np.flatnonzero((kind == device_type) & (ordinal == device))
        freed = of_device[free[of_device] >= 0]

        # Only blocks of the window count, so the level begins at 0.
        change = sum_by_key(len(table), alloc[of_device], allocations.n_bytes[of_device])
        np.subtract.at(change, free[freed], allocations.n_bytes[freed])
        level = np.cumsum(change)

        peak = int(level.argmax())
        is_live = (alloc[of_device] <= peak) & ((free[of_device] < 0) | (free[of_device] > peak))
        window_peaks.append(
            WindowPeak(
                device_type, device, int(table.ts_ns[peak]), int(level[peak]), of_device[is_live]
            )
        )
    return tuple(window_peaks)
