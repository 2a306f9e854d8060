"""Data that profkit adds to its traces, under the top-level key ``profkit`` of the JSON."""

from dataclasses import field
from typing import Final, Literal

from profkit.dataclass import dataclass

StepKind = Literal["user", "loader", "optimizer", "trainer", "module", "entry", "whole"]


@dataclass(frozen=True)
class CaptureCost:
    """Overhead of the recording itself. None where it was not measured.

    Attributes:
        start_ns: Time to start the profiler.
        stop_ns: Time to stop it and collect its events.
        write_ns: Time from then until the file was begun, in which the events were exported and
            counted, and their source lines and ``overhead_ratio`` determined. This figure is at the
            beginning of the file: the rest of it was compressed and written afterwards.
        n_events: Number of events in the window.
        overhead_ratio: Relative slowdown of the window: 0.8 means that one second of the program
            took 1.8 seconds.
        overhead_basis: How ``overhead_ratio`` was determined, in a few words.
    """

    start_ns: int | None = None
    stop_ns: int | None = None
    write_ns: int | None = None
    n_events: int | None = None
    overhead_ratio: float | None = None
    overhead_basis: str = ""


@dataclass(frozen=True)
class HostThreads:
    """Threads and processes of the program, and the cores that they share, when recording ended.

    Attributes:
        n_cores: Processor cores that the process may use.
        n_threads: Threads that one operator uses.
        n_ranks: Processes of the job on this machine.
        n_workers: Child processes of ``multiprocessing``, such as workers of a loader.
    """

    n_cores: int
    n_threads: int
    n_ranks: int = 1
    n_workers: int = 0


@dataclass(frozen=True)
class CpuTime:
    """Processor time spent during the window.

    Attributes:
        window_ns: Length of the window.
        thread_ns: Processor time of the thread that recorded.
        process_ns: The same of all threads of the process.
        delayed_ns: Time for which that thread was ready to run and had no core. None where the
            system does not tell.
        children_ns: The same of its child processes, and of those that they waited for. None where
            the system does not tell.
        other_threads_ns: The same of each other thread of the process that ran, longest first.
            None where the system does not tell, and in files of versions before 0.2.0.
    """

    window_ns: int
    thread_ns: int
    process_ns: int
    delayed_ns: int | None = None
    children_ns: int | None = None
    other_threads_ns: tuple[int, ...] | None = None

    @property
    def waiting_ns(self) -> int | None:
        """Time for which the thread waited: for I/O, a lock, a timer or another process."""
        if self.delayed_ns is None:
            return None
        return max(0, self.window_ns - self.thread_ns - self.delayed_ns)

    @property
    def delayed_share(self) -> float:
        """Share of the window for which the thread had no core; 0 where it is not known."""
        return (self.delayed_ns or 0) / self.window_ns if self.window_ns else 0.0

    def delayed_by_program_ns(self, threads: HostThreads) -> int:
        """Return the most that the thread waited for a core because of the program's others.

        Args:
            threads: The threads, workers and ranks of the program.
        """
        # All ranks are assumed to use as much as this one.
        rank_ns = self.process_ns + (self.children_ns or 0)
        others_ns = threads.n_ranks * rank_ns - self.thread_ns
        each_ns = threads.n_ranks * list(self.other_threads_ns or ())
        each_ns += (threads.n_ranks - 1) * [self.thread_ns]
        return max(0, min(self.delayed_ns or 0, _all_busy_ns(each_ns, others_ns, threads.n_cores)))

    def delayed_by_others_ns(self, threads: HostThreads) -> int:
        """Return the least that the thread waited for a core because of other programs.

        Args:
            threads: The threads, workers and ranks of the program.
        """
        return (self.delayed_ns or 0) - self.delayed_by_program_ns(threads)


