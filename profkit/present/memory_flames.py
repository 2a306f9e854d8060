"""Flame graphs of memory at its peak, by stack and by use."""

from collections.abc import Callable
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.host.call_paths import TOP, Paths, number_stack_paths, number_tree_paths
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.stack_lines import is_python
from profkit.index.trace_memory.live_bytes import WindowPeak, device_label, find_window_peaks
from profkit.model.events import NO_ROW, Int64s
from profkit.model.flame import Flame, FlameSite
from profkit.model.location import NO_SOURCE_LINE
from profkit.model.memory_series import LiveGroups
from profkit.model.snapshot import NO_STACK
from profkit.present.flame_sites import FlameSiteTable, add_site, host_sites
from profkit.present.memory_series import USE_LABELS, live_groups, moments_of

_OF_SNAPSHOT: Final = "Active memory of each device at the peak of the snapshot's history."
_OF_TRACE: Final = (
    "Memory allocated within the recording and live at its peak; memory allocated before is not in "
    "the recording."
)


def memory_by_stack(ctx: Context, *, over_time: bool = False) -> Flame | None:
    """Build the graph of memory at its peak, along the stacks that allocated it.

    Args:
        over_time: Whether the graph of a snapshot has the nodes of all blocks of the history too.
    """
    if not ctx.device_memories:
        return _build_of_trace(ctx)
    return _build_of_snapshot(ctx, "memory-stack", _add_stacks, over_time=over_time)


def memory_by_use(ctx: Context, *, over_time: bool = False) -> Flame | None:
    """Build the graph of memory at its peak by use, then by line; only of a snapshot.

    Args:
        over_time: As in :func:`memory_by_stack`.
    """
    if not ctx.device_memories:
        return None
    return _build_of_snapshot(ctx, "memory-use", _add_uses, over_time=over_time)


def _build_of_snapshot(
    ctx: Context,
    name: str,
    add_nodes: Callable[[DeviceMemory, FlameSiteTable, Paths, int], Int64s],
    *,
    over_time: bool,
) -> Flame:
    sites, paths = FlameSiteTable(), Paths()
    nodes, weights = [], []
    lives: dict[str, LiveGroups] = {}
    for memory in ctx.device_memories:
        blocks, peak = memory.lifetimes, memory.replay.peak
        device = sites.number(FlameSite("device", memory.label))
        top = int(paths.children(np.array([TOP]), np.array([device]))[0])
        node, is_live = add_nodes(memory, sites, paths, top), blocks.live_at(peak)
        nodes.append(node[is_live])
        weights.append(blocks.n_bytes[is_live])
        if over_time and memory.replay.end:
            lives[memory.label] = live_groups(node, blocks, moments_of(memory))

        # Active memory exceeds the blocks by their rounding, and by what the history missed.
        active_bytes = int(memory.replay.active_bytes[peak])
        if unattributed := max(0, active_bytes - int(weights[-1].sum())):
            unknown = sites.unknown("rounding and unrecorded allocations")
            nodes.append(paths.children(np.array([top]), np.array([unknown])))
            weights.append(np.array([unattributed]))

    node, weight = np.concatenate(nodes), np.concatenate(weights)
    return sites.build_flame(name, "bytes", _OF_SNAPSHOT, paths, node, weight, lives=lives)


def _add_uses(memory: DeviceMemory, sites: FlameSiteTable, paths: Paths, top: int) -> Int64s:
    """Add a node for each block: its use, then its source line."""
    blocks = memory.lifetimes
    uses = np.array([sites.number(FlameSite("use", label)) for label in USE_LABELS], dtype=np.int64)
    frames = memory.lines.stacks.frames
    lines = [sites.number(FlameSite("line", frame.function, frame)) for frame in frames]
    by_line = np.array([*lines, sites.unknown(NO_SOURCE_LINE)], dtype=np.int64)

    node = paths.children(np.full(len(blocks.use), top), uses[blocks.use])
    return paths.children(node, by_line[blocks.line])


def _add_stacks(memory: DeviceMemory, sites: FlameSiteTable, paths: Paths, top: int) -> Int64s:
    """Add a node for each block: its stack's Python frames, or all frames without Python ones."""
    stacks, stack = memory.lines.stacks, memory.lifetimes.stack
    numbers = np.array(
        [sites.number(FlameSite("python", frame.function, frame)) for frame in stacks.frames],
        dtype=np.int64,
    )
    python = np.array([is_python(frame) for frame in stacks.frames], dtype=np.bool_)

    is_known = stack != NO_STACK
    node: Int64s = np.full(len(stack), top, dtype=np.int64)
    add_site(paths, node, ~is_known, sites.unknown(NO_SOURCE_LINE))

    # Blocks share stacks: each stack is added once.
    keep = python if python.any() else np.ones(len(python), dtype=np.bool_)
    wanted, inverse = np.unique(stack[is_known], return_inverse=True)
    if len(wanted):
        above = np.full(len(wanted), top, dtype=np.int64)
        stack_node = number_stack_paths(paths, stacks, numbers, keep, above, wanted)
        node[is_known] = stack_node[inverse]
    return node


def _build_of_trace(ctx: Context) -> Flame | None:
    peaks = find_window_peaks(ctx.allocations)
    if not peaks:
        return None

    sites, paths = FlameSiteTable(), Paths()
    nodes = [_add_calls(ctx, sites, paths, peak) for peak in peaks]
    weights = [ctx.allocations.n_bytes[peak.live] for peak in peaks]
    node, weight = np.concatenate(nodes), np.concatenate(weights)
    return sites.build_flame("memory-stack", "bytes", _OF_TRACE, paths, node, weight)


def _add_calls(ctx: Context, sites: FlameSiteTable, paths: Paths, peak: WindowPeak) -> Int64s:
    """Add the source line if known, then the open calls on the allocating thread."""
    row = ctx.rows_of_memory[ctx.allocations.alloc[peak.live]]
    label = device_label(peak.device_type, peak.device)
    device = sites.number(FlameSite("device", label))
    top = int(paths.children(np.array([TOP]), np.array([device]))[0])

    site = host_sites(ctx, sites)
    lines = sites.lines(ctx)[ctx.source.frame] if ctx.has_lines else None
    tree_node = number_tree_paths(
        paths, ctx.tree, np.full(len(site), top, dtype=np.int64), site, lines
    )

    node = np.full(len(row), top, dtype=np.int64)
    has_call = row != NO_ROW
    node[has_call] = tree_node[row[has_call]]
    add_site(paths, node, ~has_call, sites.unknown("no enclosing call recorded"))
    return node
