"""Places where a rank spends more time than the others, as far as its report shows it."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from profkit.dataclass import replace
from profkit.engine.job_context import JobContext, PlaceTime
from profkit.engine.wording import at
from profkit.model.report import Report
from profkit.model.work_summary import SampledSummary
from profkit.names import visible

_ALONE: Final = 0.9
"""Part of the time of a place that the others lack, from which the rank is alone in it."""
_MORE_OPS: Final = 1.03
"""Ratio from which a rank runs more operators at a line: programs vary by a few."""
_N_ERRORS: Final = 2
"""Standard errors by which a sampled time may be short."""
_STARVED: Final = "starved-by-loader"
_MAX_PLACES: Final = 64
"""Places with the most time: what takes longer on a rank is among them."""


def find_extra_time(
    job: JobContext, rank: int, least_ns: float, *, computes: bool | None = None
) -> PlaceTime | None:
    """Find the source line, else the region, that takes longer on a rank by at least so much.

    Findings with a line count with their cost, regions and lines with their time, lines of Python
    with their time on the critical path.

    Args:
        rank: Its index.
        least_ns: The minimum per step.
        computes: Whether the rank has more to compute than the others, by its processor time; None
            where that is not known.

    Returns:
        The place, and by how much it takes longer than the median of the other ranks.
    """
    other_ranks = [
        {_key(place): place for place in report.places}
        for i, report in enumerate(job.ranks)
        if i != rank
    ]

    slower = []
    for place in job.ranks[rank].places:
        same = [places.get(_key(place)) for places in other_ranks]
        extra = _compare(place, same, computes=computes)
        # Operators take longer on a rank that is disturbed, which others are as well.
        is_disturbed = computes is False and place.n_ops > 0 and not place.is_data
        if extra.most_ns >= least_ns and not is_disturbed:
            slower.append(extra)

    best = max(slower, key=lambda extra: extra.rank_key, default=None)
    return None if best is None else best.place


class _Extra(NamedTuple):
    """A place, and what tells that the rank spends more time there than others.

    Attributes:
        place: With the time beyond that of the other ranks.
        most_ns: The same by the most that its samples may stand for.
        is_alone: Whether the others spend hardly any time there.
        is_fitting: Whether it runs more operators there, which no disturbance explains; of a rank
            that does not compute longer, whether it runs none.
    """

    place: PlaceTime
    most_ns: int
    is_alone: bool
    is_fitting: bool

    @property
    def rank_key(self) -> tuple[bool, bool, bool, int]:
        """Return a key by which the best explanation is the largest."""
        has_line = self.place.location is not None
        return has_line, self.is_fitting, self.is_alone, self.place.ns


def _compare(
    place: PlaceTime, same: Sequence[PlaceTime | None], *, computes: bool | None
) -> _Extra:
    """Compare a place with the same place of the other ranks.

    Args:
        same: None of a rank without the place, which spends no time there.
        computes: Whether the rank has more to compute, or None.
    """
    times_ns = [0 if other is None else other.ns for other in same]
    usual_ops = statistics.median(0 if other is None else other.n_ops for other in same)

    # A disturbed rank takes longer for all it does; what others do not do at all it does alone.
    extra_ns = place.ns - round(statistics.median(times_ns))
    is_alone = not place.may_be_unlisted and place.ns - max(times_ns) >= _ALONE * place.ns
    most_ns = extra_ns + _N_ERRORS * place.error_ns * is_alone
    has_more_ops = place.n_ops > _MORE_OPS * usual_ops
    is_fitting = place.n_ops == 0 if computes is False else has_more_ops
    return _Extra(replace(place, ns=extra_ns), most_ns, is_alone, is_fitting)


def _key(place: PlaceTime) -> object:
    """Return what is the same on all ranks: samples alone know the function of a line."""
    where = place.location
    return place.where if where is None or where.line is None else (where.file, where.line)


def list_place_times(report: Report) -> tuple[PlaceTime, ...]:
    """Return times per step by place, the longest first."""
    summary = report.summary
    n = max(1, len(summary.steps))
    places = [
        PlaceTime(f" in `{visible(region.name)}`", region.total_ns // n)
        for region in summary.regions
    ]
    for line in summary.lines:
        ns = line.host_ns if line.device_ns is None else max(line.host_ns, line.device_ns)
        places.append(PlaceTime(at(line.location), ns // n, line.location, n_ops=line.n_ops))

    path = summary.critical_path
    path_lines = path.lines if path is not None else ()
    # Where a rank waits for others, the one that is late spends its time in Python.
    waits = {part.location for part in path_lines if part.kind == "communication"}
    # The lines above have the time of operators alone: not of the Python between them.
    places += [
        PlaceTime(at(part.location), part.ns // n, part.location, may_be_unlisted=True)
        for part in path_lines
        if part.kind == "python" and part.location.line is not None and part.location not in waits
    ]

    if summary.sampled is not None and summary.sampled.n_steps:
        places += _list_sampled(summary.sampled, n)

    for finding in report.findings:
        # Waits for collectives are not the rank's own time.
        if finding.locations and finding.cost.ns and not finding.rule.startswith("COM"):
            # The second location of a wait for a loader is the line in the data set that takes it.
            where = finding.locations[:2][-1 if finding.name == _STARVED else 0]
            is_data = finding.rule.startswith("DAT")
            places.append(
                PlaceTime(at(where), finding.cost.ns // n, where, is_data, may_be_unlisted=True)
            )

    # A place may be a line and have samples and findings: its longest time counts.
    longest: dict[object, PlaceTime] = {}
    n_ops = {_key(place): place.n_ops for place in places if place.n_ops}
    # Of a rank that spends no time there, its lines or samples would have shown it.
    listed = {_key(place) for place in places if not place.may_be_unlisted}
    for place in sorted(places, key=lambda place: -place.ns):
        if place.where:
            key = _key(place)
            complete = replace(place, n_ops=n_ops.get(key, 0), may_be_unlisted=key not in listed)
            longest.setdefault(key, complete)
    return tuple(longest.values())[:_MAX_PLACES]


def _list_sampled(sampled: SampledSummary, n_steps: int) -> Iterator[PlaceTime]:
    """Yield the functions that samples show, with the error of so few samples."""
    for function in sampled.functions:
        if function.location.line is not None and function.share > 0:
            ns = function.time_ns // n_steps
            error = math.sqrt(max(0.0, 1 / function.share - 1) / max(1, sampled.n_samples))
            yield PlaceTime(
                at(function.location), ns, function.location, error_ns=round(ns * error)
            )
