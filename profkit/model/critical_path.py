"""The critical path of the steps, as the report has it.

The critical path is what the steps waited for at each moment, from their start to the completion of
the last one: the end of a step on the host, or of the last device work that it launched. Only what
is on this path can make the steps shorter. Where the host runs ahead, a step begins when the one
before is complete.
"""

from enum import IntEnum
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.model.location import Location

PathKindName = Literal[
    "operator", "python", "runtime", "sync", "data-wait", "launch-latency", "kernel", "copy",
    "communication", "gap", "unrecorded",
]  # fmt: skip
"""Kinds of segments in the report, see :class:`PathKind`."""


class PathKind(IntEnum):
    """The kind of a segment of a critical path."""

    OPERATOR = 0
    """A PyTorch operator runs on the host."""
    PYTHON = 1
    """The host runs Python, or anything else outside of operators."""
    RUNTIME = 2
    """The host is in a call of the runtime or driver, such as a launch or an allocation."""
    SYNC = 3
    """A blocking call returns, or takes time of its own; the work that it waits for is a segment
    of its own kind."""
    DATA_WAIT = 4
    """The program waits for its next batch, or workers take longer for one than the steps."""
    LAUNCH_LATENCY = 5
    """From a launch to the start of its work."""
    KERNEL = 6
    COPY = 7
    """A copy or fill on a device."""
    COMMUNICATION = 8
    """A kernel of a collective."""
    GAP = 9
    """Nothing that the recording shows: between two works of a stream, or before a node without a
    known cause."""
    UNRECORDED = 10
    """A device works on something that is not in the recording."""

    @property
    def report_name(self) -> PathKindName:
        """Return the kind's name in the report, such as ``data-wait``."""
        return _NAMES[self]


_NAMES: Final[tuple[PathKindName, ...]] = (
    "operator", "python", "runtime", "sync", "data-wait", "launch-latency", "kernel", "copy",
    "communication", "gap", "unrecorded",
)  # fmt: skip


@dataclass(frozen=True)
class PathPart:
    """The time that the critical path spends in one kind of segment.

    Attributes:
        kind: ``operator``: a PyTorch operator on the host. ``python``: Python, or anything else of
            the host outside of operators. ``runtime``: a call of the runtime or driver, such as a
            launch or an allocation. ``sync``: a blocking call itself, without the device work that
            it waits for. ``data-wait``: the wait for the next batch, or workers that
            take longer for one than the steps. ``launch-latency``: from a launch to the start of
            its work. ``kernel``, ``copy`` (copies and fills) and
            ``communication`` (kernels of collectives): work of a device. ``gap``: between two works
            of a stream, or nothing that the recording shows. ``unrecorded``: a device worked on
            something that is not in the recording.
        ns: Nanoseconds over all steps.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps; rounded so that
            the parts add up to the path's.
        share: ``ns`` as a share of the path.
    """

    kind: PathKindName
    ns: int
    per_step_ns: int | None
    share: float


@dataclass(frozen=True)
class PathLine:
    """The segments of one kind that one source line causes.

    Attributes:
        kind: As in :class:`PathPart`.
        location: The source line. For device work it is the line of its launch, for unrecorded
            device work the line of the blocking call that waits for it. Empty without a line.
        ns: Nanoseconds over all steps.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps.
        share: ``ns`` as a share of the path.
        n_segments: Number of segments. An operator that calls others has several.
        n_events: Number of operators, calls or regions that the segments are of; for device work,
            of what launched it. 0 where a function was sampled.
        main_name: The name with most of this time, as in :class:`PathEntry`.
        main_share: The time of that name as a share of the path.
    """

    kind: PathKindName
    location: Location
    ns: int
    per_step_ns: int | None
    share: float
    n_segments: int
    n_events: int
    main_name: str
    main_share: float

    @property
    def mean_ns(self) -> int:
        """Nanoseconds per step, or of the whole recording without steps."""
        return self.ns if self.per_step_ns is None else self.per_step_ns


@dataclass(frozen=True)
class PathFunction:
    """The operators that one function of the program causes, on all of its lines.

    Attributes:
        location: The line of the function with most of this time.
        first_line: The line of the function's definition.
        ns: Nanoseconds over all steps.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps.
        share: ``ns`` as a share of the path.
        line_share: The time of that line as a share of the path.
        n_events: Number of operators.
    """

    location: Location
    first_line: int
    ns: int
    per_step_ns: int | None
    share: float
    line_share: float
    n_events: int


