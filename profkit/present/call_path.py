"""The call path to a finding's source line."""

from profkit.engine.context import Context
from profkit.index.host.frames import parse_frame
from profkit.model.events import NO_ROW, Category
from profkit.model.finding import Finding
from profkit.model.location import Frame, Location
from profkit.model.memory_summary import AllocationSite
from profkit.model.report import Report
from profkit.present.renderer import LoadedRecording


def call_path(
    report: Report, recording: LoadedRecording | None, finding: Finding
) -> tuple[Frame, ...]:
    """The frames that lead to a finding, outermost first; empty if unknown.

    They are those of the first event in the finding's evidence, or of the stack that allocated most
    bytes at its line in a snapshot.
    """
    place = finding.locations[0] if finding.locations else Location()
    for site in _sites(report):
        if _is_there(site.location, place) and site.stack:
            return site.stack[::-1]
    events = finding.evidence.get("events")
    if recording is None or not isinstance(events, (list, tuple)) or not events:
        return ()
    return _of_event(recording.context, int(events[0]))


def _is_there(site: Location, place: Location) -> bool:
    return place.file is not None and (site.file, site.line) == (place.file, place.line)


def _sites(report: Report) -> tuple[AllocationSite, ...]:
    memory = report.summary.memory
    if memory is None:
        return ()
    return tuple(site for device in memory.devices for site in device.peak_sites)


def _of_event(ctx: Context, position: int) -> tuple[Frame, ...]:
    """The Python calls around an event, or around the launch of device work."""
    if not ctx.has_trace:
        return ()
    events, launches = ctx.events, ctx.launches
    row = next(iter((events.position == position).nonzero()[0].tolist()), NO_ROW)
    launched = (launches.work == row).nonzero()[0].tolist()
    if launched:
        row = int(launches.launch[launched[0]])
    paths = ctx.trace.capture.paths if ctx.trace.capture else {}
    found: list[Frame] = []
    while row != NO_ROW:
        frame = None
        if events.category[row] == Category.PYTHON:
            frame = parse_frame(events.name_of(row))
        if frame is not None:
            file = paths.get(frame.file, frame.file)
            found.append(Frame(file, frame.line, frame.function, frame.precision))
        row = int(ctx.tree.parent[row])
    return tuple(reversed(found))
