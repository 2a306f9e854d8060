"""The report: every figure that a renderer may show. The JSON report has the same fields.

Times are integer nanoseconds, sizes integer bytes, shares 0 to 1. Unknown figures are None.
"""

from dataclasses import field
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.model.capture_info import CpuTime
from profkit.model.critical_path import CriticalPathSummary
from profkit.model.device_summary import DeviceSummary
from profkit.model.finding import Finding, Unchecked
from profkit.model.job import CollectivesSummary, RankSummary, UnreadFile
from profkit.model.memory_summary import MemorySummary
from profkit.model.rank_lanes import JobLanes
from profkit.model.renderable import Renderable
from profkit.model.step_summary import Breakdown, StepSummary
from profkit.model.sync_summary import CopySummary, SyncLine, SyncSiteSummary, SyncSummary
from profkit.model.trace import RecordedWith
from profkit.model.work_summary import (
    CategorySummary,
    FlopSummary,
    KernelSummary,
    LineSummary,
    ModuleSummary,
    OpSummary,
    RegionSummary,
    SampledSummary,
)

SCHEMA: Final = "profkit.report/2"

StepOrigin = Literal["profiler", "entry", "loader", "optimizer", "region", "module"]
"""What delimits steps: see :class:`Source`."""
SourceKind = Literal["trace", "snapshot", "ranks", "live", "flight-recorder"]


@dataclass(frozen=True)
class RunCost:
    """What ``profkit run`` cost a program besides its monitoring of memory, in processor time.

    Attributes:
        recording_ns: Time to start, stop and write recordings, those that were dropped included.
        report_ns: Time from the program's end to this report.
        run_ns: Processor time of the whole process until then.
    """

    recording_ns: int
    report_ns: int
    run_ns: int

    @property
    def share(self) -> float:
        """Share of the process's processor time."""
        return (self.recording_ns + self.report_ns) / self.run_ns if self.run_ns else 0.0


