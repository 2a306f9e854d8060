"""Flame graphs: where host time, device time and memory went, by stack, line and module."""

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from profkit.engine.context import Context
from profkit.model.events import NO_ROW, Int64s
from profkit.model.flame import Flame, FlameSite, SiteKind
from profkit.model.report import Report
from profkit.names import middle_cut, short_kernel, short_path, visible
from profkit.present.flames import flames
from profkit.renderers.html._colors import color_of
from profkit.renderers.html._options import Options
from profkit.renderers.html._packed_columns import packed
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, table

SCRIPTS: Final = ("canvas.js", "columns.js", "flame.js", "flames.js")
_ORDER: Final = (
    "host-line", "host-stack", "device-line", "device-module", "device-stack", "memory-use",
    "memory-stack",
)  # fmt: skip
"""What tells of the user's own lines first."""
MAX_NODES: Final = 4_000
"""What is narrower than the first so many nodes is narrower than a pixel."""
MAX_ROWS: Final = 300
"""Rows of the table of a graph; the heaviest."""
MAX_NAME: Final = 240

_COLORS: Final[dict[str, str]] = {
    "yours": "--series-2",
    "line": "--series-2",
    "python": "--series-8",
    "module": "--series-5",
    "op": "--series-1",
    "call": "--series-6",
    "kernel": color_of("compute"),
    "copy": color_of("copy"),
    "annotation": "--series-5",
    "use": "--series-3",
    "step": "--series-1",
    "thread": "--series-8",
    "device": "--series-8",
    "unknown": "--series-8",
}
_WORDS: Final[dict[str, str]] = {
    "yours": "your code",
    "line": "a line of your code",
    "python": "Python outside your code",
    "module": "a module",
    "op": "an operator",
    "call": "a runtime call",
    "kernel": "a kernel",
    "copy": "a copy or a fill",
    "annotation": "a region or an annotation",
    "use": "what memory is used for",
    "step": "all steps",
    "thread": "a thread",
    "device": "a device",
    "unknown": "not known",
}


def section(report: Report, options: Options) -> Section | None:
    """The flame graphs, or None without a recording that has something for one.

    Args:
        options: The recording, and how paths are shown.
    """
    if options.recording is None:
        return None
    ctx = options.recording.context
    made = flames(ctx, _ORDER)
    if not made:
        return None
    own_files = files_of_user(ctx)
    tables = [_table(flame, options.base) for flame in made]
    return Section(
        id="flames",
        title="Flame graphs",
        body=fill(
            "flames.html.j2",
            flames=list(zip(made, tables, strict=True)),
            has_lines=report.source.lines_from is not None,
        ),
        scripts=(TABLE_SCRIPT, *SCRIPTS),
        data={
            "tables": {each.id: each.data for each in tables},
            "flames": [_data(flame, own_files, options.base) for flame in made],
        },
    )


def files_of_user(ctx: Context) -> frozenset[str]:
    """The files of the user's own code, as far as the recording tells.

    Args:
        ctx: What was recorded.
    """
    found = {frame.file for frame in ctx.source.frames}
    for memory in ctx.device_memories:
        lines = memory.lines
        frames = np.unique(lines.frame[lines.is_users]).tolist()
        found |= {lines.stacks.frames[each].file for each in frames}
    return frozenset(found)


