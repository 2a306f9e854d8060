"""What each rank of a job did when, bounded in size: for timelines, and no part of JSON reports."""

from typing import TYPE_CHECKING, Any, Literal

from profkit.dataclass import dataclass
from profkit.model.job import Lateness
from profkit.packed import Packed

if TYPE_CHECKING:
    from profkit.model.timeline import Slices
else:
    # Reports are read and written without NumPy, which takes long to load.
    Slices = Any

CallState = Literal["waiting", "transfer", "unmatched", "late"]
"""State of a slice of a collective: ``waiting`` until the last rank had started, ``transfer`` from
then on, ``unmatched`` without a match, or ``late`` before it, while other ranks wait for this."""


@dataclass(frozen=True)
class LaneSite:
    """The work or the collective that slices represent.

    Attributes:
        kind: A part of the step time as in :class:`~profkit.model.step_summary.TimePart`, or a
            :data:`CallState`.
        collective: For the latter the kind of collective, such as ``all-reduce``, else empty.
        group: Its process group, or empty.
        why: Why the rank is late, or None.
        n: Number of its slices on all ranks.
        total_ns: Sum of their lengths.
    """

    kind: str
    collective: str = ""
    group: str = ""
    why: Lateness | None = None
    n: int = 0
    total_ns: int = 0


@dataclass(frozen=True)
class RankClock:
    """The clock of a rank, compared with the first rank's.

    Attributes:
        offset_ns: How far it is ahead at ``origin_ns``.
        drift: Nanoseconds that it gains per nanosecond of the common clock.
        origin_ns: The moment of the offset, in nanoseconds since 1970.
    """

    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0

    def corrected(self, at_ns: int) -> int:
        """Convert a moment to the common clock, both in nanoseconds since 1970."""
        since_ns = at_ns - self.origin_ns - self.offset_ns
        return at_ns - self.offset_ns - round(since_ns * (self.drift / (1 + self.drift)))


@dataclass(frozen=True)
class RankLane:
    """The work of one rank over time. Times are nanoseconds from the start of :class:`JobLanes`.

    Attributes:
        clock: The clock by which its times were corrected.
        packed_slices: In the first row the parts of its time, except for communication; in further
            rows its collectives. Short slices are merged; their sites are in :class:`JobLanes`.
        n: Number of slices before merging.
        steps: Start and end of each step of the summary of this rank.
    """

    rank: int
    file: str
    host: str | None
    clock: RankClock
    packed_slices: Packed[Slices]
    n: int
    steps: tuple[tuple[int, int], ...]

    @property
    def slices(self) -> Slices:
        """Unpack ``packed_slices``."""
        return self.packed_slices.value


@dataclass(frozen=True)
class JobLanes:
    """The work of the ranks of a job over time, on one clock.

    Attributes:
        start_ns: The origin of all times, in nanoseconds since 1970.
        lanes: By rank.
        sites: The sites of all slices.
    """

    start_ns: int
    lanes: tuple[RankLane, ...]
    sites: tuple[LaneSite, ...]


@dataclass(frozen=True)
class OwnTime:
    """The parts of a rank's time: small enough to be sent from one process to another.

    Attributes:
        start_ns: The start of its trace, in nanoseconds since 1970 on its own clock.
        kinds: Kinds of parts as in :class:`~profkit.model.step_summary.TimePart`.
        n: Number of slices of each kind before merging.
        total_ns: Their time.
        slices: In one row and bounded in number, from the start of its trace; their sites are
            indices into ``kinds``.
        steps: Start and end of each step of its summary, from the start of its trace.
    """

    start_ns: int
    kinds: tuple[str, ...]
    n: tuple[int, ...]
    total_ns: tuple[int, ...]
    slices: Slices
    steps: tuple[tuple[int, int], ...]
