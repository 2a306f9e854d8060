"""The timeline: all events of a recording in lanes, with steps, findings and idle causes."""

from collections.abc import Sequence
from dataclasses import field, fields, replace
from typing import Final, get_args

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.figures.path_segments import group_path_segments, name_of_segment
from profkit.index.device.idle import IdleByCause
from profkit.index.device.syncs import blocking_calls
from profkit.index.distinct import numbered_pairs, used
from profkit.index.host.frames import owner_of_call, ownership_of
from profkit.index.host.source import NO_FRAME
from profkit.index.intervals import union
from profkit.index.level_of_detail import build_levels, order_of, stacked, within_rows
from profkit.index.runtime_calls import ALLOCATOR
from profkit.index.sums import sum_by_key
from profkit.model.critical_path import PathKind
from profkit.model.events import (
    DEVICE_WORK,
    NO_ROW,
    Category,
    Int32s,
    Int64s,
    Rows,
)
from profkit.model.finding import Finding
from profkit.model.location import Frame, first_with_file
from profkit.model.report import Report
from profkit.model.timeline import (
    LaneKind,
    SliceKind,
    Slices,
    Timeline,
    TimelineLane,
    TimelineSite,
)
from profkit.model.torch_names import MODULE_PREFIX
from profkit.patterns import regex
from profkit.present.critical_path import entry_name, path_label
from profkit.present.finding_events import times_of
from profkit.present.flame_sites import CALL_KINDS
from profkit.present.labels import part_label
from profkit.present.timeline_lanes import EventLane, find_event_lanes, find_shown_rows

MAX_ROWS: Final = 64
"""Rows of a lane. Deeper calls become one slice in the last row, with their count."""
MAX_SITES: Final = 20_000
"""Names in a page. Rarer events are drawn and counted under one name for each kind."""

_NUMBERED_MODULE: Final = regex(r"_\d+$")
"""What distinguishes modules of one class: the profiler numbers them."""
_KINDS: Final[tuple[SliceKind, ...]] = get_args(SliceKind)
_KIND_NUMBER: Final = {kind: number for number, kind in enumerate(_KINDS)}
_BY_CATEGORY: Final[dict[int, SliceKind]] = {
    **CALL_KINDS,
    **dict.fromkeys(DEVICE_WORK, "copy"),
    Category.KERNEL: "compute",
    Category.DEVICE_ANNOTATION: "annotation",
    Category.OVERHEAD: "overhead",
    Category.DEVICE_SYNC: "sync",
}
_BY_PATH_KIND: Final[dict[int, SliceKind]] = {
    PathKind.OPERATOR: "op",
    PathKind.PYTHON: "python",
    PathKind.RUNTIME: "call",
    PathKind.SYNC: "sync",
    PathKind.DATA_WAIT: "data",
    PathKind.LAUNCH_LATENCY: "launch-latency",
    PathKind.KERNEL: "compute",
    PathKind.COPY: "copy",
    PathKind.COMMUNICATION: "communication",
    PathKind.GAP: "gap",
    PathKind.UNRECORDED: "unrecorded",
}
_NamedTimes = tuple[str, SliceKind, Int64s, Int64s, Frame | None]
"""The name, kind and source line of a site, with the starts and ends of its slices."""


def build_timeline(ctx: Context, report: Report) -> Timeline | None:
    """Build the timeline of a recording; None if it has no events."""
    if not len(find_shown_rows(ctx)):
        return None

    site, sites = _find_sites(ctx)
    drawn = DrawnLanes(sites)
    _add_steps(drawn, ctx)
    _add_critical_path(drawn, ctx)
    _add_findings(drawn, ctx, report.findings)
    # The idle causes of a device stand above the first of its streams.
    seen: set[int] = set()
    for lane in find_event_lanes(ctx):
        if lane.device is not None and lane.device not in seen:
            seen.add(lane.device)
            _add_idle(drawn, ctx.device_label(lane.device), _idle_of(ctx, lane.device))
        _add_events(drawn, ctx, lane, site)

    ranked_sites, number = _rank_sites(sites)
    slices = drawn.take_slices(number)
    start, end = int(slices.start_ns.min()), int(slices.end_ns.max())
    steps = ctx.steps
    ends = steps.ends_ns.tolist()
    return Timeline(
        start_ns=start,
        end_ns=end,
        lanes=tuple(drawn.lanes),
        sites=ranked_sites,
        levels=build_levels(slices, max(1, end - start)),
        steps=tuple(zip(steps.names, steps.starts_ns.tolist(), ends, strict=True)),
    )


