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
from profkit.model.location import Location
from profkit.model.memory_summary import MemorySummary
from profkit.model.rank_lanes import JobLanes
from profkit.model.renderable import Renderable
from profkit.model.trace import RecordedWith

SCHEMA: Final = "profkit.report/2"

StepOrigin = Literal["profiler", "entry", "loader", "optimizer", "region", "module"]
"""What delimits steps: see :class:`Source`."""
WorkCategory = Literal[
    "matmul", "attention", "convolution", "pointwise", "normalization", "reduction", "embedding",
    "optimizer", "copy", "communication", "other",
]  # fmt: skip
"""The kind of work of a kernel or operator: see :class:`CategorySummary`."""
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
class Throughput:
    """Computed FLOPs and moved bytes of some calls of operators, from the shapes of their inputs.

    Attributes:
        n_calls: Number of calls whose work and time are known.
        time_ns: Time of their kernels; in a recording without devices, of the calls themselves.
        flops: Floating-point operations. Matrix products, convolutions and attention count as in
            ``torch.utils.flop_counter``, with causal attention as half; other operators by their
            formulas.
        bytes: Bytes that they move at least: each tensor in and out once. None if the type of a
            tensor is not known.
        flops_share: FLOPs per second as a share of what the device computes at most in that
            precision, with dense matrices. None for an unknown device or precision.
        bandwidth_share: Bytes per second as a share of the bandwidth of the device's memory. It can
            be above 1 if a cache serves some. None for an unknown device.
    """

    n_calls: int
    time_ns: int
    flops: int
    bytes: int | None = None
    flops_share: float | None = None
    bandwidth_share: float | None = None

    @property
    def tflops_per_s(self) -> float:
        """Return 10^12 floating-point operations per second."""
        return self.flops / self.time_ns / 1e3

    @property
    def gb_per_s(self) -> float | None:
        """Return 10^9 bytes per second."""
        return None if self.bytes is None else self.bytes / self.time_ns

    @property
    def peak_share(self) -> float | None:
        """Return the larger of the two shares: how near the calls are to the device's limits."""
        shares = (self.flops_share, self.bandwidth_share)
        return max((share for share in shares if share is not None), default=None)


@dataclass(frozen=True)
class CategorySummary:
    """The kernels of one category; in a recording without devices, its operators.

    Attributes:
        kind: ``matmul``: matrix products. ``convolution``, ``attention``: also the products within
            them. ``pointwise``: each element on its own. ``normalization``: batch, layer, group and
            RMS norm. ``reduction``: sums, softmax, losses, pooling, sorting. ``embedding``: lookups
            of rows and their gradient. ``optimizer``: all work within ``Optimizer.step``.
            ``copy``: copies, casts, fills, concatenation, indexing, changes of layout.
            ``communication``: collectives. ``other``: anything else.
        n_calls: Number of kernels, or of calls of operators.
        total_ns: Sum of the kernels' durations, or of the operators' self time on the host.
        per_step_ns: The part of it that begins in the time of the steps, divided by their number;
            None without steps.
        share: ``total_ns`` as a share of the sum over all categories.
        elementwise_ns: The part of it in elementwise kernels, by their names: pointwise work, and
            casts and copies of elements. None without devices.
    """

    kind: WorkCategory
    n_calls: int
    total_ns: int
    per_step_ns: int | None
    share: float
    elementwise_ns: int | None = None


