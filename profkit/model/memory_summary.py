"""Memory figures of a report: from a trace, a snapshot, or monitoring of a running program.

Sizes are bytes. Figures that the kind of recording does not have are None or empty.
"""

from profkit.dataclass import dataclass
from profkit.model.device_bytes import DeviceBytes
from profkit.model.live_memory import HostPeak
from profkit.model.location import Frame, Location


@dataclass(frozen=True)
class PeakSite:
    """Live blocks of one source line at a peak.

    Attributes:
        location: The line, or without one the operator that allocated them.
        n: Number of blocks.
        bytes: Sum of their sizes.
    """

    location: Location
    n: int
    bytes: int


@dataclass(frozen=True)
class PeakMemory:
    """The highest ``Total Allocated`` of a device in the window.

    Attributes:
        device: ``cpu``, ``cuda:0``.
        bytes: Allocated bytes at the peak. On the host torch counts blocks that were allocated
            while it recorded, including blocks of earlier recordings of the process, even if they
            have been freed since.
        window_bytes: The highest sum of live blocks that were allocated in the window; None where
            frees cannot be matched to allocations.
        sites: The lines with the most of these blocks then.
    """

    device: str
    bytes: int
    window_bytes: int | None = None
    sites: tuple[PeakSite, ...] = ()


@dataclass(frozen=True)
class AllocationSite:
    """Live blocks allocated by one source line for one use.

    Attributes:
        location: The innermost line of user code; else of an installed package; else of torch.
            Empty without a recorded stack.
        stack: Python frames of the stack with the most bytes, innermost first.
        n: Number of blocks.
        bytes: Sum of their sizes.
        category: Their use, derived from the stack: ``parameter``, ``gradient``,
            ``optimizer-state``, ``activation``, ``input``, ``workspace`` or ``communication``;
            ``unknown`` where the stack does not show it.
        size_class: Size class of most of the bytes: ``small`` up to 1 MiB, ``medium`` below
            10 MiB, ``large``.
        is_before_recording: Whether they were allocated before the first entry of the history.
    """

    location: Location
    stack: tuple[Frame, ...]
    n: int
    bytes: int
    category: str = "unknown"
    size_class: str = "large"
    is_before_recording: bool = False


@dataclass(frozen=True)
class MemoryUse:
    """All live blocks of one use.

    Attributes:
        category: As in :class:`AllocationSite`.
        n: Number of blocks.
        bytes: Sum of their sizes.
    """

    category: str
    n: int
    bytes: int


@dataclass(frozen=True)
class OomSummary:
    """An allocation that failed with an out-of-memory error.

    Attributes:
        bytes: Requested bytes.
        device_free_bytes: Free memory of the device as the driver reported it, or None.
        location: The source line that requested it, or None.
        reason: ``exhaustion``: PyTorch's reserved memory was in use. ``fragmentation``: enough
            reserved memory was free, but not contiguous. ``outside``: other users of the device
            occupied enough memory. ``limit``: the driver had enough; a limit applied. None: not
            analyzed.
        missing_bytes: Bytes that the driver lacked, or None where it did not report free memory.
        reserved_bytes: Reserved bytes at that moment, or None.
        active_bytes: Active bytes at that moment, or None.
        largest_usable_block_bytes: Largest free block that the request could have used, or None.
        sites: Live blocks at that moment, most bytes first.
    """

    bytes: int
    device_free_bytes: int | None
    location: Location | None = None
    reason: str | None = None
    missing_bytes: int | None = None
    reserved_bytes: int | None = None
    active_bytes: int | None = None
    largest_usable_block_bytes: int | None = None
    sites: tuple[AllocationSite, ...] = ()


@dataclass(frozen=True)
class MemoryPoint:
    """Peaks within one interval of a device's history; the first and last point are its two ends.

    Attributes:
        entry: Number of history entries before the interval's end.
        time_us: Microseconds from the first entry to the interval's end, or None without times.
        active_bytes: Peak of active bytes.
        reserved_bytes: Peak of reserved bytes.
    """

    entry: int
    time_us: int | None
    active_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class RegionMemory:
    """All entries of one named region (``record_function``).

    Attributes:
        name: The region's name.
        n: Number of entries.
        peak_active_bytes: Highest active bytes in any entry.
        net_active_bytes: Change of active bytes over all entries; negative where more was freed
            than allocated.
    """

    name: str
    n: int
    peak_active_bytes: int
    net_active_bytes: int


@dataclass(frozen=True)
class FragmentationSite:
    """Live blocks of one source line that keep adjacent free memory from being released.

    Attributes:
        location: The source line.
        n: Number of blocks with adjacent free memory.
        bytes: Sum of their sizes.
        unreleasable_bytes: Adjacent free bytes in the same segments. A free block between two
            live blocks counts half for each.
    """

    location: Location
    n: int
    bytes: int
    unreleasable_bytes: int


