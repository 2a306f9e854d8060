"""A device's memory over time, and how much of it each source line or use holds.

Sizes are bytes. It is computed from a recording for renderers that draw it; the JSON report has
only :class:`~profkit.model.memory_summary.MemoryPoint`.
"""

from dataclasses import field
from typing import Literal

import numpy as np

from profkit.dataclass import dataclass
from profkit.model.events import Int64s

Clock = Literal["ns", "us", "entries"]


@dataclass(frozen=True)
class Layer:
    """Memory of one source line, operator or use over time.

    Attributes:
        name: Such as ``train.py:12`` or ``activations``; all smaller ones share one layer.
        bytes: Bytes at each moment. Shape ``(k,)``.
    """

    name: str
    bytes: Int64s


@dataclass(frozen=True)
class LiveGroups:
    """Blocks by their group and by the moments between which they were live.

    A block was live at some time from moment ``i`` to moment ``j`` if ``first <= j`` and
    ``last > i``.

    Attributes:
        group: The blocks' use, or their node of a flame graph. Shape ``(g,)``.
        first: Index of the first moment that is not before they are live.
        last: Index of the first moment at which they are no longer live; the number of moments if
            there is none.
        n: Number of blocks.
        n_bytes: Sum of their sizes.
    """

    group: Int64s
    first: Int64s
    last: Int64s
    n: Int64s
    n_bytes: Int64s


@dataclass(frozen=True)
class MemorySeries:
    """One device's memory over time.

    Attributes:
        device: ``cpu``, ``cuda:0``.
        clock: Unit of ``at``: nanoseconds from the trace's start, microseconds from the first entry
            of a snapshot's history, or number of preceding entries.
        at: Moments, ascending. Shape ``(k,)``.
        allocated_bytes: Shape ``(k,)``.
        reserved_bytes: None where it was not recorded. Shape ``(k,)``.
        layers: By kind (``line``, ``use`` or ``operator``) the stacked layers, the one with the
            most bytes at the peak first. They add up to the allocated bytes, except for rounding
            and for allocations that were not recorded.
        uses: The labels of the groups of ``by_use``.
        by_use: All blocks by use; None where their lifetimes were not recorded.
    """

    device: str
    clock: Clock
    at: Int64s
    allocated_bytes: Int64s
    reserved_bytes: Int64s | None = None
    layers: dict[str, tuple[Layer, ...]] = field(default_factory=dict)
    uses: tuple[str, ...] = ()
    by_use: LiveGroups | None = None

    @property
    def highest(self) -> int:
        """Return the index of the peak of the allocated bytes."""
        return int(np.argmax(self.allocated_bytes))
