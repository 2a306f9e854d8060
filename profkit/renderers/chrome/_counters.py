"""Counters: how busy the devices were, what waited in their queues, memory in use."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.engine.context import Context
from profkit.engine.figures.summary import device_label
from profkit.index.device.counters import (
    CounterSeries,
    bin_edges,
    covered_share,
    downsampled,
    launch_queue,
)
from profkit.index.trace_memory.live_bytes import device_label as memory_label
from profkit.model.events import MISSING, Int64s
from profkit.model.live_memory import MemorySample
from profkit.model.report import Report
from profkit.renderers.chrome._event_writer import Pen

MOST_SAMPLES: Final = 4000
"""So many points of a counter are more than a screen has columns."""
_US: Final = 1000
_LOOKS: Final = {
    "host_rss_bytes": "host memory",
    "graph_bytes": "kept for backward",
    "garbage_bytes": "garbage",
    "allocated_bytes": "allocated on devices",
    "reserved_bytes": "reserved on devices",
}


def counters(report: Report, ctx: Context | None, pen: Pen) -> Iterator[bytes]:
    """All counters of a recording, or what a report tells of them without one.

    Args:
        ctx: What was recorded, or None.
        pen: Writes them.
    """
    if ctx is not None and ctx.has_trace:
        yield from _devices(ctx, pen)
        yield from _allocators(ctx, pen)
        yield from _snapshots(report, pen, _offsets(ctx), ctx.window_ns)
        return
    yield from _snapshots(report, pen, {}, None)
    if ctx is not None and ctx.live is not None:
        yield from _looks(ctx.live.samples, pen)


def _devices(ctx: Context, pen: Pen) -> Iterator[bytes]:
    for device in ctx.devices:
        label = device_label(ctx, device.device)
        if device.span_ns:
            edges = bin_edges(device.start_ns, device.end_ns, MOST_SAMPLES)
            shares = (covered_share(device.busy, edges) * 100).round(2)
            yield from _samples(pen, f"{label} busy", "percent", edges[:-1], shares)
            yield pen.counter(f"{label} busy", device.end_ns, {"percent": 0})
        queue = downsampled(launch_queue(ctx.events, ctx.launches, device.rows), MOST_SAMPLES)
        yield from _samples(pen, f"{label} launched, not started", "n", queue.at_ns, queue.values)


def _samples(
    pen: Pen, name: str, key: str, at_ns: Int64s, values: npt.NDArray[Any]
) -> Iterator[bytes]:
    before = None
    for at, value in zip(at_ns.tolist(), values.tolist(), strict=True):
        if value != before:
            yield pen.counter(name, at, {key: value})
            before = value


def _allocators(ctx: Context, pen: Pen) -> Iterator[bytes]:
    """What the allocators say after each of their events, by device."""
    table = ctx.trace.memory
    places = np.stack((table.device_type, table.device), axis=1)
    for device_type, device in np.unique(places, axis=0).tolist():
        here = (table.device_type == device_type) & (table.device == device)
        label = memory_label(device_type, device)
        for word in ("allocated", "reserved"):
            column: Int64s = getattr(table, f"total_{word}")
            known = here & (column != MISSING)
            if not column[known].any():
                continue
            levels = downsampled(CounterSeries(table.ts_ns[known], column[known]), MOST_SAMPLES)
            yield from _samples(pen, f"{label} {word}", "bytes", levels.at_ns, levels.values)


def _offsets(ctx: Context) -> dict[str, int]:
    """When the first entry of each device's history was, from the trace's start."""
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


def _snapshots(
    report: Report, pen: Pen, offsets_ns: dict[str, int], window_ns: int | None
) -> Iterator[bytes]:
    """A snapshot's history; beside a trace only what lies in its window."""
    memory = report.summary.memory
    for device in memory.devices if memory is not None else ():
        offset_ns = offsets_ns.get(device.device, 0 if window_ns is None else None)
        for point in device.timeline:
            if offset_ns is None or (point.time_us is None and window_ns is not None):
                continue
            # Without times the entries themselves are the clock.
            at_us = point.entry if point.time_us is None else point.time_us
            at_ns = offset_ns + at_us * _US
            if window_ns is None or 0 <= at_ns <= window_ns:
                values = {"active": point.active_bytes, "reserved": point.reserved_bytes}
                for word, n_bytes in values.items():
                    name = f"{device.device} {word} (snapshot)"
                    yield pen.counter(name, at_ns, {"bytes": n_bytes})


def _looks(looks: tuple[MemorySample, ...], pen: Pen) -> Iterator[bytes]:
    for look in looks:
        for key, name in _LOOKS.items():
            value = getattr(look, key)
            if value is not None:
                yield pen.counter(name, look.ts_ns, {"bytes": value})
        if look.tensor_bytes is not None:
            yield pen.counter("tensors", look.ts_ns, {"bytes": sum(look.tensor_bytes.values())})
