"""Memory over time by line, use and operator, and what was allocated at its peak."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from profkit.model.memory_series import MemorySeries
from profkit.model.memory_summary import AllocationSite, MemorySummary, SnapshotDevice
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.memory_series import REST_LAYERS, memory_series
from profkit.present.memory_text import (
    AllocationTable,
    allocation_tables,
    memory_facts,
    place_of,
    series_rows,
    use_label,
    use_of,
)
from profkit.present.recording_tables import largest_allocations, operator_memory
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import CHART_SCRIPT, Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, cell, table
from profkit.units import format_bytes

_SCRIPT: Final = "memory.js"
_BY: Final = {"line": "by line", "use": "by use", "operator": "by operator"}


def section(report: Report, options: Options) -> Section | None:
    """Memory over time and its tables, or None where the recording has no memory data."""
    memory = report.summary.memory
    if memory is None:
        return None
    every = _series(memory, options)
    charts = [_chart(number, series) for number, series in enumerate(every)]
    monitored = _monitored_chart(report)
    if monitored is not None:
        charts.append(monitored)
    tables = [each for each in _tables(report, memory, options, every) if each.rows]
    facts = list(memory_facts(report, everything=False))
    if not (charts or tables or facts):
        return None
    data = {"tables": {each.id: each.data for each in tables}, "charts": charts}
    scripts = (*((TABLE_SCRIPT,) if tables else ()), *((CHART_SCRIPT, _SCRIPT) if charts else ()))
    body = fill("memory.html.j2", facts=facts, charts=charts, tables=tables, by=_BY)
    return Section("memory", "Memory", body, scripts, data, needs_plotly=bool(charts))


def _series(memory: MemorySummary, options: Options) -> tuple[MemorySeries, ...]:
    """Each device's memory over time: from the recording, else the outline in the report."""
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


def _chart(number: int, series: MemorySeries) -> dict[str, Any]:
    """What ``memory.js`` draws for a device."""
    lines = [{"name": "allocated", "bytes": series.allocated_bytes.tolist()}]
    if series.reserved_bytes is not None:
        lines.append({"name": "reserved", "bytes": series.reserved_bytes.tolist()})
    highest = format_bytes(int(series.allocated_bytes.max()))
    return {
        "id": f"memory-{number}",
        "title": f"{cell(series.device)}: peak {highest}",
        "clock": series.clock,
        "at": series.at.tolist(),
        "lines": lines,
        "layers": {
            kind: [
                {
                    "name": cell(layer.name),
                    "bytes": layer.bytes.tolist(),
                    "isRest": layer.name in REST_LAYERS,
                }
                for layer in layers
            ]
            for kind, layers in series.layers.items()
            if layers
        },
    }


def _monitored_chart(report: Report) -> dict[str, Any] | None:
    """What it draws for a monitored program: a line for each figure, over the steps."""
    rows = series_rows(report)
    if not rows:
        return None
    steps = sorted({step for row in rows for step in row.steps})
    by_step = [dict(zip(row.steps, row.values_bytes, strict=True)) for row in rows]
    return {
        "id": "memory-steps",
        "title": "Memory after each step",
        "clock": "step",
        "at": steps,
        "lines": [
            {"name": row.name, "bytes": [known.get(step) for step in steps]}
            for row, known in zip(rows, by_step, strict=True)
        ],
        "layers": {},
    }


def _tables(
    report: Report, memory: MemorySummary, options: Options, every: tuple[MemorySeries, ...]
) -> Iterator[SortableTable]:
    yield _monitored_table(report)
    if not memory.devices:
        for number, series in enumerate(every):
            yield from (_peak_table(number, series, kind) for kind in series.layers)
    for number, each in enumerate(allocation_tables(report, everything=True)):
        yield _sites_table(number, each, options)
    for number, device in enumerate(memory.devices):
        yield from _device_tables(number, device)
    yield from _allocation_tables(options)


