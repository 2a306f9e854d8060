"""The steps of a report, and the parts of their time."""

from typing import Final

from profkit.dataclass import dataclass

IDLE: Final = "idle-"
"""The beginning of the kinds of idle time; the cause follows."""
UNRECORDED: Final = "unrecorded"
"""The kind of a device's work that is not in the recording."""


@dataclass(frozen=True)
class StepPart:
    """A part of one step's time.

    Attributes:
        kind: As in :class:`TimePart`.
        ns: Nanoseconds of the step.
    """

    kind: str
    ns: int


@dataclass(frozen=True)
class StepSummary:
    """One step.

    Attributes:
        name: As recorded, such as ``ProfilerStep#4``.
        start_ns: Nanoseconds from the trace's start.
        dur_ns: Duration on the host.
        gpu_busy_ns: Part of ``time_ns`` in which any device was busy, or None without devices.
        gpu_idle_ns: ``time_ns`` minus ``gpu_busy_ns``, or None without devices.
        data_wait_ns: Time within the step spent in a loader's ``__next__``.
        sync_ns: Time within the step in which the host was blocked in synchronizing calls.
        parts: Disjoint parts that add up to ``time_ns`` exactly, in the same order for all steps.
        device_start_ns: When the devices had completed the step before, or the start of the step if
            that is later, in nanoseconds from the trace's start; None unless the host runs ahead of
            the devices.
        device_dur_ns: From then until the devices completed the step, or None.
        n_kernels: Kernels that were launched within the step, or None without devices.
        n_syncs: Calls within the step that blocked the host until a device had finished; without
            devices the operators that would, since they return a value to the program.
    """

    name: str
    start_ns: int
    dur_ns: int
    gpu_busy_ns: int | None
    gpu_idle_ns: int | None
    data_wait_ns: int
    sync_ns: int
    parts: tuple[StepPart, ...] = ()
    device_start_ns: int | None = None
    device_dur_ns: int | None = None
    n_kernels: int | None = None
    n_syncs: int | None = None

    @property
    def time_ns(self) -> int:
        """Step time: on the devices where the host runs ahead of them, else on the host."""
        return self.dur_ns if self.device_dur_ns is None else self.device_dur_ns

    @property
    def time_start_ns(self) -> int:
        """Where ``time_ns`` begins, in nanoseconds from the trace's start."""
        return self.start_ns if self.device_start_ns is None else self.device_start_ns


@dataclass(frozen=True)
class TimePart:
    """A part of the steps' time.

    Attributes:
        kind: With devices: ``compute``: a device ran a kernel other than a collective.
            ``communication``: only collectives (and copies) ran. ``copy``: only copies and fills
            ran. ``unrecorded``: a device worked on something that is not in the recording.
            ``idle-…``: no device was busy; the suffix is the cause, as in ``IdleTime``.
            Without devices: ``data``: the program waited for its next batch. ``communication``: it
            waited for a collective. ``optimizer``: it ran an optimizer's ``step`` or
            ``zero_grad``. ``backward``: it ran operators of the backward pass. ``operators``: it
            ran other operators. ``python``: none of these.
        ns: Nanoseconds over all steps.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps.
        share: ``ns`` as a share of the breakdown's ``total_ns``.
    """

    kind: str
    ns: int
    per_step_ns: int | None
    share: float

    @property
    def mean_ns(self) -> int:
        """Nanoseconds per step, or of the whole recording without steps."""
        return self.ns if self.per_step_ns is None else self.per_step_ns

    @property
    def is_idle(self) -> bool:
        """Return whether no device was busy, for a cause that the kind names."""
        return self.kind.startswith(IDLE)


def is_wait(kind: str) -> bool:
    """Return whether no device, or without devices no operator, worked in a part of some kind."""
    return kind.startswith(IDLE) or kind in {"data", "python"}


@dataclass(frozen=True)
class Breakdown:
    """Where the time of the steps was spent, or of the whole recording without steps.

    The whole recording spans the first to the last device work, or without devices the first to
    the last event.

    Attributes:
        n_steps: Number of steps covered; 0 for the whole recording.
        total_ns: Sum of the steps' times (:attr:`StepSummary.time_ns`), or duration of the whole
            recording.
        per_step_ns: ``total_ns`` divided by ``n_steps``, or None without steps.
        on_device: Whether the parts describe device activity, else host activity.
        parts: Disjoint parts that add up to ``total_ns`` exactly: work, then idle time, each
            longest first.
        host_per_step_ns: Mean duration of a step on the host, if the host runs ahead of the devices
            and ``per_step_ns`` is the time on the devices; else None.
    """

    n_steps: int
    total_ns: int
    per_step_ns: int | None
    on_device: bool
    parts: tuple[TimePart, ...]
    host_per_step_ns: int | None = None

    @property
    def mean_ns(self) -> int:
        """Nanoseconds per step, or of the whole recording without steps."""
        return self.total_ns if self.per_step_ns is None else self.per_step_ns

    @property
    def busy_share(self) -> float | None:
        """Return the share in which any device ran recorded work; None for parts of the host."""
        if not self.on_device:
            return None
        parts = [part for part in self.parts if not part.is_idle and part.kind != UNRECORDED]
        return sum(part.share for part in parts)