@dataclass
class DrawnLanes:
    """Lanes under construction, and the sites that their slices show.

    Attributes:
        sites: The sites of the slices.
        parts: The slices of each lane.
        n_rows: Rows of all lanes.
    """

    sites: list[TimelineSite]
    lanes: list[TimelineLane] = field(default_factory=list)
    parts: list[Slices] = field(default_factory=list)
    n_rows: int = 0

    def add(
        self,
        kind: LaneKind,
        label: str,
        starts_ns: Int64s,
        ends_ns: Int64s,
        site: Int32s,
        depth: Int32s | None = None,
        event: Rows | None = None,
    ) -> None:
        """Add a lane.

        Args:
            starts_ns: Starts of its slices. Shape ``(k,)``.
            ends_ns: Shape ``(k,)``.
            site: Shape ``(k,)``.
            depth: Rows in the lane, or None to stack the slices. Shape ``(k,)``.
            event: The rows of recorded events, or None for other slices. Shape ``(k,)``.
        """
        if not len(starts_ns):
            return

        row = np.zeros(len(starts_ns), dtype=np.int32) if depth is None else depth
        lengths = ends_ns - starts_ns
        ones = np.ones(len(row), dtype=np.int64)
        if event is None:
            rows = np.full(len(row), NO_ROW, dtype=np.int32)
        else:
            rows = event.astype(np.int32)
        slices = Slices(row, starts_ns, ends_ns, lengths, ones, lengths, site, rows)

        # Slices of one row ascend; stacking, which changes the rows, relies on that.
        order = order_of(row, starts_ns, ends_ns)
        if order is not None:
            slices = slices.of(order)
        if depth is None:
            slices = replace(slices, row=stacked(slices.row, slices))
            slices = slices.of(np.argsort(slices.row, kind="stable"))
        slices = within_rows(slices, MAX_ROWS)

        n_rows = int(slices.row.max()) + 1
        busy_ns = union(starts_ns, ends_ns).total_ns
        self.lanes.append(TimelineLane(kind, label, self.n_rows, n_rows, len(starts_ns), busy_ns))
        # Rows of all lanes are numbered together.
        self.parts.append(replace(slices, row=slices.row + np.int32(self.n_rows)))
        self.n_rows += n_rows

    def add_named(self, kind: LaneKind, label: str, parts: Sequence[_NamedTimes]) -> None:
        """Add a lane and its sites, each of which is drawn at some times."""
        if not parts:
            return

        n = [len(starts_ns) for _, _, starts_ns, _, _ in parts]
        site = np.repeat(np.arange(len(parts), dtype=np.int32) + np.int32(len(self.sites)), n)
        for name, of_site, starts_ns, ends_ns, at in parts:
            total_ns = int((ends_ns - starts_ns).sum())
            self.sites.append(TimelineSite(name, of_site, at, None, len(starts_ns), total_ns))

        _, _, starts, ends, _ = zip(*parts, strict=True)
        self.add(kind, label, np.concatenate(starts), np.concatenate(ends), site)

    def take_slices(self, number: Int32s) -> Slices:
        """Move all slices out of the lanes, column by column to save memory, and renumber sites."""
        names = [column.name for column in fields(Slices)]
        columns = {name: [getattr(part, name) for part in self.parts] for name in names}
        self.parts.clear()

        joined = {name: np.concatenate(columns.pop(name)) for name in names}
        return Slices(**joined | {"site": number[joined["site"]]})


def _add_steps(drawn: DrawnLanes, ctx: Context) -> None:
    starts, ends = ctx.steps.starts_ns, ctx.steps.ends_ns
    drawn.add_named(
        "steps",
        "steps",
        [
            (name, "step", starts[i : i + 1], ends[i : i + 1], None)
            for i, name in enumerate(ctx.steps.names)
        ],
    )


