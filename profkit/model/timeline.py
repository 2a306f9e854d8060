"""A recording as lanes of slices, at several levels of detail, ready to be drawn."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from profkit.model.events import Int32s, Int64s, Rows
from profkit.model.location import Frame

LaneKind = Literal["steps", "findings", "idle", "stream", "annotations", "thread", "other"]
"""What a lane shows: the steps; the findings; why a device was idle; a stream of a device; what the
host's annotations were on a device; a host thread; events that are none of these."""

SliceKind = Literal[
    "step", "finding", "compute", "communication", "copy", "sync", "data", "allocator", "op",
    "annotation", "python", "call", "overhead", "idle-sync", "idle-data", "idle-allocator",
    "idle-overhead", "idle-host", "idle-launch", "idle-device", "idle-unknown", "other",
]  # fmt: skip
"""What a slice is, by which it is coloured."""


@dataclass(frozen=True)
class TimelineSite:
    """What one or more slices stand for.

    Attributes:
        name: The name as recorded.
        kind: What it is.
        frame: The user's line; of device work that of its launch. None where it is not known.
        op: Of device work the operator that launched it, else None.
        n: Events of it, over all lanes.
        total_ns: Their lengths together, in nanoseconds.
    """

    name: str
    kind: SliceKind
    frame: Frame | None
    op: str | None
    n: int
    total_ns: int


@dataclass(frozen=True)
class TimelineLane:
    """A stream, a thread, or what profkit adds: one or more rows of slices.

    Attributes:
        kind: What it shows.
        label: Its name.
        first_row: Its first row.
        n_rows: How many rows it has, the outermost calls first.
        n: Events in it.
        busy_ns: Time that its events cover, in nanoseconds: the length of their union.
    """

    kind: LaneKind
    label: str
    first_row: int
    n_rows: int
    n: int
    busy_ns: int


@dataclass(frozen=True)
class Slices:
    """Slices by row, then start. Those of one row do not overlap.

    Attributes:
        row: Their rows, ascending. Shape ``(k,)``.
        start_ns: In nanoseconds from the trace's start. Shape ``(k,)``.
        end_ns: Shape ``(k,)``.
        busy_ns: How much of that events cover: all of it, unless several events with room between
            them were made one slice. Shape ``(k,)``.
        n: Events in each. Shape ``(k,)``.
        longest_ns: The length of the longest of them. Shape ``(k,)``.
        site: Index into the timeline's sites: that of the longest. Shape ``(k,)``.
    """

    row: Int32s
    start_ns: Int64s
    end_ns: Int64s
    busy_ns: Int64s
    n: Int64s
    longest_ns: Int64s
    site: Int32s

    def __len__(self) -> int:
        return len(self.row)

    def of(self, places: Rows) -> "Slices":
        """Some of them, in the order of the places."""
        return Slices(
            self.row[places], self.start_ns[places], self.end_ns[places], self.busy_ns[places],
            self.n[places], self.longest_ns[places], self.site[places],
        )  # fmt: skip

    def of_row(self, row: int) -> "Slices":
        """Those of one row."""
        first, last = np.searchsorted(self.row, (row, row + 1))
        return self.of(np.arange(first, last))


@dataclass(frozen=True)
class Level:
    """The slices at one level of detail.

    Attributes:
        resolution_ns: Events shorter than this, in nanoseconds, that begin in the same stretch of
            this length are one slice; 0 where every event is a slice of its own.
        slices: The slices.
    """

    resolution_ns: int
    slices: Slices


@dataclass(frozen=True)
class Timeline:
    """A recording, ready to be drawn.

    Attributes:
        start_ns: Start of the first slice, in nanoseconds from the trace's start.
        end_ns: End of the last.
        lanes: The lanes from top to bottom.
        sites: What slices stand for, those with the most time first.
        levels: Levels of detail, the finest first.
        steps: Name, start and end in nanoseconds of every step.
    """

    start_ns: int
    end_ns: int
    lanes: tuple[TimelineLane, ...]
    sites: tuple[TimelineSite, ...]
    levels: tuple[Level, ...]
    steps: tuple[tuple[str, int, int], ...]
