"""The events that are added to a trace: steps, findings, idle time by cause, counters."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.figures.path_segments import group_path_segments, name_of_segment
from profkit.index.host.source import NO_FRAME
from profkit.model.critical_path import PathKind
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.names import visible
from profkit.present.critical_path import entry_name, path_label
from profkit.present.finding_events import event_positions
from profkit.present.labels import at_place, cost_text, part_label, source_line
from profkit.present.memory_text import devices_of
from profkit.renderers.chrome._counters import write_counters
from profkit.renderers.chrome._event_writer import EventWriter, pack_rows
from profkit.renderers.chrome._finding_intervals import (
    ReferencedEvent,
    find_intervals,
    find_referenced_events,
)
from profkit.units import format_count, format_ns

MAX_FINDINGS: Final = 200
"""Each may need a row; the report has the others."""
MAX_GAPS: Final = 20_000
_DEFAULT_LENGTH_NS: Final = 1_000_000
"""The length of the timeline for findings without any time."""


def write_annotations(
    report: Report, ctx: Context | None, base: str, *, origin_ns: int
) -> Iterator[bytes]:
    """Write every event to add, each a JSON object.

    Args:
        origin_ns: The recording's start on the clock of the file.
    """
    window = _find_window(report, ctx)
    writer = EventWriter(ctx.events.lanes if ctx is not None else (), origin_ns, window[1])
    yield from writer.name_process("profkit")
    yield from _write_findings(report, ctx, writer, window, base)
    yield from _write_steps(report, writer)
    if ctx is not None:
        yield from _write_critical_path(ctx, writer, base)
        yield from _write_idle(ctx, writer)
    yield from write_counters(report, ctx, writer)


def _find_window(report: Report, ctx: Context | None) -> tuple[int, int]:
    """Return start and end of the recording, in nanoseconds."""
    if ctx is not None and len(ctx.events):
        return int(ctx.events.ts_ns.min()), int(ctx.events.end_ns.max())

    # Without events, the timeline ends with the last thing that has a time.
    ends = [step.start_ns + step.dur_ns for step in report.summary.steps]
    if ctx is not None and ctx.live is not None:
        ends += [sample.ts_ns for sample in ctx.live.samples]
    points = [point for device in devices_of(report) for point in device.timeline]
    ends += [(point.time_us or point.entry) * 1000 for point in points]
    return 0, max([report.summary.window_ns, *ends]) or _DEFAULT_LENGTH_NS


def _write_findings(
    report: Report,
    ctx: Context | None,
    writer: EventWriter,
    window: tuple[int, int],
    base: str,
) -> Iterator[bytes]:
    findings = (*report.findings, *report.health)
    numbered = list(enumerate(findings[:MAX_FINDINGS], start=1))
    events = find_referenced_events((finding for _, finding in numbered), ctx)
    placed = []
    for number, finding in numbered:
        times = find_intervals(finding, events, report, window)
        placed.append((times[0][0], times[-1][1], (number, finding, times)))

    n_more = len(findings) - len(numbered)
    more = f" (and {format_count(n_more)} more in the report)" if n_more else ""
    for i, row in enumerate(pack_rows(placed)):
        tid, names = writer.add_row(f"findings{more}" if i == 0 else "findings")
        yield from names
        for start, end, (number, finding, times) in sorted(row, key=lambda placed: placed[:2]):
            name = f"{finding.rule} {finding.name}{at_place(finding)}"
            yield writer.slice(
                tid, name, start, end, _describe_finding(report, number, finding, base)
            )
            # Viewers drop overlapping slices, but show slices within one another.
            if len(times) > 1:
                for first, last in times:
                    yield writer.slice(tid, name, first, last, {"finding": number})
            yield from _write_markers(finding, number, events, writer, (tid, start))


def _describe_finding(
    report: Report, number: int, finding: Finding, base: str
) -> dict[str, object]:
    """Return a finding as the arguments of a slice, in reading order."""
    places = []
    for where in finding.locations:
        line = ""
        if where.file is not None:
            line = source_line(where.file, where.line, base)
        places.append(" in ".join(part for part in (where.op or "", line) if part))

    details = {
        "finding": number,
        "message": finding.message,
        "fix": finding.fix,
        "cost": cost_text(report, finding),
        "severity": finding.severity,
        "confidence": finding.confidence,
        "source lines": ", ".join(place for place in places if place),
        "held by": ", ".join("".join(chain) for chain in finding.holders),
        "occurrences": finding.n,
    }
    # Viewers show empty arguments too.
    return {
        key: visible(value) if isinstance(value, str) else value
        for key, value in details.items()
        if value
    }


def _write_markers(
    finding: Finding,
    number: int,
    events: Mapping[int, ReferencedEvent],
    writer: EventWriter,
    source: tuple[int, int],
) -> Iterator[bytes]:
    """Write a marker on each event that a finding refers to, and an arrow to it."""
    for position in event_positions(finding):
        if position in events:
            event = events[position]
            name = f"{finding.rule} {finding.name}"
            yield writer.marker(event.lane, name, event.start_ns, {"finding": number})
            if event.end_ns > event.start_ns:
                yield from writer.arrow(*source, event.lane, event.start_ns)


def _write_steps(report: Report, writer: EventWriter) -> Iterator[bytes]:
    placed = [(step.start_ns, step.start_ns + step.dur_ns, step) for step in report.summary.steps]
    for row in pack_rows(placed):
        tid, names = writer.add_row("steps")
        yield from names
        for start, end, step in row:
            parts = {part_label(part.kind): format_ns(part.ns) for part in step.parts if part.ns}
            yield writer.slice(tid, step.name, start, end, parts)


def _write_critical_path(ctx: Context, writer: EventWriter, base: str) -> Iterator[bytes]:
    """Write every segment of the critical path, named after what runs in it."""
    path = ctx.critical_path
    if not len(path.kind):
        return

    tid, names = writer.add_row("critical path")
    yield from names

    # A path of a million segments has few groups: names and arguments are made once for each.
    segments = group_path_segments(ctx, path)
    groups = zip(
        *(column.tolist() for column in (segments.kind, segments.name, segments.frame)), strict=True
    )
    slices = [_describe_segment(ctx, kind, name, frame, base) for kind, name, frame in groups]
    columns = (path.starts_ns, path.ends_ns, segments.group)
    for start, end, group in zip(*(column.tolist() for column in columns), strict=True):
        yield writer.slice(tid, slices[group][0], start, end, slices[group][1])


def _describe_segment(
    ctx: Context, kind: int, name: int, frame: int, base: str
) -> tuple[str, dict[str, object]]:
    """Return the name and arguments of a segment."""
    label = PathKind(kind).report_name
    args: dict[str, object] = {"kind": path_label(label)}
    if frame != NO_FRAME:
        where = ctx.source.frames[frame]
        args["source line"] = visible(source_line(where.file, where.line, base))
    return entry_name(label, name_of_segment(ctx, kind, name)) or path_label(label), args


def _write_idle(ctx: Context, writer: EventWriter) -> Iterator[bytes]:
    """Write the idle time of each device, with the cause of each gap."""
    for device, causes in zip(ctx.devices, ctx.idle_causes, strict=True):
        parts = [(cause, time) for cause, time in causes.items() if len(time)]
        if not parts:
            continue

        starts = np.concatenate([time.starts_ns for _, time in parts])
        ends = np.concatenate([time.ends_ns for _, time in parts])
        cause = np.repeat(np.arange(len(parts)), [len(time) for _, time in parts])

        # The longest gaps, in the order of their starts.
        longest = np.argsort(starts - ends, kind="stable")[:MAX_GAPS]
        gaps = longest[np.argsort(starts[longest], kind="stable")]

        label = ctx.device_label(device.device)
        is_cut = len(gaps) < len(starts)
        omitted = f" (the longest {format_count(MAX_GAPS)} gaps)" if is_cut else ""
        tid, names = writer.add_row(f"{label} idle, by cause{omitted}")
        yield from names
        labels = [part_label(f"idle-{cause}") for cause, _ in parts]
        for row in gaps.tolist():
            args = {"device": label}
            yield writer.slice(tid, labels[cause[row]], int(starts[row]), int(ends[row]), args)
