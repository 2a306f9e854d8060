"""KER001 launch-bound: the GPU is idle between kernels, waiting for launches.

What it finds:
    GPUs with many short idle gaps because the host has not launched the next kernel yet, although
    it neither waits (for the GPU or other ranks) nor loads data. Gaps in which the host took long
    from one launch to the next are left out: they have another cause than the cost of a launch.

Why it matters:
    An operator costs PyTorch some microseconds on the host, whatever its size. Where kernels are
    shorter than that, the GPU finishes before the next one is launched, and a faster GPU changes
    nothing. The cost is what the steps take less in a replay of the recording in which the host
    spends no time in these gaps. Recording Python stacks slows down the host; the idle time that
    stacks can explain is subtracted.

How to fix it:
    Launch less: ``torch.compile(model, mode="reduce-overhead")`` fuses kernels and replays them as
    one CUDA graph; ``torch.cuda.CUDAGraph`` does so by hand; a larger batch makes each kernel
    longer; ``fused=True`` runs an optimizer's step in a few kernels.

Example:
    ::

        for x, y in small_batches:
            loss = loss_fn(model(x), y)

Use instead:
    ::

        step = torch.compile(train_step, mode="reduce-overhead")
        for x, y in small_batches:
            loss = step(x, y)

Reads:
    Kernels (``ts_ns`` and ``dur_ns`` in nanoseconds), their launches, GPU idle time by cause in
    nanoseconds, the recording's overhead.

When to ignore this:
    The host is shared with other programs, or the recording's overhead is larger than known. CUDA
    graphs need fixed shapes and addresses, which not every program has. With a few kernels per step
    the Python between them may be the cause; the confidence is low then.

Source:
    "Accelerating PyTorch with CUDA Graphs" on PyTorch's blog; ``torch.compile`` (``mode``) and
    ``torch.cuda.CUDAGraph`` in PyTorch's documentation; the overhead of stacks was measured with
    torch 2.13: 0.2 to 0.35 µs for each Python call in steps of small networks on one machine.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.collectives.waits import find_host_waits
from profkit.engine.families.frameworks import (
    Trainer,
    find_trainer,
    is_run_by_vllm,
)
from profkit.index.device.idle import find_waits_for_launches
from profkit.index.device.streams import DeviceActivity
from profkit.index.intervals import (
    Intervals,
    covered_within,
    inside,
    intersect,
    subtract,
    take_from_start,
    union,
)
from profkit.index.runtime_calls import GRAPH_LAUNCH, are_optimizer_steps, rows_named
from profkit.rule import (
    MAX_LINES,
    NO_ROW,
    Category,
    Confidence,
    Context,
    Finding,
    Int64s,
    Location,
    ProgramChange,
    Rows,
    RuleInfo,
    dataclass,
    format_count,
    format_ns,
    in_windows,
    needs,
    reaches_share,
    regex,
    time_per_step,
    time_with_share,
    windows,
)

INFO = RuleInfo(
    id="KER001",
    name="launch-bound",
    title="GPU idle waiting for kernel launches",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


_COMPILED: Final = regex(r"^CompiledFunction(Backward)?$|^Torch-Compiled Region")
_MOST: Final = 0.5
# One operator for all parameters, as `fused=True` runs it.
_FUSED: Final = regex(r"^aten::_fused_(adam|sgd|adagrad)")


@dataclass(frozen=True)
class Thresholds:
    """When a GPU is launch-bound.

    Attributes:
        min_idle_share: Minimum share of the steps that is idle for want of launches: with that
            much to save, CUDA graphs or a compiler are worth the effort.
        max_launch_ns: Longest time from one launch to the next that counts; in a longer one the
            host does other work. In launch-bound recordings of A100, B200, H100 and MI300X, 95% of
            the idle time is where launches are less than half a millisecond apart.
        few_kernels_count: With fewer kernels per step the confidence is low: the program's work
            between a few launches may take longer than the launches.
        assumed_call_ns: Assumed time that recording a Python call takes where it was not measured:
            0.2 to 0.35 µs on one machine, and others are slower.
        assumed_overhead_ratio: Assumed overhead of stacks that were recorded once per operator, as
            torch did before 1.12: by how much they lengthen a step.
    """

    min_idle_share: float = 0.15
    max_launch_ns: int = 500_000
    few_kernels_count: int = 20
    assumed_call_ns: int = 500
    assumed_overhead_ratio: float = 1.2


@dataclass(frozen=True)
class _LaunchWaits:
    """When a device waits for launches, and how long without the recording's overhead.

    Attributes:
        idle: When it waits, in the windows.
        overhead_ns: The part of each window's wait that recording may have added. Shape of the
            windows.
        saved_ns: The rest of it. Shape of the windows.
    """

    device: DeviceActivity
    idle: Intervals
    overhead_ns: Int64s
    saved_ns: Int64s

    @property
    def total_ns(self) -> int:
        return int(self.saved_ns.sum())


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for the device that waits longest for launches."""
    starts, ends = windows(ctx)
    overhead = _Overhead(ctx, thresholds)
    collectives = find_host_waits(ctx)

    # A host that waits for a collective cannot launch, which is another rule's.
    waits_by_device = []
    for device, causes in zip(ctx.devices, ctx.idle_causes, strict=True):
        idle = find_waits_for_launches(
            ctx.events, ctx.launches, device, causes, thresholds.max_launch_ns
        )
        idle = intersect(idle, union(starts, ends))
        idle = subtract(idle, collectives.waited) if collectives else idle
        idle_ns = covered_within(idle, starts, ends)
        overhead_ns = np.minimum(overhead.in_windows(idle), idle_ns)
        waits_by_device.append(_LaunchWaits(device, idle, overhead_ns, idle_ns - overhead_ns))

    # One host launches for all devices, so the one that waits longest stands for them.
    waits = max(waits_by_device, key=lambda waits: waits.total_ns)
    kernels = _find_kernels(ctx, waits.device)
    if len(kernels) and reaches_share(ctx, waits.total_ns, thresholds.min_idle_share):
        is_low = overhead.is_assumed or len(kernels) < thresholds.few_kernels_count * len(starts)
        has_overhead = bool(waits.overhead_ns.any())
        confidence: Confidence = "low" if is_low else "medium" if has_overhead else "high"
        yield _build_finding(ctx, waits, kernels, confidence, is_assumed=overhead.is_assumed)