def _add_critical_path(drawn: DrawnLanes, ctx: Context) -> None:
    """Add the segments of the critical path: a site for each kind, name and source line."""
    path, segments = ctx.critical_path, group_path_segments(ctx, ctx.critical_path)
    first = len(drawn.sites)
    columns = (segments.kind, segments.name, segments.frame)
    figures = (segments.n_by_group, segments.ns_by_group)
    groups = zip(*(column.tolist() for column in (*columns, *figures)), strict=True)
    for kind, name, frame, n, total_ns in groups:
        label, text = PathKind(kind).report_name, name_of_segment(ctx, kind, name)
        # The page shortens the names of kernels itself.
        shown = text if _BY_PATH_KIND[kind] == "compute" else entry_name(label, text)
        drawn.sites.append(
            TimelineSite(
                shown or path_label(label),
                _BY_PATH_KIND[kind],
                None if frame == NO_FRAME else ctx.source.frames[frame],
                None,
                n,
                total_ns,
                is_path=True,
            )
        )

    # Groups of segments are numbered from 0, and their sites follow the sites of events.
    of_site = segments.group + np.int32(first)
    row = np.zeros(len(of_site), dtype=np.int32)
    drawn.add("path", "critical path", path.starts_ns, path.ends_ns, of_site, row)


def _add_findings(drawn: DrawnLanes, ctx: Context, findings: tuple[Finding, ...]) -> None:
    """Add a slice for the time that a finding is about, or for the events that it names."""
    parts: list[_NamedTimes] = []
    for finding in findings:
        where, at = first_with_file(finding.locations), None
        if where is not None and where.file is not None:
            at = Frame(where.file, where.line, where.function or "", where.precision)
        name = f"{finding.rule} {finding.title}"
        parts.append((name, "finding", *times_of(ctx, finding), at))
    drawn.add_named("findings", "findings", parts)


def _add_idle(drawn: DrawnLanes, device: str, causes: IdleByCause | None) -> None:
    """Add the idle causes of a lane's device."""
    parts: list[_NamedTimes] = []
    for cause, times in (causes or {}).items():
        if len(times):
            kind: SliceKind = f"idle-{cause}"  # type: ignore[assignment]  # one for each cause
            parts.append((part_label(kind), kind, times.starts_ns, times.ends_ns, None))
    drawn.add_named("idle", f"{device} idle", parts)


def _add_events(drawn: DrawnLanes, ctx: Context, lane: EventLane, site: Int32s) -> None:
    event_rows = lane.rows
    starts, ends = ctx.events.ts_ns[event_rows], ctx.events.end_ns[event_rows]
    drawn.add(lane.kind, lane.label, starts, ends, site[event_rows], lane.depth, event_rows)


def _idle_of(ctx: Context, device: int) -> IdleByCause | None:
    """Return the idle causes of a device, or None if it is not a recorded device."""
    for activity, causes in zip(ctx.devices, ctx.idle_causes, strict=True):
        if activity.device == device:
            return causes
    return None


def _find_kinds(ctx: Context) -> Int64s:
    """Find the kind of each event, as an index into :data:`_KINDS`. Shape ``(n,)``."""
    events = ctx.events
    by_category = [
        _KIND_NUMBER[_BY_CATEGORY.get(category, "other")] for category in range(len(Category))
    ]
    kind = np.array(by_category, dtype=np.int64)[events.category]

    # Later kinds are more specific: a wait for data may also be a blocking call.
    python_rows = events.rows_of(Category.PYTHON)
    kind[python_rows] = _kinds_of_python_calls(ctx)[events.name[python_rows]]
    kind[ctx.is_communication] = _KIND_NUMBER["communication"]
    kind[ALLOCATOR.rows(events)] = _KIND_NUMBER["allocator"]
    kind[blocking_calls(events, ctx.launches)] = _KIND_NUMBER["sync"]
    kind[ctx.data_waits] = _KIND_NUMBER["data"]
    kind[ctx.steps.annotations] = _KIND_NUMBER["step"]
    return kind


def _kinds_of_python_calls(ctx: Context) -> Int64s:
    """Return the kind of a Python call of each name, as an index into :data:`_KINDS`."""
    events, ownership = ctx.events, ownership_of(ctx.trace.capture)
    kind = np.full(len(events.names), _KIND_NUMBER["other"], dtype=np.int64)
    # Names repeat: each one is classified once.
    for name in used(events.name[events.rows_of(Category.PYTHON)]).tolist():
        text = events.names[name]
        owner = "module" if text.startswith(MODULE_PREFIX) else owner_of_call(text, ownership)
        kind[name] = _KIND_NUMBER[owner]
    return kind


