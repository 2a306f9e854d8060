"""PRF004 lost-device-events: the recording lacks work that was launched.

What it finds:
    Calls that launched a kernel which is not in the recording; kernels within a stream whose launch
    is missing; and errors and warnings that the profiler itself wrote into the file.

Why it matters:
    Every figure of a device rests on its events. Where they are missing the device looks idle,
    and findings about idle time are wrong.

How to fix it:
    Record a shorter window, with nothing else profiling the device. Where all kernels are missing,
    the profiler had no access to the device's counters: another profiler held them, or the driver
    refused.

Example:
    ::

        nsys profile python train.py   # and torch.profiler inside: both want the same counters

Use instead:
    ::

        profkit run train.py

Reads:
    Launching calls and kernels (``correlation``, ``ts_ns`` in nanoseconds), the profiler's
    messages.

When to ignore this:
    Launches while a CUDA graph is captured run nothing; those between the calls that begin and end
    a capture are left out. The last launches of a recording may run after its end, and are too.

Source:
    ``libkineto/src/CuptiActivityProfiler.cpp`` (events outside the window, dropped records,
    messages); ``cuptiActivityFlushAll`` in CUPTI's documentation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import event_ids
from profkit.index.device.orphans import launches_without_work, orphans_with_lost_launch
from profkit.model.finding import Finding
from profkit.units import format_count, format_share

INFO = RuleInfo(
    id="PRF004",
    name="lost-device-events",
    title="The recording lacks work of the GPU",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When missing events matter.

    Attributes:
        min_lost_share: Share of the launches or kernels that must be missing. Kineto drops a few
            at the edges of every recording; a hundredth moves a figure.
        min_lost_count: And how many at least, for short recordings.
    """

    min_lost_share: float = 0.01
    min_lost_count: int = 5


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for missing kernels, one for missing launches, one for messages."""
    launching, without = launches_without_work(ctx.events, ctx.launches)
    if _many(len(without), len(launching), thresholds):
        yield _finding(
            ctx,
            without,
            f"{format_count(len(without))} of {format_count(len(launching))} launches have no "
            f"kernel in the recording ({format_share(len(without) / len(launching))}): the GPU "
            "looks more idle than it was.",
        )
    lost = orphans_with_lost_launch(ctx.events, ctx.launches)
    n_work = len(ctx.launches.work)
    if _many(len(lost), n_work, thresholds):
        yield _finding(
            ctx,
            lost,
            f"{format_count(len(lost))} of {format_count(n_work)} kernels, copies and fills have "
            f"no launch in the recording ({format_share(len(lost) / n_work)}): their lines cannot "
            "be named.",
        )
    messages = ctx.trace.notes.messages
    told = [text for level in ("ERROR", "WARNING") for text in messages.get(level, ())]
    if told:
        said = f"The profiler wrote into the recording: “{told[0].strip()}”."
        yield _finding(ctx, np.zeros(0, np.intp), said, told)


def _many(n_lost: int, n_all: int, thresholds: Thresholds) -> bool:
    return n_lost >= thresholds.min_lost_count and n_lost >= thresholds.min_lost_share * n_all


def _finding(
    ctx: Context,
    rows: "np.ndarray[tuple[int], np.dtype[np.intp]]",
    message: str,
    told: list[str] | None = None,
) -> Finding:
    return INFO.finding(
        severity="note" if told else "warning",
        confidence="low" if told else "high",
        message=message,
        fix=(
            "Record fewer steps, close other profilers (nsys, ncu, dcgm), and see "
            "`profkit doctor` for what the driver allows."
        ),
        n=max(1, len(rows), len(told or ())),
        evidence={"messages": told} if told else {"events": event_ids(ctx, rows)},
    )
