"""The timeline: all events of a recording in lanes, with steps, findings and idle causes."""

from dataclasses import dataclass, field, replace
from typing import Final, get_args

import numpy as np

from profkit.engine.context import Context
from profkit.index.device.idle import IdleByCause
from profkit.index.device.streams import device_of
from profkit.index.device.syncs import blocking_calls
from profkit.index.host.call_paths import numbered
from profkit.index.host.source import NO_FRAME
from profkit.index.intervals import union
from profkit.index.launches import DEVICE_WORK
from profkit.index.level_of_detail import flattened, levels_of, stacked
from profkit.index.runtime_calls import ALLOCATOR
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Int64s, Rows
from profkit.model.finding import Finding
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.model.timeline import LaneKind, SliceKind, Slices, Timeline, TimelineLane, TimelineSite
from profkit.present.flame_sites import thread_label
from profkit.present.headline import part_label

MAX_ROWS: Final = 64
"""Rows of a lane. Deeper calls become one slice in the last row, with their count."""
MAX_LANES: Final = 256
"""Lanes of events. The events of all others share one lane."""
MAX_SITES: Final = 20_000
"""Names in a page. Rarer events are drawn and counted under one name for each kind."""

_LANE_KINDS: Final[tuple[LaneKind, ...]] = ("stream", "annotations", "thread", "other")
_KINDS: Final[tuple[SliceKind, ...]] = get_args(SliceKind)
_KIND_NUMBER: Final = {kind: number for number, kind in enumerate(_KINDS)}
_BY_CATEGORY: Final[dict[int, SliceKind]] = {
    Category.OP: "op",
    Category.ANNOTATION: "annotation",
    Category.DEVICE_ANNOTATION: "annotation",
    Category.KERNEL: "compute",
    Category.MEMCPY: "copy",
    Category.MEMSET: "copy",
    Category.RUNTIME: "call",
    Category.DRIVER: "call",
    Category.PYTHON: "python",
    Category.OVERHEAD: "overhead",
    Category.DEVICE_SYNC: "sync",
}


@dataclass(frozen=True)
class EventLane:
    """A lane of recorded events.

    Attributes:
        rows: Its events, in the order of the file. Shape ``(k,)``.
        depth: Rows within the lane, or None to stack the slices. Shape ``(k,)``.
        device: The device of a stream, else None.
    """

    kind: LaneKind
    label: str
    rows: Rows
    depth: Int32s | None
    device: int | None = None


def timeline(ctx: Context, report: Report) -> Timeline | None:
    """The timeline of a recording, or None if it has no events."""
    if not len(ctx.events):
        return None
    site, sites = _sites_of_events(ctx)
    drawn = _Drawn(sites)
    _add_steps(drawn, ctx)
    _add_findings(drawn, ctx, report.findings)
    seen: set[int] = set()
    for lane in lanes_of_events(ctx):
        if lane.device is not None and lane.device not in seen:
            seen.add(lane.device)
            _add_idle(drawn, ctx.device_label(lane.device), _idle_of(ctx, lane.device))
        _add_events(drawn, ctx, lane, site)
    named, number = _ranked(sites)
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
        sites: The sites of the slices.
        parts: The slices of each lane.
        n_rows: Rows of all lanes.
    """

    sites: list[TimelineSite]
    lanes: list[TimelineLane] = field(default_factory=list)
    parts: list[Slices] = field(default_factory=list)
    n_rows: int = 0

    def number(
        self, name: str, kind: SliceKind, lengths_ns: Int64s, at: Frame | None = None
    ) -> int:
        """Add a site and return its number."""
        total_ns = int(lengths_ns.sum())
        self.sites.append(TimelineSite(name, kind, at, None, len(lengths_ns), total_ns))
        return len(self.sites) - 1

    def add(
        self, kind: LaneKind, label: str, starts_ns: Int64s, ends_ns: Int64s, site: Int32s,
        depth: Int32s | None = None,
    ) -> None:  # fmt: skip
        """Add a lane.

        Args:
            starts_ns: Starts of its slices. Shape ``(k,)``.
            ends_ns: Shape ``(k,)``.
            site: Shape ``(k,)``.
            depth: Rows in the lane, or None to stack the slices. Shape ``(k,)``.
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
        """All slices, with new site numbers."""
        together = Slices(
            *(
                np.concatenate([getattr(part, name) for part in self.parts])
                for name in Slices.__dataclass_fields__
            )
        )
        return replace(together, site=number[together.site])


