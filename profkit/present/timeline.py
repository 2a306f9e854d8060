"""The timeline: every event of a recording as a slice in a lane, and what profkit adds to them."""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.device.idle import IdleByCause
from profkit.index.intervals import union
from profkit.index.level_of_detail import flattened, levels_of, stacked
from profkit.model.events import Int32s, Int64s, Rows
from profkit.model.finding import Finding
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.model.timeline import LaneKind, SliceKind, Slices, Timeline, TimelineLane, TimelineSite
from profkit.present.headline import part_label
from profkit.present.timeline_lanes import EventLane, idle_of, lanes_of_events
from profkit.present.timeline_sites import ranked, sites_of_events

MAX_ROWS: Final = 64
"""A lane has no more rows: what is called from deeper is one slice in the last, with its count."""


def timeline(ctx: Context, report: Report) -> Timeline | None:
    """The timeline of a recording, or None where it has no events.

    Args:
        ctx: What was recorded.
        report: What was found in it.
    """
    if not len(ctx.events):
        return None
    site, sites = sites_of_events(ctx)
    drawn = _Drawn(sites)
    _add_steps(drawn, ctx)
    _add_findings(drawn, ctx, report.findings)
    seen: set[int] = set()
    for lane in lanes_of_events(ctx):
        if lane.device is not None and lane.device not in seen:
            seen.add(lane.device)
            _add_idle(drawn, lane, idle_of(ctx, lane.device))
        _add_events(drawn, ctx, lane, site)
    named, number = ranked(sites)
    slices = drawn.slices(number)
    start, end = int(slices.start_ns.min()), int(slices.end_ns.max())
    steps = ctx.steps
    ends = steps.ends_ns.tolist()
    return Timeline(
        start_ns=start,
        end_ns=end,
        lanes=tuple(drawn.lanes),
        sites=named,
        levels=levels_of(slices, max(1, end - start)),
        steps=tuple(zip(steps.names, steps.starts_ns.tolist(), ends, strict=True)),
    )


@dataclass
class _Drawn:
    """The lanes so far.

    Attributes:
        sites: What slices stand for.
        lanes: The lanes.
        parts: Their slices, lane by lane.
        n_rows: Rows of all lanes.
    """

    sites: list[TimelineSite]
    lanes: list[TimelineLane] = field(default_factory=list)
    parts: list[Slices] = field(default_factory=list)
    n_rows: int = 0

    def number(
        self, name: str, kind: SliceKind, lengths_ns: Int64s, at: Frame | None = None
    ) -> int:
        """The number of a new site."""
        total_ns = int(lengths_ns.sum())
        self.sites.append(TimelineSite(name, kind, at, None, len(lengths_ns), total_ns))
        return len(self.sites) - 1

    def add(
        self, kind: LaneKind, label: str, starts_ns: Int64s, ends_ns: Int64s, site: Int32s,
        depth: Int32s | None = None,
    ) -> None:  # fmt: skip
        """Add a lane.

        Args:
            kind: What it shows.
            label: Its name.
            starts_ns: Where its slices begin. Shape ``(k,)``.
            ends_ns: Where they end. Shape ``(k,)``.
            site: What they stand for. Shape ``(k,)``.
            depth: Their rows in the lane, or None to stack them. Shape ``(k,)``.
        """
        if not len(starts_ns):
            return
        row = np.zeros(len(starts_ns), dtype=np.int32) if depth is None else depth
        order = np.lexsort((ends_ns, starts_ns, row))
        lengths = ends_ns - starts_ns
        ones = np.ones(len(row), dtype=np.int64)
        slices = Slices(row, starts_ns, ends_ns, lengths, ones, lengths, site).of(order)
        if depth is None:
            slices = replace(slices, row=stacked(slices.row, slices))
            slices = slices.of(np.argsort(slices.row, kind="stable"))
        slices = _bounded(slices)
        n_rows = int(slices.row.max()) + 1
        busy_ns = union(starts_ns, ends_ns).total_ns
        self.lanes.append(TimelineLane(kind, label, self.n_rows, n_rows, len(starts_ns), busy_ns))
        self.parts.append(replace(slices, row=slices.row + np.int32(self.n_rows)))
        self.n_rows += n_rows

    def slices(self, number: Int32s) -> Slices:
        """All slices, their sites numbered anew."""
        together = Slices(
            *(
                np.concatenate([getattr(part, name) for part in self.parts])
                for name in Slices.__dataclass_fields__
            )
        )
        return replace(together, site=number[together.site])


