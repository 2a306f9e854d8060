"""Which lane of a timeline each event is in, and in which row of it."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.figures.summary import device_label
from profkit.index.device.idle import IdleByCause
from profkit.index.device.streams import device_of
from profkit.index.launches import DEVICE_WORK
from profkit.model.events import MISSING, Category, EventTable, Int32s, Int64s, Rows
from profkit.model.timeline import LaneKind
from profkit.present.flame_sites import thread_label

MAX_LANES: Final = 256
"""A page has no more lanes of events; what is in others is in one lane together."""

_GROUPS: Final[tuple[LaneKind, ...]] = ("stream", "annotations", "thread", "other")


@dataclass(frozen=True)
class EventLane:
    """A lane of recorded events.

    Attributes:
        kind: What it shows.
        label: Its name.
        rows: Its events, in the order of the file. Shape ``(k,)``.
        depth: For each the row within the lane, or None where they are to be stacked.
        device: Of a stream its device, else None.
    """

    kind: LaneKind
    label: str
    rows: Rows
    depth: Int32s | None
    device: int | None = None


def lanes_of_events(ctx: Context) -> list[EventLane]:
    """Every lane, each event in one: devices first, then threads, the steps' own before others."""
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
    """For each event its place in :data:`_GROUPS`, and its device or 0. Shape ``(n,)`` both."""
    events = ctx.events
    group = np.full(len(events), _GROUPS.index("other"), dtype=np.int64)
    device = np.zeros(len(events), dtype=np.int64)
    group[ctx.tree.rows] = _GROUPS.index("thread")
    for kind, categories in (
        ("stream", DEVICE_WORK),
        ("annotations", (Category.DEVICE_ANNOTATION,)),
    ):
        rows = events.rows_of(*categories)
        group[rows] = _GROUPS.index(kind)
        device[rows] = device_of(events, rows)
    return group, device


def _lane(ctx: Context, rows: Rows, group: int, device: int) -> EventLane:
    kind = _GROUPS[group]
    number = int(ctx.events.lane[rows[0]])
    if kind == "thread":
        return EventLane(kind, thread_label(ctx.events, number), rows, ctx.tree.depth[rows])
    if kind == "other":
        label = f"{thread_label(ctx.events, number)}, of the profiler"
        return EventLane(kind, label, rows, None)
    label = f"{device_label(ctx, device)} {_stream(ctx.events, rows, number)}"
    if kind == "annotations":
        label += ", annotations"
    return EventLane(kind, label, rows, None, device)


def _stream(events: EventTable, rows: Rows, lane: int) -> str:
    """How a stream is called: by its number where the events have it, else as the file has it."""
    stream = int(events.stream.at(rows[:1])[0])
    return f"stream {events.lanes[lane].tid if stream == MISSING else stream}"


def _place(ctx: Context, lane: EventLane) -> tuple[object, ...]:
    """Where a lane stands: devices by number, then threads, the one with the steps first."""
    if lane.device is not None:
        return 0, lane.device, lane.kind != "stream", len(lane.label), lane.label
    n_steps = int(np.isin(ctx.steps.rows, lane.rows).sum())
    return 1, lane.kind != "thread", -n_steps, -len(lane.rows), lane.label


def idle_of(ctx: Context, device: int) -> IdleByCause | None:
    """Why a device was idle."""
    for activity, causes in zip(ctx.devices, ctx.idle_causes, strict=True):
        if activity.device == device:
            return causes
    return None
