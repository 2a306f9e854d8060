"""Flame graphs of memory: what stood when most did, by stack and by use."""

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
from profkit.model.snapshot import NO_STACK
from profkit.present.flame_sites import FlameSiteTable, host_sites

_OF_SNAPSHOT: Final = (
    "What was active on a device when most was, as far back as the snapshot's history goes."
)
_OF_TRACE: Final = (
    "What was allocated within the recording and not yet freed when there was most of that; what "
    "was there before is not in the recording."
)


def memory_by_stack(ctx: Context) -> Flame | None:
    """Memory at the peak, along the stacks that allocated it."""
    return _of_snapshot(ctx, "memory-stack") if ctx.device_memories else _of_trace(ctx)


def memory_by_use(ctx: Context) -> Flame | None:
    """Memory at the peak by what it is used for, then by line; a snapshot's alone."""
    return _of_snapshot(ctx, "memory-use") if ctx.device_memories else None


def _of_snapshot(ctx: Context, name: str) -> Flame:
    sites, paths = FlameSiteTable(), Paths()
    nodes, weights = [], []
    for memory in ctx.device_memories:
        standing = memory.live_blocks_at(memory.replay.peak)
        device = sites.number(FlameSite("device", memory.label))
        top = paths.children(np.array([TOP]), np.array([device]))[0]
        above = np.full(len(standing.stack), top, dtype=np.int64)
        if name == "memory-use":
            nodes.append(_by_use(memory, sites, paths, above))
        else:
            nodes.append(_by_stack(memory, sites, paths, above, standing.stack))
        weights.append(standing.n_bytes)
        peak = int(memory.replay.active_bytes[memory.replay.peak])
        if untold := max(0, peak - int(standing.n_bytes.sum())):
            lost = sites.unknown("rounding, and what the history does not tell")
            nodes.append(paths.children(np.array([top]), np.array([lost])))
            weights.append(np.array([untold]))
    node, weight = np.concatenate(nodes), np.concatenate(weights)
    return sites.flame(name, "bytes", _OF_SNAPSHOT, paths, node, weight)


def _by_use(memory: DeviceMemory, sites: FlameSiteTable, paths: Paths, above: Int64s) -> Int64s:
    """Use, then the telling line of the stack."""
    at_peak = memory.sites_at(memory.replay.peak)
    uses = np.array([sites.number(FlameSite("use", use)) for use in USES], dtype=np.int64)
    frames = memory.lines.stacks.frames
    lines = [sites.number(FlameSite("line", frame.function, frame)) for frame in frames]
    by_line = np.array([*lines, sites.unknown("stack not recorded")], dtype=np.int64)
    node = paths.children(above, uses[at_peak.use[at_peak.of_block]])
    return paths.children(node, by_line[at_peak.line[at_peak.of_block]])


def _by_stack(
    memory: DeviceMemory, sites: FlameSiteTable, paths: Paths, above: Int64s, stack: Int32s
) -> Int64s:
    """The frames of Python, or where a stack has none all that it has."""
    stacks = memory.lines.stacks
    numbers = np.array(
        [sites.number(FlameSite("python", frame.function, frame)) for frame in stacks.frames],
        dtype=np.int64,
    )
    python = np.array([is_python(frame) for frame in stacks.frames], dtype=np.bool_)
    known = np.flatnonzero(stack != NO_STACK)
    lost = np.flatnonzero(stack == NO_STACK)
    node: Int64s = above.copy()
    node[lost] = paths.children(
        above[lost], np.full(len(lost), sites.unknown("stack not recorded"))
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
    """The line where it is known, and the calls that were under way on the allocating thread."""
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
    outside = sites.unknown("no call recorded around it")
    found = np.full(len(row), top, dtype=np.int64)
    has = row != NO_ROW
    found[has] = node[row[has]]
    found[~has] = paths.children(found[~has], np.full((~has).sum(), outside))
    return found
