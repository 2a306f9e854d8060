"""Places where a rank spends more time than the others, as far as its report shows it."""

import statistics
from typing import Final

from profkit.dataclass import replace
from profkit.engine.job_context import JobContext, PlaceTime
from profkit.engine.wording import at
from profkit.model.report import Report
from profkit.names import visible

_ALONE: Final = 0.9
"""Part of the time of a place that the others lack, from which the rank is alone in it."""
_STARVED: Final = "starved-by-loader"
_MAX_PLACES: Final = 64
"""Places with the most time: what takes longer on a rank is among them."""


def find_extra_time(
    job: JobContext, rank: int, least_ns: float, *, alone: bool = False
) -> PlaceTime | None:
    """Find the source line, else the region, that takes longer on a rank by at least so much.

    Findings with a line count with their cost, regions and lines with their time, lines of Python
    with their time on the critical path.

    Args:
        rank: Its index.
        least_ns: The minimum per step.
        alone: Whether the other ranks must spend no time there.

    Returns:
        The place, and by how much it takes longer than the median of the other ranks.
    """
    other_ranks = [
        {_key(place): place.ns for place in report.places}
        for i, report in enumerate(job.ranks)
        if i != rank
    ]

    slower = []
    for place in job.ranks[rank].places:
        # A rank without the place spends no time there.
        usual_ns = round(statistics.median(times.get(_key(place), 0) for times in other_ranks))
        if place.ns - usual_ns >= least_ns:
            slower.append(replace(place, ns=place.ns - usual_ns))

    # A disturbed rank takes longer for all it does; what others do not do at all it does alone.
    own_ns = {_key(place): place.ns for place in job.ranks[rank].places}

    def is_alone(place: PlaceTime) -> bool:
        return not place.may_be_unlisted and place.ns >= _ALONE * own_ns[_key(place)]

    return max(
        (place for place in slower if is_alone(place) or not alone),
        key=lambda place: (place.location is not None, is_alone(place), place.ns),
        default=None,
    )


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
        places.append(PlaceTime(at(line.location), ns // n, line.location))

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
        places += [
            PlaceTime(at(function.location), function.time_ns // n, function.location)
            for function in summary.sampled.functions
            if function.location.line is not None
        ]

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
    for place in sorted(places, key=lambda place: -place.ns):
        if place.where:
            longest.setdefault(_key(place), place)
    return tuple(longest.values())[:_MAX_PLACES]
