"""COM009 sync-in-accumulation: gradients are reduced before they are complete.

What it finds:
    Training with gradient accumulation in ``DistributedDataParallel``: the model runs several times
    per optimizer step, and more than one of these passes reduces gradients over the ranks.

Why it matters:
    The optimizer needs the sum of all passes. Reducing after each of them moves all gradients as
    many times as there are passes, where once is enough. The cost is what the steps take less in a
    replay without the collectives of all passes but the last one per optimizer step.

How to fix it:
    Run all passes but the last one in ``model.no_sync()``, the forward pass included.

Example:
    ::

        for i, (x, y) in enumerate(micro_batches):
            loss_fn(model(x), y).backward()
        optimizer.step()

Use instead:
    ::

        for i, (x, y) in enumerate(micro_batches):
            is_last = i + 1 == len(micro_batches)
            with nullcontext() if is_last else model.no_sync():
                loss_fn(model(x), y).backward()
        optimizer.step()

Reads:
    Annotations of ``DistributedDataParallel.forward`` and of optimizer steps, the all-reduces that
    hooks of gradients start, and their times on the device or on host threads (``ts_ns`` and
    ``dur_ns`` in nanoseconds).

When to ignore this:
    ``no_sync()`` keeps the whole gradients of all passes on each rank, which FSDP may have no
    memory for. Programs whose optimizer is not one of PyTorch's have no optimizer steps to tell
    passes by.

Source:
    ``DistributedDataParallel.no_sync`` in PyTorch's documentation; "Skip unnecessary all-reduce if
    training with DistributedDataParallel and gradient accumulation" in PyTorch's performance tuning
    guide.
"""

import re
from collections.abc import Iterator

import numpy as np

from profkit.engine.families.collectives.gradients import reduced_by_hooks
from profkit.engine.families.collectives.waits import (
    CollectiveWaits,
    find_device_waits,
    find_host_waits,
)
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_by, intersect
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    Category,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    dataclass,
    format_times,
    known_locations,
    measure_saving,
    needs,
    time_per_step,
    torch_names,
)

INFO = RuleInfo(
    id="COM009",
    name="sync-in-accumulation",
    title="Gradients are reduced in each pass of an accumulation",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When it is a finding.

    Attributes:
        min_passes_count: Minimum of the passes that reduce gradients per optimizer step, on
            average. A recording that begins within a step has a little more than one.
        warning_share: Share of the steps that a fix can save from which it is a warning: from one
            percent on, a change is worth the edit.
    """

    min_passes_count: float = 1.5
    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for collectives on a device, and one for collectives on host threads."""
    forwards = _find_annotations(ctx, torch_names.DISTRIBUTED_DATA_PARALLEL_FORWARD)
    updates = _find_annotations(ctx, torch_names.OPTIMIZER_STEP)
    if len(forwards) < 2 or not len(updates):  # noqa: PLR2004  (nothing is accumulated)
        return
    for waits in (find_device_waits(ctx), find_host_waits(ctx)):
        if waits is not None:
            yield from _build_findings(ctx, waits, forwards, updates, thresholds)


def _find_annotations(ctx: Context, pattern: re.Pattern[str]) -> Rows:
    """Find annotations by name, in the order of their start."""
    # torch 1.8 to 1.10 write annotations as operators.
    rows = np.flatnonzero(rows_named(ctx.events, pattern, Category.ANNOTATION, Category.OP))
    return rows[np.argsort(ctx.events.ts_ns[rows], kind="stable")]


def _build_findings(
    ctx: Context, waits: CollectiveWaits, forwards: Rows, updates: Rows, thresholds: Thresholds
) -> Iterator[Finding]:
    events = ctx.events
    reduction = np.flatnonzero(reduced_by_hooks(ctx, waits))
    started_ns = events.ts_ns[waits.starter[reduction]]

    # The pass that reduces, and the next optimizer step. Without a next step, it may be the last.
    forward = np.searchsorted(events.ts_ns[forwards], started_ns, side="right") - 1
    update = np.searchsorted(np.sort(events.ts_ns[updates]), started_ns)
    is_complete = (forward >= 0) & (update < len(updates))
    reduction, forward, update = reduction[is_complete], forward[is_complete], update[is_complete]
    if not len(reduction):
        return

    passes, updated = distinct(forward), distinct(update)
    if len(passes) < thresholds.min_passes_count * len(updated):
        return

    # Only the last pass before an update has to reduce.
    last_forward = np.zeros(len(updates), dtype=np.int64)
    np.maximum.at(last_forward, update, forward)
    is_early = forward < last_forward[update]
    if not is_early.any():
        return

    rows = waits.rows[reduction[is_early]]
    if waits.device is None:
        early = intersect(waits.waited, covered_by(events, rows))
        change = ProgramChange(host_time=early.pairs())
    else:
        change = ProgramChange(scaled=((rows.astype(np.intp), 0.0),))
    saving = measure_saving(ctx, change)

    location = ctx.location(int(forwards[passes[0]]))
    n_passes = len(passes) / len(updated)
    spent_ns = covered_by(events, rows).total_ns
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high" if len(updated) > 1 else "medium",
        message=(
            f"The model{at(location)} reduces its gradients about {format_times(round(n_passes))} "
            f"per optimizer step: all but the last pass take {time_per_step(ctx, spent_ns)} of "
            "collectives that are not needed."
        ),
        fix="Run all passes but the last one before `optimizer.step()` in `model.no_sync()`.",
        locations=known_locations(location),
        rows=rows,
        evidence={
            "n_passes": len(passes),
            "n_updates": len(updated),
            "device": waits.device,
        },
        spans=covered_by(events, rows).pairs(),
    )
