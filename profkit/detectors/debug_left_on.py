"""CFG003 debug-left-on: settings for debugging slow down the steps.

What it finds:
    Anomaly detection of autograd, by the tests of each gradient; ``gradcheck`` in a step; GPU
    launches that wait for their kernels, as ``CUDA_LAUNCH_BLOCKING=1`` makes them; and, in
    recordings of profkit, environment variables that are for debugging.

Why it matters:
    Anomaly detection tests each gradient for values that are not a number, and on a GPU the host
    waits for each test. It also takes a stack trace of each operator in the forward pass, which no
    event shows. A launch that waits leaves the GPU idle until the next one. The cost is what the
    steps take less in a replay of the recording: without the tests, or with launches of five
    microseconds. Of the other settings it is not known.

How to fix it:
    Turn them off once the error is found.

Example:
    ::

        torch.autograd.set_detect_anomaly(True)
        for x, y in loader:
            train(x, y)

Use instead:
    ::

        for x, y in loader:
            train(x, y)

Reads:
    Operators (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), launching calls and their
    kernels, calls of Python functions, and the environment variables that profkit recorded.

When to ignore this:
    You are looking for an error.

Source:
    "Disable debugging APIs" in PyTorch's Performance Tuning Guide; "Anomaly detection" in
    PyTorch's documentation of ``torch.autograd``; ``PyAnomalyMetadata::store_stack`` in
    ``torch/csrc/autograd/python_anomaly_mode.cpp``; ``CUDA_LAUNCH_BLOCKING`` in the CUDA C++
    Programming Guide; "Debugging ``torch.distributed`` applications".
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.python_calls import python_calls
from profkit.engine.families.reads import find_anomaly_checks
from profkit.index.device.launch_moments import LAUNCH_NS
from profkit.index.distinct import distinct, united
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import HIP
from profkit.rule import (
    DEBUG_SETTINGS,
    MAX_LINES,
    NO_ROW,
    Category,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    dataclass,
    find_costliest_lines,
    format_share,
    in_windows,
    known_locations,
    measure_saving,
    needs,
    regex,
    time_per_step,
    time_with_share,
    times_per_step,
    windows_ns,
)

INFO = RuleInfo(
    id="CFG003",
    name="debug-left-on",
    title="A setting for debugging is on",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a setting is a finding.

    Attributes:
        min_kernels_count: Minimum kernels, to say that launches wait for them.
        min_waited_share: Minimum share of the kernels that end before their launch returns. Without
            the setting none does; clocks of host and GPU differ by microseconds.
    """

    min_kernels_count: int = 20
    min_waited_share: float = 0.98


