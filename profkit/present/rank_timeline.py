"""The timeline of a job: a lane for each rank, on one clock."""

from dataclasses import replace
from typing import Final

import numpy as np

from profkit.index.level_of_detail import build_levels, joined
from profkit.model.rank_lanes import CallState, JobLanes, LaneSite, RankLane
from profkit.model.report import Report
from profkit.model.timeline import SliceKind, Timeline, TimelineLane, TimelineSite
from profkit.present.labels import part_label
from profkit.present.step_heat import distinct_names
from profkit.present.tables.rank_tables import WHY_LATE

MAX_RANKS: Final = 256
"""Lanes. Of more ranks, those that the others waited for longest are shown."""
STATE_LABELS: Final[dict[CallState, str]] = {
    "waiting": "waiting for the last rank", "transfer": "transfer",
    "late": "the others wait for this rank", "unmatched": "without a match",
}  # fmt: skip
"""Labels of the states of a collective on one rank."""
_KINDS: Final[dict[str, SliceKind]] = {"python": "outside"}
"""Kinds of slices whose name differs from the part of the step time."""


def rank_timeline(report: Report) -> Timeline | None:
    """Build the timeline of the ranks; None in a report without their lanes."""
    job = report.lanes
    lanes = [] if job is None else _shown(job, report)
    if job is None or not any(len(lane.slices) for lane in lanes):
        return None

    # A lane has a row for each level of calls, and begins below the lane before.
    parts, shown, first_row = [], [], 0
    for lane in lanes:
        n_rows = int(lane.slices.row.max(initial=0)) + 1
        shown.append(TimelineLane("rank", lane_label(lane), first_row, n_rows, lane.n, 0))
        parts.append(replace(lane.slices, row=lane.slices.row + np.int32(first_row)))
        first_row += n_rows

    slices = joined(parts)
    start, end = int(slices.start_ns.min()), int(slices.end_ns.max())
    return Timeline(
        start_ns=start,
        end_ns=end,
        lanes=tuple(shown),
        sites=tuple(map(_site, job.sites)),
        levels=build_levels(slices, max(1, end - start)),
        steps=tuple(step_ranges(report)),
    )


def _shown(job: JobLanes, report: Report) -> list[RankLane]:
    late_ns = {rank.rank: rank.late_ns for rank in report.ranks}
    by_delay = sorted(job.lanes, key=lambda lane: -late_ns[lane.rank])
    return sorted(by_delay[:MAX_RANKS], key=lambda lane: lane.rank)


def lane_label(lane: RankLane) -> str:
    """``rank 3 · node1``."""
    return f"rank {lane.rank}" + (f" · {lane.host}" if lane.host else "")


def call_name(site: LaneSite) -> str:
    """``all-reduce · default_pg``, and why a rank is the last: ``all-reduce: host is late``."""
    name = " · ".join(filter(None, (site.collective, site.group)))
    why = WHY_LATE[site.why] if site.why is not None else ""
    return f"{name}: {why}" if why else name


def _site(site: LaneSite) -> TimelineSite:
    name = call_name(site) if site.collective else part_label(site.kind)
    kind: SliceKind = _KINDS.get(site.kind, site.kind)  # type: ignore[arg-type]  # one of them
    return TimelineSite(name, kind, None, None, site.n, site.total_ns)


def step_ranges(report: Report) -> list[tuple[str, int, int]]:
    """Return each step's first start and last end on any rank, from the start of the lanes."""
    ranges: dict[str, tuple[int, int]] = {}
    names = {rank.rank: distinct_names(rank.step_names) for rank in report.ranks}
    for lane in report.lanes.lanes if report.lanes is not None else ():
        for name, (start, end) in zip(names[lane.rank], lane.steps, strict=True):
            # Ranks begin and end a step at different times.
            first, last = ranges.get(name, (start, end))
            ranges[name] = (min(first, start), max(last, end))

    return sorted(((name, *times) for name, times in ranges.items()), key=lambda step: step[1])