class _Overhead:
    """How much of a host's time is the recording's own, as far as that is known.

    Attributes:
        is_assumed: Whether it was not measured, although it may be large.
    """

    def __init__(self, ctx: Context, thresholds: Thresholds) -> None:
        self._ctx = ctx
        self._calls = ctx.events.rows_by_category[Category.PYTHON]
        self._call_ns, self._ratio = thresholds.assumed_call_ns, 0.0

        # Only profkit measures its overhead. Other profilers cost much only while they record
        # stacks: as events of Python calls, or before torch 1.12 as a text for each operator.
        capture = ctx.trace.capture
        measured = None if capture is None else capture.cost.overhead_ratio
        has_texts = len(ctx.events.call_stack.rows) > 0 and not len(self._calls)
        self.is_assumed = measured is None and (has_texts or len(self._calls) > 0)
        if measured is not None:
            self._call_ns, self._ratio = 0, max(0.0, measured)
        elif has_texts:
            self._ratio = thresholds.assumed_overhead_ratio

    def in_windows(self, idle: Intervals) -> Int64s:
        """Return its time in each window; of calls only those in which a device waits."""
        starts, ends = windows(self._ctx)
        # A step takes 1 + ratio times as long, so that this part of it is overhead.
        overhead_ns = ((ends - starts) * self._ratio / (1 + self._ratio)).astype(np.int64)

        calls_ns = self._ctx.events.ts_ns[self._calls]
        called_ns = np.sort(calls_ns[inside(idle, calls_ns)])
        n_calls = np.searchsorted(called_ns, ends) - np.searchsorted(called_ns, starts)
        return np.asarray(overhead_ns + n_calls * self._call_ns)


