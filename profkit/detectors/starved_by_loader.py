"""DAT001 starved-by-loader: the program waits for its next batch while the device has no work.

What it finds:
    Steps that spend a large part of their time in a loader's ``__next__`` (or in the wait that
    ``profkit.steps`` measures), while no device works. The wait of the first step alone, when
    workers start, is not counted against a program.

Why it matters:
    With ``num_workers=0`` each batch is read and put together in the main process, between two
    steps, and nothing is launched meanwhile. With too few workers, or slow ones, the program waits
    for them. All of that time is missing in the step. The cost is the time of the loader in the
    steps; where the device still had work, only the idle part of it comes back, which the message
    gives too.

How to fix it:
    Give the loader workers, so that the next batches are made while the device works, and let them
    live on and pin their memory. If it has workers already: more of them, a larger
    ``prefetch_factor``, or less work for each sample.

Example:
    ::

        loader = DataLoader(dataset, batch_size=32)

Use instead:
    ::

        loader = DataLoader(dataset, batch_size=32, num_workers=4, persistent_workers=True,
                            pin_memory=True)

Reads:
    Annotations of the loader (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the steps, the
    devices' busy time in nanoseconds, the user's lines.

When to ignore this:
    On a machine without spare cores workers take time from the main process. Where the data cannot
    be read any faster, workers only hide a part of the wait.

Source:
    ``torch.utils.data.DataLoader`` (``num_workers``, ``prefetch_factor``, ``persistent_workers``)
    in PyTorch's documentation; "Enable asynchronous data loading and augmentation" in PyTorch's
    Performance Tuning Guide; the annotation is written by ``torch/utils/data/dataloader.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import MAX_EVENT_IDS, event_ids, idle_in_windows, windows_ns
from profkit.engine.wording import at, known_locations, time_per_step
from profkit.index.intervals import covered_by, covered_within, intersect, take_from_start
from profkit.model.finding import Finding
from profkit.units import format_ns, format_share

INFO = RuleInfo(
    id="DAT001",
    name="starved-by-loader",
    title="The program waits for its next batch",
    severity="warning",
    needs=(needs.STEPS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a wait for data is a finding.

    Attributes:
        min_step_share: Share of a step that must pass in the loader with every device idle. A
            loader without workers that only has to copy a small batch stays below a tenth; what is
            above it is worth the workers.
        min_steps_share: Share of the steps in which that must be so. One step in six is a hiccup,
            such as workers that start; half of them is a habit.
    """

    min_step_share: float = 0.1
    min_steps_share: float = 0.5


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding if the steps wait for data."""
    steps = ctx.steps
    rows = ctx.data_waits[ctx.step_of(ctx.data_waits) >= 0]
    if not len(rows):
        return
    waiting = covered_by(ctx.events, rows)
    starved = intersect(waiting, idle_in_windows(ctx)) if ctx.has_device_work else waiting
    starved_ns = covered_within(starved, steps.starts_ns, steps.ends_ns)
    length_ns = np.maximum(steps.ends_ns - steps.starts_ns, 1)
    hit = starved_ns >= thresholds.min_step_share * length_ns
    if hit.mean() < thresholds.min_steps_share or not _more_than_the_first(hit):
        return
    waited_ns = covered_within(waiting, steps.starts_ns, steps.ends_ns)
    total_ns, idle_ns = int(waited_ns.sum()), int(starved_ns.sum())
    location = next(location for location, _ in ctx.by_line(rows))
    loader = ctx.events.name_of(int(rows[0]))
    yield INFO.finding(
        severity="warning",
        confidence="high" if len(steps) > 1 else "low",
        message=_message(ctx, at(location), total_ns, idle_ns),
        fix=_fix(loader),
        locations=known_locations(location),
        n=len(rows),
        cost=ctx.cost(total_ns, basis="upper-bound" if ctx.has_device_work else "measured"),
        evidence={
            "loader": loader,
            "loader_ns": waited_ns[:MAX_EVENT_IDS].tolist(),
            "device_idle_ns": starved_ns[:MAX_EVENT_IDS].tolist() if ctx.has_device_work else None,
            "events": event_ids(ctx, rows),
        },
        claims=take_from_start(waiting, steps.starts_ns, steps.ends_ns, waited_ns),
    )


def _more_than_the_first(hit: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> bool:
    """Whether a later step waits too, or there is no later step."""
    return bool(hit[1:].any()) or len(hit) == 1


def _message(ctx: Context, place: str, total_ns: int, idle_ns: int) -> str:
    share = format_share(total_ns / windows_ns(ctx))
    text = f"The loop{place} waits {time_per_step(ctx, total_ns)} for its next batch ({share})"
    if ctx.has_device_work:
        return f"{text}; during {format_ns(idle_ns / len(ctx.steps))} of it the GPU has no work."
    return f"{text}."


def _fix(loader: str) -> str:
    if "MultiProcessing" in loader:
        return (
            "The loader's workers are too slow: raise `num_workers` or `prefetch_factor`, or do "
            "less for each sample in the dataset's `__getitem__`."
        )
    if "SingleProcess" in loader:
        return (
            "The batches are made in the main process: write `DataLoader(..., num_workers=4, "
            "persistent_workers=True, pin_memory=True)`, so that they are made while the model "
            "works, or do less for each sample in the dataset's `__getitem__`."
        )
    return (
        "Make the next batch while the model works: in a `DataLoader` with `num_workers`, or in a "
        "thread that fills a queue."
    )
