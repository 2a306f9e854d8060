"""Where a rank spends more time than the others, as far as its own report shows it."""

import statistics
from typing import Final

from profkit.engine.job_context import JobContext, PlaceTime
from profkit.engine.wording import at
from profkit.model.report import Report
from profkit.names import visible

_MAX_PLACES: Final = 64
"""Places with the most time: what takes longer on a rank is among them."""


def extra_time(job: JobContext, rank: int, least_ns: float) -> PlaceTime | None:
    """What takes longer on a rank by at least so much per step: a source line, else a region.

    Findings with a line count with their cost, regions and lines with their time, lines of Python
    with that on the critical path.

    Args:
        rank: Its index.

    Returns:
        The place, and by how much it takes longer than the median of the other ranks.
    """
    others = [
        {place.where: place.ns for place in other.places}
        for i, other in enumerate(job.ranks)
        if i != rank
    ]
    found = []
    for place in job.ranks[rank].places:
        usual_ns = round(statistics.median(times.get(place.where, 0) for times in others))
        if place.ns - usual_ns >= least_ns:
            found.append(PlaceTime(place.where, place.ns - usual_ns, place.location))
    return max(found, key=lambda each: (each.location is not None, each.ns), default=None)


def place_times(report: Report) -> tuple[PlaceTime, ...]:
    """Times per step by place, the longest first."""
    summary = report.summary
    n = max(1, len(summary.steps))
    found = [
        PlaceTime(f" in `{visible(region.name)}`", region.total_ns // n)
        for region in summary.regions
    ]
    for line in summary.lines:
        ns = line.host_ns if line.device_ns is None else max(line.host_ns, line.device_ns)
        found.append(PlaceTime(at(line.location), ns // n, line.location))
    path = summary.critical_path
    # The lines above have the time of operators alone: not that of Python between them.
    found += [
        PlaceTime(at(part.location), part.ns // n, part.location)
        for part in (path.lines if path is not None else ())
        if part.kind == "python" and part.location.line is not None
    ]
    for finding in report.findings:
        # What a rank waits for in collectives is not its own time.
        if finding.locations and finding.cost.ns and not finding.rule.startswith("COM"):
            where = finding.locations[0]
            found.append(PlaceTime(at(where), finding.cost.ns // n, where))
    longest: dict[str, PlaceTime] = {}
    for each in sorted(found, key=lambda each: -each.ns):
        if each.where:
            longest.setdefault(each.where, each)
    return tuple(longest.values())[:_MAX_PLACES]