@dataclass(frozen=True)
class SnapshotDevice:
    """One device's memory in a snapshot.

    Attributes:
        device: ``cuda:0``.
        n_segments: Number of segments.
        n_blocks: Number of blocks in them.
        reserved_bytes: Sum of the segments' sizes.
        allocated_bytes: Bytes of allocated blocks, as the allocator reports them.
        active_bytes: Allocated bytes, and freed blocks pending on another stream, as the allocator
            reports them.
        inactive_bytes: Bytes of free blocks.
        largest_free_block_bytes: Size of the largest free block.
        n_trace_events: Number of entries in the allocator's history.
        peak_active_bytes: Peak of active bytes within the history, from the sizes in the history,
            which are requested sizes. It exceeds :attr:`at_peak_bytes` by the rounding of live
            blocks that were allocated after the peak.
        peak_reserved_bytes: Peak of reserved bytes within the history.
        n_live_from_window: Number of blocks allocated within the history and not freed.
        live_from_window_bytes: Sum of their sizes.
        n_frees_of_earlier: Number of frees of blocks allocated before the history.
        top_sites: Live blocks at the end by allocation site, most bytes first.
        peak_sites: Live blocks at the peak by allocation site, most bytes first; without
            :attr:`has_peak` those at the end.
        oom: Failed allocations, in order.
        peak_uses: All live blocks by use, most bytes first, at the same moment.
        rounding_bytes: Bytes by which active blocks exceed the requested sizes.
        releasable_bytes: Free bytes in segments without a live block; ``empty_cache`` returns them
            to the driver.
        unreleasable_bytes: Free bytes in the other segments.
        private_free_bytes: Free bytes of private pools, such as the pools of CUDA graphs. They are
            in neither figure above, since a graph writes to them when it is replayed.
        fragmentation_sites: Live blocks that keep free memory from being released, most bytes
            first.
        timeline: The history in intervals of equally many entries.
        regions: Named regions, highest peak first.
        peak_pending_free_bytes: Peak of bytes that were freed but pending on another stream
            (``record_stream``).
        driver: The driver's figures when the snapshot was taken, or None: only profkit's own
            snapshots have them.
    """

    device: str
    n_segments: int
    n_blocks: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    inactive_bytes: int
    largest_free_block_bytes: int
    n_trace_events: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    n_live_from_window: int
    live_from_window_bytes: int
    n_frees_of_earlier: int
    top_sites: tuple[AllocationSite, ...] = ()
    peak_sites: tuple[AllocationSite, ...] = ()
    oom: tuple[OomSummary, ...] = ()
    peak_uses: tuple[MemoryUse, ...] = ()
    rounding_bytes: int = 0
    releasable_bytes: int = 0
    unreleasable_bytes: int = 0
    private_free_bytes: int = 0
    fragmentation_sites: tuple[FragmentationSite, ...] = ()
    timeline: tuple[MemoryPoint, ...] = ()
    regions: tuple[RegionMemory, ...] = ()
    peak_pending_free_bytes: int = 0
    driver: DeviceBytes | None = None

    @property
    def has_peak(self) -> bool:
        """Return whether the history has a peak, which takes two entries."""
        return self.n_trace_events > 1

    @property
    def at_peak_bytes(self) -> int:
        """Live bytes at the peak, the sum of :attr:`peak_uses`; else :attr:`peak_active_bytes`."""
        return sum(use.bytes for use in self.peak_uses) or self.peak_active_bytes


@dataclass(frozen=True)
class StepMemory:
    """A running program's memory at the end of a step.

    Attributes:
        step: The step, from 1.
        host_rss_bytes: Resident memory of the process.
        tensor_bytes: Bytes of the storages of live tensors on all devices, each storage once.
        graph_bytes: Bytes that autograd saved for backward, beyond those.
        allocated_bytes: Allocated bytes of the device allocators.
        reserved_bytes: Reserved bytes of the device allocators.
        worker_bytes: Unshared memory of one of the loader's workers.
        peak_bytes: Peak of active bytes on the fullest device since the previous entry of this
            list, from the history of a snapshot; None where the history does not reach back.
        heap_bytes: Bytes that C's allocator has allocated, without profkit's own.
        heap_free_bytes: Bytes that the program has freed and C's allocator keeps.
    """

    step: int
    host_rss_bytes: int | None
    tensor_bytes: int | None
    graph_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    worker_bytes: int | None = None
    peak_bytes: int | None = None
    heap_bytes: int | None = None
    heap_free_bytes: int | None = None


@dataclass(frozen=True)
class MemorySummary:
    """All memory figures of a recording.

    Attributes:
        n_events: Number of allocations and frees in a trace.
        n_unfreed: Number of allocations in a trace's window without a free; None also where the
            trace has no addresses (before torch 1.12), so that frees cannot be matched.
        unfreed_bytes: Sum of their sizes, or None as for ``n_unfreed``.
        n_frees_of_earlier: Number of frees of blocks allocated before the window, or None as for
            ``n_unfreed``.
        peak: A trace's peak by device.
        devices: A snapshot's devices, by ordinal.
        steps: Samples of a monitored program.
        n_monitored_steps: Number of monitored steps; ``steps`` has fewer entries in long runs.
        n_evaluated_steps: Number of steps over which growth was evaluated; 0 when there were too
            few.
        n_leaks: Number of leaks, including those too small to report.
        not_measured: Sentences on what could not be monitored.
        monitoring_ns: Total time spent on monitoring.
        monitoring_share: That time as a share of the monitored time.
        monitoring_bytes: Most memory that monitoring took to track the program's tensors.
        unexplained_per_step_bytes: Growth per step of memory from the C and Python allocators that
            no leak explains.
        host_peak: The peak of a monitored process, if no end of a step shows it; else None.
    """

    n_events: int | None = None
    n_unfreed: int | None = None
    unfreed_bytes: int | None = None
    n_frees_of_earlier: int | None = None
    peak: tuple[PeakMemory, ...] = ()
    devices: tuple[SnapshotDevice, ...] = ()
    steps: tuple[StepMemory, ...] = ()
    n_monitored_steps: int | None = None
    n_evaluated_steps: int | None = None
    n_leaks: int | None = None
    not_measured: tuple[str, ...] = ()
    monitoring_ns: int | None = None
    monitoring_share: float | None = None
    monitoring_bytes: int | None = None
    unexplained_per_step_bytes: int | None = None
    host_peak: HostPeak | None = None
