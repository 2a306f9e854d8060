"""The work of a report: kernels, operators, modules, source lines, functions, and FLOPs."""

from typing import Literal

from profkit.dataclass import dataclass
from profkit.model.location import Location

WorkCategory = Literal[
    "matmul", "attention", "convolution", "pointwise", "normalization", "reduction", "embedding",
    "optimizer", "copy", "communication", "other",
]  # fmt: skip
"""The kind of work of a kernel or operator: see :class:`CategorySummary`."""


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
        share: ``total_ns`` as a share of the sum over all kernels, and not of the step.
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
