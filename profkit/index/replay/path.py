"""Segments of the critical path."""

from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.index.intervals import Intervals
from profkit.model.critical_path import PathKind
from profkit.model.events import (
    NO_ROW,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    Rows,
    are_equally_long,
    is_within,
)

COLUMNS: Final = ("starts_ns", "ends_ns", "kind", "row", "lane", "step")


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of all steps, in time order.

    Attributes:
        starts_ns: Shape ``(p,)``.
        ends_ns: Shape ``(p,)``.
        kind: A :class:`PathKind` value. Shape ``(p,)``.
        row: The device work, or the innermost host event, or :data:`NO_ROW`. Shape ``(p,)``.
        lane: The host thread, or :data:`NO_ROW`. Shape ``(p,)``.
        step: Number of the step; 0 without steps. Shape ``(p,)``.
        unexplained: Time on the path without a known cause: the parts of lags that are longer than
            usual, and what is before the first event that is known to cause anything.
    """

    starts_ns: Int64s
    ends_ns: Int64s
    kind: npt.NDArray[np.uint8]
    row: Int32s
    lane: Int32s
    step: Int32s
    unexplained: Intervals

    def fits(self, events: EventTable, n_steps: int) -> bool:
        """Return whether a path from a cache may belong to some events."""
        columns = (self.starts_ns, self.ends_ns, self.kind, self.row, self.lane, self.step)
        return (
            are_equally_long(*columns)
            and Intervals(self.starts_ns, self.ends_ns).are_valid
            and self.unexplained.are_valid
            and is_within(self.kind, 0, max(PathKind))
            and is_within(self.row, NO_ROW, len(events) - 1)
            and is_within(self.lane, NO_ROW, len(events.lanes) - 1)
            and is_within(self.step, 0, max(n_steps, 1) - 1)
        )

    def without(self, is_left_out: Mask) -> "CriticalPath":
        """Return the path without the host's time in some rows, such as profkit's own work.

        Args:
            is_left_out: Shape ``(n,)``, over all rows.
        """
        if not is_left_out.any():
            return self
        on_host = self.kind == PathKind.PYTHON
        return self.select(~(on_host & np.append(is_left_out, False)[self.row]))

    def select(self, chosen: Mask | Rows) -> "CriticalPath":
        """Select some of the segments."""
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        places = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return replace(self, **{name: getattr(self, name)[places] for name in COLUMNS})

    @property
    def unexplained_ns(self) -> int:
        """Return all time without a known cause."""
        return self.unexplained.total_ns

    @cached_property
    def lengths_ns(self) -> Int64s:
        """Return the length of each segment. Shape ``(p,)``."""
        return self.ends_ns - self.starts_ns