def _peak_table(number: int, series: MemorySeries, kind: str) -> SortableTable:
    """What was allocated when a trace's memory was highest."""
    highest = series.highest
    total = int(series.allocated_bytes[highest])
    columns = (
        SortableColumn("Allocated by", "place"),
        SortableColumn("Bytes", "bytes"),
        SortableColumn("Share", "share", "of all allocated bytes at that time"),
    )
    layers = sorted(((int(each.bytes[highest]), each.name) for each in series.layers[kind]),
                    key=lambda each: -each[0])  # fmt: skip
    rows = ((name, n_bytes, n_bytes / total) for n_bytes, name in layers if n_bytes and total)
    caption = f"{series.device} at its peak, {_BY[kind]}: {format_bytes(total)}"
    return table(f"memory-peak-{number}-{kind}", caption, columns, rows, sorted_by=1)


def _monitored_table(report: Report) -> SortableTable:
    figures = ("After the first step", "After the last step", "Highest")
    columns = (
        SortableColumn("Figure", "text"),
        *(SortableColumn(each, "bytes") for each in figures),
    )
    rows = ((e.name, e.first_bytes, e.last_bytes, e.highest_bytes) for e in series_rows(report))
    return table("memory-monitored", "Memory over the steps", columns, rows)


def _sites_table(number: int, each: AllocationTable, options: Options) -> SortableTable:
    columns = (
        SortableColumn("Allocated at", "place"),
        SortableColumn("Function", "name"),
        SortableColumn("Blocks", "count"),
        SortableColumn("Bytes", "bytes"),
        SortableColumn("Share", "share", "of all allocated bytes at that time"),
        SortableColumn("Used for", "text", "inferred from the stack"),
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


def _device_tables(number: int, device: SnapshotDevice) -> Iterator[SortableTable]:
    name = device.device
    count_and_bytes = (SortableColumn("Blocks", "count"), SortableColumn("Bytes", "bytes"))
    yield table(
        f"memory-uses-{number}",
        f"{name} at its peak, by use",
        (SortableColumn("Use", "text"), *count_and_bytes),
        ((use_label(e.category) or "not known", e.n, e.bytes) for e in device.peak_uses),
        sorted_by=2,
    )
    pinned = "free bytes in the same segments, which cannot be released"
    yield table(
        f"memory-fragmentation-{number}",
        f"{name}: allocations that keep free memory from being released",
        (
            SortableColumn("Allocated at", "place"),
            *count_and_bytes,
            SortableColumn("Unreleasable", "bytes", pinned),
        ),
        (
            (each.location.place, each.n, each.bytes, each.unreleasable_bytes)
            for each in device.fragmentation_sites
        ),
        sorted_by=3,
    )
    yield table(
        f"memory-regions-{number}",
        f"{name}: memory by region",
        (
            SortableColumn("Region", "name"),
            SortableColumn("Entries", "count"),
            SortableColumn("Peak", "bytes", "highest active bytes in any entry"),
            SortableColumn("Net", "bytes", "allocated minus freed; negative if more was freed"),
        ),
        (
            (each.name, each.n, each.peak_active_bytes, each.net_active_bytes)
            for each in device.regions
        ),
        sorted_by=2,
    )


def _allocation_tables(options: Options) -> Iterator[SortableTable]:
    if options.recording is None or not options.recording.context.has_trace:
        return
    ctx = options.recording.context
    origin = (SortableColumn("Operator", "name"), SortableColumn("Device", "text"))
    yield table(
        "memory-operators",
        "Allocations by operator",
        (
            *origin,
            SortableColumn("Allocations", "count"),
            SortableColumn("Allocated", "bytes", "sum of their sizes"),
            SortableColumn("Net", "bytes", "allocated minus freed within the operator"),
        ),
        (
            (each.op, each.device, each.n_allocations, each.allocated_bytes, each.net_bytes)
            for each in operator_memory(ctx)
        ),
        sorted_by=3,
    )
    yield table(
        "memory-largest",
        "Largest allocations",
        (
            *origin,
            SortableColumn("Bytes", "bytes"),
            SortableColumn("Allocated at", "ns", "from the start of the trace"),
            SortableColumn("Freed after", "ns", "–: not freed in the recording"),  # noqa: RUF001  (a dash)
        ),
        (
            (each.op, each.device, each.n_bytes, each.at_ns, each.lifetime_ns)
            for each in largest_allocations(ctx)
        ),
        sorted_by=2,
    )
