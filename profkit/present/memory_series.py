"""Memory over time by line and by use: from a snapshot's history, else from a trace."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.distinct import numbered
from profkit.index.host.source import NO_FRAME
from profkit.index.snapshot.allocation_use import USES
from profkit.index.snapshot.block_lifetimes import BlockLifetimes
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.live_blocks import bytes_over_time, representative_places
from profkit.index.snapshot.stack_lines import NO_LINE
from profkit.index.sums import sum_by_key
from profkit.index.trace_memory.live_bytes import device_label
from profkit.model.events import MISSING, NO_ROW, Int64s, Rows
from profkit.model.location import NO_SOURCE_LINE, base_name, numbered_line
from profkit.model.memory_series import Clock, Layer, LiveGroups, MemorySeries
from profkit.present.memory_text import use_label

MAX_LAYERS: Final = 8
"""As many as can be distinguished by color; the other groups share one more layer."""
MAX_MOMENTS: Final = 300
_MAX_CANDIDATES: Final = 8192
"""If there are more groups, only the groups with the most bytes are considered."""
_OTHERS: Final = "all others"
_EARLIER: Final = "allocated before recording"
USE_LABELS: Final = tuple(use_label(use) or "unknown use" for use in USES)
"""Labels of the uses, by number."""
REST_LAYERS: Final = (_OTHERS, _EARLIER)
"""Names of layers that stand for several lines, uses or operators."""
_EARLIER_LINE: Final = -2
_WITHOUT_LINE: Final = {NO_LINE: NO_SOURCE_LINE, _EARLIER_LINE: _EARLIER}


def memory_series(ctx: Context) -> tuple[MemorySeries, ...]:
    """Return each device's memory over time; empty if the recording has no memory events."""
    series = [_build_snapshot_series(memory) for memory in ctx.device_memories if memory.replay.end]
    filled = tuple(device for device in series if device.allocated_bytes.any())
    return filled or _build_trace_series(ctx)


def _build_snapshot_series(memory: DeviceMemory) -> MemorySeries:
    replay, lines, blocks = memory.replay, memory.lines, memory.lifetimes
    moments = moments_of(memory)
    line = blocks.line.astype(np.int64)
    # The stacks of earlier blocks are incomplete: they share one layer.
    line[blocks.is_before_recording] = _EARLIER_LINE
    use = blocks.use.astype(np.int64)

    def layers(group: Int64s, name: Callable[[int], str]) -> tuple[Layer, ...]:
        return _build_layers(group, blocks.n_bytes, blocks.begin, blocks.end, moments, name)

    times, clock = clock_of(memory)
    return MemorySeries(
        device=memory.label,
        clock=clock,
        at=times[moments],
        allocated_bytes=replay.active_bytes[moments],
        reserved_bytes=replay.reserved_bytes[moments],
        layers={
            "line": layers(line, lambda i: _WITHOUT_LINE.get(i) or lines.location(i).place),
            "use": layers(use, lambda i: USE_LABELS[i]),
        },
        uses=USE_LABELS,
        by_use=live_groups(use, blocks, moments),
    )


def moments_of(memory: DeviceMemory) -> Rows:
    """Return the moments of a device's chart: indices in its history, the peak among them."""
    return representative_places(memory.replay.active_bytes, MAX_MOMENTS)


def live_groups(group: Int64s, blocks: BlockLifetimes, moments: Rows) -> LiveGroups:
    """Group all blocks, also by the moments between which they were live.

    Args:
        group: Group of each block, 0 or more. Shape ``(b,)``.
        moments: Indices in the history, ascending. Shape ``(k,)``.
    """
    n_places = len(moments) + 1
    first, last = np.searchsorted(moments, blocks.begin), np.searchsorted(moments, blocks.end)
    # One integer stands for a group and both moments.
    key, place = numbered((group * n_places + first) * n_places + last)

    n_bytes = sum_by_key(len(key), place, blocks.n_bytes)
    return LiveGroups(
        group=key // n_places**2,
        first=key // n_places % n_places,
        last=key % n_places,
        n=np.bincount(place, minlength=len(key)),
        n_bytes=n_bytes,
    )


def clock_of(memory: DeviceMemory) -> tuple[Int64s, Clock]:
    """Return the time before each entry of the history, which is the entry before, and its end.

    Returns:
        Times. Shape ``(n+1,)``; and their unit.
    """
    replay = memory.replay
    times = memory.snapshot.history.time_us[replay.rows]
    if int(times.min(initial=0)) == MISSING or bool((np.diff(times) < 0).any()) or not replay.end:
        return np.arange(replay.end + 1), "entries"

    # The first entry has no entry before it, and begins the time.
    return np.concatenate((times[:1], times)) - times[0], "us"


