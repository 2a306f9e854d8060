"""Counters: device utilization, queued launches, memory."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.engine.context import Context
from profkit.index.device.counters import (
    CounterSeries,
    bin_edges,
    covered_share,
    downsample,
    launch_queue,
)
from profkit.index.trace_memory.live_bytes import device_label as memory_label
from profkit.model.events import MISSING, Int64s
from profkit.model.live_memory import MemorySample
from profkit.model.report import Report
from profkit.present.memory_text import STEP_FIGURES, devices_of
from profkit.renderers.chrome._event_writer import EventWriter

MAX_POINTS: Final = 4000
"""Points of a counter: more than a screen has columns."""
_US: Final = 1000
_SAMPLED: Final = (
    "host_rss_bytes", "graph_bytes", "garbage_bytes", "allocated_bytes", "reserved_bytes",
)  # fmt: skip
_LABELS: Final = {**STEP_FIGURES, "garbage_bytes": "garbage"}


def write_counters(report: Report, ctx: Context | None, writer: EventWriter) -> Iterator[bytes]:
    """Write all counters of a recording, or of a report without one."""
    if ctx is not None and ctx.has_trace:
        yield from _write_devices(ctx, writer)
        yield from _write_allocators(ctx, writer)
        yield from _write_snapshots(report, writer, _find_offsets(ctx), ctx.window_ns)
        return

    yield from _write_snapshots(report, writer, {}, None)
    if ctx is not None and ctx.live is not None:
        yield from _write_live(ctx.live.samples, writer)


def _write_devices(ctx: Context, writer: EventWriter) -> Iterator[bytes]:
    for device in ctx.devices:
        label = ctx.device_label(device.device)
        if device.span_ns:
            edges = bin_edges(device.start_ns, device.end_ns, MAX_POINTS)
            shares = (covered_share(device.busy, edges) * 100).round(2)
            yield from _write_points(writer, f"{label} busy", "percent", edges[:-1], shares)
            yield writer.counter(f"{label} busy", device.end_ns, {"percent": 0})

        queue = downsample(launch_queue(ctx.events, ctx.launches, device.rows), MAX_POINTS)
        yield from _write_points(writer, f"{label} queued launches", "n", queue.at_ns, queue.values)


def _write_points(
    writer: EventWriter, name: str, key: str, at_ns: Int64s, values: npt.NDArray[Any]
) -> Iterator[bytes]:
    # A counter keeps its value until the next point: repeated values are left out.
    before = None
    for at, value in zip(at_ns.tolist(), values.tolist(), strict=True):
        if value != before:
            yield writer.counter(name, at, {key: value})
            before = value


def _write_allocators(ctx: Context, writer: EventWriter) -> Iterator[bytes]:
    """Write allocated and reserved bytes after each memory event, by device."""
    table = ctx.trace.memory
    places = np.stack((table.device_type, table.device), axis=1)
    for device_type, device in np.unique(places, axis=0).tolist():
        on_device = (table.device_type == device_type) & (table.device == device)
        label = memory_label(device_type, device)
        for kind in ("allocated", "reserved"):
            column: Int64s = getattr(table, f"total_{kind}")
            is_known = on_device & (column != MISSING)
            if not column[is_known].any():
                continue

            levels = downsample(CounterSeries(table.ts_ns[is_known], column[is_known]), MAX_POINTS)
            yield from _write_points(
                writer, f"{label} {kind}", "bytes", levels.at_ns, levels.values
            )


def _find_offsets(ctx: Context) -> dict[str, int]:
    """Return when each device's history begins, in nanoseconds from the trace's start."""
    if ctx.snapshot is None:
        return {}

    times = ctx.snapshot.history.time_us
    first = {
        memory.label: int(times[memory.replay.rows[0]])
        for memory in ctx.device_memories
        if len(memory.replay.rows)
    }
    return {
        label: at_us * _US - ctx.trace.base_ns for label, at_us in first.items() if at_us != MISSING
    }


def _write_snapshots(
    report: Report, writer: EventWriter, offsets_ns: dict[str, int], window_ns: int | None
) -> Iterator[bytes]:
    """Write a snapshot's history; with a trace, only the part within its window."""
    for device in devices_of(report):
        offset_ns = offsets_ns.get(device.device, 0 if window_ns is None else None)
        for point in device.timeline:
            if offset_ns is None or (point.time_us is None and window_ns is not None):
                continue

            # Without times, entries are counted.
            at_us = point.entry if point.time_us is None else point.time_us
            at_ns = offset_ns + at_us * _US

            if window_ns is None or 0 <= at_ns <= window_ns:
                values = {"active": point.active_bytes, "reserved": point.reserved_bytes}
                for kind, n_bytes in values.items():
                    name = f"{device.device} {kind} (snapshot)"
                    yield writer.counter(name, at_ns, {"bytes": n_bytes})


def _write_live(samples: tuple[MemorySample, ...], writer: EventWriter) -> Iterator[bytes]:
    for sample in samples:
        sizes = {figure: getattr(sample, figure) for figure in _SAMPLED}
        if sample.tensor_bytes is not None:
            sizes["tensor_bytes"] = sum(sample.tensor_bytes.values())
        for figure, n_bytes in sizes.items():
            if n_bytes is not None:
                yield writer.counter(_LABELS[figure], sample.ts_ns, {"bytes": n_bytes})