def _data(flame: Flame, own_files: Collection[str], base: str) -> dict[str, Any]:
    """What ``flames.js`` draws: the heaviest nodes as columns, and what each stands for."""
    kept = np.sort(np.lexsort((np.arange(len(flame)), -flame.total))[:MAX_NODES])
    number = np.full(len(flame), NO_ROW, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    parent = flame.parent[kept]
    above = np.where(parent == NO_ROW, NO_ROW, number[parent])
    sites, site = np.unique(flame.site[kept], return_inverse=True)
    looks = [_look(flame.sites[each], own_files) for each in sites.tolist()]
    kinds = list(dict.fromkeys(looks))
    return {
        "name": flame.name,
        "unit": flame.unit,
        "n": len(kept),
        "nLeftOut": len(flame) - len(kept),
        # A parent precedes its children: what is written is by how much, and 0 for none.
        "packed": packed(
            (
                np.where(above == NO_ROW, 0, np.arange(len(kept)) - above),
                site, flame.own[kept], flame.total[kept], flame.n[kept],
            ),
            plain=True,
        ),
        "sites": {
            "name": [_cut(flame.sites[each].name) for each in sites.tolist()],
            "short": [_short(flame.sites[each]) for each in sites.tolist()],
            "place": [_place(flame.sites[each], base) for each in sites.tolist()],
            "look": [kinds.index(look) for look in looks],
        },
        "looks": [{"label": _WORDS[kind], "color": _COLORS[kind]} for kind in kinds],
    }  # fmt: skip


def _look(site: FlameSite, own_files: Collection[str]) -> str:
    """The kind of a site, Python calls told apart by whose they are."""
    own: SiteKind = "python"
    if site.kind == own and site.frame is not None and site.frame.file in own_files:
        return "yours"
    return site.kind


def _cut(text: str) -> str:
    return middle_cut(visible(text), MAX_NAME)


def _name(site: FlameSite) -> str:
    """The name, of a kernel what tells it from others."""
    return short_kernel(site.name) if site.kind == "kernel" else site.name


def _short(site: FlameSite) -> str:
    """The name as it fits into a graph; a line of the user's with where it is."""
    if site.frame is not None and site.kind == "line":
        file = site.frame.file.replace("\\", "/").rsplit("/", 1)[-1]
        return _cut(f"{site.name}  {file}:{site.frame.line}")
    return _cut(_name(site))


def _place(site: FlameSite, base: str) -> str:
    if site.frame is None:
        return ""
    return _cut(f"{short_path(site.frame.file, base)}:{site.frame.line}")


def _table(flame: Flame, base: str) -> SortableTable:
    """What a graph is made of, each once, the one with the most weight of its own first."""
    own, total, n = by_site(flame)
    order = np.lexsort((np.arange(len(own)), -total, -own))[:MAX_ROWS].tolist()
    unit: Any = flame.unit
    columns = (
        SortableColumn("Name", "name"),
        SortableColumn("Where", "place"),
        SortableColumn("Self", unit, "without what it calls"),
        SortableColumn("Share", "share", "of the whole graph, without what it calls"),
        SortableColumn("Total", unit, "with all that it calls; what calls itself counts once"),
        SortableColumn("Count", "count", "how many calls, pieces of work or blocks end there"),
    )
    rows = (
        (
            _name(flame.sites[each]), _place(flame.sites[each], base), int(own[each]),
            int(own[each]) / flame.weight, int(total[each]), int(n[each]),
        )
        for each in order
    )  # fmt: skip
    hints = [flame.sites[each].name for each in order]
    return table(f"flame-{flame.name}", flame.title, columns, rows, sorted_by=2, hints=hints)


def by_site(flame: Flame) -> tuple[Int64s, Int64s, Int64s]:
    """Own weight, total weight and count of every site, over all of its nodes.

    Args:
        flame: The graph.

    Returns:
        Of what calls itself the total is that of the outermost call. An entry a site each.
    """
    outermost = np.ones(len(flame), dtype=np.bool_)
    here = np.flatnonzero(flame.parent != NO_ROW)
    above = flame.parent[here]
    while len(here):
        outermost[here] &= flame.site[above] != flame.site[here]
        above = flame.parent[above]
        more = above != NO_ROW
        here, above = here[more], above[more]
    own, total, n = np.zeros((3, len(flame.sites)), dtype=np.int64)
    np.add.at(own, flame.site, flame.own)
    np.add.at(total, flame.site[outermost], flame.total[outermost])
    np.add.at(n, flame.site, flame.n)
    return own, total, n
