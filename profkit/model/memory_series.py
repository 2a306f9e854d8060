"""How a device's memory went over a recording, and which lines and uses held how much of it.

Sizes are bytes. It is worked out from a recording for the formats that draw it; a report alone has
only its outline.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from profkit.model.events import Int64s

Clock = Literal["ns", "us", "entries"]


@dataclass(frozen=True)
class Layer:
    """What one line, operator or use held at each moment.

    Attributes:
        name: ``train.py:12``, ``activations``; what all smaller ones held is one layer of its own.
        bytes: At each moment. Shape ``(k,)``.
    """

    name: str
    bytes: Int64s


@dataclass(frozen=True)
class MemorySeries:
    """How one device's memory went.

    Attributes:
        device: ``cpu``, ``cuda:0``.
        clock: What ``at`` counts: nanoseconds from the trace's start, microseconds from the first
            entry of a snapshot's history, or the entries before.
        at: The moments, ascending. Shape ``(k,)``.
        allocated_bytes: What was allocated at each moment. Shape ``(k,)``.
        reserved_bytes: What the allocator held from the driver, or None where that was not kept.
        layers: By kind (``line``, ``use`` or ``operator``), the layers that lie upon each other,
            the one with the most bytes at the highest moment first. Together they are what was
            allocated, but for rounding and for what the recording does not tell of.
    """

    device: str
    clock: Clock
    at: Int64s
    allocated_bytes: Int64s
    reserved_bytes: Int64s | None = None
    layers: dict[str, tuple[Layer, ...]] = field(default_factory=dict)

    @property
    def highest(self) -> int:
        """The place of the moment at which most was allocated."""
        return int(np.argmax(self.allocated_bytes))
