"""Flame graphs of host time, device time and memory, by stack, line and module."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.wording import counted
from profkit.index.host.frames import Ownership, owner_of_call, ownership_of
from profkit.model.events import NO_ROW, Int64s
from profkit.model.flame import Flame, FlameSite
from profkit.model.location import base_name, numbered_line
from profkit.model.report import Report
from profkit.names import short_kernel
from profkit.present.flame_difference import FlameDifference
from profkit.present.flame_sites import over_subtrees
from profkit.present.flames import find_idle_threads, flames
from profkit.present.labels import source_line
from profkit.present.part_colors import color_of
from profkit.present.tables.definition import Column, Table
from profkit.renderers.html._options import Options
from profkit.renderers.html._packed_columns import MAX_PLAIN, pack_columns, pack_lives
from profkit.renderers.html._section import LIVES_SCRIPT, Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableTable, build_table, cell, table_data

SCRIPTS: Final = ("canvas.js", "keys.js", "flame_tree.js", "flame.js", "flame_rows.js", "flames.js")
_ORDER: Final = (
    "host-line", "host-stack", "device-line", "device-module", "device-stack", "memory-use",
    "memory-stack",
)  # fmt: skip
"""Graphs by the user's own source lines first."""
MAX_NODES: Final = 4_000
"""Nodes beyond the first so many are narrower than a pixel."""
MAX_ROWS: Final = 300
_MAX_NAME: Final = 240
_FOLDED: Final = frozenset({"torch", "library"})
"""Kinds of nodes that are left out until the reader asks for them."""

_STYLES: Final[dict[str, tuple[str, str]]] = {
    "own": ("your code", "--code-own"),
    "line": ("a source line", "--code-own"),
    "torch": ("torch's Python code", "--code-torch"),
    "library": ("library code", "--code-library"),
    "module": ("a module", "--code-module"),
    "op": ("an operator", "--series-1"),
    "call": ("a runtime call", "--series-6"),
    "kernel": ("a kernel", color_of("compute")),
    "copy": ("a copy or fill", color_of("copy")),
    "annotation": ("a region or annotation", "--series-5"),
    "use": ("a use of memory", "--series-3"),
    "step": ("all steps", "--series-8"),
    "thread": ("a thread", "--series-8"),
    "device": ("a device", "--series-8"),
    "unknown": ("unknown", "--series-8"),
}
"""Label and colour of each kind of node."""


def build_section(report: Report, options: Options) -> Section | None:
    """Return the flame graphs, or None without a recording that has data for one."""
    if options.recording is None:
        return None
    ctx = options.recording.context
    graphs = flames(ctx, _ORDER, over_time=True)
    if not graphs:
        return None

    ownership = ownership_of(ctx.trace.capture if ctx.has_trace else None)
    tables = [_build_site_table(flame, options.base) for flame in graphs]
    has_lives = any(flame.lives for flame in graphs)
    widths = {"time" if flame.unit == "ns" else "bytes of memory" for flame in graphs}

    return Section(
        id="flames",
        title="Flame graphs",
        body=fill(
            "flames.html.j2",
            has_threads=any(site.kind == "thread" for flame in graphs for site in flame.sites),
            has_lives=has_lives,
            flames=list(zip(graphs, tables, strict=True)),
            width=" or ".join(sorted(widths, reverse=True)),
            has_lines=report.source.lines_from is not None or not ctx.has_trace,
            is_difference=False,
        ),
        scripts=(TABLE_SCRIPT, *((LIVES_SCRIPT,) if has_lives else ()), *SCRIPTS),
        data={
            **table_data(*tables),
            "flames": [_pack_graph(flame, ownership, options.base) for flame in graphs],
        },
        figure=counted(len(graphs), "graph"),
    )


