"""Memory that each step takes and the recording never gives back."""

from dataclasses import dataclass

import numpy as np

from profkit.index.host.steps import NO_STEP, Steps
from profkit.index.trace_memory.live_bytes import Allocations
from profkit.model.events import Int32s, Int64s, Mask


@dataclass(frozen=True)
class Kept:
    """Allocations that begin in a step and are not freed in the recording.

    Attributes:
        place: Places in the ``[memory]`` table. Shape ``(k,)``.
        step: The step of each. Shape ``(k,)``.
        n_bytes: Its bytes. Shape ``(k,)``.
    """

    place: Int32s
    step: Int32s
    n_bytes: Int64s

    def select(self, kept: Mask) -> "Kept":
        """Some of them. ``kept`` has shape ``(k,)``."""
        return Kept(self.place[kept], self.step[kept], self.n_bytes[kept])

    def bytes_by_step(self, n_steps: int) -> Int64s:
        """Bytes that each step keeps. Shape ``(n_steps,)``."""
        total = np.zeros(n_steps, dtype=np.int64)
        np.add.at(total, self.step, self.n_bytes)
        return total


def kept_allocations(allocations: Allocations, steps: Steps) -> Kept:
    """Allocations of the steps that the recording does not free.

    Args:
        allocations: The allocations, paired with their frees.
    """
    place = allocations.alloc[allocations.unfreed]
    step = steps.of(allocations.table.ts_ns[place])
    inside = step != NO_STEP
    place = place[inside].astype(np.int32)
    return Kept(place, step[inside], allocations.table.n_bytes[place])


def growth_bytes(by_step: Int64s) -> int:
    """What every step keeps, as the median; 0 unless each step keeps something.

    A line that keeps memory only in some steps fills a cache or sets something up: an optimizer
    makes its state in the first step alone, and what a variable still holds at the end of the
    recording was made in the last.

    Args:
        by_step: Bytes that each step keeps. Shape ``(n_steps,)``.
    """
    if not len(by_step) or int(by_step.min()) <= 0:
        return 0
    return int(np.median(by_step))
