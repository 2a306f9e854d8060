"""Whether a series of samples keeps growing with the steps of a program.

A leak grows at a constant pace to the end. Other memory may grow too: a warm-up that settles, a
cache that fills, a list that is cleared now and then, batches of random length. So instead of
fitting a line, the minima of successive segments are compared: each must exceed the previous one,
none may rise much more or less than the rest, and the end must exceed everything before the growth
began.
"""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.model.events import Int64s

Floats = npt.NDArray[np.float64]
"""Values of a series."""

MIN_POINTS: Final = 6
"""Fewer samples are not evaluated."""
MIN_STEPS: Final = 8
"""Steps between the first sample and the last."""
_MIN_RISES: Final = 5
"""Samples above the previous one: a few large jumps are not growth."""
_SEGMENTS: Final = 6
"""Six minima of pure noise are in rising order once in 720 times."""
_MIN_SEGMENTS_WITH_DIPS: Final = 5
"""With fewer segments, no sample may be below the previous one."""
_STARTS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 2 / 3)
"""Candidate starts of the growth, as a share of the steps."""
_MIN_PACE: Final = 0.25
"""Minimum pace between two segments, as a share of the median pace."""
_MIN_LATE_PACE: Final = 0.6
"""Minimum pace of the second half, as a share of the first: caches slow down as they fill."""
_MIN_OVERALL_PACE: Final = 0.5
"""Minimum pace after the start, as a share of the pace of the whole series."""
_CONSISTENT: Final = 0.9
"""A pace that decreases from segment to segment down to this share is slowing down."""
_MAX_JUMP: Final = 0.6
"""Maximum share of the growth between two neighboring segments; above it the growth is a jump."""
_MIN_NEW: Final = 0.25
"""Minimum share of the growth above the highest sustained value before its start."""
_MIN_SIGNAL_TO_NOISE: Final = 3.0
"""Minimum growth in multiples of the residual noise."""
MAD_TO_SIGMA: Final = 1.4826
"""A normal distribution's standard deviation by its median absolute deviation."""
_MAX_POINTS: Final = 240
"""Maximum points of a median slope, whose cost is quadratic."""
RISING_SAMPLES: Final = 4
"""The latest samples that tell whether a series rises."""


@dataclass(frozen=True)
class Trend:
    """Sustained growth.

    Attributes:
        per_step: Growth per step, in the unit of the values: the median slope of all pairs of
            points since the growth began.
        first_step: First step of the growth.
        last_step: The last sample's step.
    """

    per_step: float
    first_step: int
    last_step: int


def lasting_growth(steps: Int64s, values: Floats) -> Trend | None:
    """Find the growth at the end of a series, or None without sustained growth.

    Steps ascend, with one value each. Shape ``(n,)``.
    """
    if len(steps) < MIN_POINTS or steps[-1] - steps[0] < MIN_STEPS:
        return None

    # The earliest start wins: the samples before it may be a warm-up or a cache that filled.
    overall = median_slope(steps, values)
    for share in _STARTS:
        begin = int(np.searchsorted(steps, steps[0] + share * (steps[-1] - steps[0])))
        tail, grown = steps[begin:], values[begin:]
        if len(tail) < MIN_POINTS or tail[-1] - tail[0] < MIN_STEPS:
            break
        if _is_steady(tail, grown) and _exceeds_past(values[:begin], grown):
            slope = median_slope(tail, grown)
            if slope >= _MIN_OVERALL_PACE * overall and _exceeds_noise(tail, grown, slope):
                return Trend(slope, int(tail[0]), int(tail[-1]))
    return None


def is_rising(values: Floats) -> bool:
    """Return whether the last few samples rise, so that a detailed inspection is worth its cost."""
    last = values[-RISING_SAMPLES:]
    if len(last) < RISING_SAMPLES:
        return False
    rises = np.diff(last)
    return bool((rises >= 0).all() and (rises > 0).sum() > 1)


def median(values: Floats) -> float:
    """Return the median of some values, at least one.

    ``np.median`` imports ``numpy.ma``, whose 0.7 MB would be growth of the monitored program.
    """
    upper, lower = len(values) // 2, (len(values) - 1) // 2
    ordered = np.partition(values, (lower, upper))
    return float(ordered[lower] + ordered[upper]) / 2


def median_slope(steps: Int64s, values: Floats) -> float:
    """Return the median of the slopes between all pairs of points, at least two, by ascending step.

    Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 1968.
    """
    # Thinned from the end, so that the latest sample is always among the points.
    stride = -(-len(steps) // _MAX_POINTS)
    x, y = steps[::-1][::stride].astype(np.float64), values[::-1][::stride]
    first, second = np.triu_indices(len(x), 1)
    return median((y[first] - y[second]) / (x[first] - x[second]))


def _is_steady(steps: Int64s, values: Floats) -> bool:
    """Return whether the minima of equally long segments rise at about the same pace."""
    rises = np.diff(values)
    if (rises > 0).sum() < _MIN_RISES:
        return False

    minima = _find_minima(steps, values)
    if len(minima) < _MIN_SEGMENTS_WITH_DIPS and (rises < 0).any():
        return False

    lifts = np.diff(values[minima])
    paces = lifts / np.diff(steps[minima])
    return bool(
        (lifts > 0).all()
        and paces.min() >= _MIN_PACE * median(paces)
        and lifts.max() <= _MAX_JUMP * lifts.sum()
        and not _slows_down(steps, values, paces)
    )


def _find_minima(steps: Int64s, values: Floats) -> list[int]:
    """Find the indices of the minimum of each segment of equally many steps."""
    n_segments = min(len(steps) // 2, _SEGMENTS)
    edges = np.linspace(steps[0], steps[-1] + 1, n_segments + 1)
    cuts = np.searchsorted(steps, edges).tolist()
    return [a + int(np.argmin(values[a:b])) for a, b in pairwise(cuts) if b > a]


def _slows_down(steps: Int64s, values: Floats, paces: Floats) -> bool:
    """Return whether the second half grows much less than the first, or the pace falls steadily."""
    middle = int(np.searchsorted(steps, (steps[0] + steps[-1]) / 2))
    middle = min(max(middle, 2), len(steps) - 2)
    early = median_slope(steps[: middle + 1], values[: middle + 1])
    late = median_slope(steps[middle:], values[middle:])
    falls = bool((np.diff(paces) < 0).all()) and paces[-1] < _CONSISTENT * paces[0]
    return falls or late < _MIN_LATE_PACE * early


def _exceeds_past(before: Floats, grown: Floats) -> bool:
    """Return whether the end exceeds all values before the growth, except single peaks."""
    if not len(before):
        return True
    end = grown[-max(len(grown) // _SEGMENTS, 1) :].min()
    # A value that one neighbor reaches too is sustained, a single peak is not.
    around = np.append(before, grown[0])
    sustained = np.minimum(around[:-1], around[1:]).max()
    return bool(end > sustained + _MIN_NEW * (end - grown[0]))


def _exceeds_noise(steps: Int64s, values: Floats, slope: float) -> bool:
    # The median absolute deviation is robust against single peaks.
    residual = values - slope * steps
    noise = MAD_TO_SIGMA * median(np.abs(residual - median(residual)))
    return slope * float(steps[-1] - steps[0]) >= _MIN_SIGNAL_TO_NOISE * noise
