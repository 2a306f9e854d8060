"""Whether an allocator reserves more and more memory without more of it being active."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.model.events import Int64s

N_PARTS: Final = 8
"""Parts of equally many entries: enough to distinguish growth from a jump."""
_SETTLED_PARTS: Final = 2
"""In the first quarter the cache fills, as intended."""
_MIN_RISES: Final = 3
"""Of six parts; one or two rises come from a larger batch or an evaluation."""
_ACTIVE_SHARE: Final = 0.25
"""With a larger active share of the growth the program simply needs more memory."""


@dataclass(frozen=True)
class CacheTrend:
    """Growth of reserved and active memory after the first quarter of a history.

    Attributes:
        n_rises: Number of later parts that reserve more than all before them.
        reserved_rise_bytes: Growth of the peak of reserved bytes.
        active_rise_bytes: Growth of the peak of active bytes.
        start: Index of the history entry where the later parts begin.
    """

    n_rises: int
    reserved_rise_bytes: int
    active_rise_bytes: int
    start: int

    @property
    def is_growing(self) -> bool:
        """Return whether reserved memory grows part after part while active memory hardly does."""
        rises = self.n_rises >= _MIN_RISES
        return rises and self.active_rise_bytes <= _ACTIVE_SHARE * self.reserved_rise_bytes

    @property
    def unused_rise_bytes(self) -> int:
        """Return the growth of reserved bytes that were never active."""
        return max(0, self.reserved_rise_bytes - self.active_rise_bytes)


def measure_cache_trend(active_bytes: Int64s, reserved_bytes: Int64s) -> CacheTrend | None:
    """Compare the parts of a device's history, or return None with too few entries.

    Bytes are given before each entry and at the end. Shape ``(n+1,)`` each.
    """
    if len(active_bytes) <= N_PARTS:
        return None

    bounds = (np.arange(N_PARTS) * len(active_bytes)) // N_PARTS
    # Running maxima: only a new peak counts as growth.
    reserved = np.maximum.accumulate(np.maximum.reduceat(reserved_bytes, bounds))
    active = np.maximum.accumulate(np.maximum.reduceat(active_bytes, bounds))

    settled = _SETTLED_PARTS - 1
    return CacheTrend(
        n_rises=int((np.diff(reserved)[settled:] > 0).sum()),
        reserved_rise_bytes=int(reserved[-1] - reserved[settled]),
        active_rise_bytes=int(active[-1] - active[settled]),
        start=int(bounds[_SETTLED_PARTS]),
    )