@dataclass(frozen=True)
class PathEntry:
    """The segments of one kind, name and source line.

    Attributes:
        kind: As in :class:`PathPart`.
        name: The innermost operator, runtime call, Python function or region on the host, or the
            kernel or copy; of a gap and of launch latency the work that starts after it; of
            unrecorded device work the blocking call that waits for it. Empty for Python between
            operators without stacks, and where nothing is recorded.
        location: The source line, and the operator. Device work has them from its launch.
        ns: Nanoseconds over all steps.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps.
        share: ``ns`` as a share of the path.
        n_segments: Number of segments.
    """

    kind: PathKindName
    name: str
    location: Location
    ns: int
    per_step_ns: int | None
    share: float
    n_segments: int


@dataclass(frozen=True)
class BlockingCall:
    """Calls of one function at one source line that block the host while the path is on a device.

    Attributes:
        call: Such as ``cudaStreamSynchronize``.
        location: The source line, and the operator.
        ns: Path time on devices while the host is in these calls, over all steps.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps.
        share: ``ns`` as a share of the path.
        n_calls: Number of these calls.
    """

    call: str
    location: Location
    ns: int
    per_step_ns: int | None
    share: float
    n_calls: int


@dataclass(frozen=True)
class PathSegment:
    """A segment of one step's critical path.

    Attributes:
        kind: As in :class:`PathPart`.
        ns: Its length in nanoseconds.
        location: The source line, as in :class:`PathLine`.
        op: The innermost operator, for device work the operator of its launch, or None.
    """

    kind: PathKindName
    ns: int
    location: Location
    op: str | None


@dataclass(frozen=True)
class PathStep:
    """The critical path of one step.

    Attributes:
        step: The step's name; empty for the whole recording.
        makespan_ns: From the start of the step, or the completion of the step before if that is
            later, to its own completion.
        unexplained_lag_ns: Waits within it for which the recording shows no cause.
        segments: Its segments, in order; they add up to ``makespan_ns`` exactly. In a long path,
            short segments that follow each other are joined to one, with the kind, line and
            operator that take most of its time.
        parts: Time by kind, longest first; the parts add up to ``makespan_ns`` exactly. Shares are
            of this step, as are those of ``lines``.
        lines: Time by kind and recorded source line, longest first; the costliest ones of all
            steps together.
    """

    step: str
    makespan_ns: int
    unexplained_lag_ns: int
    segments: tuple[PathSegment, ...]
    parts: tuple[PathPart, ...] = ()
    lines: tuple[PathLine, ...] = ()


@dataclass(frozen=True)
class CriticalPathSummary:
    """The critical path of all steps, or of the whole recording without steps.

    Attributes:
        n_steps: Number of steps; 0 for the whole recording.
        total_ns: Sum of the steps' lengths, each from its start, or the completion of the step
            before if that is later, to its own completion.
        per_step_ns: ``total_ns`` divided by ``n_steps``, or None without steps.
        parts: Time by kind, longest first; the parts add up to ``total_ns`` exactly.
        lines: Time by kind and source line, longest first; the costliest ones.
        entries: Time by kind, name and source line, longest first; the costliest ones.
        blocking: The calls that block the host while the path is on a device, longest first.
        unexplained_ns: Waits on the path for which the recording shows no cause.
        unexplained_share: ``unexplained_ns`` as a share of the path.
        is_explained: Whether that share is small enough for savings to be predicted.
        cold_start_ns: Path time in calls of the runtime that take 10 ms or more while no device
            works: such a call first loads a kernel's code or a library, or creates the context.
        steps: The path of each step, in order.
        functions: Time in operators by function of the program, longest first; the costliest ones
            of which the definition is known.
    """

    n_steps: int
    total_ns: int
    per_step_ns: int | None
    parts: tuple[PathPart, ...]
    lines: tuple[PathLine, ...]
    entries: tuple[PathEntry, ...]
    blocking: tuple[BlockingCall, ...]
    unexplained_ns: int
    unexplained_share: float
    is_explained: bool
    cold_start_ns: int = 0
    steps: tuple[PathStep, ...] = ()
    functions: tuple[PathFunction, ...] = ()

    @property
    def mean_ns(self) -> int:
        """Nanoseconds per step, or of the whole recording without steps."""
        return self.total_ns if self.per_step_ns is None else self.per_step_ns
