"""Flame graphs of memory at its peak, by stack and by use."""

from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.host.call_paths import TOP, Paths, paths_of_stacks, paths_of_tree
from profkit.index.host.nesting import rows_open_at
from profkit.index.snapshot.allocation_use import USES
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.stack_lines import is_python
from profkit.index.trace_memory.live_bytes import WindowPeak, device_label, window_peaks
from profkit.model.events import NO_ROW, Int32s, Int64s
from profkit.model.flame import Flame, FlameSite
from profkit.model.location import NO_SOURCE_LINE
from profkit.model.snapshot import NO_STACK
from profkit.present.flame_sites import FlameSiteTable, host_sites

_OF_SNAPSHOT: Final = "Active memory of each device at the peak of the snapshot's history."
_OF_TRACE: Final = (
    "Memory allocated within the recording and live at its peak; memory allocated before is not in "
    "the recording."
)


def memory_by_stack(ctx: Context) -> Flame | None:
    """Memory at its peak, along the stacks that allocated it."""
    return _of_snapshot(ctx, "memory-stack") if ctx.device_memories else _of_trace(ctx)


def memory_by_use(ctx: Context) -> Flame | None:
    """Memory at its peak by use, then by line; only of a snapshot."""
    return _of_snapshot(ctx, "memory-use") if ctx.device_memories else None


def _of_snapshot(ctx: Context, name: str) -> Flame:
    sites, paths = FlameSiteTable(), Paths()
    nodes, weights = [], []
    for memory in ctx.device_memories:
        live = memory.live_blocks_at(memory.replay.peak)
        device = sites.number(FlameSite("device", memory.label))
        top = paths.children(np.array([TOP]), np.array([device]))[0]
        above = np.full(len(live.stack), top, dtype=np.int64)
        if name == "memory-use":
            nodes.append(_by_use(memory, sites, paths, above))
        else:
            nodes.append(_by_stack(memory, sites, paths, above, live.stack))
        weights.append(live.n_bytes)
        peak = int(memory.replay.active_bytes[memory.replay.peak])
        if unattributed := max(0, peak - int(live.n_bytes.sum())):
            rest = sites.unknown("rounding and unrecorded allocations")
            nodes.append(paths.children(np.array([top]), np.array([rest])))
            weights.append(np.array([unattributed]))
    node, weight = np.concatenate(nodes), np.concatenate(weights)
    return sites.flame(name, "bytes", _OF_SNAPSHOT, paths, node, weight)


def _by_use(memory: DeviceMemory, sites: FlameSiteTable, paths: Paths, above: Int64s) -> Int64s:
    """Use, then source line."""
    at_peak = memory.sites_at(memory.replay.peak)
    uses = np.array([sites.number(FlameSite("use", use)) for use in USES], dtype=np.int64)
    frames = memory.lines.stacks.frames
    lines = [sites.number(FlameSite("line", frame.function, frame)) for frame in frames]
    by_line = np.array([*lines, sites.unknown(NO_SOURCE_LINE)], dtype=np.int64)
    node = paths.children(above, uses[at_peak.use[at_peak.of_block]])
    return paths.children(node, by_line[at_peak.line[at_peak.of_block]])


def _by_stack(
    memory: DeviceMemory, sites: FlameSiteTable, paths: Paths, above: Int64s, stack: Int32s
) -> Int64s:
    """The Python frames of the stacks, or all frames if there are no Python frames."""
    stacks = memory.lines.stacks
    numbers = np.array(
        [sites.number(FlameSite("python", frame.function, frame)) for frame in stacks.frames],
        dtype=np.int64,
    )
    python = np.array([is_python(frame) for frame in stacks.frames], dtype=np.bool_)
    known = np.flatnonzero(stack != NO_STACK)
    unknown = np.flatnonzero(stack == NO_STACK)
    node: Int64s = above.copy()
    node[unknown] = paths.children(
        above[unknown], np.full(len(unknown), sites.unknown(NO_SOURCE_LINE))
    )
    keep = python if python.any() else np.ones(len(python), dtype=np.bool_)
    wanted, inverse = np.unique(stack[known], return_inverse=True)
    if len(wanted):
        top = np.full(len(wanted), above[0], dtype=np.int64)
        node[known] = paths_of_stacks(paths, stacks, numbers, keep, top, wanted)[inverse]
    return node


def _of_trace(ctx: Context) -> Flame | None:
    peaks = window_peaks(ctx.allocations)
    if not peaks:
        return None
    sites, paths = FlameSiteTable(), Paths()
    nodes = [_by_call(ctx, sites, paths, peak) for peak in peaks]
    weights = [ctx.allocations.n_bytes[peak.live] for peak in peaks]
    node, weight = np.concatenate(nodes), np.concatenate(weights)
    return sites.flame("memory-stack", "bytes", _OF_TRACE, paths, node, weight)


def _by_call(ctx: Context, sites: FlameSiteTable, paths: Paths, peak: WindowPeak) -> Int64s:
    """The source line if known, then the open calls on the allocating thread."""
    table, events = ctx.trace.memory, ctx.events
    place = ctx.allocations.alloc[peak.live]
    row = rows_open_at(events, ctx.tree, table.lane[place], table.ts_ns[place])
    label = device_label(peak.device_type, peak.device)
    device = sites.number(FlameSite("device", label))
    top = int(paths.children(np.array([TOP]), np.array([device]))[0])
    site = host_sites(ctx, sites)
    lines = sites.lines(ctx)[ctx.source.frame] if ctx.has_lines else None
    everywhere = np.full(len(events), top, dtype=np.int64)
    node = paths_of_tree(paths, ctx.tree, everywhere, site, lines)
    outside = sites.unknown("no enclosing call recorded")
    found = np.full(len(row), top, dtype=np.int64)
    has = row != NO_ROW
    found[has] = node[row[has]]
    found[~has] = paths.children(found[~has], np.full((~has).sum(), outside))
    return found