def _module_classes(ctx: Context) -> tuple[list[str], Int64s]:
    """Find the class of the innermost module around each event; of device work, around its launch.

    Returns:
        The classes, the first of which is empty, and an index into them for each event.
        Shape ``(n,)``.
    """
    classes = {"": 0}
    of_module = [
        classes.setdefault(_NUMBERED_MODULE.sub("", name), len(classes))
        for name in ctx.source.modules
    ]

    # The index of no module, -1, selects the last element.
    class_index = np.array([*of_module, 0], dtype=np.int64)[ctx.source.module]
    work, cause = ctx.launches.work, ctx.launches.cause
    class_index[work] = np.where(cause == NO_ROW, 0, class_index[cause])
    return list(classes), class_index


def _find_sites(ctx: Context) -> tuple[Int32s, list[TimelineSite]]:
    """Find the site of each event, shape ``(n,)``, and the sites."""
    events, source, launches = ctx.events, ctx.source, ctx.launches
    n_names = len(events.names)

    # Device work is shown with the source line and the operator of its launch.
    frame = source.frame.astype(np.int64)
    work, op, cause = launches.work, launches.op, launches.cause
    frame[work] = np.where(cause == NO_ROW, NO_FRAME, source.frame[cause])
    op_name = np.full(len(events), -1, dtype=np.int64)
    op_name[work] = np.where(op == NO_ROW, -1, events.name[op])

    # Two integers stand for the five properties that distinguish a site.
    classes, module = _module_classes(ctx)
    n_classes = len(classes)
    named = (_find_kinds(ctx) * n_names + events.name) * n_classes + module
    caused_at = (frame + 1) * (n_names + 1) + op_name + 1
    shown = find_shown_rows(ctx)
    (named_keys, caused_keys), shown_site = numbered_pairs(named[shown], caused_at[shown])
    site = np.zeros(len(events), dtype=np.int64)
    site[shown] = shown_site

    total_ns = sum_by_key(len(named_keys), shown_site, events.dur_ns[shown])
    n = np.bincount(shown_site, minlength=len(named_keys))
    sites = []
    keys = zip(named_keys.tolist(), caused_keys.tolist(), strict=True)
    for number, (named_key, caused_key) in enumerate(keys):
        kind_and_name, class_number = divmod(named_key, n_classes)
        kind, name = divmod(kind_and_name, n_names)
        frame_number, op_number = divmod(caused_key, n_names + 1)
        sites.append(
            TimelineSite(
                name=events.names[name],
                kind=_KINDS[kind],
                frame=source.frames[frame_number - 1] if frame_number else None,
                op=events.names[op_number - 1] if op_number else None,
                n=int(n[number]),
                total_ns=int(total_ns[number]),
                module=classes[class_number],
            )
        )
    return site.astype(np.int32), sites


def _rank_sites(sites: list[TimelineSite]) -> tuple[tuple[TimelineSite, ...], Int32s]:
    """Sort sites by total time, the longest first, with the new number of each old one.

    Beyond :data:`MAX_SITES` of events, and as many of the critical path, all sites of one kind
    become one.
    """
    order = np.argsort([-site.total_ns for site in sites], kind="stable")
    is_path = np.array([site.is_path for site in sites], dtype=np.bool_)[order]
    is_rare = np.where(is_path, np.cumsum(is_path), np.cumsum(~is_path)) > MAX_SITES
    frequent = order[~is_rare].tolist()
    ranked = [sites[old] for old in frequent]
    number = np.zeros(len(sites), dtype=np.int32)
    number[frequent] = np.arange(len(ranked), dtype=np.int32)

    shared_number: dict[tuple[SliceKind, bool], int] = {}
    for old in order[is_rare].tolist():
        site = sites[old]
        key = (site.kind, site.is_path)
        if key not in shared_number:
            shared_number[key] = len(ranked)
            ranked.append(TimelineSite("other names", site.kind, None, None, 0, 0, site.is_path))
        new = shared_number[key]
        merged = ranked[new]
        ranked[new] = replace(merged, n=merged.n + site.n, total_ns=merged.total_ns + site.total_ns)
        number[old] = new
    return tuple(ranked), number
