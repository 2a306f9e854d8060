"""PRF001 no-warm-up: the recording begins with a step that is not like the others.

What it finds:
    A first step that took much longer than the rest.

Why it matters:
    In the first steps of a program libraries load their kernels, cuDNN tries its algorithms, the
    allocator fills its cache and loader workers start; and the profiler itself is slow when it
    begins. Means over all steps then say what the program does once, not what it does for hours.

How to fix it:
    Record later: skip some steps and let the profiler warm up for one.

Example:
    ::

        with profkit.trace("train", active=3) as t:

Use instead:
    ::

        with profkit.trace("train", wait=2, warmup=1, active=3) as t:

Reads:
    The steps (``starts_ns`` and ``ends_ns`` in nanoseconds).

When to ignore this:
    A program may do more in some steps on purpose, such as an evaluation, and the recording may
    have begun with one of them.

Source:
    ``torch.profiler.schedule`` in PyTorch's documentation (``warmup``); "CUDA module loading" in
    the CUDA C++ Programming Guide; ``torch.backends.cudnn.benchmark``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.model.finding import Finding
from profkit.units import format_ns

INFO = RuleInfo(
    id="PRF001",
    name="no-warm-up",
    title="The first step is not like the others",
    severity="note",
    needs=(needs.STEPS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a first step is out of line.

    Attributes:
        min_steps_count: Steps to compare: with two, either may be the odd one.
        min_ratio_share: Length of the first step as a share of the median of the rest. At one and
            a half it moves the mean of three steps by a sixth.
        min_excess_ns: How much longer than the median of the rest. What a profiler does once as it
            begins, and what a processor does once in a while, is up to a millisecond.
        max_spread_share: Longest of the rest as a share of their median: where steps differ so
            much among themselves, a long first one means nothing.
    """

    min_steps_count: int = 3
    min_ratio_share: float = 1.5
    min_excess_ns: int = 1_000_000
    max_spread_share: float = 1.4


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding if the first step is much longer than the rest."""
    lengths = ctx.steps.ends_ns - ctx.steps.starts_ns
    if len(lengths) < thresholds.min_steps_count:
        return
    first, rest = int(lengths[0]), float(np.median(lengths[1:]))
    is_long = first >= max(thresholds.min_ratio_share * rest, rest + thresholds.min_excess_ns)
    if not is_long or lengths[1:].max() > thresholds.max_spread_share * rest:
        return
    yield INFO.finding(
        severity="note",
        confidence="high" if len(lengths) > thresholds.min_steps_count else "medium",
        message=(
            f"The first step, {ctx.steps.names[0]}, took {format_ns(first)}, the others "
            f"{format_ns(rest)}: figures per step include what only happens once."
        ),
        fix="Record later steps: `profkit.trace(..., wait=2, warmup=1, active=3)`.",
        evidence={"first_ns": first, "others_median_ns": round(rest)},
    )