@dataclass(frozen=True)
class KernelSummary:
    """All calls of one kernel.

    Attributes:
        name: The kernel's name.
        n_calls: Number of calls.
        total_ns: Sum of their durations.
        mean_ns: ``total_ns`` divided by ``n_calls``, rounded.
        share: ``total_ns`` as a share of the sum over all kernels.
        op: The operator that launched most of its time, or None.
        module: The ``nn.Module`` that launched most of its time, or None.
        location: The source line that launched most of its time, or None.
        blocks_per_sm: Blocks per multiprocessor, averaged over calls weighted by duration. Below 1
            some multiprocessors were unused. None where it was not recorded.
        occupancy_share: The profiler's estimate of occupancy: resident warps as a share of the
            device's maximum, averaged over calls weighted by duration. It is computed from the
            launch, not measured. None where the recording has no valid estimate.
        tensor_cores: Whether the kernel's name shows that it uses tensor cores. Many names do not
            show it.
        cuda_cores: Whether its name shows that it multiplies matrices without tensor cores.
        category: The kind of most of its work: see :class:`CategorySummary`.
        throughput: Of the operators that launched nothing but one of these calls, or None where the
            shapes of their inputs were not recorded.
        per_step_ns: The part of ``total_ns`` that begins in the time of the steps, divided by their
            number; None without steps.
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
    cuda_cores: bool = False
    category: WorkCategory = "other"
    throughput: Throughput | None = None
    per_step_ns: int | None = None

    @property
    def matmul_units(self) -> str | None:
        """Return ``tensor cores`` or ``CUDA cores`` for a kernel of matrix products, else None."""
        if self.tensor_cores:
            return "tensor cores"
        return "CUDA cores" if self.cuda_cores else None


@dataclass(frozen=True)
class OpSummary:
    """All calls of one operator.

    Attributes:
        name: The operator's name.
        n_calls: Number of calls.
        total_ns: Sum of their durations on the host, including nested calls of the same name.
        self_ns: ``total_ns`` without nested operators. Work on other threads is not subtracted.
        device_ns: Sum of the durations of the device work launched within, each kernel or copy
            counted for its innermost operator only.
        location: The source line with most of its time, or None.
        throughput: Of its calls that do their work themselves, not in operators within them, or
            None where the shapes of their inputs were not recorded.
        per_step_ns: The part of ``total_ns`` that begins in the steps on the host, divided by their
            number; None without steps.
        self_per_step_ns: The same part of ``self_ns``.
        device_per_step_ns: The part of ``device_ns`` that begins in the time of the steps, divided
            by their number; None without steps.
    """

    name: str
    n_calls: int
    total_ns: int
    self_ns: int
    device_ns: int
    location: Location | None = None
    throughput: Throughput | None = None
    per_step_ns: int | None = None
    self_per_step_ns: int | None = None
    device_per_step_ns: int | None = None


@dataclass(frozen=True)
class LineSummary:
    """The operators of one source line, with the operators of their backward pass.

    Attributes:
        location: The source line.
        n_ops: Calls of operators, nested ones included.
        host_ns: Sum of their self times on the host.
        device_ns: Sum of the durations of the device work that they launched; None without devices.
        throughput: Of these operators, or None where the shapes of inputs were not recorded.
        host_per_step_ns: The part of ``host_ns`` that begins in the steps on the host, divided by
            their number; None without steps.
        device_per_step_ns: The part of ``device_ns`` that begins in the time of the steps, divided
            by their number; None without steps or devices.
    """

    location: Location
    n_ops: int
    host_ns: int
    device_ns: int | None = None
    throughput: Throughput | None = None
    host_per_step_ns: int | None = None
    device_per_step_ns: int | None = None


@dataclass(frozen=True)
class FunctionSummary:
    """A function of user code in which the program was when its stacks were sampled.

    Attributes:
        location: The function, with the line that most of its samples were at; without a file, the
            threads in no function of user code.
        n_samples: Samples in which it was the innermost function of user code. Without steps these
            are samples of running threads, including the operators and libraries that it called.
        time_ns: Time that these samples represent; for steps, time of the recorded steps, without
            operators.
        share: ``time_ns`` as a share of the time of all samples of running threads, or of the
            recorded steps.
        library: The package or module with most of these samples, or empty if that is the function
            itself.
        callee: For steps the callee of the line, such as ``gc.collect``; empty where the function
            itself takes the time.
        waiting_share: For steps the share of this time in which the thread waits: for a timer, a
            lock, I/O or another process.
    """

    location: Location
    n_samples: int
    time_ns: int
    share: float
    library: str = ""
    callee: str = ""
    waiting_share: float = 0.0


@dataclass(frozen=True)
class SampledSummary:
    """Where the program was outside of operators, by sampled stacks.

    Of a run without steps they were sampled over its whole length, and operators are included.

    Attributes:
        interval_ns: Mean time between samples.
        n_samples: How often the stacks of all threads were sampled. A thread counts if it used a
            core then; of steps it is their thread, also while it waits.
        functions: The functions, most time first.
        n_steps: Number of steps that were sampled, which are more than those recorded; 0 for a run
            without steps.
        with_operators: For steps whose operators have no source lines, the functions with the
            operators that they run, most time first: ``time_ns`` and ``share`` are of all of a
            step. Without those that run the steps, or of which there are too few samples.
    """

    interval_ns: int
    n_samples: int
    functions: tuple[FunctionSummary, ...]
    n_steps: int = 0
    with_operators: tuple[FunctionSummary, ...] = ()


@dataclass(frozen=True)
class PeakFlops:
    """The peak of a device in one precision.

    Attributes:
        precision: ``float32``, ``tf32``, ``float16`` (bfloat16 as well) or ``float8``.
        flops_per_s: Floating-point operations per second, of dense matrices.
    """

    precision: str
    flops_per_s: float


@dataclass(frozen=True)
class FlopSummary:
    """FLOPs of matrix products, convolutions and attention in the steps.

    Attributes:
        flops: As ``torch.utils.flop_counter`` counts them, with causal attention as half: what the
            steps computed, recomputation included. Of the whole recording without steps. 0 where
            the shapes of inputs were not recorded.
        time_ns: Sum of the steps' times, or of the recording's device work from first to last.
        per_step_flops: ``flops`` divided by the number of steps, or None without steps.
        precision: The precision of most FLOPs: ``float32``, ``tf32``, ``float16`` (bfloat16 as
            well) or ``float8``; None where neither types nor kernels' names show it.
        utilization_share: FLOP utilization: the time that ``flops`` take at the devices' dense
            peaks, each in its precision, as a share of ``time_ns``. None where a peak or a
            precision is not known.
        known_share: The share of the time of such work whose FLOPs are known, in the whole
            recording. Below 1 the figures are lower bounds. None where there is no such work.
        model_flops_per_step: 6 FLOPs, in inference 2, for each parameter and token that the user
            states; None where they are not stated. Attention scores and recomputation do not count.
        model_utilization_share: Model FLOP utilization (MFU): these FLOPs per second of step time
            as a share of the devices' dense peak in ``precision``; None where that is not known.
        unknown_devices: Names of devices whose peaks are not known.
        peaks: What each of the devices, or the CPU, computes at most, the least first; empty where
            it is not known, or where devices differ.
        peak_bytes_per_s: The bandwidth of its memory, or None.
    """

    flops: int
    time_ns: int
    per_step_flops: int | None = None
    precision: str | None = None
    utilization_share: float | None = None
    known_share: float | None = None
    model_flops_per_step: int | None = None
    model_utilization_share: float | None = None
    unknown_devices: tuple[str, ...] = ()
    peaks: tuple[PeakFlops, ...] = ()
    peak_bytes_per_s: float | None = None

    @property
    def tflops_per_s(self) -> float:
        """Return 10^12 floating-point operations per second of step time."""
        return self.flops / self.time_ns / 1e3 if self.time_ns else 0.0


@dataclass(frozen=True)
class ModuleSummary:
    """An ``nn.Module`` in the tree of modules, or repeated layers of one structure.

    Work of a backward pass belongs to the module whose forward pass made it.

    Attributes:
        name: Torch's name, such as ``Linear_3``; of several ``Block_0…11``; empty for the
            smaller modules of its parent that are not listed.
        n_modules: Number of modules.
        depth: Number of modules around it; its parent is the last one before it with one less.
        n_calls: Number of calls, or None where the calls were recorded in another step: modules
            then have no parents, and only times of operators.
        host_ns: Host time of its calls, and of the operators of its backward pass. The sum of
            ``self_host_ns`` and of its children's ``host_ns``.
        self_host_ns: The same without the modules within.
        device_ns: Sum of the durations of the device work launched by it, its backward pass
            included: of ``self_device_ns`` and of its children's ``device_ns``. None without
            devices.
        self_device_ns: The same without the modules within.
        share: ``device_ns`` as a share of the sum of the durations of all device work; without
            devices ``host_ns`` as a share of the recording's length.
        throughput: Of the operators in it, or None where the shapes of inputs were not recorded.
        host_per_step_ns: The part of ``host_ns`` in calls that begin in the steps on the host,
            divided by their number; None without steps.
        self_host_per_step_ns: The same part of ``self_host_ns``.
        device_per_step_ns: The part of ``device_ns`` that begins in the time of the steps, divided
            by their number; None without steps or devices.
        self_device_per_step_ns: The same part of ``self_device_ns``.
    """

    name: str
    n_modules: int
    depth: int
    n_calls: int | None
    host_ns: int
    self_host_ns: int
    device_ns: int | None
    self_device_ns: int | None
    share: float
    throughput: Throughput | None = None
    host_per_step_ns: int | None = None
    self_host_per_step_ns: int | None = None
    device_per_step_ns: int | None = None
    self_device_per_step_ns: int | None = None


@dataclass(frozen=True)
class RegionSummary:
    """All entries of one named region (a nested ``profkit.trace``, or ``record_function``).

    Attributes:
        name: The region's name.
        n_calls: Number of entries.
        total_ns: Sum of their durations on the host.
        device_ns: Sum of the durations of the device work launched within.
        per_step_ns: The part of ``total_ns`` that begins in the steps on the host, divided by their
            number; None without steps.
    """

    name: str
    n_calls: int
    total_ns: int
    device_ns: int
    per_step_ns: int | None = None


@dataclass(frozen=True)
class SyncSummary:
    """All calls of one synchronizing function.

    Attributes:
        call: Such as ``cudaStreamSynchronize``.
        n_calls: Number of calls, without driver calls made by a synchronizing runtime call.
        total_ns: Sum of their durations on the host.
        per_step_ns: The part of ``total_ns`` that begins in the steps on the host, divided by their
            number; None without steps.
    """

    call: str
    n_calls: int
    total_ns: int
    per_step_ns: int | None = None


@dataclass(frozen=True)
class SyncSiteSummary:
    """A source line that synchronized with a device, as detected while the program ran.

    Attributes:
        operation: The synchronizing operation.
        n_calls: Number of synchronizations.
        allowed_reason: The reason given to ``profkit.allow_sync``, or None.
        location: The source line, or None in a thread without user code.
    """

    operation: str
    n_calls: int
    allowed_reason: str | None = None
    location: Location | None = None


@dataclass(frozen=True)
class SyncLine:
    """The calls of one source line that :attr:`StepSummary.n_syncs` counts.

    Attributes:
        location: The line, or without one the operator or call.
        n_calls: Number of calls in all steps.
        n_in_step: Number of calls in the step with most calls.
    """

    location: Location
    n_calls: int
    n_in_step: int


@dataclass(frozen=True)
class CopySummary:
    """All copies of one kind.

    Attributes:
        kind: Such as ``Memcpy HtoD (Pageable -> Device)``.
        n_calls: Number of copies.
        total_ns: Sum of their durations on the device.
        bytes: Bytes copied, or None where they were not recorded.
        per_step_ns: The part of ``total_ns`` that begins in the time of the steps, divided by their
            number; None without steps.
    """

    kind: str
    n_calls: int
    total_ns: int
    bytes: int | None
    per_step_ns: int | None = None


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
        without_work = ("idle-", "unrecorded")
        return sum(part.share for part in self.parts if not part.kind.startswith(without_work))


@dataclass(frozen=True)
class Summary:
    """The figures of a report.

    Attributes:
        window_ns: From the start of the first event to the end of the last.
        devices: The devices that ran work, by ordinal.
        steps: The steps, in order.
        top_kernels: Kernels by total time, then name.
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
        n_incomplete_steps: Steps that the window cut off; they are in no figure per step.
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
