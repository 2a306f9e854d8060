"""CFG001 algorithm-search: cuDNN measures the algorithms of convolutions within the steps.

What it finds:
    Convolutions that run several algorithms and wait for each of them, to choose the fastest. That
    is ``torch.backends.cudnn.benchmark = True`` at the first convolution of each shape.

Why it matters:
    The search takes many times as long as the convolution. Once per shape it is the price of
    faster steps, but a recording that contains it shows what no later step does. If shapes change
    from step to step, the search never ends. The cost is what the steps take less in a replay of
    the recording without the measured kernels, their launches and the waits for them. Memory that
    the algorithms need, and libraries that they load, are not in the figure.

How to fix it:
    If later steps search again, pad the inputs to a few sizes, use ``drop_last=True`` in the
    loader, or leave ``torch.backends.cudnn.benchmark`` at ``False``. If only the first step does,
    record later ones.

Example:
    ::

        torch.backends.cudnn.benchmark = True
        for image in images_of_any_size:
            model(image)

Use instead:
    ::

        torch.backends.cudnn.benchmark = True
        for image in images_of_any_size:
            model(pad_to_multiple(image, 128))

Reads:
    Operators (``name``, ``ts_ns`` in nanoseconds), runtime calls within them (``name``, ``ts_ns``
    and ``dur_ns`` in nanoseconds), the kernels that they launched, the steps, source lines.

When to ignore this:
    The program is meant to run long enough with few shapes: then the search pays off.

Source:
    ``torch.backends.cudnn.benchmark`` in PyTorch's documentation; "Enable cuDNN auto-tuner" in
    PyTorch's Performance Tuning Guide; ``cudnnFindConvolutionForwardAlgorithmEx`` in the cuDNN API
    reference; calls as recorded on a V100: an event before and after each algorithm's kernels, a
    wait for the second and ``cudaEventElapsedTime``.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.recording_advice import record_later
from profkit.index.distinct import distinct, united
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import EVENT_SYNC, LAUNCH, rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    Int64s,
    Mask,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    counted,
    dataclass,
    find_costliest_lines,
    format_count,
    format_ns,
    format_share,
    in_windows,
    measure_saving,
    needs,
    regex,
    windows_ns,
)

INFO = RuleInfo(
    id="CFG001",
    name="algorithm-search",
    title="cuDNN measures algorithms within the steps",
    severity="note",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a search is a finding.

    Attributes:
        min_trials_count: Minimum algorithms that one convolution waits for; a single wait has
            another reason.
        min_saved_share: Minimum share of the steps that the search takes.
        min_steps_count: Steps with a search from which it is a warning: a second step may have the
            smaller last batch of a loader.
    """

    min_trials_count: int = 2
    min_saved_share: float = 0.01
    min_steps_count: int = 3


# Also cuDNN's own operators, such as `aten::cudnn_convolution`, within which the search runs.
_CONVOLUTION: Final = regex(r"^aten::\w*conv")


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all searches in the steps."""
    syncs, op = _find_trials(ctx, thresholds)
    if not len(syncs):
        return

    # Reversed, so that np.unique returns the last wait of each convolution: what it launches after
    # that is the convolution itself, by the algorithm that was chosen.
    ops, last = np.unique(op[::-1], return_index=True)
    until_ns = ctx.events.end_ns[syncs[::-1][last]]
    calls, work = _find_measured(ctx, ops, until_ns)
    change = ProgramChange(calls=syncs, scaled=((united(calls, work), 0.0),))
    saving = measure_saving(ctx, change)
    if not saving.reaches(thresholds.min_saved_share):
        return

    # A search in one step is part of a warm-up; in several, sizes change all the time.
    n_steps = len(distinct(ctx.step_of(syncs))) if len(ctx.steps) else 0
    is_repeated = n_steps >= thresholds.min_steps_count
    locations = find_costliest_lines(ctx, op, ctx.events.dur_ns[syncs])
    saved_ns = saving.cost.ns or 0
    steps = f" in {counted(n_steps, 'step')} of {format_count(len(ctx.steps))}" if n_steps else ""

    yield saving.finding(
        INFO,
        severity="warning" if is_repeated else "note",
        confidence="high",
        message=(
            f"{counted(len(ops), 'convolution')}{at_first(locations)} "
            f"measured {counted(len(syncs), 'algorithm')}{steps}, which took "
            f"{format_ns(saved_ns)} ({format_share(saved_ns / windows_ns(ctx))})."
        ),
        fix=(
            "Pad the inputs to a few sizes, or set `torch.backends.cudnn.benchmark = False`: each "
            "new shape is measured again."
            if is_repeated
            else f"{record_later(ctx)} If the program is as short as this, set "
            "`torch.backends.cudnn.benchmark = False`."
        ),
        locations=locations,
        rows=syncs,
        n=len(ops),
        evidence={
            "n_algorithms": len(syncs),
            "n_steps": n_steps,
            "waits_ns": int(ctx.events.dur_ns[syncs].sum()),
        },
        spans=covered_by(ctx.events, syncs).pairs(),
    )


def _find_trials(ctx: Context, thresholds: Thresholds) -> tuple[Rows, Rows]:
    """Find the waits for single algorithms in time order, and the convolution of each."""
    events = ctx.events
    syncs = EVENT_SYNC.rows(events)
    syncs = syncs[np.argsort(events.ts_ns[syncs], kind="stable")]
    op = ctx.innermost_op[syncs].astype(np.intp)

    # As an index NO_ROW is the last event, so calls outside of operators are excluded first.
    is_trial = (op != NO_ROW) & rows_named(events, _CONVOLUTION, Category.OP)[op]
    is_trial[is_trial] = in_windows(ctx, syncs[is_trial])
    _, group, count = np.unique(op, return_inverse=True, return_counts=True)
    is_trial &= count[group] >= thresholds.min_trials_count
    return syncs[is_trial], op[is_trial]


def _find_measured(ctx: Context, ops: Rows, until_ns: Int64s) -> tuple[Rows, Rows]:
    """Find the launches of searches, and their work.

    Args:
        ops: The convolutions, ascending.
        until_ns: End of the last wait of each; the convolution itself follows.
    """
    events, launches = ctx.events, ctx.launches

    def is_measured(rows: Rows) -> Mask:
        op = ctx.innermost_op[rows]
        place = np.minimum(np.searchsorted(ops, op), len(ops) - 1)
        return np.asarray((ops[place] == op) & (events.ts_ns[rows] < until_ns[place]))

    # A cold launch loads code or a library, which the chosen algorithm may need too.
    calls = np.setdiff1d(LAUNCH.rows(events), ctx.cold_calls)
    launched = np.flatnonzero(launches.launch != NO_ROW)
    work = launches.work[launched[is_measured(launches.launch[launched].astype(np.intp))]]
    return calls[is_measured(calls)], work
