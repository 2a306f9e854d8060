"""Times per step, of work that begins in the time of the steps.

The time of the steps is given by :func:`~profkit.engine.windows.windows`, which the breakdown of
step time divides: on the devices if the host runs ahead of them. Work outside, such as warm-up or
an evaluation between steps, counts in totals alone: divided by the steps it would make each of them
longer than it is. A long call counts in full where it begins.
"""

import numpy as np

from profkit.engine.context import Context
from profkit.engine.windows import windows
from profkit.index.host.steps import NO_STEP, divide_by_steps
from profkit.index.intervals import Intervals, inside
from profkit.model.events import Int32s, Mask, Rows


def device_work_in_steps(ctx: Context, rows: Rows | Int32s) -> Mask:
    """Return which device work begins in the time of a step. Shape of ``rows``.

    Without device work, the time of a step is its time on the host, so that the rows may as
    well be operators.
    """
    if not len(ctx.steps):
        return np.zeros(len(rows), dtype=np.bool_)
    return inside(Intervals(*windows(ctx)), ctx.events.ts_ns[rows])


def calls_in_steps(ctx: Context, rows: Rows | Int32s) -> Mask:
    """Return which calls on the host begin in a step on the host. Shape of ``rows``."""
    return np.asarray(ctx.step_of(rows) != NO_STEP)


def per_step(ctx: Context, in_steps_ns: int) -> int | None:
    """Return a sum over all steps, divided by their number and rounded; None without steps."""
    return divide_by_steps(in_steps_ns, len(ctx.steps))
