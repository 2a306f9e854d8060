"""CPU003 slowing-steps: each step takes longer than the one before.

What it finds:
    Programs whose step time grows over the whole run. It is measured between the ends of steps at
    which the memory was looked at, over all steps and not only over recorded ones. The run is
    divided into eight parts of as many steps; of each the fastest quarter counts, so that
    evaluations, checkpoints, pauses and other programs do not. The times must grow from part to
    part, and neither at once nor in the first half alone.

Why it matters:
    Something that each step goes through has grown: a list, a tensor to which rows are added, an
    autograd graph over all steps, hooks that the loop registers again. Time grows with the square
    of the number of steps, and a recording of early steps does not show it.

How to fix it:
    Limit what grows, or go through its new part only: keep running sums instead of all values,
    ``.detach()`` the state between steps, register hooks before the loop.

Example:
    ::

        losses.append(loss.item())
        mean = sum(losses) / len(losses)

Use instead:
    ::

        total += loss.item()
        mean = total / (step + 1)

Reads:
    The samples of monitored memory (``step``, ``ts_ns`` and ``own_ns`` in nanoseconds), leaks and
    their holders.

When to ignore this:
    The work of a step grows as intended: longer sequences, a replay buffer that is searched.

Source:
    Arithmetic: n steps of which each takes longer by a constant take longer by n² / 2 of it.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.leaks.messages import holder_name, leak_location, quoted
from profkit.rule import (
    Context,
    Finding,
    Float64s,
    RuleInfo,
    dataclass,
    format_count,
    format_ns,
    format_share,
    known_locations,
    needs,
)

INFO = RuleInfo(
    id="CPU003",
    name="slowing-steps",
    title="Each step takes longer than the one before",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When growing step times are a finding.

    Attributes:
        min_steps_count: Minimum steps: of fewer, each part has too few to judge.
        min_ratio: Minimum ratio of the last part's step time to the first part's. Seven changes of
            the 5% by which clocks and caches move step times amount to 1.43.
        max_jump_share: Maximum share of the growth between two parts. Even of times that double
            from part to part it is half; more is another program, or another phase of this one.
        min_late_share: Minimum share of the growth in the second half. Of times that grow with the
            square root of the steps it is 0.27; of less, as a processor that gets hot, the growth
            ends.
        warning_share: Share of the run that the growth takes from which it is a warning: as of
            steps that take twice as long in the end.
    """

    min_steps_count: int = 100
    min_ratio: float = 1.5
    max_jump_share: float = 0.5
    min_late_share: float = 0.25
    warning_share: float = 1 / 3


_N_PARTS: Final = 8
_N_PIECES: Final = 4
"""Pieces of a part, of which some may have been disturbed."""
_MIN_SAMPLES: Final = 2
"""Mean number of samples in a part."""
_TOLERATED: Final = 0.95
"""A part may be faster than the one before by as much as clocks and caches change."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the steps of the run take longer and longer."""
    live = ctx.live
    if live is None or live.n_steps < thresholds.min_steps_count:
        return
    times_ns = find_step_times(
        np.array([sample.step for sample in live.samples], dtype=np.float64),
        np.array([sample.ts_ns - sample.own_ns for sample in live.samples], dtype=np.float64),
    )
    if not _is_growing(times_ns, thresholds):
        return

    # The recorded steps are from the beginning and show nothing of it, so that there is no cost.
    first_ns, last_ns = float(times_ns[0]), float(times_ns[-1])
    extra_share = 1 - first_ns / float(times_ns.mean())
    leak = live.leaks[0] if live.leaks else None
    fix = (
        "Find what each step goes through that grows with the steps: a list, a tensor made by "
        "`torch.cat`, hooks that the loop registers, a graph that `retain_graph=True` keeps."
    )
    if leak is not None and (name := holder_name(leak)):
        fix += f" Look first at {quoted(name)}, which grows."
    yield INFO.finding(
        severity="warning" if extra_share >= thresholds.warning_share else "note",
        confidence="medium",
        message=(
            f"Steps take longer and longer: {format_ns(round(first_ns))} in the first eighth of "
            f"the run, {format_ns(round(last_ns))} in the last. What {format_count(live.n_steps)} "
            f"steps take more than the first ones is {format_share(extra_share)} of the run."
        ),
        fix=fix,
        locations=known_locations(leak_location(leak)) if leak is not None else (),
        n=live.n_steps,
        evidence={
            "first_steps_ns": round(first_ns),
            "last_steps_ns": round(last_ns),
            "extra_share": round(extra_share, 4),
        },
    )


def _is_growing(times_ns: Float64s, thresholds: Thresholds) -> bool:
    """Return whether step times grow over the whole run, from part to part."""
    # Without enough samples there are no times, and nothing grows.
    growth_ns = np.diff(times_ns)
    total_ns = growth_ns.sum()
    if not len(times_ns) or (growth_ns < (_TOLERATED - 1) * times_ns[:-1]).any():
        return False
    return bool(
        times_ns[-1] >= thresholds.min_ratio * times_ns[0] > 0
        and growth_ns.max() <= thresholds.max_jump_share * total_ns
        and growth_ns[_N_PARTS // 2 :].sum() >= thresholds.min_late_share * total_ns
    )


def find_step_times(step: Float64s, ts_ns: Float64s) -> Float64s:
    """Return the time of a step in each eighth of a run, in nanoseconds.

    Args:
        step: Numbers of the steps after which the time was read, ascending. Shape ``(k,)``.
        ts_ns: The times. Shape ``(k,)``.

    Returns:
        The time in the fastest quarter of each part, as the median of three parts. Shape ``(8,)``,
        or ``(0,)`` of too few samples.
    """
    # Two samples may be of one step, between which there is no time of a step.
    is_later = np.diff(step, prepend=-np.inf) > 0
    step, ts_ns = step[is_later], ts_ns[is_later]
    if len(step) <= _N_PARTS * _MIN_SAMPLES:
        return np.zeros(0)

    # Samples are denser at first. Pieces of as many steps have as much noise, so that their
    # minimum does not rise by itself.
    edges = np.linspace(step[0], step[-1], _N_PARTS * _N_PIECES + 1)
    piece_ns = np.diff(np.interp(edges, step, ts_ns)) / np.diff(edges)
    part_ns = piece_ns.reshape(_N_PARTS, _N_PIECES).min(axis=1)

    # Another program may take the cores for a whole part.
    neighbours = np.lib.stride_tricks.sliding_window_view(np.pad(part_ns, 1, mode="edge"), 3)
    return np.asarray(np.median(neighbours, axis=1))
