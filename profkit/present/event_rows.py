"""Events of a trace as rows with names instead of numbers."""

from collections.abc import Iterator

import numpy as np

from profkit.engine.context import Context
from profkit.index.host.steps import NO_STEP
from profkit.model.events import DEVICE_WORK, MISSING, Category, Rows
from profkit.model.explanation import EventRow


def build_event_rows(ctx: Context, rows: Rows) -> Iterator[EventRow]:
    """Build the rows of some events of a trace, in their order.

    Args:
        rows: Rows of the trace's events. Shape ``(n,)``.
    """
    events = ctx.events
    devices, streams = events.device.at(rows), events.stream.at(rows)
    places = zip(
        rows.tolist(), ctx.step_of(rows).tolist(), devices.tolist(), streams.tolist(), strict=True
    )

    for row, step, device, stream in places:
        category = Category(int(events.category[row]))
        location = ctx.location(row)
        is_work = category in DEVICE_WORK
        yield EventRow(
            id=int(events.position[row]),
            name=events.name_of(row),
            category=category.name.lower(),
            start_ns=int(events.ts_ns[row]),
            dur_ns=int(events.dur_ns[row]),
            thread=_stream(ctx, device, stream) if is_work else _thread(ctx, row),
            step=None if step == NO_STEP else ctx.steps.names[step],
            location=location if location.file else None,
        )


def _stream(ctx: Context, device: int, stream: int) -> str:
    label = "device" if device == MISSING else ctx.device_label(device)
    return label if stream == MISSING else f"{label} stream {stream}"


def _thread(ctx: Context, row: int) -> str:
    lane = ctx.events.lanes[ctx.events.lane[row]]
    if not lane.thread:
        return f"thread {lane.tid}"
    # The names of some threads contain their number.
    return lane.thread if lane.tid in lane.thread else f"{lane.thread} {lane.tid}"


def find_rows(ctx: Context, positions: list[int]) -> Rows:
    """Find the rows of events by their positions in the file, ascending."""
    return np.flatnonzero(np.isin(ctx.events.position, positions))
