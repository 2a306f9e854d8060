"""The report: everything that any renderer may show. It is the JSON contract, field by field.

Times are integer nanoseconds, sizes integer bytes, shares from 0 to 1; a figure that is not known
is None. A field's docstring is its definition.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from profkit.model.device_summary import DeviceSummary
from profkit.model.finding import Finding, Unchecked
from profkit.model.location import Location
from profkit.model.memory_summary import MemorySummary
from profkit.model.trace import RecordedWith

SCHEMA = "profkit.report/2"

SourceKind = Literal["trace", "snapshot", "ranks", "live"]


@dataclass(frozen=True)
class Source:
    """What was analyzed.

    Attributes:
        path: The file or folder, or empty for a live report.
        kind: What it is.
        n_events: Entries of ``traceEvents``, of every kind.
        torch: PyTorch's version, or None where the file does not tell.
        devices: Names of the devices that worked or are described.
        rank: Rank in a distributed job, or None.
        world_size: Ranks in that job, or None.
        recorded_with: What the recording was asked to keep.
        overhead_ratio: By how much recording made the window longer (0.8: a second became 1.8),
            or None where it is not known.
        step_definition: What a step is in this report, in a few words; empty without steps.
        lines_from: Where the lines of the user's code come from: ``window`` (stacks of this very
            window), ``other-step`` (lent by another step of the same loop), or None.
    """

    path: str
    kind: SourceKind
    n_events: int
    torch: str | None
    devices: tuple[str, ...]
    rank: int | None
    world_size: int | None
    recorded_with: RecordedWith
    overhead_ratio: float | None = None
    step_definition: str = ""
    lines_from: Literal["window", "other-step"] | None = None


@dataclass(frozen=True)
class StepPart:
    """A part of the time of one step.

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
        start_ns: Start from the trace's start.
        dur_ns: Its length on the host.
        gpu_busy_ns: Time within the step in which any device worked, or None without devices.
        gpu_idle_ns: ``dur_ns`` minus ``gpu_busy_ns``, or None without devices.
        data_wait_ns: Time within the step spent in a loader's ``__next__``.
        sync_ns: Time within the step in which the host waited in a synchronizing call.
        parts: Where its time went: parts that exclude each other and add up to ``dur_ns`` exactly,
            in one order for all steps.
    """

    name: str
    start_ns: int
    dur_ns: int
    gpu_busy_ns: int | None
    gpu_idle_ns: int | None
    data_wait_ns: int
    sync_ns: int
    parts: tuple[StepPart, ...] = ()


@dataclass(frozen=True)
class KernelSummary:
    """All calls of one kernel.

    Attributes:
        name: The kernel's name.
        n_calls: Calls.
        total_ns: Sum of their lengths.
        mean_ns: ``total_ns`` divided by ``n_calls``, rounded.
        share: ``total_ns`` as a share of the sum over all kernels.
        op: The operator that launched most of its time, or None.
        module: The ``nn.Module`` that did, or None.
        location: The user's line that did, or None.
        blocks_per_sm: Blocks of a call for each multiprocessor of the device: the mean, longer
            calls weighing more. Below 1 some multiprocessors had none. None where not recorded.
        occupancy_share: The profiler's estimate of how many of the warps that the device can hold
            a call has there at once: the mean likewise. It is worked out from the launch and not
            measured; None where the recording has no estimate that can be so.
        tensor_cores: Whether the name tells of tensor cores. Many names tell nothing.
    """

    name: str
    n_calls: int
    total_ns: int
    mean_ns: int
    share: float
    op: str | None = None
    module: str | None = None
    location: Location | None = None
    blocks_per_sm: float | None = None
    occupancy_share: float | None = None
    tensor_cores: bool = False


@dataclass(frozen=True)
class OpSummary:
    """All calls of one operator.

    Attributes:
        name: The operator's name.
        n_calls: Calls.
        total_ns: Sum of their lengths on the host, nested calls of the same name counted too.
        self_ns: ``total_ns`` without the operators within (what runs on other threads is not).
        device_ns: Sum of the lengths of the device work launched within, each piece counted for
            its innermost operator alone.
        location: The user's line with most of its time, or None.
    """

    name: str
    n_calls: int
    total_ns: int
    self_ns: int
    device_ns: int
    location: Location | None = None


@dataclass(frozen=True)
class RegionSummary:
    """All entries of one named region (``profkit.trace`` within another, ``record_function``).

    Attributes:
        name: The region's name.
        n_calls: Entries.
        total_ns: Sum of their lengths on the host.
        device_ns: Sum of the lengths of the device work launched within.
    """

    name: str
    n_calls: int
    total_ns: int
    device_ns: int


@dataclass(frozen=True)
class SyncSummary:
    """All calls of one synchronizing function.

    Attributes:
        call: Such as ``cudaStreamSynchronize``.
        n_calls: Calls, without those that another synchronizing call made (its driver's).
        total_ns: Sum of their lengths on the host.
    """

    call: str
    n_calls: int
    total_ns: int


@dataclass(frozen=True)
class SyncSiteSummary:
    """A line at which the host waited for a device, as it was heard while the program ran.

    Attributes:
        operation: The operation that waited.
        n_calls: How often.
        allowed_reason: The reason that the program gives by ``profkit.allow_sync``, or None.
        location: The user's line, or None in a thread that runs none of the user's code.
    """

    operation: str
    n_calls: int
    allowed_reason: str | None = None
    location: Location | None = None


@dataclass(frozen=True)
class CopySummary:
    """All copies of one kind.

    Attributes:
        kind: Such as ``Memcpy HtoD (Pageable -> Device)``.
        n_calls: Copies.
        total_ns: Sum of their lengths on the device.
        bytes: Bytes moved, or None where the recording does not tell.
    """

    kind: str
    n_calls: int
    total_ns: int
    bytes: int | None


@dataclass(frozen=True)
class TimePart:
    """A part of the time of the steps.

    Attributes:
        kind: With devices: ``compute``: a device ran a kernel that is no communication.
            ``communication``: a communication kernel and no such kernel ran. ``copy``: only
            copies and fills ran. ``idle-…``: no device worked; the rest of the word is a cause of
            idle time. Without devices: ``data``: the program fetched the next batch.
            ``communication``: it waited until an exchange with other ranks was done.
            ``optimizer``: it was in an optimizer's ``step`` or ``zero_grad``. ``backward``: it ran
            operators of the backward pass. ``operators``: it ran other operators. ``python``: none
            of these.
        ns: Nanoseconds over all steps.
        per_step_ns: ``ns`` divided by the number of steps, or None without steps.
        share: ``ns`` as a share of the breakdown's ``total_ns``.
    """

    kind: str
    ns: int
    per_step_ns: int | None
    share: float


@dataclass(frozen=True)
class Breakdown:
    """Where the time of the steps went; without steps, that of the recording as a whole.

    As a whole is from the first work of a device to the last, or without devices from the first
    event to the last.

    Attributes:
        n_steps: Steps that it covers; 0 when it covers the recording as a whole.
        total_ns: Their lengths together, or the whole's.
        per_step_ns: ``total_ns`` divided by ``n_steps``, or None without steps.
        on_device: Whether the parts are told from what the devices did, else from the host.
        parts: Parts that exclude each other and add up to ``total_ns`` exactly, in the order
            work, then idle time, each the longest first.
    """

    n_steps: int
    total_ns: int
    per_step_ns: int | None
    on_device: bool
    parts: tuple[TimePart, ...]


@dataclass(frozen=True)
class Summary:
    """The figures of a report.

    Attributes:
        window_ns: From the start of the first event to the end of the last.
        devices: The devices that worked, by ordinal.
        steps: The steps, in order.
        top_kernels: Kernels by total time, then name.
        top_ops: Operators by total time, then name.
        regions: Named regions by total time, then name.
        syncs: Synchronizing calls by name.
        sync_sites: The lines that waited for a CUDA device in a program whose memory was watched, the
            most calls first, by torch's sync debug mode and what waits explicitly; None where
            nobody listened. How long they waited is not known: a trace tells.
        copies: Copies by kind.
        n_gpu_events_without_launch: Kernels, copies and fills whose launch is not in the trace.
        n_graph_launches: Launches of CUDA or HIP graphs.
        memory: What a trace's ``[memory]`` events, a snapshot, or watching the program tell of
            memory; None if nothing does.
        breakdown: Where the time of the steps went, or None where there are no events.
        recoverable_ns: Time of the window that at least one finding says can be given back; what
            several claim is counted once.
    """

    window_ns: int
    devices: tuple[DeviceSummary, ...] = ()
    steps: tuple[StepSummary, ...] = ()
    top_kernels: tuple[KernelSummary, ...] = ()
    top_ops: tuple[OpSummary, ...] = ()
    regions: tuple[RegionSummary, ...] = ()
    syncs: tuple[SyncSummary, ...] = ()
    sync_sites: tuple[SyncSiteSummary, ...] | None = None
    copies: tuple[CopySummary, ...] = ()
    n_gpu_events_without_launch: int = 0
    n_graph_launches: int = 0
    memory: MemorySummary | None = None
    breakdown: Breakdown | None = None
    recoverable_ns: int = 0


@dataclass(frozen=True)
class Report:
    """The answer.

    Attributes:
        profkit: profkit's version.
        source: What was analyzed.
        summary: The figures.
        findings: What the rules found, most costly first.
        unchecked: Rules that could not look, and why.
        health: Faults of the recording itself (``PRF``), in the form of findings.
        schema: Name and version of this layout.
    """

    profkit: str
    source: Source
    summary: Summary
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()
    health: tuple[Finding, ...] = field(default=())
    schema: str = SCHEMA

    def __str__(self) -> str:
        """The report as text, as ``profkit analyze`` prints it."""
        return _rendered(self, "text")

    def _repr_html_(self) -> str:
        """The report as notebooks show it: small HTML that runs and fetches nothing.

        Source: "Rich output" in IPython's documentation.
        """
        return _rendered(self, "fragment")

    def _repr_markdown_(self) -> str:
        """The report for what shows Markdown and no HTML."""
        return _rendered(self, "md")

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:  # noqa: ANN401, FBT001  (IPython's)
        """The report as text, at IPython's prompt and where a notebook keeps its plain form.

        Args:
            printer: What IPython writes with.
            _cycle: Whether it holds itself, which it never does.
        """
        printer.text(str(self))


def _rendered(report: Report, name: str) -> str:
    # By the package's own door: what shows reports stands floors above what they are.
    import profkit

    rendered: bytes = profkit.render(report, name)
    return rendered.decode().rstrip("\n")
