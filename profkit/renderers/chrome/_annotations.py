"""All that is added to a trace: steps, findings, idle time by cause, counters."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.figures.summary import device_label
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.names import short_path, visible
from profkit.present.headline import cost_text, part_label
from profkit.renderers.chrome._counters import counters
from profkit.renderers.chrome._event_writer import Pen, in_rows
from profkit.renderers.chrome._finding_intervals import (
    Named,
    event_numbers,
    named_events,
    stretches_of,
)
from profkit.units import format_count, format_ns

MOST_FINDINGS: Final = 200
"""Each may take a row; who wants more of them reads the report."""
MOST_GAPS: Final = 20_000
_WITHOUT_TIME_NS: Final = 1_000_000
"""How long a timeline is that has findings and no time."""


def added(report: Report, ctx: Context | None, base: str, *, origin_ns: int) -> Iterator[bytes]:
    """Every event to add, each a JSON object.

    Args:
        ctx: What was recorded, or None.
        base: An absolute folder; paths inside are shown relative to it.
        origin_ns: The recording's start on the clock of the file.
    """
    whole = _whole(report, ctx)
    pen = Pen(ctx.events.lanes if ctx is not None else (), origin_ns, whole[1])
    yield from pen.process("profkit")
    yield from _findings(report, ctx, pen, whole, base)
    yield from _steps(report, pen)
    if ctx is not None:
        yield from _idle(ctx, pen)
    yield from counters(report, ctx, pen)


def _whole(report: Report, ctx: Context | None) -> tuple[int, int]:
    """Start and end of what was recorded, in nanoseconds."""
    if ctx is not None and len(ctx.events):
        return int(ctx.events.ts_ns.min()), int(ctx.events.end_ns.max())
    ends = [step.start_ns + step.dur_ns for step in report.summary.steps]
    if ctx is not None and ctx.live is not None:
        ends += [look.ts_ns for look in ctx.live.samples]
    memory = report.summary.memory
    points = [point for device in (memory.devices if memory else ()) for point in device.timeline]
    ends += [(point.time_us or point.entry) * 1000 for point in points]
    return 0, max([report.summary.window_ns, *ends]) or _WITHOUT_TIME_NS


def _findings(
    report: Report, ctx: Context | None, pen: Pen, whole: tuple[int, int], base: str
) -> Iterator[bytes]:
    every = (*report.findings, *report.health)
    shown = list(enumerate(every[:MOST_FINDINGS], start=1))
    named = named_events((finding for _, finding in shown), ctx)
    placed = []
    for number, finding in shown:
        times = stretches_of(finding, named, report, whole)
        placed.append((times[0][0], times[-1][1], (number, finding, times)))
    n_more = len(every) - len(shown)
    more = f" (and {format_count(n_more)} more in the report)" if n_more else ""
    for i, row in enumerate(in_rows(placed)):
        tid, names = pen.row(f"findings{more}" if i == 0 else "findings")
        yield from names
        for start, end, (number, finding, times) in sorted(row, key=lambda one: one[:2]):
            name = _title(finding)
            yield pen.slice(tid, name, start, end, _details(report, number, finding, base))
            if len(times) > 1:
                for begins, ends in times:
                    yield pen.slice(tid, name, begins, ends, {"finding": number})
            yield from _marks(finding, number, named, pen, (tid, start))


def _title(finding: Finding) -> str:
    where = f" at {finding.locations[0].place}" if finding.locations else ""
    return f"{finding.rule} {finding.name}{where}"


def _details(report: Report, number: int, finding: Finding, base: str) -> dict[str, object]:
    """A finding as the details of a slice, in the order in which one reads them."""
    places = []
    for where in finding.locations:
        line = f"{short_path(where.file, base)}:{where.line}" if where.file is not None else ""
        places.append(" in ".join(part for part in (where.op or "", line) if part))
    details = {
        "finding": number,
        "what": finding.message,
        "fix": finding.fix,
        "cost": cost_text(report, finding),
        "severity": finding.severity,
        "confidence": finding.confidence,
        "where": ", ".join(place for place in places if place),
        "held by": ", and by ".join("".join(chain) for chain in finding.holders),
        "how often": finding.n,
    }
    return {
        key: visible(value) if isinstance(value, str) else value
        for key, value in details.items()
        if value
    }


def _marks(
    finding: Finding, number: int, named: Mapping[int, Named], pen: Pen, source: tuple[int, int]
) -> Iterator[bytes]:
    """A mark on each event that a finding names, and an arrow that leads there."""
    for event in event_numbers(finding):
        if event in named:
            place = named[event]
            name = f"{finding.rule} {finding.name}"
            yield pen.mark(place.lane, name, place.start_ns, {"finding": number})
            if place.end_ns > place.start_ns:
                yield from pen.arrow(*source, place.lane, place.start_ns)


def _steps(report: Report, pen: Pen) -> Iterator[bytes]:
    placed = [(step.start_ns, step.start_ns + step.dur_ns, step) for step in report.summary.steps]
    for row in in_rows(placed):
        tid, names = pen.row("steps")
        yield from names
        for start, end, step in row:
            parts = {part_label(part.kind): format_ns(part.ns) for part in step.parts if part.ns}
            yield pen.slice(tid, step.name, start, end, parts)


def _idle(ctx: Context, pen: Pen) -> Iterator[bytes]:
    """What each device was idle for, gap by gap."""
    for device, causes in zip(ctx.devices, ctx.idle_causes, strict=True):
        parts = [(cause, time) for cause, time in causes.items() if len(time)]
        if not parts:
            continue
        starts = np.concatenate([time.starts_ns for _, time in parts])
        ends = np.concatenate([time.ends_ns for _, time in parts])
        cause = np.repeat(np.arange(len(parts)), [len(time) for _, time in parts])
        longest = np.argsort(starts - ends, kind="stable")[:MOST_GAPS]
        kept = longest[np.argsort(starts[longest], kind="stable")]
        label = device_label(ctx, device.device)
        n_less = len(starts) - len(kept)
        less = f" (the longest {format_count(MOST_GAPS)} stretches)" if n_less else ""
        tid, names = pen.row(f"{label} idle, by cause{less}")
        yield from names
        words = [part_label(f"idle-{word}") for word, _ in parts]
        for row in kept.tolist():
            args = {"device": label}
            yield pen.slice(tid, words[cause[row]], int(starts[row]), int(ends[row]), args)