def _bounded(slices: Slices) -> Slices:
    """Slices in at most :data:`MAX_ROWS` rows; overlapping slices of the last row are merged."""
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
    """Add the time that each finding claims, or without claims the events that it names."""
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
    """Starts and ends of a finding in nanoseconds."""
    if finding.claims:
        claims = np.array(finding.claims, dtype=np.int64)
        return claims[:, 0], claims[:, 1]
    named = finding.evidence.get("events")
    positions = [each for each in named if isinstance(each, int)] if isinstance(named, list) else []
    rows = np.flatnonzero(np.isin(ctx.events.position, positions))
    return ctx.events.ts_ns[rows], ctx.events.end_ns[rows]


def _add_idle(drawn: _Drawn, device: str, causes: IdleByCause | None) -> None:
    """Add the idle causes of a lane's device."""
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
    drawn.add("idle", f"{device} idle", starts, ends, np.concatenate(site))


def _add_events(drawn: _Drawn, ctx: Context, lane: EventLane, site: Int32s) -> None:
    rows: Rows = lane.rows
    starts, ends = ctx.events.ts_ns[rows], ctx.events.end_ns[rows]
    drawn.add(lane.kind, lane.label, starts, ends, site[rows], lane.depth)


def lanes_of_events(ctx: Context) -> list[EventLane]:
    """All lanes, each event in one: devices first, then threads, the one with the steps first."""
    events = ctx.events
    group, device = _groups(ctx)
    n_lanes = len(events.lanes)
    key = (group * (int(device.max()) + 1) + device) * n_lanes + events.lane
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    every = np.split(order, bounds)
    every.sort(key=lambda rows: -len(rows))
    found = [_lane(ctx, rows, int(group[rows[0]]), int(device[rows[0]])) for rows in every]
    rest = found[MAX_LANES:]
    found = sorted(found[:MAX_LANES], key=lambda lane: _place(ctx, lane))
    if rest:
        together = np.sort(np.concatenate([lane.rows for lane in rest]))
        label = f"{len(rest):,} more streams and threads"
        found.append(EventLane("other", label, together, None))
    return found


def _groups(ctx: Context) -> tuple[Int64s, Int64s]:
    """Index into :data:`_LANE_KINDS` and device (or 0) of each event. Shape ``(n,)`` both."""
    events = ctx.events
    group = np.full(len(events), _LANE_KINDS.index("other"), dtype=np.int64)
    device = np.zeros(len(events), dtype=np.int64)
    group[ctx.tree.rows] = _LANE_KINDS.index("thread")
    for kind, categories in (
        ("stream", DEVICE_WORK),
        ("annotations", (Category.DEVICE_ANNOTATION,)),
    ):
        rows = events.rows_of(*categories)
        group[rows] = _LANE_KINDS.index(kind)
        device[rows] = device_of(events, rows)
    return group, device


def _lane(ctx: Context, rows: Rows, group: int, device: int) -> EventLane:
    kind = _LANE_KINDS[group]
    number = int(ctx.events.lane[rows[0]])
    if kind == "thread":
        return EventLane(kind, thread_label(ctx.events, number), rows, ctx.tree.depth[rows])
    if kind == "other":
        label = f"{thread_label(ctx.events, number)}, of the profiler"
        return EventLane(kind, label, rows, None)
    label = f"{ctx.device_label(device)} {_stream(ctx.events, rows, number)}"
    if kind == "annotations":
        label += ", annotations"
    return EventLane(kind, label, rows, None, device)


def _stream(events: EventTable, rows: Rows, lane: int) -> str:
    """The name of a stream: its number if the events have it, else as in the file."""
    stream = int(events.stream.at(rows[:1])[0])
    return f"stream {events.lanes[lane].tid if stream == MISSING else stream}"