def _build_finding(
    ctx: Context,
    waits: _LaunchWaits,
    kernels: Rows,
    confidence: Confidence,
    *,
    is_assumed: bool,
) -> Finding:
    starts, ends = windows(ctx)
    n_per_step, overhead_ns = round(len(kernels) / len(starts)), int(waits.overhead_ns.sum())
    change = ProgramChange(host_time=take_from_start(waits.idle, starts, ends, waits.saved_ns))
    median_ns = float(np.median(ctx.events.dur_ns[kernels]))
    idle_ns = waits.total_ns + overhead_ns

    of_recording = ""
    if overhead_ns:
        comes = "is assumed to come" if is_assumed else "comes"
        of_recording = f" Of that, {time_per_step(ctx, overhead_ns)} {comes} from the recording."
    return INFO.finding(
        confidence=confidence,
        message=(
            f"The GPU is idle for {time_with_share(ctx, idle_ns)} because the next kernel is not "
            f"launched yet.{of_recording} It runs {format_count(n_per_step)} kernels"
            f"{' per step' if len(ctx.steps) else ''}, half of them shorter than "
            f"{format_ns(median_ns)}."
        ),
        fix=_suggest_fix(ctx),
        locations=_find_busiest_lines(ctx, waits.device),
        n=len(kernels),
        cost=ctx.time_cost(change, "estimate" if overhead_ns else "replay"),
        evidence={
            "device": waits.device.device,
            "n_kernels_per_step": n_per_step,
            "median_kernel_ns": round(median_ns),
            "launch_idle_ns": waits.idle.total_ns,
            "overhead_ns": overhead_ns,
        },
        spans=change.host_time,
        change=change,
    )


def _suggest_fix(ctx: Context) -> str:
    """Suggest CUDA graphs by the option of what runs the steps, and the optimizer's fused step.

    The optimizer's only where it is not fused.
    """
    if len(GRAPH_LAUNCH.rows(ctx.events)):
        return "Capture the rest of the step in its CUDA graphs too, or take a larger batch."
    if is_run_by_vllm(ctx):
        return (
            "Leave out `enforce_eager=True`, with which vLLM captures no CUDA graphs, or take "
            "larger batches."
        )

    trainer = find_trainer(ctx)
    # Compiled code has fewer kernels, and launches each of them all the same.
    mode = 'mode="reduce-overhead"'
    call = f"Try `torch.compile(model, {mode})`"
    if _is_compiled(ctx):
        call = f"Add `{mode}` to the call of `torch.compile`"
    if trainer is Trainer.TRANSFORMERS:
        call = (
            'Pass `torch_compile=True, torch_compile_mode="reduce-overhead"` to `TrainingArguments`'
        )
    graph = f"{call}, which replays the step as a CUDA graph"

    is_step = are_optimizer_steps(ctx.events)
    if not is_step.any() or rows_named(ctx.events, _FUSED, Category.OP).any():
        return f"{graph}, or a larger batch."
    fused = "`fused=True` for the optimizer"
    if trainer is Trainer.TRANSFORMERS:
        fused = '`optim="adamw_torch_fused"`'
    return f"{graph}, a larger batch, or {fused}."


def _is_compiled(ctx: Context) -> bool:
    """Return whether compiled code launches most kernels, and not only a part of the model."""
    is_compiled = rows_named(ctx.events, _COMPILED, Category.OP, Category.ANNOTATION)
    launches = ctx.launches.launch[ctx.launches.launch != NO_ROW]
    if not is_compiled.any() or not len(launches):
        return False
    is_within = ctx.tree.nearest(is_compiled)[launches] != NO_ROW
    return bool(is_within.mean() >= _MOST)


def _find_kernels(ctx: Context, device: DeviceActivity) -> Rows:
    """Find the device's kernels that begin in a window."""
    kernels = device.rows[ctx.events.category[device.rows] == Category.KERNEL]
    return np.asarray(kernels[in_windows(ctx, kernels)])


def _find_busiest_lines(ctx: Context, device: DeviceActivity) -> tuple[Location, ...]:
    """Find the lines that launch the most work on a device."""
    is_launched = np.isin(ctx.launches.work, device.rows) & (ctx.launches.op != NO_ROW)
    ops = ctx.launches.op[is_launched]
    return ctx.costliest_lines(ops[in_windows(ctx, ops)], MAX_LINES)
