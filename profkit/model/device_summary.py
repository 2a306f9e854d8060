"""Activity of each device: busy time, idle time by cause, kernel statistics."""

from typing import Final, Literal

from profkit.dataclass import dataclass

IdleCause = Literal["sync", "data", "allocator", "overhead", "host", "launch", "device", "unknown"]
"""Why a device was idle, see :class:`IdleTime`."""

DEVICE_TIMES: Final = {
    "Compute": "a kernel other than a collective ran",
    "Communication": "a collective's kernel ran",
    "Overlap": "compute and communication ran at the same time",
    "Copying": "a copy ran",
}
"""What ran in each part of a device's time, by the title of its column."""


@dataclass(frozen=True)
class IdleTime:
    """A part of a device's idle time, by what the host did meanwhile.

    The causes of one device add up to its ``idle_ns`` exactly.

    Attributes:
        cause: ``sync``: the host was blocked in a synchronizing call, with nothing more launched.
            ``data``: it waited for the next batch. ``allocator``: it was in cudaMalloc, cudaFree or
            similar. ``overhead``: it was delayed by the profiler or by loading a module. ``host``:
            it ran Python and operators without launching enough. ``launch``: launch latency.
            ``device``: queued work waited for other work on the device. ``unknown``: the launch of
            the work that ended the gap was not recorded.
        ns: Nanoseconds.
    """

    cause: IdleCause
    ns: int


@dataclass(frozen=True)
class DeviceSteps:
    """What one device does in the time of the steps: figures of all steps together.

    Attributes:
        busy_ns: Time in which a kernel, copy or fill ran.
        idle_ns: The rest, without time in which it worked on something that is not in the
            recording.
        compute_ns: Time in which a kernel other than a collective ran.
        communication_ns: Time in which a collective kernel ran.
        memcpy_ns: Time in which a copy ran.
        n_kernels: Number of kernels that begin in it.
        n_memcpy: Number of copies that begin in it.
    """

    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    memcpy_ns: int
    n_kernels: int
    n_memcpy: int


@dataclass(frozen=True)
class DeviceSummary:
    """One device over its span. Times are lengths of unions of intervals, never sums.

    Attributes:
        device: Such as ``cuda:0``.
        name: Such as ``NVIDIA H200``; empty where the recording leaves it blank.
        span_ns: From the start of its first work to the end of its last.
        busy_ns: Time in which a kernel, copy or fill ran.
        idle_ns: ``span_ns`` minus ``busy_ns`` and ``unrecorded_ns``.
        compute_ns: Time in which a kernel other than a collective ran.
        communication_ns: Time in which a collective kernel ran.
        overlap_ns: Time in which both ran.
        memcpy_ns: Time in which a copy ran.
        n_kernels: Number of kernels.
        n_memcpy: Number of copies.
        n_memset: Number of fills.
        idle_causes: Idle time by cause, longest first.
        unrecorded_ns: Time in which it worked on something that is not in the recording: it did not
            start launched work, or a blocking call did not return.
        occupancy_share: The profiler's estimate of occupancy: resident warps as a share of the
            device's maximum, averaged over its kernels weighted by duration. It is computed from
            launches, not measured; None where no kernel has an estimate.
        tensor_core_share: Kernels whose names show that they use tensor cores, as a share of the
            sum of kernel durations; a lower bound. None without kernels.
        in_steps: The part of it in the time of the steps, or None without steps.
    """

    device: str
    name: str
    span_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    overlap_ns: int
    memcpy_ns: int
    n_kernels: int
    n_memcpy: int
    n_memset: int
    idle_causes: tuple[IdleTime, ...] = ()
    unrecorded_ns: int = 0
    occupancy_share: float | None = None
    tensor_core_share: float | None = None
    in_steps: DeviceSteps | None = None
