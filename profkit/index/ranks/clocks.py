"""Differences between the clocks of hosts, from collectives that end on all ranks at once.

Clocks of hosts differ by hundreds of microseconds to milliseconds, and drift apart. An all-reduce
ends nowhere before all ranks have joined it, and nearly at the same time on all: the usual
difference of its ends is the difference of the clocks.
"""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import distinct
from profkit.index.trend import MAD_TO_SIGMA
from profkit.model.events import Float64s, Int32s, Int64s, Rows

_MIN_DRIFT_SPAN_NS: Final = 1_000_000_000
_MIN_DRIFT_SAMPLES: Final = 10
_MAX_DRIFT_SAMPLES: Final = 300
"""Samples that are enough for a slope, of which every pair is compared."""
_MIN_ERRORS: Final = 3
"""How many times its error an offset has to be, and a drift over the recording, to be corrected."""


@dataclass(frozen=True)
class EndDifferences:
    """How much earlier or later the same collective ended by two clocks. Shape ``(n,)`` each.

    Attributes:
        first: Number of a clock.
        second: Number of another clock.
        ns: End by the first clock minus end by the other.
        at_ns: When that was, by the first clock.
    """

    first: Int32s
    second: Int32s
    ns: Int64s
    at_ns: Int64s


@dataclass(frozen=True)
class Clocks:
    """The clocks of a job, compared within each connected component with its first clock.

    Attributes:
        offset_ns: What each clock shows too much, at ``origin_ns``. Shape ``(c,)``.
        drift: What it gains per nanosecond of the common clock. Shape ``(c,)``.
        error_ns: How far single ends deviate from that: sigma, from the median absolute deviation;
            0 where there is nothing to compare. Shape ``(c,)``.
        component: Clocks with the same number are connected by collectives. Shape ``(c,)``.
        origin_ns: The moment of the offsets.
    """

    offset_ns: Int64s
    drift: Float64s
    error_ns: Int64s
    component: Int32s
    origin_ns: int

    def corrected(self, clock: Int32s, times_ns: Int64s) -> Int64s:
        """Convert moments of some clocks to the common clock. Shape of both."""
        since_ns = times_ns - self.origin_ns - self.offset_ns[clock]
        gain = self.drift[clock] / (1 + self.drift[clock])
        return times_ns - self.offset_ns[clock] - np.round(since_ns * gain).astype(np.int64)


def compare_clocks(n_clocks: int, *by_trust: EndDifferences) -> Clocks:
    """Find the differences between clocks.

    Args:
        by_trust: Differences of ends. Later ones, such as the ends of sends and receives, count
            only for clocks that earlier ones do not connect.
    """
    offset = np.zeros(n_clocks, dtype=np.int64)
    drift = np.zeros(n_clocks)
    error = np.zeros(n_clocks, dtype=np.int64)
    component = np.arange(n_clocks, dtype=np.int32)
    moments = np.concatenate([ends.at_ns for ends in by_trust]) if by_trust else offset
    origin_ns = int(moments.min()) if len(moments) else 0

    for ends in by_trust:
        for first, second, rows in _split_by_pair(ends):
            if component[first] == component[second]:
                continue

            # Move all clocks of the second's component, so that the two agree.
            ns, slope, sigma = _fit_relation(ends.ns[rows], ends.at_ns[rows] - origin_ns)
            moved = component == component[second]
            shift = offset[first] - ns - offset[second]
            gain = drift[first] - slope - drift[second]
            offset[moved] += shift
            drift[moved] += gain
            component[moved] = component[first]
            error[second] = max(error[second], sigma)
            error[first] = max(error[first], sigma)

    # The first clock of each component is the common one.
    for number in distinct(component).tolist():
        members = np.flatnonzero(component == number)
        offset[members] -= offset[members[0]]
        drift[members] -= drift[members[0]]
    return Clocks(offset, drift, error, component, origin_ns)


def _split_by_pair(ends: EndDifferences) -> list[tuple[int, int, Rows]]:
    """Split the differences by pair of clocks, the most frequent pair first."""
    order = np.lexsort((ends.second, ends.first))
    first, second = ends.first[order], ends.second[order]
    begins = np.flatnonzero((np.diff(first, prepend=-1) != 0) | (np.diff(second, prepend=-1) != 0))
    parts = np.split(order, begins)[1:]
    pairs = zip(first[begins].tolist(), second[begins].tolist(), parts, strict=True)
    return sorted((pair for pair in pairs if pair[0] != pair[1]), key=lambda pair: -len(pair[2]))


def _fit_relation(ns: Int64s, at_ns: Int64s) -> tuple[int, float, int]:
    """Fit the usual difference at time 0, its change per nanosecond, and the deviation.

    Clocks that differ by no more than their readings stay as they are.
    """
    usual = _find_densest(ns)
    deviation = mad(ns - usual)
    span_ns = int(np.ptp(at_ns))

    if span_ns >= _MIN_DRIFT_SPAN_NS and len(ns) >= _MIN_DRIFT_SAMPLES:
        slope = _slope(ns, at_ns)
        straight = ns - np.round(slope * at_ns).astype(np.int64)
        level = _find_densest(straight)
        residual = mad(straight - level)
        if residual < deviation and abs(slope) * span_ns > _MIN_ERRORS * residual:
            return level, slope, residual

    if abs(usual) <= _MIN_ERRORS * deviation:
        return 0, 0.0, mad(ns)
    return usual, 0.0, deviation


def _find_densest(values: Int64s) -> int:
    """Return the median of the half of some values that is closest together.

    Values that were matched wrongly are far away, and may be up to half of all.
    """
    ordered = np.sort(values)
    # The shorth: the shortest interval that holds half of the values.
    half = (len(ordered) + 1) // 2
    widths = ordered[half - 1 :] - ordered[: len(ordered) - half + 1]
    first = int(np.argmin(widths))
    return int(np.median(ordered[first : first + half]))


def mad(values: Int64s) -> int:
    """Return sigma of some values around 0, from their median absolute value."""
    return round(MAD_TO_SIGMA * float(np.median(np.abs(values)))) if len(values) else 0


def _slope(ns: Int64s, at_ns: Int64s) -> float:
    """Return the median slope of all pairs of points, the Theil-Sen estimator."""
    chosen = distinct(np.linspace(0, len(ns) - 1, _MAX_DRIFT_SAMPLES).astype(np.int64))
    x, y = at_ns[chosen], ns[chosen]
    first, second = np.triu_indices(len(chosen), 1)
    apart = x[second] != x[first]
    first, second = first[apart], second[apart]
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))
