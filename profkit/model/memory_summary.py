"""The figures of a report on memory: from a trace, from a snapshot, from watching a program.

Sizes are bytes. A report has the figures of what was analyzed; all others are None or empty.
"""

from dataclasses import dataclass

from profkit.model.device_bytes import DeviceBytes
from profkit.model.location import Frame, Location


@dataclass(frozen=True)
class PeakMemory:
    """The highest ``Total Allocated`` of a device in the window.

    Attributes:
        device: ``cpu``, ``cuda:0``.
        bytes: Bytes.
    """

    device: str
    bytes: int


@dataclass(frozen=True)
class AllocationSite:
    """All blocks that one line allocated for one use, and that stand at one moment.

    Attributes:
        location: The line: the innermost one of the user's own code; else of an installed package;
            else of torch. None of it is known where no stack was kept.
        stack: The Python frames of the stack with most of the bytes, innermost first.
        n: Blocks.
        bytes: Their lengths together.
        category: What they are used for (``parameter``, ``gradient``, ``optimizer-state``,
            ``activation``, ``input``, ``workspace``, ``communication``), by the evidence of the
            stack; ``unknown`` where there is none.
        size_class: The lengths of most of its bytes, as the allocator tells them apart: ``small``
            up to 1 MiB, ``medium`` below 10 MiB, ``large``.
        is_before_recording: Whether they were allocated before the first kept entry of the history.
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
    """All blocks of one use that stand at one moment.

    Attributes:
        category: As in :class:`AllocationSite`.
        n: Blocks.
        bytes: Their lengths together.
    """

    category: str
    n: int
    bytes: int


@dataclass(frozen=True)
class OomSummary:
    """A request that could not be met.

    Attributes:
        bytes: What was asked for.
        device_free_bytes: What the driver said was free on the device, or None.
        location: The line that asked, or None.
        reason: ``exhaustion``: what PyTorch held was in use. ``fragmentation``: much of it was free
            in pieces, and would have been enough. ``outside``: a good part of the device was
            others', and would have been enough. ``limit``: the driver had enough. None: not looked
            at.
        missing_bytes: What the driver lacked for it, or None where its figure was not kept.
        reserved_bytes: What PyTorch held then, or None.
        active_bytes: What of it was in use, or None.
        largest_usable_block_bytes: The longest free piece that the request could have had, or None.
        sites: What stood then, the most bytes first.
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
    """The most of a stretch of a device's history; the first and last are its begin and its end.

    Attributes:
        entry: Entries of the history before the stretch's end.
        time_us: Microseconds from the first entry to its end, or None where times were not kept.
        active_bytes: The most that was active in it.
        reserved_bytes: The most that was reserved in it.
    """

    entry: int
    time_us: int | None
    active_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class RegionMemory:
    """All entries of one named region, as ``record_function`` marks them.

    Attributes:
        name: Its name.
        n: Entries.
        peak_active_bytes: The most that was active in any of them.
        net_active_bytes: What they left active, all together; negative where they freed more.
    """

    name: str
    n: int
    peak_active_bytes: int
    net_active_bytes: int


@dataclass(frozen=True)
class FragmentationSite:
    """Live blocks of one line that hold free memory in place.

    Attributes:
        location: The line.
        n: Blocks with free memory beside them.
        bytes: Their lengths together.
        unreleasable_bytes: Free bytes beside them, within the same segments; what lies between two
            blocks counts half for each.
    """

    location: Location
    n: int
    bytes: int
    unreleasable_bytes: int


@dataclass(frozen=True)
class SnapshotDevice:
    """One device's memory as a snapshot has it.

    Attributes:
        device: ``cuda:0``.
        n_segments: Stretches that the allocator has from the driver.
        n_blocks: Parts that they are divided into.
        reserved_bytes: Their lengths together.
        allocated_bytes: Bytes of the blocks that tensors have, as the allocator says.
        active_bytes: The same, and blocks that another stream still uses after they were freed,
            as the allocator says.
        inactive_bytes: Bytes of the free blocks.
        largest_free_block_bytes: The longest of them.
        n_trace_events: What the allocator did and kept, in entries.
        peak_active_bytes: The most that was active at once, from the first kept entry to the last,
            in the history's own figures, which are those of requests: more than
            :attr:`at_peak_bytes` by what blocks that came later and still stand were rounded up.
        peak_reserved_bytes: The most that was reserved at once, likewise.
        n_live_from_window: Blocks that were allocated among the kept entries and not freed.
        live_from_window_bytes: Their bytes.
        n_frees_of_earlier: Frees of blocks that were allocated before the first kept entry.
        top_sites: What stands in the end by stack, the most bytes first.
        peak_sites: What stood at the peak, likewise.
        oom: Requests that could not be met, in order.
        peak_uses: What stood at the peak by category, the most bytes first; all of it.
        rounding_bytes: What active blocks are longer than what was asked for.
        releasable_bytes: Free bytes of segments without a live block: an emptied cache gives them
            back to the driver.
        unreleasable_bytes: Free bytes of the other segments.
        private_free_bytes: Free bytes of private pools, such as those of CUDA graphs, which are
            neither: a graph writes there again when it is replayed.
        fragmentation_sites: What holds those in place, the most bytes first.
        timeline: The history in stretches of equally many entries.
        regions: Named regions, the most active bytes first.
        peak_pending_free_bytes: The most that was freed at once and still waited for another stream, as
            ``record_stream`` makes it.
        driver: What the driver said of the device when the snapshot was taken, or None: only
            profkit's own snapshots have it.
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
    def at_peak_bytes(self) -> int:
        """What stood at the peak, as :attr:`peak_uses` has it; else :attr:`peak_active_bytes`."""
        return sum(use.bytes for use in self.peak_uses) or self.peak_active_bytes


@dataclass(frozen=True)
class StepMemory:
    """A running program's memory when a step had ended.

    Attributes:
        step: The step, from 1.
        host_rss_bytes: Resident memory of the process.
        tensor_bytes: Bytes of the storages of live tensors, each storage once, all devices.
        graph_bytes: Bytes that autograd keeps for backward beyond those.
        allocated_bytes: What the device allocators had allocated.
        reserved_bytes: What they had reserved.
        worker_bytes: What one of the loader's workers shared with no other process.
        peak_bytes: The most that was active at once on the fullest device since the step before
            in this list, by the allocator's history in a snapshot; None where that does not reach
            so far back.
    """

    step: int
    host_rss_bytes: int | None
    tensor_bytes: int | None
    graph_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    worker_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class MemorySummary:
    """What is known of memory.

    Attributes:
        n_events: Allocations and frees in a trace.
        n_unfreed: Allocations of the trace's window that it does not free; None also where the
            recording has no addresses (before torch 1.12), so that no free can be joined to its
            allocation.
        unfreed_bytes: Their bytes, or None likewise.
        n_frees_of_earlier: Frees of blocks that were allocated before the window, or None likewise.
        peak: A trace's peak by device.
        devices: A snapshot's devices, by ordinal.
        steps: The steps of a program that was watched.
        n_monitored_steps: How many steps were watched; ``steps`` are thinned out over long runs.
        n_evaluated_steps: Steps over which growth could be judged; 0 when there were too few.
        n_leaks: Things that grow with every step, those included that are too small to tell.
        not_measured: What could not be watched, a sentence each.
        monitoring_ns: What watching cost in all.
        monitoring_share: The same as a share of the time watched.
        unexplained_per_step_bytes: Where nothing is seen to grow, and yet the allocators of C and
            Python give out more with every step: how much more.
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
    unexplained_per_step_bytes: int | None = None
