"""The time of kernels, or without devices of operators, by the kind of work."""

import numpy as np

from profkit.engine.context import Context
from profkit.engine.windows import windows
from profkit.index.compute.categories import WORK_CATEGORIES, elementwise_rows
from profkit.index.runtime_calls import names_matching
from profkit.model.events import Category, Int64s, Mask, Rows
from profkit.model.report import CategorySummary
from profkit.model.torch_names import FRAMING


def category_times(ctx: Context) -> tuple[CategorySummary, ...]:
    """The time of each category that has any, the longest first."""
    events = ctx.events
    if ctx.has_device_work:
        rows, spent_ns = events.rows_of(Category.KERNEL), events.dur_ns
    else:
        is_op: Mask = events.category == Category.OP
        rows = np.flatnonzero(is_op & ~names_matching(events, FRAMING)[events.name])
        spent_ns = ctx.op_self_ns
    here, time_ns = ctx.work_categories[rows], spent_ns[rows]
    in_steps = _begins_in_step(ctx, rows)
    elementwise = elementwise_rows(events, rows)
    n = len(WORK_CATEGORIES)
    counts = np.bincount(here, minlength=n)
    total, per_step, in_elementwise = (
        _sums(n, here[each], time_ns[each])
        for each in (slice(None), np.flatnonzero(in_steps), np.flatnonzero(elementwise))
    )
    all_ns, n_steps = int(total.sum()), len(ctx.steps)
    return tuple(
        CategorySummary(
            kind=WORK_CATEGORIES[number],
            n_calls=int(counts[number]),
            total_ns=int(total[number]),
            per_step_ns=round(int(per_step[number]) / n_steps) if n_steps else None,
            share=int(total[number]) / all_ns,
            elementwise_ns=int(in_elementwise[number]) if ctx.has_device_work else None,
        )
        for number in np.argsort(-total, kind="stable").tolist()
        if total[number]
    )


def _begins_in_step(ctx: Context, rows: Rows) -> Mask:
    """Which rows begin in a step's time: on the devices where the host runs ahead of them."""
    starts, ends = windows(ctx)
    if not len(starts):
        return np.zeros(len(rows), dtype=np.bool_)
    at_ns = ctx.events.ts_ns[rows]
    place = np.searchsorted(starts, at_ns, side="right") - 1
    return np.asarray((place >= 0) & (at_ns < ends[np.maximum(place, 0)]))


def _sums(n: int, keys: Int64s, weights: Int64s) -> Int64s:
    sums = np.zeros(n, dtype=np.int64)
    np.add.at(sums, keys, weights)
    return sums
