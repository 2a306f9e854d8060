"""Flame graphs: host time, device time, and memory at its peak, by their cause."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.host.call_paths import TOP, Paths, number_tree_paths
from profkit.index.host.source import NO_FRAME
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Category, Int64s
from profkit.model.flame import FLAMES, Flame
from profkit.model.torch_names import MODULE_PREFIX
from profkit.patterns import regex
from profkit.present.flame_sites import KINDS, FlameSiteTable, add_site, devices_of_work, host_sites
from profkit.present.memory_flames import memory_by_stack, memory_by_use

_DEVICE_TIME: Final = (
    "Time in kernels, copies and memsets; work on two streams at once counts twice."
)


def flames(
    ctx: Context, names: Iterable[str] = FLAMES, *, over_time: bool = False
) -> tuple[Flame, ...]:
    """Build the flame graphs for which the recording has data.

    Args:
        names: Keys of :data:`~profkit.model.flame.FLAMES`.
        over_time: Whether the graphs of a snapshot have :attr:`~profkit.model.flame.Flame.lives`.
    """
    makers: dict[str, Callable[[Context], Flame | None]] = {
        **_MAKERS,
        "memory-stack": partial(memory_by_stack, over_time=over_time),
        "memory-use": partial(memory_by_use, over_time=over_time),
    }

    graphs = (makers[name](ctx) for name in names)
    return tuple(flame for flame in graphs if flame is not None and flame.weight)


def _build_host(ctx: Context, *, by_line: bool) -> Flame | None:
    """Build the graph of host time along the stacks, or below each source line."""
    rows = ctx.tree.rows
    # Events of profkit itself are not part of the program.
    rows = rows[ctx.events.category[rows] != Category.PROFKIT]
    if not len(rows) or (by_line and not ctx.has_lines):
        return None

    sites, paths = FlameSiteTable(), Paths()
    site = host_sites(ctx, sites)
    top = paths.children(np.full(len(site), TOP), sites.threads(ctx)[ctx.events.lane])
    lines = sites.lines(ctx)[ctx.source.frame] if by_line else None
    node = number_tree_paths(paths, ctx.tree, top, site, lines)

    has_stacks = ctx.events.has_python_calls
    along = "Python calls and operators" if has_stacks else "operators"
    of = f"Host time in recorded events, along {along}."
    if by_line:
        of = f"Host time in recorded events, by source line, then along {along}."
    name = "host-line" if by_line else "host-stack"
    return sites.build_flame(
        name, "ns", of, paths, node[rows], ctx.own_ns[rows], ctx.events.ts_ns[rows]
    )


def _build_device_stack(ctx: Context) -> Flame | None:
    if not ctx.has_device_work:
        return None
    sites, paths = FlameSiteTable(), Paths()
    site = host_sites(ctx, sites)
    top = np.full(len(site), TOP, dtype=np.int64)
    launch = ctx.launches.launch
    node = np.full(len(launch), TOP, dtype=np.int64)
    is_known = launch != NO_ROW
    tree_node = number_tree_paths(paths, ctx.tree, top, site)
    node[is_known] = tree_node[launch[is_known]]

    # Work whose launch was not recorded has a root of its own.
    add_site(paths, node, ~is_known, sites.unknown("launch not recorded"))
    return _build_work_flame(ctx, "device-stack", sites, paths, node)


def _build_device_line(ctx: Context) -> Flame | None:
    if not ctx.has_device_work or not ctx.has_lines:
        return None
    sites, paths = FlameSiteTable(), Paths()
    cause = ctx.launches.cause
    frame = np.where(cause == NO_ROW, NO_FRAME, ctx.source.frame[cause])
    node = paths.children(_on_device(ctx, sites, paths), sites.lines(ctx)[frame])
    node = _add_ops(ctx, sites, paths, node)
    return _build_work_flame(ctx, "device-line", sites, paths, node)


def _build_device_module(ctx: Context) -> Flame | None:
    if not ctx.has_device_work or not len(ctx.source.modules):
        return None
    sites, paths = FlameSiteTable(), Paths()
    node = _add_modules(ctx, sites, paths, _on_device(ctx, sites, paths))
    node = _add_ops(ctx, sites, paths, node)
    return _build_work_flame(ctx, "device-module", sites, paths, node)


def _on_device(ctx: Context, sites: FlameSiteTable, paths: Paths) -> Int64s:
    """Return the node of the device of each piece of work."""
    devices = devices_of_work(ctx, sites)
    return paths.children(np.full(len(devices), TOP), devices)


def _add_modules(ctx: Context, sites: FlameSiteTable, paths: Paths, node: Int64s) -> Int64s:
    """Add the modules around the cause of each piece of work; of backward, around its forward."""
    events, tree, source = ctx.events, ctx.tree, ctx.source
    names = np.array([name.startswith(MODULE_PREFIX) for name in events.names], dtype=np.bool_)
    is_module = (events.category == Category.PYTHON) & names[events.name]
    cause, forward = ctx.launches.cause, ctx.forward_ops
    has_cause = cause != NO_ROW
    row = np.where(has_cause & (forward[cause] != NO_ROW), forward[cause], cause)
    innermost = np.where(has_cause, tree.nearest(is_module)[row], NO_ROW)

    # From the innermost module outward, one level of all pieces of work at a time.
    above = tree.enclosing(is_module)
    chain, level = [], innermost
    while (level != NO_ROW).any():
        chain.append(level)
        level = np.where(level == NO_ROW, NO_ROW, above[level])

    module_sites = sites.modules(ctx)
    by_row = np.full(len(events), NO_FRAME, dtype=np.int64)
    by_row[is_module] = source.module[is_module]
    for level in reversed(chain):
        is_known = level != NO_ROW
        node[is_known] = paths.children(node[is_known], module_sites[by_row[level[is_known]]])

    # Source lines that come from another step have only the innermost module.
    is_outside = innermost == NO_ROW
    module = np.where(has_cause, source.module[cause], NO_FRAME)
    node[is_outside] = paths.children(node[is_outside], module_sites[module[is_outside]])
    return node


def _add_ops(ctx: Context, sites: FlameSiteTable, paths: Paths, node: Int64s) -> Int64s:
    """Add the operators that launched the work, where known."""
    op = ctx.launches.op
    is_known = op != NO_ROW
    site = sites.names(ctx, np.full(len(op), KINDS.index("op")), ctx.events.name[op], is_known)
    node[is_known] = paths.children(node[is_known], site[is_known])
    return node


def _build_work_flame(
    ctx: Context, name: str, sites: FlameSiteTable, paths: Paths, node: Int64s
) -> Flame:
    """Build the flame graph whose leaves are device work."""
    events, work = ctx.events, ctx.launches.work
    everything = np.ones(len(work), dtype=np.bool_)
    is_kernel = events.category[work] == Category.KERNEL
    kinds = np.where(is_kernel, KINDS.index("kernel"), KINDS.index("copy"))
    site = sites.names(ctx, kinds, events.name[work], everything)
    node = paths.children(node, site)

    starts_ns = events.ts_ns[work]
    return sites.build_flame(name, "ns", _DEVICE_TIME, paths, node, events.dur_ns[work], starts_ns)


_BLOCKING: Final = regex(
    r"^(?:<built-in (?:method|function) )?(?:_?wait\w*|acquire|sleep|select|e?poll|kqueue|recv\w*"
    r"|accept|readline?|_recv\w*|get|join)\b"
)
"""Python functions in which a thread waits for another one, for a file or for a moment."""
_MIN_WAITING: Final = 0.95


def find_idle_threads(flame: Flame) -> list[int]:
    """Find the root nodes of threads that block in Python for at least 95 % of their time."""
    root = np.arange(len(flame))
    while (flame.parent[root] != NO_ROW).any():
        root = np.where(flame.parent[root] == NO_ROW, root, flame.parent[root])

    waits = np.array(
        [site.kind == "python" and _BLOCKING.search(site.name) is not None for site in flame.sites],
        dtype=np.bool_,
    )
    # What a blocking function calls is how it waits.
    is_waiting = waits[flame.site]
    for nodes in flame.by_depth[1:]:
        is_waiting[nodes] |= is_waiting[flame.parent[nodes]]
    waiting = sum_by_key(len(flame), root[is_waiting], flame.own[is_waiting])

    return [
        node
        for node in np.flatnonzero(flame.parent == NO_ROW).tolist()
        if flame.sites[flame.site[node]].kind == "thread"
        and waiting[node] >= _MIN_WAITING * flame.total[node]
    ]


_MAKERS: Final[dict[str, Callable[[Context], Flame | None]]] = {
    "host-stack": partial(_build_host, by_line=False),
    "host-line": partial(_build_host, by_line=True),
    "device-stack": _build_device_stack,
    "device-line": _build_device_line,
    "device-module": _build_device_module,
}