@dataclass(frozen=True)
class Source:
    """The analyzed recording.

    Attributes:
        path: The file or folder; empty for a live report.
        kind: ``trace``, ``snapshot``, ``ranks`` (a folder of ranks), ``live`` or
            ``flight-recorder`` (dumps of torch's FlightRecorder alone).
        n_events: Number of entries in ``traceEvents``, of every kind; of dumps number of calls.
        torch: PyTorch's version, or None where it was not recorded.
        devices: Names of the devices.
        rank: Rank in a distributed job, or None.
        world_size: Number of ranks in that job, or None.
        recorded_with: The recording options.
        overhead_ratio: Relative slowdown of the window by recording: 0.8 means that one second of
            the program took 1.8 seconds. None where it is not known.
        step_definition: The meaning of a step in this report, in a few words; empty without steps.
        step_origin: What delimits the steps of a trace: ``ProfilerStep#N`` (``profiler``), the
            entries of a block that profkit recorded (``entry``), the waits for the loader
            (``loader``), the ends of ``Optimizer.step`` (``optimizer``), a repeated region
            (``region``) or module call (``module``). None without steps.
        lines_from: Where source lines come from: ``window`` (stacks recorded in this window),
            ``other-step`` (stacks recorded in another step of the same loop), or None.
        cpu: Processor time spent during the window, if profkit recorded it.
        run_cost: The cost to the program, in the report at the end of ``profkit run``.
        processor: Name of the machine's processor, or None where it was not recorded.
        revision: The git commit of the program's folder, or None where it was not recorded.
        recorded_unix_ns: When the recording began, in nanoseconds since 1970, or None where it was
            not recorded.
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
    step_origin: StepOrigin | None = None
    lines_from: Literal["window", "other-step"] | None = None
    cpu: CpuTime | None = None
    run_cost: RunCost | None = None
    processor: str | None = None
    revision: str | None = None
    recorded_unix_ns: int | None = None


@dataclass(frozen=True)
class Summary:
    """The figures of a report.

    Attributes:
        window_ns: From the start of the first event to the end of the last.
        devices: The devices that ran work, by ordinal.
        steps: The steps, in order.
        top_kernels: Kernels by total time, then name; :func:`profkit.present.facts.busiest_kernels`
            has them by their time per step.
        top_ops: Operators by total time, then name.
        categories: Time by kind of work, the longest first.
        modules: The tree of modules in depth-first order, of siblings the one with the most time
            first; empty where no stacks with modules were recorded.
        lines: Source lines by device time, or without devices by host time.
        flops: FLOPs of the steps, or None where neither shapes nor tokens are known.
        regions: Named regions by total time, then name.
        syncs: Synchronizing calls by name.
        sync_sites: Source lines that synchronized with a CUDA device while the program was
            monitored, most calls first, as reported by torch's sync debug mode and by hooks on
            explicit synchronization. Their duration is not measured. None where it was off.
        sync_lines: Source lines of the syncs in the steps, most calls in a step first; 20 at most.
        copies: Copies by kind.
        n_gpu_events_without_launch: Kernels, copies and fills whose launch is not in the trace.
        n_graph_launches: Launches of CUDA or HIP graphs.
        memory: Memory figures from a trace's ``[memory]`` events, a snapshot or monitoring, or
            None without any.
        breakdown: Where the steps' time was spent, or None without events.
        recoverable_ns: Time of the window that fixes can save; time claimed by several findings is
            counted once.
        critical_path: The critical path of the steps, or None without events.
        n_incomplete_steps: Steps that the window cut off; figures per step leave them out.
        n_disturbed_steps: Steps in which other programs took the thread's core, while it had one in
            others; figures per step leave them out.
        sampled: Functions of the steps, or of a run without steps; None where nothing was sampled.
    """

    window_ns: int
    devices: tuple[DeviceSummary, ...] = ()
    steps: tuple[StepSummary, ...] = ()
    top_kernels: tuple[KernelSummary, ...] = ()
    top_ops: tuple[OpSummary, ...] = ()
    categories: tuple[CategorySummary, ...] = ()
    modules: tuple[ModuleSummary, ...] = ()
    lines: tuple[LineSummary, ...] = ()
    flops: FlopSummary | None = None
    regions: tuple[RegionSummary, ...] = ()
    syncs: tuple[SyncSummary, ...] = ()
    sync_sites: tuple[SyncSiteSummary, ...] | None = None
    sync_lines: tuple[SyncLine, ...] = ()
    copies: tuple[CopySummary, ...] = ()
    n_gpu_events_without_launch: int = 0
    n_graph_launches: int = 0
    memory: MemorySummary | None = None
    breakdown: Breakdown | None = None
    recoverable_ns: int = 0
    critical_path: CriticalPathSummary | None = None
    n_incomplete_steps: int = 0
    n_disturbed_steps: int = 0
    sampled: SampledSummary | None = None


@dataclass(frozen=True)
class Report(Renderable):
    """The result of an analysis.

    Attributes:
        profkit: profkit's version.
        source: The analyzed recording.
        summary: The figures.
        findings: The problems found, highest cost first.
        unchecked: Skipped checks.
        health: Problems of the recording itself (``PRF`` rules), as findings.
        ranks: The recorded ranks of a job, in a report over several. Fields on one recording, such
            as the summary, are then on ``source.rank``.
        missing_ranks: The ranks of the job that were not recorded.
        collectives: The collectives between the ranks, or None in a report on one recording.
        lanes: The work of the ranks over time; None in a report on one recording or from JSON.
        unread: Files in the folders of a job that could not be read.
        schema: Name and version of this schema.
    """

    profkit: str
    source: Source
    summary: Summary
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()
    health: tuple[Finding, ...] = ()
    ranks: tuple[RankSummary, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    collectives: CollectivesSummary | None = None
    lanes: JobLanes | None = field(default=None, compare=False, repr=False)
    unread: tuple[UnreadFile, ...] = ()
    schema: str = SCHEMA