def build_difference_section(graphs: Sequence[FlameDifference], base: str) -> Section:
    """Return the flame graphs of two recordings, coloured by the change between them."""
    ownership = ownership_of(None)

    return Section(
        id="flames",
        title="Flame graphs",
        body=fill(
            "flames.html.j2",
            flames=[(graph.flame, None) for graph in graphs],
            width="time per step" if graphs[0].is_per_step else "time or bytes of memory",
            has_lines=True,
            has_threads=any(site.kind == "thread" for site in graphs[0].flame.sites),
            has_lives=False,
            is_difference=True,
        ),
        scripts=SCRIPTS,
        data={
            "flames": [_pack_graph(graph.flame, ownership, base, graph.before) for graph in graphs]
        },
    )


def _pack_graph(
    flame: Flame, ownership: Ownership, base: str, before: Int64s | None = None
) -> dict[str, Any]:
    """Return what ``flames.js`` draws: the heaviest nodes as columns, and their sites."""
    weight = flame.total if before is None else np.maximum(flame.total, before)
    weight = weight + _sum_block_bytes(flame)
    nodes = np.sort(np.lexsort((np.arange(len(flame)), -weight))[:MAX_NODES])
    number = np.full(len(flame), NO_ROW, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))

    parent = flame.parent[nodes]
    parent_number = np.where(parent == NO_ROW, NO_ROW, number[parent])
    used_sites, site = np.unique(flame.site[nodes], return_inverse=True)
    sites = [flame.sites[row] for row in used_sites.tolist()]

    # Only the order of the starts is needed: numbers from 1; 0 for all where it is not known.
    order = np.zeros(len(nodes), dtype=np.int64)
    if flame.first_ns is not None:
        order[np.argsort(flame.first_ns[nodes], kind="stable")] = np.arange(1, len(nodes) + 1)

    return {
        "name": flame.name,
        "unit": flame.unit,
        "n": len(nodes),
        "nLeftOut": len(flame) - len(nodes),
        # A parent precedes its children: the distance to it is written, and 0 for none.
        "packed": pack_columns(
            (
                np.where(parent_number == NO_ROW, 0, np.arange(len(nodes)) - parent_number),
                site,
                flame.own[nodes],
                flame.total[nodes],
                flame.n[nodes],
                order,
                *(() if before is None else (before[nodes],)),
            ),
            plain=len(nodes) <= MAX_PLAIN,
        ),
        "lives": _pack_lives(flame, number),
        "idle": [node for node in number[find_idle_threads(flame)].tolist() if node != NO_ROW],
        **_describe_sites(sites, ownership, base),
    }


def _pack_lives(flame: Flame, number: Int64s) -> dict[str, Any]:
    """Return the blocks of the history by device; ``number`` is each node's place on the page."""
    # Blocks of a node that is left out count for its nearest ancestor on the page.
    nearest = number.copy()
    for level in flame.by_depth[1:] if flame.lives else ():
        left_out = level[nearest[level] == NO_ROW]
        nearest[left_out] = nearest[flame.parent[left_out]]

    return {
        device: pack_lives(replace(lives, group=nearest[lives.group]))
        for device, lives in flame.lives.items()
    }


def _describe_sites(
    sites: Sequence[FlameSite], ownership: Ownership, base: str
) -> dict[str, object]:
    """Return the texts of sites, and how nodes of their kinds are drawn."""
    kind_of_site = [_kind(site, ownership) for site in sites]
    kinds = list(dict.fromkeys(kind_of_site))

    return {
        "sites": {
            "name": [cell(site.name, _MAX_NAME) for site in sites],
            "short": [_short(site) for site in sites],
            "place": [_place(site, base) for site in sites],
            "style": [kinds.index(kind) for kind in kind_of_site],
        },
        "styles": [
            {"label": _STYLES[kind][0], "color": _STYLES[kind][1], "isFolded": kind in _FOLDED}
            for kind in kinds
        ],
    }


