"""Memory over time by line, use and operator, and what was allocated at its peak."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from profkit.model.memory_series import MemorySeries
from profkit.model.memory_summary import MemorySummary, SnapshotDevice
from profkit.model.report import Report
from profkit.present.memory_series import MAX_LAYERS, REST_LAYERS, memory_series
from profkit.present.memory_text import allocation_tables, memory_facts, series_rows
from profkit.present.recording_tables import define_largest_allocations, define_operator_memory
from profkit.present.tables.definition import Column, Table
from profkit.present.tables.memory_tables import (
    OF_ALL,
    define_allocation_sites,
    define_fragmentation,
    define_memory_regions,
    define_memory_series,
    define_memory_uses,
)
from profkit.renderers.html._options import Options
from profkit.renderers.html._packed_columns import pack_lives
from profkit.renderers.html._section import CHART_SCRIPT, LIVES_SCRIPT, Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableTable, build_table, cell, table_data
from profkit.renderers.html.overview import build_memory_tiles
from profkit.renderers.html.segments import SCRIPTS as SEGMENT_SCRIPTS
from profkit.renderers.html.segments import USE_COLORS, build_segment_maps
from profkit.units import format_bytes

_SCRIPT: Final = "memory.js"
_BY: Final = {"use": "by use", "line": "by line", "operator": "by operator"}
"""The kinds of layers, the one that is shown first first."""


def build_section(report: Report, options: Options) -> Section | None:
    """Return memory over time and its tables, or None for a recording without memory data."""
    memory = report.summary.memory
    if memory is None:
        return None

    # A host with a few bytes is not what a reader looks for first.
    histories = tuple(
        sorted(_read_histories(memory, options), key=lambda series: -series.allocated_bytes.max())
    )
    charts = [_build_chart(number, series) for number, series in enumerate(histories)]
    monitored = _build_monitored_chart(report)
    if monitored is not None:
        charts.append(monitored)
    tables = [table for table in _build_tables(report, memory, options, histories) if table.rows]
    # Segments are the state at the end of a snapshot, charts are all of its history.
    segments = list(build_segment_maps(options))
    facts = list(memory_facts(report, everything=False))
    if not (charts or tables or facts):
        return None

    data = {**table_data(*tables), "charts": charts, "segments": segments}
    # In the order of the page: scripts use definitions of the scripts before them.
    scripts = (
        *((TABLE_SCRIPT,) if tables else ()),
        *((LIVES_SCRIPT,) if any(chart["lives"] for chart in charts) else ()),
        *(SEGMENT_SCRIPTS if segments else ()),
        *((CHART_SCRIPT, _SCRIPT) if charts or segments else ()),
    )
    body = fill(
        "memory.html.j2", facts=facts, charts=charts, segments=segments, tables=tables, by=_BY
    )
    figure = ", ".join(f"{tile.label}: {tile.figure}" for tile in build_memory_tiles(report))
    return Section("memory", "Memory", body, scripts, data, figure)


def _read_histories(memory: MemorySummary, options: Options) -> tuple[MemorySeries, ...]:
    """Return each device's memory over time: from the recording, else the report's outline."""
    if options.recording is not None:
        return memory_series(options.recording.context)
    return tuple(_outline(device) for device in memory.devices if len(device.timeline) > 1)


def _outline(device: SnapshotDevice) -> MemorySeries:
    # A snapshot may have no times: its entries are then numbered.
    points = device.timeline
    has_times = all(point.time_us is not None for point in points)
    return MemorySeries(
        device=device.device,
        clock="us" if has_times else "entries",
        at=np.array([(p.time_us if has_times else p.entry) or 0 for p in points], dtype=np.int64),
        allocated_bytes=np.array([point.active_bytes for point in points], dtype=np.int64),
        reserved_bytes=np.array([point.reserved_bytes for point in points], dtype=np.int64),
    )


def _build_chart(number: int, series: MemorySeries) -> dict[str, Any]:
    """Return what ``memory.js`` draws for a device."""
    lines = [{"name": "allocated", "bytes": series.allocated_bytes.tolist()}]
    if series.reserved_bytes is not None:
        lines.append({"name": "reserved", "bytes": series.reserved_bytes.tolist()})
    highest = format_bytes(int(series.allocated_bytes.max()))

    return {
        "id": f"memory-{number}",
        "device": series.device,
        "title": f"{cell(series.device)}: peak {highest}",
        "uses": series.uses,
        "lives": series.by_use and pack_lives(series.by_use),
        "clock": series.clock,
        "at": series.at.tolist(),
        "lines": lines,
        "layers": {
            kind: [
                {
                    "label": cell(layer.name),
                    "values": layer.bytes.tolist(),
                    "color": _color(number, layer.name, kind),
                }
                for number, layer in enumerate(layers)
            ]
            for kind in _BY
            if (layers := series.layers.get(kind))
        },
    }


def _color(number: int, name: str, kind: str) -> str:
    """Return the colour of a layer: the one of its use, and grey for the layer of the rest."""
    if kind == "use" and name in USE_COLORS:
        return USE_COLORS[name]
    return "--line" if name in REST_LAYERS or number >= MAX_LAYERS else f"--series-{number + 1}"


def _build_monitored_chart(report: Report) -> dict[str, Any] | None:
    """Return what ``memory.js`` draws for a monitored program: each figure over the steps."""
    rows = series_rows(report)
    if not rows:
        return None

    # A figure may be unknown after some steps: its line has a gap there.
    steps = sorted({step for row in rows for step in row.steps})
    by_step = [dict(zip(row.steps, row.values_bytes, strict=True)) for row in rows]
    lines = [
        {"name": row.name, "bytes": [bytes_after.get(step) for step in steps]}
        for row, bytes_after in zip(rows, by_step, strict=True)
    ]
    return {
        "id": "memory-steps",
        "title": "Memory after each step",
        "clock": "step",
        "at": steps,
        "lines": lines,
        "layers": {},
        "lives": None,
    }


def _build_tables(
    report: Report, memory: MemorySummary, options: Options, histories: tuple[MemorySeries, ...]
) -> Iterator[SortableTable]:
    yield build_table(define_memory_series("Memory over steps", series_rows(report)))
    # Snapshots list the blocks at the peak by line and use, with their counts, in tables below.
    if not memory.devices:
        for number, series in enumerate(histories):
            yield from (_build_peak_table(number, series, kind) for kind in series.layers)
    for number, allocations in enumerate(allocation_tables(report, everything=True)):
        table = define_allocation_sites(allocations)
        caption = f"{table.title}: {format_bytes(allocations.total_bytes)}"
        yield build_table(
            table, options.base, id=f"memory-sites-{number}", caption=caption, with_folders=True
        )
    for number, device in enumerate(memory.devices):
        yield from _build_device_tables(number, device)
    if options.recording is not None and options.recording.context.has_trace:
        yield build_table(define_operator_memory(options.recording.context))
        yield build_table(define_largest_allocations(options.recording.context))


def _build_peak_table(number: int, series: MemorySeries, kind: str) -> SortableTable:
    """Return the allocations that were live when a trace's memory was highest."""
    highest = series.highest
    total = int(series.allocated_bytes[highest])
    columns = (
        Column("place", "name", "allocated by"),
        Column("bytes", "", "bytes", value=lambda layer: int(layer.bytes[highest])),
        Column("share", "", "share", OF_ALL, value=lambda layer: int(layer.bytes[highest]) / total),
    )

    layers = [layer for layer in series.layers[kind] if layer.bytes[highest] and total]
    layers.sort(key=lambda layer: -int(layer.bytes[highest]))

    caption = f"{series.device} at its peak, {_BY[kind]}: {format_bytes(total)}"
    name = f"memory-peak-{number}-{kind}"
    return build_table(Table(name, caption, columns, tuple(layers), sorted_by="bytes"))


def _build_device_tables(number: int, device: SnapshotDevice) -> Iterator[SortableTable]:
    for define in (define_memory_uses, define_fragmentation, define_memory_regions):
        table = define(device)
        yield build_table(table, id=f"{table.name}-{number}")