def _place(ctx: Context, lane: EventLane) -> tuple[object, ...]:
    """Sort key: devices by number, then threads, the one with the steps first."""
    if lane.device is not None:
        return 0, lane.device, lane.kind != "stream", len(lane.label), lane.label
    n_steps = int(np.isin(ctx.steps.rows, lane.rows).sum())
    return 1, lane.kind != "thread", -n_steps, -len(lane.rows), lane.label


def _idle_of(ctx: Context, device: int) -> IdleByCause | None:
    """The idle causes of a device."""
    for activity, causes in zip(ctx.devices, ctx.idle_causes, strict=True):
        if activity.device == device:
            return causes
    return None


def _kinds_of_events(ctx: Context) -> Int64s:
    """The kind of each event, as an index into :data:`_KINDS`. Shape ``(n,)``."""
    events = ctx.events
    by_category = [_KIND_NUMBER[_BY_CATEGORY.get(each, "other")] for each in range(len(Category))]
    kind = np.array(by_category, dtype=np.int64)[events.category]
    kind[ctx.is_communication] = _KIND_NUMBER["communication"]
    kind[ALLOCATOR.rows(events)] = _KIND_NUMBER["allocator"]
    kind[blocking_calls(events, ctx.launches)] = _KIND_NUMBER["sync"]
    kind[ctx.data_waits] = _KIND_NUMBER["data"]
    kind[ctx.steps.rows] = _KIND_NUMBER["step"]
    return kind


def _sites_of_events(ctx: Context) -> tuple[Int32s, list[TimelineSite]]:
    """The site of each event, shape ``(n,)``, and the sites."""
    events, source, launches = ctx.events, ctx.source, ctx.launches
    n_names = len(events.names)
    frame = source.frame.astype(np.int64)
    work, launch, op = launches.work, launches.launch, launches.op
    cause = np.where(launch == NO_ROW, op, launch)
    frame[work] = np.where(cause == NO_ROW, NO_FRAME, source.frame[cause])
    op_name = np.full(len(events), -1, dtype=np.int64)
    op_name[work] = np.where(op == NO_ROW, -1, events.name[op])
    what, what_of = numbered(_kinds_of_events(ctx) * n_names + events.name)
    where, where_of = numbered((frame + 1) * (n_names + 1) + op_name + 1)
    both, site = numbered(what_of * len(where) + where_of)
    total = np.zeros(len(both), dtype=np.int64)
    np.add.at(total, site, events.dur_ns)
    n = np.bincount(site, minlength=len(both))
    sites = []
    for number, key in enumerate(both.tolist()):
        kind, name = divmod(int(what[key // len(where)]), n_names)
        at, by = divmod(int(where[key % len(where)]), n_names + 1)
        sites.append(
            TimelineSite(
                name=events.names[name],
                kind=_KINDS[kind],
                frame=source.frames[at - 1] if at else None,
                op=events.names[by - 1] if by else None,
                n=int(n[number]),
                total_ns=int(total[number]),
            )
        )
    return site.astype(np.int32), sites


def _ranked(sites: list[TimelineSite]) -> tuple[tuple[TimelineSite, ...], Int32s]:
    """Sites by total time, the longest first, and the new number of each old one.

    Beyond :data:`MAX_SITES`, all sites of one kind become one.
    """
    order = np.argsort([-site.total_ns for site in sites], kind="stable").tolist()
    named = [sites[old] for old in order[:MAX_SITES]]
    number = np.zeros(len(sites), dtype=np.int32)
    number[order[:MAX_SITES]] = np.arange(len(named), dtype=np.int32)
    rest: dict[SliceKind, int] = {}
    for old in order[MAX_SITES:]:
        site = sites[old]
        if site.kind not in rest:
            rest[site.kind] = len(named)
            named.append(TimelineSite("other names", site.kind, None, None, 0, 0))
        new = rest[site.kind]
        before = named[new]
        named[new] = replace(before, n=before.n + site.n, total_ns=before.total_ns + site.total_ns)
        number[old] = new
    return tuple(named), number
