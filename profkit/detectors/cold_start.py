"""PRF010 cold-start: the recording contains the set-up of libraries, of code, or of CUDA graphs.

What it finds:
    Calls of the runtime that take ten milliseconds to seconds while no GPU works: the first launch
    of a kernel, which loads its code, and the calls with which cuDNN, cuBLAS or a context are set
    up. Also the time between the calls that begin and end the capture of a stream, in which no GPU
    works. Both are counted within the steps, or in a recording without steps anywhere.

Why it matters:
    They happen once per process, not once per step. A recording or a measurement that contains
    them says little on the steps that follow. Launches during a capture run nothing: they are noted
    in the graph, which the program launches as a whole from then on. The cost of calls is what the
    recording takes less in a replay without them.

How to fix it:
    Run a few iterations before the recording or the measurement begins, until the program's graphs
    are captured. A program that is as short as the recording loads less with fewer libraries and
    kernels.

Example:
    ::

        with torch.profiler.profile() as prof:
            model(x)

Use instead:
    ::

        for _ in range(3):
            model(x)
        torch.cuda.synchronize()
        with torch.profiler.profile() as prof:
            model(x)

Reads:
    Calls of the runtime and the driver (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the
    operators around them, the work that they launched, GPU busy time in nanoseconds, the steps.

When to ignore this:
    The start is what you want to measure. The kernels of a graph that was captured before the
    recording began may be missing from it, depending on the driver.

Source:
    "Lazy Loading" and "Initialization" in the CUDA C++ Programming Guide;
    ``CUDA_MODULE_LOADING`` in its list of environment variables; "Benchmark" among PyTorch's
    recipes (warm-up before a measurement); ``torch.profiler.schedule`` (``warmup``); "CUDA Graphs"
    in PyTorch's CUDA semantics; ``cudaStreamBeginCapture`` in the CUDA Runtime API reference.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.recording_advice import extent_ns, record_later, share_of_extent
from profkit.index.device.graph_captures import find_captures
from profkit.index.device.orphans import KERNEL_LAUNCH
from profkit.index.intervals import covered_by, inside, intersect, subtract, union
from profkit.index.runtime_calls import HIP, LAUNCH
from profkit.rule import (
    NO_ROW,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    counted,
    dataclass,
    find_costliest_lines,
    format_ns,
    idle_in_windows,
    in_windows,
    measure_saving,
    needs,
    regex,
    windows,
)

INFO = RuleInfo(
    id="PRF010",
    name="cold-start",
    title="Recording includes the set-up of libraries or CUDA graphs",
    severity="note",
    needs=(needs.DEVICE_WORK,),
    since="0.1.0",
    no_example="Libraries are set up in the first steps, and `profkit run` records later ones.",
)


@dataclass(frozen=True)
class Thresholds:
    """When a cold start is a finding.

    Attributes:
        min_saved_share: Minimum share of the steps, or of a recording without steps, that the calls
            or the captures take. Below it, averages differ from later steps no more than steps
            differ anyway.
    """

    min_saved_share: float = 0.05


# By the operator around a call: no call says for which library it is.
_DNN: Final = regex(r"cudnn|conv|batch_norm|miopen|rnn|lstm|gru")
_BLAS: Final = regex(r"mm$|mm_|scaled_mm|linear|addmv|::mv$|::dot$")
_GRAPH: Final = regex(r"Graph(Instantiate|Upload|Launch|Exec)")
_LOADS: Final = regex(
    r"Func(Get|Set)Attribute|OccupancyMax|FuncBySymbol|FuncGet|(Module|Library)Load"
)
"""Calls other than launches that load the code of a kernel. In operators of cuDNN and cuBLAS they
set up the library."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding on all calls that set something up, and one on all captures of graphs."""
    yield from _report_calls(ctx, thresholds)
    yield from _report_captures(ctx, thresholds)


