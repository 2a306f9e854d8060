"""The time of kernels, or without devices of operators, by the kind of work."""

import numpy as np

from profkit.engine.context import Context
from profkit.engine.figures.per_step import device_work_in_steps, per_step
from profkit.index.compute.categories import WORK_CATEGORIES, elementwise_rows
from profkit.index.runtime_calls import names_matching
from profkit.index.sums import sum_by_key
from profkit.model.events import Category, Mask
from profkit.model.torch_names import FRAMING
from profkit.model.work_summary import CategorySummary


def summarize_categories(ctx: Context) -> tuple[CategorySummary, ...]:
    """Sum the time of each category that has any, the longest first."""
    events = ctx.events
    if ctx.has_device_work:
        rows, spent_ns = events.kernels, events.dur_ns
    else:
        # Without devices, operators stand for kernels, each with its own time.
        is_op: Mask = events.category == Category.OP
        rows = np.flatnonzero(is_op & ~names_matching(events, FRAMING)[events.name])
        spent_ns = ctx.op_self_ns

    category, time_ns = ctx.work_categories[rows], spent_ns[rows]
    in_steps = device_work_in_steps(ctx, rows)
    elementwise = elementwise_rows(events, rows)

    n = len(WORK_CATEGORIES)
    counts = np.bincount(category, minlength=n)
    total, of_steps, in_elementwise = (
        sum_by_key(n, category[selection], time_ns[selection])
        for selection in (slice(None), np.flatnonzero(in_steps), np.flatnonzero(elementwise))
    )

    all_ns = int(total.sum())
    return tuple(
        CategorySummary(
            kind=WORK_CATEGORIES[number],
            n_calls=int(counts[number]),
            total_ns=int(total[number]),
            per_step_ns=per_step(ctx, int(of_steps[number])),
            share=int(total[number]) / all_ns,
            elementwise_ns=int(in_elementwise[number]) if ctx.has_device_work else None,
        )
        for number in np.argsort(-total, kind="stable").tolist()
        if total[number]
    )