# Public functions: `gradcheck` and `gradgradcheck`, which calls the former.
_GRADCHECK: Final = regex(r"(^|[/\\])torch[/\\]autograd[/\\]gradcheck\.py\(\d+\): grad")
_COMPILES_NOTHING: Final = "`torch.compile` compiles nothing"
_EFFECTS: Final = {
    "TORCH_DISTRIBUTED_DEBUG": "all ranks compare their arguments before each collective",
    "TORCH_NCCL_BLOCKING_WAIT": "the host waits for each collective",
    "TORCHDYNAMO_DISABLE": _COMPILES_NOTHING,
    "TORCH_COMPILE_DISABLE": _COMPILES_NOTHING,
    "PYTHONDEVMODE": "Python checks each allocation of memory",
    "PYTHONMALLOC": "Python checks each allocation of memory",
}
_FOR_RANKS: Final = ("TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_BLOCKING_WAIT")
_BLOCKING: Final = "each launch waits until its kernel has finished"


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each setting that is on."""
    checks = find_anomaly_checks(ctx)
    checks = checks[in_windows(ctx, checks)]
    if len(checks):
        yield _report_anomaly_checks(ctx, checks)

    yield from _report_gradcheck(ctx)

    launches = _find_blocking_launches(ctx, thresholds)
    if len(launches):
        yield _report_blocking_launches(ctx, launches)

    yield from _report_variables(ctx, blocks=bool(len(launches)))


def _report_anomaly_checks(ctx: Context, checks: Rows) -> Finding:
    # Without the tests their waits disappear too, and these are the larger part on a GPU.
    within = ctx.nearest(checks)[ctx.syncs.rows] != NO_ROW
    work, _ = ctx.launched_by(checks)
    change = ProgramChange(calls=ctx.syncs.rows[within], scaled=((united(checks, work), 0.0),))
    # Neither the stack traces nor what autograd does around the tests are recorded.
    saving = measure_saving(ctx, change, "estimate")

    # A test of one gradient runs three operators.
    n_tests = len(checks) // 3
    spent = covered_by(ctx.events, checks)
    return saving.finding(
        INFO,
        confidence="high",
        message=(
            f"Anomaly detection tests {times_per_step(ctx, n_tests)} whether a gradient is not "
            f"a number: {time_per_step(ctx, spent.total_ns)} on the host "
            f"({format_share(spent.total_ns / windows_ns(ctx))}). The stack trace that it takes of "
            "each operator in the forward pass is not included."
        ),
        fix="Remove `torch.autograd.set_detect_anomaly(True)` or `detect_anomaly()`.",
        locations=known_locations(*ctx.costliest_lines(checks, MAX_LINES)),
        rows=checks,
        n=n_tests,
        evidence={"host_ns": spent.total_ns},
        spans=spent.pairs(),
    )


def _report_gradcheck(ctx: Context) -> Iterator[Finding]:
    for location, rows in ctx.by_line(python_calls(ctx, _GRADCHECK)):
        spent = covered_by(ctx.events, rows)
        saving = measure_saving(ctx, ProgramChange(scaled=((rows, 0.0),)))

        yield saving.finding(
            INFO,
            confidence="high",
            message=(
                f"`gradcheck`{at(location)} runs {times_per_step(ctx, len(rows))}: "
                f"{time_with_share(ctx, spent.total_ns)}."
            ),
            fix="Call `gradcheck` in a test and not in the steps.",
            locations=known_locations(location),
            rows=rows,
            spans=spent.pairs(),
        )


def _find_blocking_launches(ctx: Context, thresholds: Thresholds) -> Rows:
    """Find the launches of kernels in the windows, if they wait for their kernels."""
    events, launches = ctx.events, ctx.launches
    is_kernel = (launches.launch != NO_ROW) & (events.category[launches.work] == Category.KERNEL)
    kernels, launch = launches.work[is_kernel], launches.launch[is_kernel].astype(np.intp)
    # A launch that does not wait mostly returns before its kernel has begun.
    is_waited = events.end_ns[kernels] <= events.end_ns[launch]
    n_min, min_share = thresholds.min_kernels_count, thresholds.min_waited_share
    if len(kernels) < n_min or is_waited.mean() < min_share:
        return np.zeros(0, dtype=np.intp)

    launch = distinct(launch)
    return np.asarray(launch[in_windows(ctx, launch)])


def _report_blocking_launches(ctx: Context, launches: Rows) -> Finding:
    # A launch that does not wait takes a few microseconds, whatever its kernel.
    spent_ns = int(ctx.events.dur_ns[launches].sum())
    factor = min(1.0, len(launches) * LAUNCH_NS / max(1, spent_ns))
    saving = measure_saving(ctx, ProgramChange(scaled=((launches, factor),)), "estimate")

    variable = "AMD_SERIALIZE_KERNEL" if len(HIP.rows(ctx.events)) else "CUDA_LAUNCH_BLOCKING"
    return saving.finding(
        INFO,
        confidence="high",
        message=(
            f"Launches wait until their kernels have finished, as `{variable}=1` makes them: "
            f"{time_per_step(ctx, spent_ns)} on the host "
            f"({format_share(spent_ns / windows_ns(ctx))})."
        ),
        fix=f"Run without `{variable}`.",
        locations=find_costliest_lines(ctx, launches),
        rows=launches,
        evidence={"host_ns": spent_ns},
        spans=covered_by(ctx.events, launches).pairs(),
    )


def _report_variables(ctx: Context, *, blocks: bool) -> Iterator[Finding]:
    """Yield findings on environment variables.

    Args:
        blocks: Whether launches wait, which has a finding already.
    """
    capture = ctx.trace.capture
    if capture is None:
        return

    for name, value in capture.settings.items():
        effect = _EFFECTS.get(name, _BLOCKING)
        # These settings change nothing in a job of one process.
        matters = name not in _FOR_RANKS or (capture.world_size or 1) > 1
        if effect == _BLOCKING:
            # Launches that were seen to wait have a finding with a cost, which says more.
            matters = ctx.has_device_work and not blocks
        if not matters or value not in DEBUG_SETTINGS.get(name, ()):
            continue

        yield INFO.finding(
            severity="note" if effect == _COMPILES_NOTHING else "warning",
            confidence="high",
            message=f"The program ran with `{name}={value}`: {effect}.",
            fix=f"Run without `{name}`.",
            evidence={"value": value},
        )
