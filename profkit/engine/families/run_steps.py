"""How the recorded steps compare with all steps of a monitored run."""

from typing import Final

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.windows import windows
from profkit.model.location import Location

FIX_RESTARTS: Final = (
    "If each epoch starts the loader's workers anew, keep them by `persistent_workers=True`, or "
    "use `num_workers=0` for data in memory."
)
MIN_RESTARTS: Final = 3
"""Fewer starts of workers after the first one say little of a run."""
MIN_STEPS: Final = 30
"""One long pause dominates fewer."""
UNTYPICAL: Final = 2.0
"""From this ratio on more than half of a run is outside of steps like the recorded ones."""


@dataclass(frozen=True)
class RunSteps:
    """The steps of a run beside the recorded ones.

    Attributes:
        n_steps: Steps of the run after the first sample of the memory.
        mean_ns: Their mean, without time that profkit takes and time without a core.
        recorded_ns: The mean of the recorded steps.
        ratio: ``mean_ns`` divided by the longest recorded step.
    """

    n_steps: int
    mean_ns: float
    recorded_ns: float
    ratio: float


def compare_with_run(ctx: Context) -> RunSteps | None:
    """Compare the recorded steps with those of the run; None where it was not monitored."""
    n_steps, spent_ns = measure_run(ctx)
    starts_ns, ends_ns = windows(ctx)
    if not n_steps or not len(starts_ns):
        return None

    mean_ns, lengths_ns = spent_ns / n_steps, ends_ns - starts_ns
    longest_ns = max(1, int(lengths_ns.max()))
    return RunSteps(n_steps, mean_ns, float(lengths_ns.mean()), mean_ns / longest_ns)


def measure_run(ctx: Context) -> tuple[int, int]:
    """Return the steps of a monitored run after the first sample of the memory, and their time.

    Time that profkit takes and time without a core are no part of it.
    """
    live = ctx.live
    if live is None or len(live.samples) == 0:
        return 0, 0
    first, last = live.samples[0], live.samples[-1]
    spent_ns = (last.ts_ns - last.own_ns) - (first.ts_ns - first.own_ns)
    return max(0, last.step - first.step), spent_ns


def find_restart_share(ctx: Context) -> float:
    """Return the share of a monitored run that starting a loader's workers anew takes."""
    restarts = None if ctx.live is None else ctx.live.worker_restarts
    n_steps, spent_ns = measure_run(ctx)
    if restarts is None or not n_steps:
        return 0.0
    return min(1.0, restarts.ns / max(1, spent_ns))


def measure_restarts_of_loop(ctx: Context, loop: Location) -> int:
    """Return the time per step of the run in which a loop waits for its loader's new workers.

    Args:
        loop: The line that iterates over the loader.

    Returns:
        0 where it starts none, or too few to say much of the run.
    """
    restarts = None if ctx.live is None else ctx.live.worker_restarts
    n_steps, _ = measure_run(ctx)
    if restarts is None or restarts.n < MIN_RESTARTS or not n_steps:
        return 0
    # Stacks of torch name files without their folders, and the first line of a function.
    frame = restarts.frame
    is_place = loop.function == frame.function or loop.line == frame.line
    is_loop = loop.file is None or (frame.file.endswith(loop.file) and is_place)
    return round(restarts.ns / n_steps) if is_loop else 0


def is_mostly_elsewhere(ctx: Context) -> bool:
    """Return whether most of a run is outside of steps like the recorded ones."""
    run = compare_with_run(ctx)
    return run is not None and run.n_steps >= MIN_STEPS and run.ratio >= UNTYPICAL
