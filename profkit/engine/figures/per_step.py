"""Times per step, of work that begins in the time of the steps.

The time of the steps is given by :func:`~profkit.engine.windows.windows`, which the breakdown of
step time divides: on the devices if the host runs ahead of them. Work outside, such as warm-up or
an evaluation between steps, counts in totals alone: divided by the steps it would make each of them
longer than it is. A long call counts in full where it begins.
"""

import numpy as np

from profkit.engine.context import Context
from profkit.engine.windows import windows
from profkit.index.host.steps import NO_STEP
from profkit.model.events import Int32s, Mask, Rows


def device_work_in_steps(ctx: Context, rows: Rows | Int32s) -> Mask:
    """Return which device work begins in the time of a step. Shape of ``rows``.

    Without device work, the time of a step is its time on the host, so that the rows may as
    well be operators.
    """
    starts, ends = windows(ctx)
    if not len(ctx.steps):
        return np.zeros(len(rows), dtype=np.bool_)

    at_ns = ctx.events.ts_ns[rows]
    place = np.searchsorted(starts, at_ns, side="right") - 1
    return np.asarray((place >= 0) & (at_ns < ends[np.maximum(place, 0)]))


def calls_in_steps(ctx: Context, rows: Rows | Int32s) -> Mask:
    """Return which calls on the host begin in a step on the host. Shape of ``rows``."""
    return np.asarray(ctx.step_of(rows) != NO_STEP)


def per_step(ctx: Context, in_steps_ns: int) -> int | None:
    """Return a sum over all steps, divided by their number and rounded; None without steps."""
    n_steps = len(ctx.steps)
    return round(in_steps_ns / n_steps) if n_steps else None
