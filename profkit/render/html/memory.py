"""How memory went, by line and by use, and what stood at the moments that matter."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from profkit.engine.memory_courses import memory_courses
from profkit.engine.memory_text import (
    Sites,
    courses,
    memory_facts,
    place_of,
    sites,
    use_of,
    use_words,
)
from profkit.model.memory_course import MemoryCourse
from profkit.model.memory_summary import AllocationSite, MemorySummary, SnapshotDevice
from profkit.model.report import Report
from profkit.names import short_path
from profkit.render.html._options import Options
from profkit.render.html._section import CHART_SCRIPT, Section, fill
from profkit.render.html._table import TABLE_SCRIPT, Column, Table, cell, table
from profkit.units import format_bytes

_SCRIPT: Final = "memory.js"
_BY: Final = {"line": "by line", "use": "by use", "operator": "by operator"}


def section(report: Report, options: Options) -> Section | None:
    """Memory over time and its tables, or None where nothing is known of it.

    Args:
        report: The report.
        options: What it was made from.
    """
    memory = report.summary.memory
    if memory is None:
        return None
    went = _courses(memory, options)
    charts = [_chart(number, course) for number, course in enumerate(went)]
    watched = _watched_chart(report)
    if watched is not None:
        charts.append(watched)
    tables = [each for each in _tables(report, memory, options, went) if each.rows]
    facts = list(memory_facts(report, everything=False))
    if not (charts or tables or facts):
        return None
    data = {"tables": {each.id: each.data for each in tables}, "charts": charts}
    scripts = (*((TABLE_SCRIPT,) if tables else ()), *((CHART_SCRIPT, _SCRIPT) if charts else ()))
    body = fill("memory.html.j2", facts=facts, charts=charts, tables=tables, by=_BY)
    return Section("memory", "Memory", body, scripts, data, needs_plotly=bool(charts))


def _courses(memory: MemorySummary, options: Options) -> tuple[MemoryCourse, ...]:
    """How each device's memory went: by the recording, else the outline that the report has."""
    if options.recording is not None:
        return memory_courses(options.recording.context)
    return tuple(_outline(each) for each in memory.devices if len(each.timeline) > 1)


def _outline(device: SnapshotDevice) -> MemoryCourse:
    points = device.timeline
    has_times = all(point.time_us is not None for point in points)
    return MemoryCourse(
        device=device.device,
        clock="us" if has_times else "entries",
        at=np.array([(p.time_us if has_times else p.entry) or 0 for p in points], dtype=np.int64),
        allocated_bytes=np.array([point.active_bytes for point in points], dtype=np.int64),
        reserved_bytes=np.array([point.reserved_bytes for point in points], dtype=np.int64),
    )


def _chart(number: int, course: MemoryCourse) -> dict[str, Any]:
    """What ``memory.js`` draws of a device."""
    lines = [{"name": "allocated", "bytes": course.allocated_bytes.tolist()}]
    if course.reserved_bytes is not None:
        lines.append({"name": "reserved", "bytes": course.reserved_bytes.tolist()})
    highest = format_bytes(int(course.allocated_bytes.max()))
    return {
        "id": f"memory-{number}",
        "title": f"{cell(course.device)}: at most {highest}",
        "clock": course.clock,
        "at": course.at.tolist(),
        "lines": lines,
        "layers": {
            kind: [{"name": cell(layer.name), "bytes": layer.bytes.tolist()} for layer in layers]
            for kind, layers in course.layers.items()
            if layers
        },
    }


def _watched_chart(report: Report) -> dict[str, Any] | None:
    """What it draws of a program that was watched: a line a figure, over the steps."""
    went = courses(report)
    if not went:
        return None
    every = sorted({step for course in went for step in course.steps})
    by_step = [dict(zip(course.steps, course.values_bytes, strict=True)) for course in went]
    return {
        "id": "memory-steps",
        "title": "Memory after each step",
        "clock": "step",
        "at": every,
        "lines": [
            {"name": course.name, "bytes": [known.get(step) for step in every]}
            for course, known in zip(went, by_step, strict=True)
        ],
        "layers": {},
    }


