"""PRF011 unknown-events: the trace has events that profkit does not know.

What it finds:
    Events that are neither operators, calls, Python functions, regions nor device work, by their
    category and by their name: those of profilers and converters other than PyTorch's.

Why it matters:
    They are in no figure. Where they are the work of an accelerator, its busy and idle time are
    missing, and what is left looks like a program that runs on the CPU alone.

How to fix it:
    Look at these events in Perfetto. Where PyTorch's own profiler supports the device, record with
    it: it writes device work as ``kernel``, ``gpu_memcpy`` and ``gpu_memset``.

Example:
    ::

        {"ph": "X", "name": "MatMulV2", "pid": 3, "tid": 3, "ts": 12.0, "dur": 41.4}

Use instead:
    ::

        {"ph": "X", "cat": "kernel", "name": "MatMulV2", "pid": 3, "tid": 3, "ts": 12.0,
         "dur": 41.4}

Reads:
    The categories of all events, as known and as written, and the names of their processes.

When to ignore this:
    The events are marks of a tool, and no work.

Source:
    ``libkineto/include/ActivityType.h``, which has the categories that PyTorch's profiler writes.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.rule import (
    WITHOUT_WORK,
    Category,
    Context,
    Finding,
    Rows,
    RuleInfo,
    dataclass,
    event_ids,
    format_count,
    format_share,
    middle_cut,
    needs,
)

INFO = RuleInfo(
    id="PRF011",
    name="unknown-events",
    title="Trace contains events of unknown kinds",
    severity="warning",
    needs=(needs.TRACE,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)
_MAX_NAMED: Final = 3
_MAX_NAME: Final = 40


@dataclass(frozen=True)
class Thresholds:
    """When unknown events matter.

    Attributes:
        min_unknown_share: Minimum share of all events; below a hundredth they are marks.
    """

    min_unknown_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if many events are of unknown kinds."""
    events = ctx.events
    rows = events.rows_of(Category.OTHER)
    counts = ctx.trace.notes.categories
    # Kineto describes some work a second time, in categories of their own.
    n = len(rows) - sum(count for text, count in counts.items() if text.lower() in WITHOUT_WORK)
    if n <= 0 or n < thresholds.min_unknown_share * len(events):
        return

    yield INFO.finding(
        confidence="high",
        message=(
            f"{format_count(n)} of {format_count(len(events))} events "
            f"({format_share(n / len(events))}) are of kinds that profkit does not know, and are "
            f"in no figure{_name_processes(ctx, rows)}."
        ),
        fix=(
            "If they are work of a device, its busy and idle time are not in this report: look at "
            "them in ui.perfetto.dev, or record with a `torch.profiler` that supports the device."
        ),
        n=n,
        evidence={"events": event_ids(ctx, rows)},
    )


def _name_processes(ctx: Context, rows: Rows) -> str:
    """Name the processes with most of some events: ``, such as those of `CANN```."""
    n_of_lane = np.bincount(ctx.events.lane[rows], minlength=len(ctx.events.lanes)).tolist()
    n_by_process: dict[str, int] = {}
    for lane, n in zip(ctx.events.lanes, n_of_lane, strict=True):
        if n and lane.process:
            n_by_process[lane.process] = n_by_process.get(lane.process, 0) + n
    names = sorted(n_by_process, key=lambda name: (-n_by_process[name], name))[:_MAX_NAMED]
    listed = ", ".join(f"`{middle_cut(name, _MAX_NAME)}`" for name in names)
    return f", such as those of {listed}" if listed else ""
