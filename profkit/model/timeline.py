"""Timelines: lanes of slices at several levels of detail, ready to be drawn."""

from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.model.events import Int32s, Int64s, Rows
from profkit.model.location import Frame

LaneKind = Literal[
    "steps", "path", "findings", "idle", "stream", "annotations", "thread", "other", "rank",
]  # fmt: skip
"""Content of a lane: steps, the critical path, findings, idle causes, a device stream, annotations
on a device, a host thread, other events, or a rank of a job."""

EVENT_LANES: Final[tuple[LaneKind, ...]] = ("stream", "annotations", "thread", "other")
"""Lanes of recorded events; the others show what profkit has found."""

SliceKind = Literal[
    "step", "finding", "compute", "communication", "copy", "sync", "data", "allocator", "op",
    "annotation", "python", "own", "library", "torch", "module", "call", "overhead", "idle-sync",
    "idle-data", "idle-allocator", "idle-overhead", "idle-host", "idle-launch", "idle-device",
    "idle-unknown", "launch-latency", "gap", "unrecorded", "other", "operators", "backward",
    "optimizer", "outside", "waiting", "transfer", "late", "unmatched",
]  # fmt: skip
"""Kind of a slice, which determines its color. Python calls are ``own`` (user code), ``library``,
``torch`` or an ``nn.Module``; ``python`` is host time between other events."""


@dataclass(frozen=True)
class TimelineSite:
    """The code or the event that a slice represents.

    Attributes:
        frame: The line of user code, for device work the line of its launch. None where unknown.
        op: For device work the operator that launched it, else None.
        module: The class of the innermost ``nn.Module`` around it, for device work around its
            launch, and in a backward pass around its forward operator; empty where there is none.
        n: Number of its events in all lanes.
        total_ns: Sum of their durations.
        is_path: Whether its slices are segments of the critical path, which a search does not
            count in addition to the events that they are parts of.
    """

    name: str
    kind: SliceKind
    frame: Frame | None
    op: str | None
    n: int
    total_ns: int
    is_path: bool = False
    module: str = ""


@dataclass(frozen=True)
class TimelineLane:
    """A stream, a thread, or a lane added by profkit: one or more rows of slices.

    Attributes:
        first_row: Index of its first row.
        n_rows: Number of rows, outermost calls first.
        n: Number of events.
        busy_ns: Length of the union of its events; 0 for a rank.
    """

    kind: LaneKind
    label: str
    first_row: int
    n_rows: int
    n: int
    busy_ns: int


@dataclass(frozen=True)
class Slices:
    """Slices ordered by row, then start. Slices of one row do not overlap.

    Attributes:
        row: Row of each slice, ascending. Shape ``(k,)``.
        start_ns: Nanoseconds from the trace's start. Shape ``(k,)``.
        end_ns: Nanoseconds from the trace's start. Shape ``(k,)``.
        busy_ns: Time that events cover within the slice: less than its length where events with
            gaps between them were merged into it. Shape ``(k,)``.
        n: Number of events in each slice. Shape ``(k,)``.
        longest_ns: Duration of the longest event. Shape ``(k,)``.
        site: Index into the timeline's sites, of the longest event. Shape ``(k,)``.
        event: Row of the recorded event, or :data:`~profkit.model.events.NO_ROW` for a slice of
            several events or of none. Shape ``(k,)``.
    """

    row: Int32s
    start_ns: Int64s
    end_ns: Int64s
    busy_ns: Int64s
    n: Int64s
    longest_ns: Int64s
    site: Int32s
    event: Int32s

    def __len__(self) -> int:
        return len(self.row)

    def of(self, places: Rows) -> "Slices":
        """Return the slices at some places, in that order."""
        return Slices(
            self.row[places],
            self.start_ns[places],
            self.end_ns[places],
            self.busy_ns[places],
            self.n[places],
            self.longest_ns[places],
            self.site[places],
            self.event[places],
        )


@dataclass(frozen=True)
class Level:
    """The slices at one level of detail.

    Attributes:
        resolution_ns: Events shorter than this that begin in the same interval of this length are
            merged into one slice; 0 where every event is a slice of its own.
        slices: The slices.
    """

    resolution_ns: int
    slices: Slices


@dataclass(frozen=True)
class Timeline:
    """A timeline of a recording.

    Attributes:
        start_ns: Start of the first slice, in nanoseconds from the trace's start.
        lanes: The lanes from top to bottom.
        sites: The sites of all slices, most time first.
        levels: Levels of detail, finest first.
        steps: Name, start and end in nanoseconds of every step.
    """

    start_ns: int
    end_ns: int
    lanes: tuple[TimelineLane, ...]
    sites: tuple[TimelineSite, ...]
    levels: tuple[Level, ...]
    steps: tuple[tuple[str, int, int], ...]