def _build_trace_series(ctx: Context) -> tuple[MemorySeries, ...]:
    table = ctx.allocations.table
    has_total = table.total_allocated != MISSING
    devices = zip(
        table.device_type[has_total].tolist(), table.device[has_total].tolist(), strict=True
    )
    series = []
    for kind, number in sorted(set(devices)):
        is_device = (table.device_type == kind) & (table.device == number)
        rows = np.flatnonzero(has_total & is_device)
        series.append(_build_device_series(ctx, rows, device_label(kind, number)))
    return tuple(series)


def _build_device_series(ctx: Context, rows: Rows, label: str) -> MemorySeries:
    table = ctx.allocations.table
    allocated = table.total_allocated[rows]
    moments = representative_places(allocated, MAX_MOMENTS)

    reserved = table.total_reserved[rows][moments]
    # Host memory has no reserve in a trace: it is always 0.
    has_reserve = bool((reserved > 0).any()) and int(reserved.min()) != MISSING

    return MemorySeries(
        device=label,
        clock="ns",
        at=table.ts_ns[rows][moments],
        allocated_bytes=allocated[moments],
        reserved_bytes=reserved if has_reserve else None,
        layers=_build_window_layers(ctx, rows, moments, allocated[moments]),
    )


def _build_window_layers(
    ctx: Context, rows: Rows, moments: Rows, allocated: Int64s
) -> dict[str, tuple[Layer, ...]]:
    """Build the layers of allocations in the window, and one layer of all memory from before."""
    pairs = ctx.allocations
    if not pairs.has_addresses:
        return {}
    is_device = np.isin(pairs.alloc, rows)
    alloc, free, n_bytes = pairs.alloc[is_device], pairs.free[is_device], pairs.n_bytes[is_device]
    begin = np.searchsorted(rows, alloc)
    end = np.where(free == NO_ROW, len(rows), np.searchsorted(rows, free))

    # NO_ROW, which is -1, selects the appended entry: there may be no others.
    row = ctx.rows_of_memory[alloc]
    frame = np.append(ctx.source.frame, NO_FRAME).astype(np.int64)[row]
    op = np.append(ctx.innermost_op, NO_ROW)[row]
    name = np.append(ctx.events.name, -1).astype(np.int64)[op]

    one_group = np.zeros(len(alloc), dtype=np.int64)
    in_window = bytes_over_time(one_group, n_bytes, begin, end, moments, 1)[0]
    earlier = Layer(_EARLIER, np.maximum(allocated - in_window, 0))

    def layers(group: Int64s, label: Callable[[int], str]) -> tuple[Layer, ...]:
        window_layers = _build_layers(group, n_bytes, begin, end, moments, label)
        return (*window_layers, earlier) if earlier.bytes.any() else window_layers

    by_op = layers(name, lambda i: "operator not recorded" if i < 0 else ctx.events.names[i])
    if not ctx.has_lines:
        return {"operator": by_op}
    return {"line": layers(frame, lambda i: _line_label(ctx, i)), "operator": by_op}


def _line_label(ctx: Context, frame: int) -> str:
    if frame == NO_FRAME:
        return NO_SOURCE_LINE
    place = ctx.source.frames[frame]
    return numbered_line(base_name(place.file), place.line)


def _build_layers(
    group: Int64s,
    n_bytes: Int64s,
    begin: Rows,
    end: Rows,
    moments: Rows,
    name: Callable[[int], str],
) -> tuple[Layer, ...]:
    """Build a layer for each of the largest groups of blocks, and one for all others."""
    values, of_block = np.unique(group, return_inverse=True)
    if not len(values):
        return ()
    heavy = _find_heaviest(of_block, n_bytes, begin, end, moments, len(values))
    rank = np.full(len(values), len(heavy), dtype=np.intp)
    rank[heavy] = np.arange(len(heavy))
    live_bytes = bytes_over_time(rank[of_block], n_bytes, begin, end, moments, len(heavy) + 1)

    names = [*(name(int(values[i])) for i in heavy), _OTHERS]
    return tuple(
        Layer(label, live_bytes[i]) for i, label in enumerate(names) if live_bytes[i].any()
    )


def _find_heaviest(
    of_block: Rows, n_bytes: Int64s, begin: Rows, end: Rows, moments: Rows, n: int
) -> Sequence[int]:
    """Find the groups with the most bytes at any moment, the most first."""
    total = sum_by_key(n, of_block, n_bytes)
    # The bytes of all groups at all moments would need too much memory.
    candidates = np.argsort(-total, kind="stable")[:_MAX_CANDIDATES]

    rank = np.full(n, len(candidates), dtype=np.intp)
    rank[candidates] = np.arange(len(candidates))
    live_bytes = bytes_over_time(rank[of_block], n_bytes, begin, end, moments, len(candidates) + 1)

    order = np.argsort(-live_bytes[:-1].max(axis=1), kind="stable")
    return [int(candidate) for candidate in candidates[order[:MAX_LAYERS]]]
