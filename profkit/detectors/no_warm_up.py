"""PRF001 no-warm-up: the first recorded step includes warm-up.

What it finds:
    A first step that takes much longer than the others. Where the set-up of libraries or
    compilation explains it, cold-start or compile-in-window reports that instead.

Why it matters:
    In the first steps libraries load their kernels, cuDNN benchmarks its algorithms, the allocator
    fills its cache and loader workers start; the profiler is slow when it starts, too. Averages
    over all steps then include costs that occur once.

How to fix it:
    Record later: skip some steps and let the profiler warm up for one.

Example:
    ::

        with profkit.trace("train", active=3) as t:

Use instead:
    ::

        with profkit.trace("train", wait=2, warmup=1, active=3) as t:

Reads:
    The steps (``starts_ns`` and ``ends_ns`` in nanoseconds), on the devices where the host runs
    ahead of them, calls of the runtime that set up libraries, and compilations.

When to ignore this:
    Some steps do more work on purpose, such as an evaluation, and the recording began with one.

Source:
    ``torch.profiler.schedule`` in PyTorch's documentation (``warmup``); "CUDA module loading" in
    the CUDA C++ Programming Guide; ``torch.backends.cudnn.benchmark``.
"""

from collections.abc import Iterator
from functools import reduce

import numpy as np

from profkit.engine.families.compile import compile_times
from profkit.engine.families.recording_advice import record_later
from profkit.index.intervals import covered_by, covered_within, unite
from profkit.rule import Context, Finding, RuleInfo, dataclass, format_ns, needs, windows

INFO = RuleInfo(
    id="PRF001",
    name="no-warm-up",
    title="First step includes warm-up",
    severity="note",
    needs=(needs.STEPS,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


@dataclass(frozen=True)
class Thresholds:
    """When a first step is an outlier.

    Attributes:
        min_steps_count: Minimum steps: with two, either may be the outlier.
        min_ratio_share: Minimum duration of the first step as a share of the median of the others.
            At 1.5 it changes the mean of three steps by a sixth.
        min_excess_ns: Minimum excess over the median of the others. The start of a profiler and
            other tasks of the machine take up to a millisecond.
        max_spread_share: Maximum of the longest other step as a share of their median: where steps
            differ more, a long first one means nothing.
        max_cold_share: Share of the excess that setting up libraries and compiling take, from which
            they explain it.
        max_delayed_share: Share of the recording in which the thread had no core, from which steps
            differ by chance.
    """

    min_steps_count: int = 3
    min_ratio_share: float = 1.5
    min_excess_ns: int = 1_000_000
    max_spread_share: float = 1.4
    max_cold_share: float = 0.5
    max_delayed_share: float = 0.1


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the first step is much longer than the others."""
    starts, ends = windows(ctx)
    lengths = ends - starts
    if len(lengths) < thresholds.min_steps_count:
        return
    # A step may be long because other programs took its core, which busy-machine reports.
    capture = ctx.trace.capture
    cpu = None if capture is None else capture.cpu
    if cpu is not None and cpu.delayed_share >= thresholds.max_delayed_share:
        return

    # Where the other steps differ as much, the first one is not special.
    first_ns, usual_ns = int(lengths[0]), float(np.median(lengths[1:]))
    min_ratio, min_excess_ns = thresholds.min_ratio_share, thresholds.min_excess_ns
    is_long = first_ns >= max(min_ratio * usual_ns, usual_ns + min_excess_ns)
    if not is_long or lengths[1:].max() > thresholds.max_spread_share * usual_ns:
        return

    # Compilation and cold calls have rules of their own, which name the cause.
    once = reduce(unite, compile_times(ctx).values(), covered_by(ctx.events, ctx.cold_calls))
    once_ns = covered_within(once, starts[:1], ends[:1])[0]
    if once_ns >= thresholds.max_cold_share * (first_ns - usual_ns):
        return

    yield INFO.finding(
        confidence="high" if len(lengths) > thresholds.min_steps_count else "medium",
        message=(
            f"The first step, {ctx.steps.names[0]}, takes {format_ns(first_ns)}, the others take "
            f"{format_ns(usual_ns)}. Averages per step include one-time costs."
        ),
        fix=record_later(ctx),
        evidence={"first_ns": first_ns, "others_median_ns": round(usual_ns)},
    )
