"""When most of what a recording allocated was live at once, and what that was."""

from dataclasses import dataclass

import numpy as np

from profkit.index.trace_memory.live_bytes import Allocations
from profkit.model.events import Rows


@dataclass(frozen=True)
class WindowPeak:
    """One device, or the host, at the moment when it held most of what the window allocated.

    Attributes:
        device_type: PyTorch's device type.
        device: Ordinal of the device; -1 on the host.
        ts_ns: The first such moment, in nanoseconds from the trace's start.
        n_bytes: What was live then.
        live: Places in :class:`~profkit.index.trace_memory.live_bytes.Allocations` of what was. Shape ``(k,)``.
    """

    device_type: int
    device: int
    ts_ns: int
    n_bytes: int
    live: Rows


def window_peaks(allocations: Allocations) -> tuple[WindowPeak, ...]:
    """The peak of every device; none where frees cannot be joined to allocations.

    Args:
        allocations: The allocations of the window, with their frees.
    """
    table = allocations.table
    if not allocations.has_addresses:
        return ()
    alloc, free = allocations.alloc, allocations.free
    kind, ordinal = table.device_type[alloc], table.device[alloc]
    found = []
    for device_type, device in sorted(set(zip(kind.tolist(), ordinal.tolist(), strict=True))):
        here = np.flatnonzero((kind == device_type) & (ordinal == device))
        ended = here[free[here] >= 0]
        change = np.zeros(len(table), dtype=np.int64)
        np.add.at(change, alloc[here], allocations.n_bytes[here])
        np.subtract.at(change, free[ended], allocations.n_bytes[ended])
        level = np.cumsum(change)
        peak = int(level.argmax())
        still = (alloc[here] <= peak) & ((free[here] < 0) | (free[here] > peak))
        found.append(
            WindowPeak(device_type, device, int(table.ts_ns[peak]), int(level[peak]), here[still])
        )
    return tuple(found)