def _tables(
    report: Report, memory: MemorySummary, options: Options, went: tuple[MemoryCourse, ...]
) -> Iterator[Table]:
    yield _watched_table(report)
    if not memory.devices:
        for number, course in enumerate(went):
            yield from (_peak_table(number, course, kind) for kind in course.layers)
    for number, each in enumerate(sites(report, everything=True)):
        yield _sites_table(number, each, options)
    for number, device in enumerate(memory.devices):
        yield from _device_tables(number, device, options)


def _peak_table(number: int, course: MemoryCourse, kind: str) -> Table:
    """What a trace tells of the moment at which most was allocated."""
    highest = course.highest
    total = int(course.allocated_bytes[highest])
    columns = (
        Column("Held", "place"),
        Column("Bytes", "bytes"),
        Column("Share", "share", "of all that stood then"),
    )
    held = sorted(((int(each.bytes[highest]), each.name) for each in course.layers[kind]),
                  key=lambda each: -each[0])  # fmt: skip
    rows = ((name, n_bytes, n_bytes / total) for n_bytes, name in held if n_bytes and total)
    caption = f"{course.device} at its peak, {_BY[kind]}: {format_bytes(total)}"
    return table(f"memory-peak-{number}-{kind}", caption, columns, rows, sorted_by=1)


def _watched_table(report: Report) -> Table:
    figures = ("After the first step", "After the last", "Highest")
    columns = (Column("Figure", "text"), *(Column(each, "bytes") for each in figures))
    rows = ((e.name, e.first_bytes, e.last_bytes, e.highest_bytes) for e in courses(report))
    return table("memory-watched", "Memory over the steps", columns, rows)


def _sites_table(number: int, each: Sites, options: Options) -> Table:
    columns = (
        Column("Allocated at", "place"),
        Column("In", "name"),
        Column("Blocks", "count"),
        Column("Bytes", "bytes"),
        Column("Share", "share", "of all that stood then"),
        Column("Used for", "text", "by the evidence of the stack"),
    )
    rows = (
        (
            _site_place(site, options), site.location.function, site.n, site.bytes,
            each.share(site), use_of(site),
        )
        for site in each.sites
    )  # fmt: skip
    caption = f"{each.title}: {format_bytes(each.total_bytes)}"
    return table(f"memory-sites-{number}", caption, columns, rows, sorted_by=3)


def _site_place(site: AllocationSite, options: Options) -> str:
    where = site.location
    if where.file is None or where.line is None:
        return place_of(site)
    return f"{short_path(where.file, options.base)}:{where.line}"


def _device_tables(number: int, device: SnapshotDevice, options: Options) -> Iterator[Table]:
    name = device.device
    uses = ((use_words(each.category) or "not known", each.n, each.bytes)
            for each in device.peak_uses)  # fmt: skip
    yield table(
        f"memory-uses-{number}",
        f"{name} at its peak, by use",
        (Column("Use", "text"), Column("Blocks", "count"), Column("Bytes", "bytes")),
        uses,
        sorted_by=2,
    )
    yield table(
        f"memory-pins-{number}",
        f"{name}: what holds free memory in place",
        (
            Column("Allocated at", "place"),
            Column("Blocks", "count"),
            Column("Bytes", "bytes"),
            Column("Holds in place", "bytes", "free bytes beside them in the same segments"),
        ),
        ((each.location.place, each.n, each.bytes, each.pinned_bytes) for each in device.pins),
        sorted_by=3,
    )
    yield table(
        f"memory-regions-{number}",
        f"{name}: memory of regions",
        (
            Column("Region", "name"),
            Column("Entries", "count"),
            Column("At most", "bytes", "active in any of them"),
            Column("Left behind", "bytes", "negative where they freed more than they took"),
        ),
        ((each.name, each.n, each.peak_active_bytes, each.left_bytes) for each in device.regions),
        sorted_by=2,
    )
