"""What each device did: the part of a report that is about devices."""

from dataclasses import dataclass
from typing import Literal

IdleCause = Literal["sync", "data", "allocator", "overhead", "host", "launch", "device", "unknown"]
"""Why a device had nothing to do, see :class:`IdleTime`."""


@dataclass(frozen=True)
class IdleTime:
    """A part of a device's idle time, by what the host did meanwhile.

    The causes of one device add up to its ``idle_ns`` exactly.

    Attributes:
        cause: ``sync``: the host waited for the device and had sent nothing more. ``data``: it
            fetched the next batch. ``allocator``: it was in cudaMalloc, cudaFree or the like.
            ``overhead``: the profiler or a module load held it. ``host``: it ran Python and
            operators without launching enough. ``launch``: a launch was under way and had not
            reached the device. ``device``: work was queued and waited for other work on the
            device. ``unknown``: the recording has no launch for the work that ended the gap.
        ns: Nanoseconds.
    """

    cause: IdleCause
    ns: int


@dataclass(frozen=True)
class DeviceSummary:
    """One device over its span. All lengths are unions of intervals, never sums.

    Attributes:
        device: Such as ``cuda:0``.
        name: Such as ``NVIDIA H200``; empty where the recording leaves it blank.
        span_ns: From the start of its first work to the end of its last.
        busy_ns: Time in which a kernel, copy or fill ran.
        idle_ns: ``span_ns`` minus ``busy_ns``.
        compute_ns: Time in which a kernel ran that is no communication.
        communication_ns: Time in which a communication kernel ran.
        overlap_ns: Time in which both ran.
        memcpy_ns: Time in which a copy ran.
        n_kernels: Kernels.
        n_memcpy: Copies.
        n_memset: Fills.
        idle_causes: The idle time by cause, longest first.
        occupancy_share: Of the warps that it can hold, how many its kernels had there at once:
            the profiler's estimate, on average over the kernels that have one, each weighing as
            much as it is long. It is worked out from launches and not measured; or None.
        tensor_core_share: Of the sum of the lengths of its kernels, the part of those whose name
            tells of tensor cores: at least so much. None without kernels.
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
    occupancy_share: float | None = None
    tensor_core_share: float | None = None