def _bounded(slices: Slices) -> Slices:
    """Slices in no more rows than a lane may have; the last one's are one where they overlap."""
    deep = slices.row >= MAX_ROWS - 1
    if not deep.any():
        return slices
    below = slices.of(np.flatnonzero(deep))
    below = below.of(np.argsort(below.start_ns, kind="stable"))
    below = replace(below, row=np.full(len(below), MAX_ROWS - 1, dtype=np.int32))
    last = flattened(below, below.row)
    above = slices.of(np.flatnonzero(~deep))
    return Slices(
        *(
            np.concatenate((getattr(above, name), getattr(last, name)))
            for name in Slices.__dataclass_fields__
        )
    )


def _add_steps(drawn: _Drawn, ctx: Context) -> None:
    steps = ctx.steps
    lengths = steps.ends_ns - steps.starts_ns
    site = [
        drawn.number(name, "step", lengths[place : place + 1])
        for place, name in enumerate(steps.names)
    ]
    drawn.add("steps", "steps", steps.starts_ns, steps.ends_ns, np.array(site, dtype=np.int32))


def _add_findings(drawn: _Drawn, ctx: Context, findings: tuple[Finding, ...]) -> None:
    """Where each finding's cost is, or where its cost has no place in time the events it names."""
    starts, ends, site = [], [], []
    for finding in findings:
        begin, end = _times(ctx, finding)
        where = next((each for each in finding.locations if each.file is not None), None)
        at = None
        if where is not None and where.file is not None:
            at = Frame(where.file, where.line or 1, where.function or "", where.precision)
        number = drawn.number(f"{finding.rule} {finding.title}", "finding", end - begin, at)
        starts.append(begin)
        ends.append(end)
        site.append(np.full(len(begin), number, dtype=np.int32))
    if starts:
        begins, finishes = np.concatenate(starts), np.concatenate(ends)
        drawn.add("findings", "findings", begins, finishes, np.concatenate(site))


def _times(ctx: Context, finding: Finding) -> tuple[Int64s, Int64s]:
    """Starts and ends in nanoseconds of where a finding is."""
    if finding.claims:
        claims = np.array(finding.claims, dtype=np.int64)
        return claims[:, 0], claims[:, 1]
    named = finding.evidence.get("events")
    positions = [each for each in named if isinstance(each, int)] if isinstance(named, list) else []
    rows = np.flatnonzero(np.isin(ctx.events.position, positions))
    return ctx.events.ts_ns[rows], ctx.events.end_ns[rows]


def _add_idle(drawn: _Drawn, lane: EventLane, causes: IdleByCause | None) -> None:
    """Why the device of a lane was idle."""
    if causes is None:
        return
    found = [(cause, times) for cause, times in causes.items() if len(times)]
    if not found:
        return
    starts = np.concatenate([times.starts_ns for _, times in found])
    ends = np.concatenate([times.ends_ns for _, times in found])
    site: list[Int32s] = []
    for cause, times in found:
        kind: SliceKind = f"idle-{cause}"  # type: ignore[assignment]  # one for each cause
        number = drawn.number(part_label(kind), kind, times.ends_ns - times.starts_ns)
        site.append(np.full(len(times), number, dtype=np.int32))
    device = lane.label.partition(" ")[0]
    drawn.add("idle", f"{device} idle", starts, ends, np.concatenate(site))


def _add_events(drawn: _Drawn, ctx: Context, lane: EventLane, site: Int32s) -> None:
    rows: Rows = lane.rows
    starts, ends = ctx.events.ts_ns[rows], ctx.events.end_ns[rows]
    drawn.add(lane.kind, lane.label, starts, ends, site[rows], lane.depth)