def _all_busy_ns(each_ns: list[int], total_ns: int, n_cores: int) -> int:
    """Return the longest time for which threads can have had all cores at the same time.

    A thread has one core at a time: one that ran all the time fills one core and no second one, so
    that the remaining threads have to fill the others. This bound can be reached for any times of
    the threads.

    Args:
        each_ns: Processor time of each thread that is known.
        total_ns: Processor time of all threads, those that are not known too.

    Source: R. McNaughton, "Scheduling with Deadlines and Loss Functions", Management Science 6(1),
    1959.
    """
    busiest_ns = sorted(each_ns, reverse=True)[: n_cores - 1]
    bounds_ns = [total_ns // n_cores]
    for n_filled, busy_ns in enumerate(busiest_ns, start=1):
        total_ns = max(0, total_ns - busy_ns)
        bounds_ns.append(total_ns // (n_cores - n_filled))
    return min(bounds_ns)


DEBUG_SETTINGS: Final = {
    "CUDA_LAUNCH_BLOCKING": ("1",),
    "HIP_LAUNCH_BLOCKING": ("1",),
    "AMD_SERIALIZE_KERNEL": ("1", "2", "3"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",),
    "TORCH_NCCL_BLOCKING_WAIT": ("1",),
    "TORCHDYNAMO_DISABLE": ("1",),
    "TORCH_COMPILE_DISABLE": ("1",),
    "PYTHONDEVMODE": ("1",),
    "PYTHONMALLOC": ("debug", "malloc_debug", "pymalloc_debug"),
}
"""Environment variables that slow a program down, and the values with which they do.

Source: "CUDA Environment Variables" in the CUDA C++ Programming Guide; "Environment variables" in
HIP's documentation; ``torch.distributed`` ("Debugging"), ``ProcessGroupNCCL.hpp``,
``torch/_dynamo/config.py`` and "Command line and environment" in Python's documentation.
"""


@dataclass(frozen=True)
class OpLines:
    """The source line of each operator of a window.

    The lists have one entry for each host event other than Python calls (operators, annotations,
    and runtime calls outside operators), by thread and start time. Annotations of steps and entries
    are omitted.

    Attributes:
        same_window: Whether the lines were recorded in the window of this trace, so that
            ``external_id`` joins them. Otherwise they come from another step of the same loop, and
            are aligned by step, operator sequence and kernel.
        names: Each operator name once.
        frames: ``[file, line, function, exact]``; with ``exact`` 0 only the function is known.
        modules: Each ``nn.Module`` once, with torch's name.
        name: Index into ``names``.
        parent: Index of the enclosing entry in these lists, which is before this one, or -1.
        thread: The operating system's thread id, as in the trace's ``tid``.
        external_id: ``External id`` of the operator, or -1.
        frame: Index into ``frames`` of the innermost user frame, or -1.
        module: Index into ``modules``, or -1.
        in_library: Entries that ran in a function of a library which the line called, other than a
            tensor's method in Python.
        first_lines: The line of the definition of each frame's function, or 0: of functions that
            were called before the window it is not known. May be empty.
    """

    same_window: bool
    names: list[str]
    frames: list[tuple[str, int, str, int]]
    modules: list[str]
    name: list[int]
    parent: list[int]
    thread: list[int]
    external_id: list[int]
    frame: list[int]
    module: list[int]
    in_library: list[int] = field(default_factory=list)
    first_lines: list[int] = field(default_factory=list)


CodePlace = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True)
class Compiled:
    """One compilation of a function by ``torch.compile``, or a failed attempt.

    Attributes:
        number: torch's compile id, such as ``3/1``: the function, and how often it was compiled
            before. Empty where this version of torch has none.
        code: The function; ``("", 0, "")`` where it is not known.
        is_users: Whether it is user code.
        caller: The line of user code that called it, or None.
        start_ns: Start, in nanoseconds since 1970, or None.
        dur_ns: Duration in nanoseconds, or None.
        n_ops: Number of operators in its graph, or None: without a graph, or not known.
        again: Whether it is a recompilation: the guards of all earlier compilations failed.
        reason: The failed guard as torch reports it, or empty.
        failure: Why torch gave up, as it reports it, or empty.
    """

    number: str = ""
    code: CodePlace = ("", 0, "")
    is_users: bool = False
    caller: CodePlace | None = None
    start_ns: int | None = None
    dur_ns: int | None = None
    n_ops: int | None = None
    again: bool = False
    reason: str = ""
    failure: str = ""


@dataclass(frozen=True)
class GraphBreak:
    """A graph break.

    Attributes:
        reason: The reason as torch reports it.
        stack: The inlined calls at the break, innermost first.
        user: Index in ``stack`` of the innermost user frame, or -1.
        n: Number of compilations with this break.
    """

    reason: str
    stack: list[CodePlace]
    user: int = -1
    n: int = 1


@dataclass(frozen=True)
class Compiles:
    """What ``torch.compile`` had compiled in the process by the end of the window.

    Attributes:
        compiled: Compilations that torch remembers, oldest first.
        breaks: Graph breaks.
        n_left_out: Number of entries omitted from both lists because there were too many.
    """

    compiled: list[Compiled] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    n_left_out: int = 0


SampledPart = Literal["", "backward", "data", "sampler", "stream", "build"]
LOADER_PARTS: Final = frozenset({"data", "sampler", "stream"})
"""Parts of a step in which a loader prepares a batch, or waits for one."""


@dataclass(frozen=True)
class SampledFunction:
    """A function of user code in which threads ran when they were sampled.

    For steps there is one for each line and its callee, since operators are known by line.

    Attributes:
        place: Its file and name, and the line that most samples were at; ``("", 0, "")`` for
            threads in no function of user code.
        n: Samples in which it was the innermost function of user code, whatever it called.
        ns: Time that these samples represent.
        library: The package or module with most of these samples, or empty if that is the function
            itself.
        waiting_ns: Time within ``ns`` in which the thread waited: for a timer, a lock, I/O or
            another process.
        callee: What the line calls, as the program writes it, such as ``gc.collect``; empty where
            the line itself runs, or that is not known.
        part: ``build``: in the constructors of torch's modules, for a run without steps. For steps
            ``backward``: below autograd's engine; ``data``: below a loader of torch, ``sampler``
            where it takes the next indices, ``stream`` where it reads an ``IterableDataset``; else
            empty.
    """

    place: CodePlace
    n: int
    ns: int
    library: str = ""
    waiting_ns: int = 0
    callee: str = ""
    part: SampledPart = ""


@dataclass(frozen=True)
class SampledTime:
    """Stacks sampled over a run without steps, or over some steps of a loop.

    For a run without steps all threads count while they run. For steps only their thread counts,
    also while it waits.

    Attributes:
        interval_ns: Mean time between samples; for steps, between samples that were not delayed.
        n_samples: How often all threads were sampled.
        running_ns: Time that the samples represent: for a run without steps about the processor
            time of its threads, for steps about their time.
        functions: The functions, most time first.
        n_steps: Number of steps; 0 for a run without steps.
        steps_ns: Time of these steps, without the overhead of recording.
    """

    interval_ns: int
    n_samples: int
    running_ns: int
    functions: list[SampledFunction]
    n_steps: int = 0
    steps_ns: int = 0


@dataclass(frozen=True)
class LoaderWorkers:
    """Stacks sampled in the workers of DataLoaders.

    Attributes:
        n_workers: Number of workers.
        n_samples: Number of samples in all of them; in the program's sampled steps, if the workers
            have samples there.
        sampled_ns: Time that these samples represent, that of waiting for work included.
        fetching_ns: Time within ``sampled_ns`` in which workers prepared batches.
        functions: The functions in which they did at any time, most time first.
    """

    n_workers: int
    n_samples: int
    sampled_ns: int
    fetching_ns: int
    functions: list[SampledFunction]


@dataclass(frozen=True)
class TensorPlace:
    """A tensor and its device.

    Attributes:
        name: The variable; of a module's tensors ``weight of Linear``.
        device: Such as ``cuda:0``.
    """

    name: str
    device: str
    shape: list[int]


@dataclass(frozen=True)
class DeviceMismatch:
    """An operator that failed since its tensors are on different devices.

    Attributes:
        message: The first line of torch's error.
        operator: Such as ``aten::addmm``; empty where the error does not name it.
        place: The innermost line of user code; ``("", 0, "")`` where there is none.
        tensors: Tensors that the line names, and the tensors of a module that it calls.
    """

    message: str
    operator: str
    place: CodePlace
    tensors: list[TensorPlace]


@dataclass(frozen=True)
class UnusedGradients:
    """A module whose parameters have gradients, of which no optimizer uses any.

    Attributes:
        name: The variable that has the module, the path to it from one, or else its class.
        modules: It and the modules in it, as far as they were called, by the names that torch gives
            them.
        n_parameters: Number of parameters with a gradient.
        bytes: Size of these gradients.
    """

    name: str
    modules: list[str]
    n_parameters: int
    bytes: int


@dataclass(frozen=True)
class CaptureInfo:
    """What profkit knows of a recording it made.

    Attributes:
        version: profkit's version.
        name: Name of the capture, as in ``profkit.trace("step")``.
        steps: Definition of a step: ``user``: ``step()`` or ``profkit.steps``; ``loader``: an
            iteration of a loader; ``optimizer``: an optimizer step; ``entry``: one entry of a
            block; ``whole``: the whole run.
        torch: PyTorch's version.
        cuda: Version of CUDA or HIP that torch was built for, or None.
        driver: Version of the driver, or None.
        rank: Rank in a distributed job, or None.
        world_size: Number of ranks in that job, or None.
        argv: The program and its arguments.
        paths: Files by their shortened paths in the trace's stacks.
        libraries: First components of shortened paths that belong to installed packages or to the
            standard library, and so are not user code.
        cost: Overhead of the recording.
        cpu: Processor time spent during the window, or None where it was not measured.
        lines: The source line of each operator, or None without stacks.
        stopped_by: The exception or signal that ended the window early, or empty.
        open_step: Annotation name of the step that was incomplete when the window ended, or empty;
            its duration is meaningless.
        left_out_steps: Names of steps in which other programs took the thread's core, while it had
            one in others: figures leave them out, and :attr:`cpu` is of the others.
        compiles: What ``torch.compile`` had compiled by then, or None where it was not used.
        threads: Threads and processes, or None where they were not recorded.
        settings: Those of :data:`DEBUG_SETTINGS` that were on, and their values.
        mismatch: The operator that ended the program since its tensors are on different devices.
        processor: Name of the machine's processor, or None.
        half_types: Types in half precision that it has instructions to multiply: ``bfloat16``,
            ``float16``. None where that is not known.
        revision: The git commit of the folder of the program, or None outside a repository.
        sampled: Functions that ran during the whole run, or during some steps of a loop, recorded
            or not; None where nothing was sampled.
        loader_workers: What workers of DataLoaders did; None where none was sampled.
        unused_gradients: Modules of a recorded step whose gradients no optimizer uses; empty also
            without stacks.
        unused_gpus: Names of the machine's GPUs that the program may use, if it has used none.
        no_stacks_reason: Why no stacks could be recorded, in a clause, or empty.
    """

    version: str
    name: str
    steps: StepKind = "entry"
    torch: str | None = None
    python: str | None = None
    cuda: str | None = None
    driver: str | None = None
    devices: list[str] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    argv: list[str] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    cost: CaptureCost = field(default_factory=CaptureCost)
    cpu: CpuTime | None = None
    lines: OpLines | None = None
    stopped_by: str = ""
    open_step: str = ""
    left_out_steps: list[str] = field(default_factory=list)
    compiles: Compiles | None = None
    threads: HostThreads | None = None
    settings: dict[str, str] = field(default_factory=dict)
    mismatch: DeviceMismatch | None = None
    processor: str | None = None
    half_types: list[str] | None = None
    revision: str | None = None
    sampled: SampledTime | None = None
    loader_workers: LoaderWorkers | None = None
    unused_gpus: list[str] = field(default_factory=list)
    unused_gradients: list[UnusedGradients] = field(default_factory=list)
    no_stacks_reason: str = ""
