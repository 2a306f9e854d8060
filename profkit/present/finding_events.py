"""The events that a finding refers to: their positions, times and call path."""

from collections.abc import Sequence

import numpy as np

from profkit.dataclass import replace
from profkit.engine.context import Context
from profkit.index.host.frames import parse_frame
from profkit.model.events import NO_ROW, Category, Int64s
from profkit.model.finding import Finding
from profkit.model.location import Frame, Location
from profkit.model.report import Report
from profkit.present.memory_text import devices_of
from profkit.present.renderer import LoadedRecording


def event_positions(finding: Finding) -> list[int]:
    """Return the positions in the file of the events that a finding refers to."""
    positions = finding.evidence.get("events")
    if not isinstance(positions, Sequence) or isinstance(positions, str):
        return []
    return [number for number in positions if isinstance(number, int)]


def times_of(ctx: Context, finding: Finding) -> tuple[Int64s, Int64s]:
    """Starts and ends of the time that a finding is about, or else of its events."""
    if finding.spans:
        spans = np.array(finding.spans, dtype=np.int64)
        return spans[:, 0], spans[:, 1]
    rows = np.flatnonzero(np.isin(ctx.events.position, event_positions(finding)))
    return ctx.events.ts_ns[rows], ctx.events.end_ns[rows]


def find_call_path(
    report: Report, recording: LoadedRecording | None, finding: Finding
) -> tuple[Frame, ...]:
    """Find the frames that lead to a finding, outermost first; empty if unknown.

    These are the frames of the first event in the finding's evidence, or of the stack with most
    bytes at its line in a snapshot.
    """
    place = finding.locations[0] if finding.locations else Location()
    # A snapshot has the stacks of its allocations, a trace the calls around its events.
    for site in (site for device in devices_of(report) for site in device.peak_sites):
        if _is_there(site.location, place) and site.stack:
            return site.stack[::-1]

    events = event_positions(finding)
    return _find_calls(recording.context, events[0]) if recording is not None and events else ()


def _is_there(site: Location, place: Location) -> bool:
    return place.file is not None and (site.file, site.line) == (place.file, place.line)


def _find_calls(ctx: Context, position: int) -> tuple[Frame, ...]:
    """Find the Python calls around an event, or around the launch of device work."""
    if not ctx.has_trace:
        return ()
    events, launches = ctx.events, ctx.launches
    row = next(iter((events.position == position).nonzero()[0].tolist()), NO_ROW)
    # Device work has no calls around it, but its launch has.
    launched = (launches.work == row).nonzero()[0].tolist()
    if launched:
        row = int(launches.launch[launched[0]])

    calls: list[Frame] = []
    while row != NO_ROW:
        is_python = events.category[row] == Category.PYTHON
        frame = full_frame(ctx, events.name_of(row)) if is_python else None
        if frame is not None:
            calls.append(frame)
        row = int(ctx.tree.parent[row])
    return tuple(reversed(calls))


def full_frame(ctx: Context, name: str) -> Frame | None:
    """Return the frame of a Python call with the full path of its file; None for other calls."""
    frame, capture = parse_frame(name), ctx.trace.capture
    # torch shortens the paths of files; profkit's own recordings have them.
    if frame is None or capture is None:
        return frame
    return replace(frame, file=capture.paths.get(frame.file, frame.file))
