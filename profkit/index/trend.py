"""Whether a figure grows for good, judged over the steps of a program.

What leaks grows at the same pace up to the end. What does not leak may grow too: a warm-up that
settles, a cache that fills, a list that is cleared now and then, batches of random length. So the
floors of successive stretches are compared, not a line through everything: each floor must lie
above the one before, none may rise far more or far less than the rest, and the end must lie above
all that was there before the growth began.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.model.events import Int64s

Floats = npt.NDArray[np.float64]
"""Values of a series."""

MIN_POINTS: Final = 6
"""Fewer looks say nothing about what goes on."""
MIN_STEPS: Final = 8
"""Steps between the first look and the last."""
_MIN_RISES: Final = 5
"""Looks at which there was more than at the one before: a few large jumps are no growth."""
_SEGMENTS: Final = 6
"""Six floors of mere noise lie in rising order once in 720 times."""
_SURE_FLOORS: Final = 5
"""With fewer floors than this, no look may show less than the one before."""
_STARTS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 2 / 3)
"""Where growth may have begun, as a share of the steps: before it lies what has settled."""
_LEAST_PACE: Final = 0.25
"""Between two floors the pace is at least this share of the median pace."""
_LEAST_LATE_PACE: Final = 0.6
"""The second half's pace is at least this share of the first's: what slows down is filling up."""
_LEAST_OF_ALL: Final = 0.5
"""A stretch grows at least at this share of the pace of the whole series, first jumps aside."""
_CONSISTENT: Final = 0.9
"""A pace that falls to this share is falling, if it falls from floor to floor."""
_MOST_IN_ONE: Final = 0.6
"""The share of all growth that may lie between two neighbouring floors: else it is one jump."""
_LEAST_NEW: Final = 0.25
"""The share of the growth that must lie above all that was there before it began."""
_NOISES: Final = 3.0
"""Growth must be this many times what is left when it is taken away."""
_MAD_TO_SIGMA: Final = 1.4826
_MOST_PAIRED: Final = 240
"""Points of a slope; the pairs are their square."""
_RISING_LOOKS: Final = 4


@dataclass(frozen=True)
class Trend:
    """Growth that goes on.

    Attributes:
        per_step: By how much a step, in the unit of the values: the median slope of all pairs of
            points of the stretch.
        first_step: Where the stretch that grew begins.
        last_step: Where it ends: the last look.
    """

    per_step: float
    first_step: int
    last_step: int


def lasting_growth(steps: Int64s, values: Floats) -> Trend | None:
    """The growth that a series ends in, or None where it has none that lasts.

    Args:
        steps: The steps of the looks, rising. Shape ``(n,)``.
        values: What was seen at each. Shape ``(n,)``.
    """
    if len(steps) < MIN_POINTS or steps[-1] - steps[0] < MIN_STEPS:
        return None
    overall = median_slope(steps, values)
    for share in _STARTS:
        begin = int(np.searchsorted(steps, steps[0] + share * (steps[-1] - steps[0])))
        tail, grown = steps[begin:], values[begin:]
        if len(tail) < MIN_POINTS or tail[-1] - tail[0] < MIN_STEPS:
            break
        if _is_steady(tail, grown) and _is_new_ground(values[:begin], grown):
            slope = median_slope(tail, grown)
            if slope >= _LEAST_OF_ALL * overall and _stands_out(tail, grown, slope):
                return Trend(slope, int(tail[0]), int(tail[-1]))
    return None


def is_rising(values: Floats) -> bool:
    """Whether the last few looks rise, so that a closer look is worth its cost.

    Args:
        values: What was seen at each look. Shape ``(n,)``.
    """
    last = values[-_RISING_LOOKS:]
    if len(last) < _RISING_LOOKS:
        return False
    rises = np.diff(last)
    return bool((rises >= 0).all() and (rises > 0).sum() > 1)


def median_slope(steps: Int64s, values: Floats) -> float:
    """The median of the slopes between all pairs of points.

    Args:
        steps: Rising. Shape ``(n,)``, of at least two.
        values: Shape ``(n,)``.

    Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 1968.
    """
    every = -(-len(steps) // _MOST_PAIRED)
    x, y = steps[::-1][::every].astype(np.float64), values[::-1][::every]
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[first] - y[second]) / (x[first] - x[second])))


def _is_steady(steps: Int64s, values: Floats) -> bool:
    """Whether the floors of equally long stretches rise, all at about the same pace."""
    rises = np.diff(values)
    if (rises > 0).sum() < _MIN_RISES:
        return False
    floors = _floors(steps, values)
    if len(floors) < _SURE_FLOORS and (rises < 0).any():
        return False
    lifts = np.diff(values[floors])
    paces = lifts / np.diff(steps[floors])
    return bool(
        (lifts > 0).all()
        and paces.min() >= _LEAST_PACE * np.median(paces)
        and lifts.max() <= _MOST_IN_ONE * lifts.sum()
        and not _slows_down(steps, values, paces)
    )


def _floors(steps: Int64s, values: Floats) -> list[int]:
    """The place of the least value in each of a few stretches of equally many steps."""
    n_segments = min(len(steps) // 2, _SEGMENTS)
    edges = np.linspace(steps[0], steps[-1] + 1, n_segments + 1)
    cuts = np.searchsorted(steps, edges).tolist()
    return [a + int(np.argmin(values[a:b])) for a, b in pairwise(cuts) if b > a]


def _slows_down(steps: Int64s, values: Floats, paces: Floats) -> bool:
    """Whether the second half grows less than the first, by far or from floor to floor."""
    middle = int(np.searchsorted(steps, (steps[0] + steps[-1]) / 2))
    middle = min(max(middle, 2), len(steps) - 2)
    early = median_slope(steps[: middle + 1], values[: middle + 1])
    late = median_slope(steps[middle:], values[middle:])
    falls = bool((np.diff(paces) < 0).all()) and paces[-1] < _CONSISTENT * paces[0]
    return falls or late < _LEAST_LATE_PACE * early


def _is_new_ground(before: Floats, grown: Floats) -> bool:
    """Whether the end lies above what was there before; a single peak in it does not count."""
    if not len(before):
        return True
    end = grown[-max(len(grown) // _SEGMENTS, 1) :].min()
    around = np.append(before, grown[0])
    sustained = np.minimum(around[:-1], around[1:]).max()
    return bool(end > sustained + _LEAST_NEW * (end - grown[0]))


def _stands_out(steps: Int64s, values: Floats, slope: float) -> bool:
    """Whether the growth is larger than what it leaves unexplained."""
    left = values - slope * steps
    noise = _MAD_TO_SIGMA * float(np.median(np.abs(left - np.median(left))))
    return slope * float(steps[-1] - steps[0]) >= _NOISES * noise