def _sum_block_bytes(flame: Flame) -> Int64s:
    """Return the bytes of all blocks of the history at nodes and descendants. Shape ``(k,)``."""
    block_bytes = np.zeros(len(flame), dtype=np.int64)
    for lives in flame.lives.values():
        np.add.at(block_bytes, lives.group, lives.n_bytes)
    return over_subtrees(np.add, block_bytes, flame.parent)


def _kind(site: FlameSite, ownership: Ownership) -> str:
    """Return the kind of a site, of a Python call by whose code it runs."""
    if site.kind != "python":
        return site.kind
    return owner_of_call(site.name if site.frame is None else site.frame.file, ownership)


def _name(site: FlameSite) -> str:
    return short_kernel(site.name) if site.kind == "kernel" else site.name


def _short(site: FlameSite) -> str:
    """Return the name that is drawn, of a source line with its file and number."""
    if site.frame is not None and site.kind == "line":
        line = numbered_line(base_name(site.frame.file), site.frame.line)
        return cell(f"{site.name}  {line}", _MAX_NAME)
    return cell(_name(site), _MAX_NAME)


def _place(site: FlameSite, base: str) -> str:
    if site.frame is None:
        return ""
    line = source_line(site.frame.file, site.frame.line, base)
    return cell(line, _MAX_NAME)


@dataclass(frozen=True)
class _SiteRow:
    """A site of a graph, with the weights and the number of all its nodes."""

    site: FlameSite
    self_weight: int
    self_share: float
    total: int
    n: int


def _build_site_table(flame: Flame, base: str) -> SortableTable:
    """Return the sites of a graph, the one with the highest own weight first."""
    self_weight, total, n = sum_by_site(flame)
    order = np.lexsort((np.arange(len(total)), -total, -self_weight))
    # Memory that was not live at its peak has nodes without weight.
    order = order[total[order] > 0][:MAX_ROWS]
    figures = (column[order].tolist() for column in (self_weight, total, n))
    rows = tuple(
        _SiteRow(flame.sites[number], own, own / flame.weight, whole, count)
        for number, own, whole, count in zip(order.tolist(), *figures, strict=True)
    )

    unit = flame.unit
    columns = (
        Column("name", "", "name", value=lambda row: _name(row.site)),
        Column("place", "", "location", value=lambda row: _place(row.site, base)),
        Column(unit, "self_weight", "self", "without what it calls"),
        Column("share", "self_share", "share", "of the whole graph, without what it calls"),
        Column(unit, "total", "total", "with all that it calls; recursive calls count once"),
        Column("count", "n", "count", "calls, kernels, copies or blocks that end there"),
    )
    name = f"flame-{flame.name}"
    return build_table(
        Table(name, flame.title, columns, rows, sorted_by="self", full_name="site.name")
    )


def sum_by_site(flame: Flame) -> tuple[Int64s, Int64s, Int64s]:
    """Return the own weight, total weight and count of every site, summed over its nodes.

    Returns:
        An entry for each site. A recursive call has the total of the outermost call.
    """
    # All nodes climb at once, one ancestor per round: a node below one of its own site is not
    # outermost. There are as many rounds as the tree is deep.
    is_outermost = np.ones(len(flame), dtype=np.bool_)
    nodes = np.flatnonzero(flame.parent != NO_ROW)
    ancestors = flame.parent[nodes]
    while len(nodes):
        is_outermost[nodes] &= flame.site[ancestors] != flame.site[nodes]
        ancestors = flame.parent[ancestors]
        has_parent = ancestors != NO_ROW
        nodes, ancestors = nodes[has_parent], ancestors[has_parent]

    self_weight, total, n = np.zeros((3, len(flame.sites)), dtype=np.int64)
    np.add.at(self_weight, flame.site, flame.own)
    np.add.at(total, flame.site[is_outermost], flame.total[is_outermost])
    np.add.at(n, flame.site, flame.n)
    return self_weight, total, n
