"""The lanes of a recording's events: streams of devices, threads, and other events."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.index.device.streams import device_of
from profkit.model.events import (
    DEVICE_WORK,
    HIDDEN,
    MISSING,
    Category,
    EventTable,
    Int32s,
    Int64s,
    Rows,
)
from profkit.model.timeline import EVENT_LANES, LaneKind
from profkit.present.flame_sites import thread_label

MAX_LANES: Final = 256
"""Lanes of events. The events of all others share one lane."""


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


def find_event_lanes(ctx: Context) -> list[EventLane]:
    """Find all lanes: devices first, then threads, the thread with the steps first.

    Each event is in one lane. Events without a known end and those of profkit are left out.
    """
    events = ctx.events
    shown = find_shown_rows(ctx)
    if not len(shown):
        return []

    group, device = _groups(ctx)
    n_lanes = len(events.lanes)
    # One integer stands for the lane of an event: its group, its device and its lane in the file.
    key = (group * (int(device.max()) + 1) + device) * n_lanes + events.lane
    order = shown[np.argsort(key[shown], kind="stable")]
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    rows_by_lane = np.split(order, bounds)

    # The lanes with the most events are drawn, and the others share the last one.
    rows_by_lane.sort(key=lambda rows: -len(rows))
    all_lanes = [
        _lane(ctx, rows, int(group[rows[0]]), int(device[rows[0]])) for rows in rows_by_lane
    ]
    lanes = sorted(all_lanes[:MAX_LANES], key=lambda lane: _sort_key(ctx, lane))
    if hidden := all_lanes[MAX_LANES:]:
        joined = np.sort(np.concatenate([lane.rows for lane in hidden]))
        label = f"{len(hidden):,} more streams and threads"
        lanes.append(EventLane("other", label, joined, None))
    return lanes


def find_shown_rows(ctx: Context) -> Rows:
    """Return the rows of the events that are drawn, ascending."""
    # The profiler's event over all of the recording would take a lane, and says nothing.
    return np.flatnonzero(~np.isin(ctx.events.category, [*HIDDEN, Category.SPAN]))


def _groups(ctx: Context) -> tuple[Int64s, Int64s]:
    """Return the index into :data:`EVENT_LANES` and device (or 0) of each event, ``(n,)`` both."""
    events = ctx.events
    group = np.full(len(events), EVENT_LANES.index("other"), dtype=np.int64)
    device = np.zeros(len(events), dtype=np.int64)
    group[ctx.tree.rows] = EVENT_LANES.index("thread")
    # Events that are neither calls nor device work stay in a lane of the profiler.
    for kind, categories in (
        ("stream", DEVICE_WORK),
        ("annotations", (Category.DEVICE_ANNOTATION,)),
    ):
        rows = events.rows_of(*categories)
        group[rows] = EVENT_LANES.index(kind)
        device[rows] = device_of(events, rows)
    return group, device


def _lane(ctx: Context, rows: Rows, group: int, device: int) -> EventLane:
    kind = EVENT_LANES[group]
    number = int(ctx.events.lane[rows[0]])
    if kind == "thread":
        return EventLane(kind, thread_label(ctx.events, number), rows, ctx.tree.depth[rows])
    if kind == "other":
        label = f"{thread_label(ctx.events, number)}, other events"
        return EventLane(kind, label, rows, None)

    label = f"{ctx.device_label(device)} {_stream(ctx.events, rows, number)}"
    if kind == "annotations":
        label += ", annotations"
    return EventLane(kind, label, rows, None, device)


def _stream(events: EventTable, rows: Rows, lane: int) -> str:
    """Return the name of a stream: its number if the events have it, else as in the file."""
    stream = int(events.stream.at(rows[:1])[0])
    return f"stream {events.lanes[lane].tid if stream == MISSING else stream}"


def _sort_key(ctx: Context, lane: EventLane) -> tuple[object, ...]:
    """Return a sort key: devices by number, then threads, the thread with the steps first."""
    if lane.device is not None:
        # Shorter labels come first, so that stream 7 precedes stream 20.
        return 0, lane.device, lane.kind != "stream", len(lane.label), lane.label
    n_steps = int(np.isin(ctx.steps.rows, lane.rows).sum())
    return 1, lane.kind != "thread", -n_steps, -len(lane.rows), lane.label
