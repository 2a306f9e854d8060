"""The figures of a report on memory: from a trace, from a snapshot, from watching a program.

Sizes are bytes. A report has the figures of what was analyzed; all others are None or empty.
"""

from dataclasses import dataclass

from profkit.model.where import Frame, Location


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
    """All blocks that one stack allocated and that stand at one moment.

    Attributes:
        location: The innermost line of it in the user's own code.
        stack: Its Python frames, innermost first.
        n: Blocks.
        bytes: Their lengths together.
        category: What they are used for (``parameter``, ``gradient``, ``optimizer-state``,
            ``activation``, ``input``, ``workspace``, ``communication``), by the evidence of the
            stack; ``unknown`` where there is none.
    """

    location: Location
    stack: tuple[Frame, ...]
    n: int
    bytes: int
    category: str = "unknown"


@dataclass(frozen=True)
class OomSummary:
    """A request that could not be met.

    Attributes:
        bytes: What was asked for.
        device_free_bytes: What the driver said was free on the device, or None.
        location: The line that asked, or None.
    """

    bytes: int
    device_free_bytes: int | None
    location: Location | None = None


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
        peak_active_bytes: The most that was active at once, from the first kept entry to the last.
        peak_reserved_bytes: The most that was reserved at once, likewise.
        n_live_from_window: Blocks that were allocated among the kept entries and not freed.
        live_from_window_bytes: Their bytes.
        n_frees_of_earlier: Frees of blocks that were allocated before the first kept entry.
        top_sites: What stands in the end by stack, the most bytes first.
        peak_sites: What stood at the peak, likewise.
        oom: Requests that could not be met, in order.
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


@dataclass(frozen=True)
class WatchedStep:
    """A running program's memory when a step had ended.

    Attributes:
        step: The step, from 1.
        host_rss_bytes: Resident memory of the process.
        tensor_bytes: Bytes of the storages of live tensors, each storage once, all devices.
        graph_bytes: Bytes that autograd keeps for backward beyond those.
        allocated_bytes: What the device allocators had allocated.
        reserved_bytes: What they had reserved.
    """

    step: int
    host_rss_bytes: int | None
    tensor_bytes: int | None
    graph_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None


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
        n_watched_steps: How many steps were watched; ``steps`` are thinned out over long runs.
        watch_ns: What watching cost in all.
        watch_share: The same as a share of the time watched.
    """

    n_events: int | None = None
    n_unfreed: int | None = None
    unfreed_bytes: int | None = None
    n_frees_of_earlier: int | None = None
    peak: tuple[PeakMemory, ...] = ()
    devices: tuple[SnapshotDevice, ...] = ()
    steps: tuple[WatchedStep, ...] = ()
    n_watched_steps: int | None = None
    watch_ns: int | None = None
    watch_share: float | None = None
