"""How memory went, by line and by use, and what stood at the moments that matter."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from profkit.model.memory_series import MemorySeries
from profkit.model.memory_summary import AllocationSite, MemorySummary, SnapshotDevice
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.memory_series import memory_series
from profkit.present.memory_text import (
    AllocationTable,
    allocation_tables,
    memory_facts,
    place_of,
    series_rows,
    use_label,
    use_of,
)
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import CHART_SCRIPT, Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, cell, table
from profkit.units import format_bytes

_SCRIPT: Final = "memory.js"
_BY: Final = {"line": "by line", "use": "by use", "operator": "by operator"}


def section(report: Report, options: Options) -> Section | None:
    """Memory over time and its tables, or None where nothing is known of it.

    Args:
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


def _courses(memory: MemorySummary, options: Options) -> tuple[MemorySeries, ...]:
    """How each device's memory went: by the recording, else the outline that the report has."""
    if options.recording is not None:
        return memory_series(options.recording.context)
    return tuple(_outline(each) for each in memory.devices if len(each.timeline) > 1)


def _outline(device: SnapshotDevice) -> MemorySeries:
    points = device.timeline
    has_times = all(point.time_us is not None for point in points)
    return MemorySeries(
        device=device.device,
        clock="us" if has_times else "entries",
        at=np.array([(p.time_us if has_times else p.entry) or 0 for p in points], dtype=np.int64),
        allocated_bytes=np.array([point.active_bytes for point in points], dtype=np.int64),
        reserved_bytes=np.array([point.reserved_bytes for point in points], dtype=np.int64),
    )


def _chart(number: int, course: MemorySeries) -> dict[str, Any]:
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
    went = series_rows(report)
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
    report: Report, memory: MemorySummary, options: Options, went: tuple[MemorySeries, ...]
) -> Iterator[SortableTable]:
    yield _watched_table(report)
    if not memory.devices:
        for number, course in enumerate(went):
            yield from (_peak_table(number, course, kind) for kind in course.layers)
    for number, each in enumerate(allocation_tables(report, everything=True)):
        yield _sites_table(number, each, options)
    for number, device in enumerate(memory.devices):
        yield from _device_tables(number, device, options)


def _peak_table(number: int, course: MemorySeries, kind: str) -> SortableTable:
    """What a trace tells of the moment at which most was allocated."""
    highest = course.highest
    total = int(course.allocated_bytes[highest])
    columns = (
        SortableColumn("Held", "place"),
        SortableColumn("Bytes", "bytes"),
        SortableColumn("Share", "share", "of all that stood then"),
    )
    held = sorted(((int(each.bytes[highest]), each.name) for each in course.layers[kind]),
                  key=lambda each: -each[0])  # fmt: skip
    rows = ((name, n_bytes, n_bytes / total) for n_bytes, name in held if n_bytes and total)
    caption = f"{course.device} at its peak, {_BY[kind]}: {format_bytes(total)}"
    return table(f"memory-peak-{number}-{kind}", caption, columns, rows, sorted_by=1)


def _watched_table(report: Report) -> SortableTable:
    figures = ("After the first step", "After the last", "Highest")
    columns = (
        SortableColumn("Figure", "text"),
        *(SortableColumn(each, "bytes") for each in figures),
    )
    rows = ((e.name, e.first_bytes, e.last_bytes, e.highest_bytes) for e in series_rows(report))
    return table("memory-watched", "Memory over the steps", columns, rows)


def _sites_table(number: int, each: AllocationTable, options: Options) -> SortableTable:
    columns = (
        SortableColumn("Allocated at", "place"),
        SortableColumn("In", "name"),
        SortableColumn("Blocks", "count"),
        SortableColumn("Bytes", "bytes"),
        SortableColumn("Share", "share", "of all that stood then"),
        SortableColumn("Used for", "text", "by the evidence of the stack"),
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


def _device_tables(
    number: int, device: SnapshotDevice, options: Options
) -> Iterator[SortableTable]:
    name = device.device
    uses = ((use_label(each.category) or "not known", each.n, each.bytes)
            for each in device.peak_uses)  # fmt: skip
    yield table(
        f"memory-uses-{number}",
        f"{name} at its peak, by use",
        (
            SortableColumn("Use", "text"),
            SortableColumn("Blocks", "count"),
            SortableColumn("Bytes", "bytes"),
        ),
        uses,
        sorted_by=2,
    )
    yield table(
        f"memory-pins-{number}",
        f"{name}: what holds free memory in place",
        (
            SortableColumn("Allocated at", "place"),
            SortableColumn("Blocks", "count"),
            SortableColumn("Bytes", "bytes"),
            SortableColumn(
                "Holds in place", "bytes", "free bytes beside them in the same segments"
            ),
        ),
        (
            (each.location.place, each.n, each.bytes, each.unreleasable_bytes)
            for each in device.fragmentation_sites
        ),
        sorted_by=3,
    )
    yield table(
        f"memory-regions-{number}",
        f"{name}: memory of regions",
        (
            SortableColumn("Region", "name"),
            SortableColumn("Entries", "count"),
            SortableColumn("At most", "bytes", "active in any of them"),
            SortableColumn("Left behind", "bytes", "negative where they freed more than they took"),
        ),
        (
            (each.name, each.n, each.peak_active_bytes, each.net_active_bytes)
            for each in device.regions
        ),
        sorted_by=2,
    )