def _report_calls(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding on all calls that load code or set up libraries."""
    # The calls of a compilation are reported by compile-in-window.
    rows = ctx.cold_calls[in_windows(ctx, ctx.cold_calls)]
    compiling = covered_by(ctx.events, ctx.compilations.rows)
    rows = rows[~inside(compiling, ctx.events.ts_ns[rows])]
    if not len(rows):
        return

    saving = measure_saving(ctx, ProgramChange(scaled=((rows, 0.0),)))
    if (saving.cost.ns or 0) < thresholds.min_saved_share * extent_ns(ctx):
        return

    spent = covered_by(ctx.events, rows)
    parts = ", ".join(f"{purpose} {format_ns(ns)}" for purpose, ns in _sum_by_purpose(ctx, rows))
    # The sum has no place of its own, so the message shows where the longest call is.
    longest = int(rows[np.argmax(ctx.events.dur_ns[rows])])
    location = ctx.location(longest)

    yield saving.finding(
        INFO,
        confidence="high",
        message=(
            f"Cold start takes {share_of_extent(ctx, spent.total_ns)}, while the GPU is idle: "
            f"{parts}. The longest call is `{ctx.events.name_of(longest)}`"
            f"{f' in `{location.op}`' if location.op else ''}{at(location)}."
        ),
        fix=_suggest_fix(ctx),
        locations=find_costliest_lines(ctx, rows),
        rows=rows,
        evidence={"calls_ns": spent.total_ns},
        spans=spent.pairs(),
    )


def _report_captures(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding on all captures of graphs that keep the GPU idle."""
    captures = find_captures(ctx.events)
    if not len(captures):
        return

    in_steps = intersect(captures, union(*windows(ctx)))
    idle_in_steps = intersect(in_steps, idle_in_windows(ctx))
    # Without steps the window begins with the first device work, and a capture may come before it.
    spent = idle_in_steps if len(ctx.steps) else subtract(captures, ctx.busy)
    if spent.total_ns < thresholds.min_saved_share * extent_ns(ctx):
        return

    # How many tells that what looks like a slow loop of launches is none.
    launches_ns = ctx.events.ts_ns[KERNEL_LAUNCH.rows(ctx.events)]
    n_launches = int(inside(captures, launches_ns).sum())
    yield INFO.finding(
        confidence="high",
        message=(
            f"Capturing CUDA graphs takes {share_of_extent(ctx, spent.total_ns)}, while the GPU is "
            "idle: "
            f"{counted(n_launches, 'launch', 'launches')} within only become a part of a graph."
        ),
        fix=_suggest_fix(ctx),
        n=len(captures),
        evidence={
            "captured_ns": spent.total_ns,
            "captured_in_steps_ns": idle_in_steps.total_ns,
            "n_launches": n_launches,
        },
        spans=spent.pairs(),
    )


def _suggest_fix(ctx: Context) -> str:
    if len(ctx.steps):
        return record_later(ctx)
    return "Run the code two or three times before the recording or measurement begins."


def _sum_by_purpose(ctx: Context, rows: Rows) -> list[tuple[str, int]]:
    """Sum the time of calls by the part that they set up, the longest first."""
    launches = set(LAUNCH.rows(ctx.events).tolist())
    is_hip = bool(len(HIP.rows(ctx.events)))

    # The order matters: a launch loads the code of its kernel, also within a library's operator.
    total: dict[str, int] = defaultdict(int)
    for row in rows.tolist():
        op = int(ctx.innermost_op[row])
        operator = ctx.events.name_of(op) if op != NO_ROW else ""
        call = ctx.events.name_of(row)
        if _GRAPH.search(call):
            purpose = "instantiating HIP graphs" if is_hip else "instantiating CUDA graphs"
        elif row in launches:
            purpose = "loading the code of kernels"
        elif _DNN.search(operator):
            purpose = "setting up MIOpen" if is_hip else "setting up cuDNN"
        elif _BLAS.search(operator):
            purpose = "setting up rocBLAS" if is_hip else "setting up cuBLAS"
        elif _LOADS.search(call):
            purpose = "loading the code of kernels"
        else:
            purpose = "setting up the device"
        total[purpose] += int(ctx.events.dur_ns[row])

    return sorted(total.items(), key=lambda item: -item[1])
