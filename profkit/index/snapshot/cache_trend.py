"""Whether an allocator takes ever more from the driver for no more that is in use."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.model.events import Int64s

N_PARTS: Final = 8
"""Parts of equally many entries: enough to tell a rise from a jump."""
_SETTLED_PARTS: Final = 2
"""In the first quarter a cache fills: that is what it is for."""
_MIN_RISES: Final = 3
"""Of six parts: a jump or two are a larger batch, or an evaluation."""
_ACTIVE_SHARE: Final = 0.25
"""With more than this of the rise in use the program simply needs more."""


@dataclass(frozen=True)
class CacheTrend:
    """How reserved and active memory went on after the first quarter of a history.

    Attributes:
        n_rises: Of the later parts, those that reserve more than all before them.
        reserved_rise_bytes: By how much the most that was reserved rose.
        active_rise_bytes: By how much the most that was active rose.
        start: Place where the later parts begin.
    """

    n_rises: int
    reserved_rise_bytes: int
    active_rise_bytes: int
    start: int

    @property
    def is_growing(self) -> bool:
        """Whether reserved memory rises part after part while active memory hardly does."""
        rises = self.n_rises >= _MIN_RISES
        return rises and self.active_rise_bytes <= _ACTIVE_SHARE * self.reserved_rise_bytes

    @property
    def unused_rise_bytes(self) -> int:
        """What was reserved more, and never in use."""
        return max(0, self.reserved_rise_bytes - self.active_rise_bytes)


def cache_trend(active_bytes: Int64s, reserved_bytes: Int64s) -> CacheTrend | None:
    """Compare the parts of a device's history.

    Args:
        active_bytes: What was active before each row and in the end. Shape ``(n+1,)``.
        reserved_bytes: What was reserved, likewise.

    Returns:
        None where it has too few entries for parts.
    """
    if len(active_bytes) <= N_PARTS:
        return None
    bounds = (np.arange(N_PARTS) * len(active_bytes)) // N_PARTS
    reserved = np.maximum.accumulate(np.maximum.reduceat(reserved_bytes, bounds))
    active = np.maximum.accumulate(np.maximum.reduceat(active_bytes, bounds))
    settled = _SETTLED_PARTS - 1
    return CacheTrend(
        n_rises=int((np.diff(reserved)[settled:] > 0).sum()),
        reserved_rise_bytes=int(reserved[-1] - reserved[settled]),
        active_rise_bytes=int(active[-1] - active[settled]),
        start=int(bounds[_SETTLED_PARTS]),
    )
