"""The sites of flame graph nodes: threads, lines, modules, operators, kernels."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Literal, TypeVar, get_args

import numpy as np

from profkit.engine.context import Context
from profkit.index.device.streams import device_of
from profkit.index.distinct import numbered
from profkit.index.host.call_paths import Paths
from profkit.index.sums import sum_by_key
from profkit.model.events import HOST_CALLS, NO_ROW, Category, EventTable, Int32s, Int64s, Mask
from profkit.model.flame import Flame, FlameSite, FlameUnit, SiteKind, depths
from profkit.model.memory_series import LiveGroups
from profkit.model.torch_names import MODULE_PREFIX
from profkit.present.finding_events import full_frame

KINDS: Final[tuple[SiteKind, ...]] = get_args(SiteKind)
CALL_KINDS: Final[dict[int, Literal["op", "annotation", "python", "call"]]] = {
    Category.OP: "op",
    Category.ANNOTATION: "annotation",
    Category.PYTHON: "python",
    **dict.fromkeys(HOST_CALLS, "call"),
}
"""The kind of a host row, by category."""


class FlameSiteTable:
    """Numbers sites in the order in which they occur."""

    def __init__(self) -> None:
        self._numbers: dict[FlameSite, int] = {}

    def number(self, site: FlameSite) -> int:
        """Return the number of a site."""
        return self._numbers.setdefault(site, len(self._numbers))

    def unknown(self, what: str) -> int:
        """Return the number of a site for data that the recording does not have."""
        return self.number(FlameSite("unknown", what))

    def threads(self, ctx: Context) -> Int64s:
        """Return a site for each lane of the events, by lane."""
        numbers = [
            self.number(FlameSite("thread", thread_label(ctx.events, lane)))
            for lane in range(len(ctx.events.lanes))
        ]
        return np.array(numbers, dtype=np.int64)

    def lines(self, ctx: Context) -> Int64s:
        """Return a site for each frame of the source map and, last, for library code."""
        numbers = [
            self.number(FlameSite("line", frame.function, frame)) for frame in ctx.source.frames
        ]
        return np.array([*numbers, self.unknown("library code")], dtype=np.int64)

    def modules(self, ctx: Context) -> Int64s:
        """Return a site for each module of the source map and, last, for none."""
        numbers = [self.number(FlameSite("module", name)) for name in ctx.source.modules]
        return np.array([*numbers, self.unknown("outside modules")], dtype=np.int64)

    def names(self, ctx: Context, kinds: Int64s, names: Int32s, wanted: Mask) -> Int64s:
        """Return a site for each name of an event.

        Args:
            kinds: Index into :data:`KINDS`. Shape ``(k,)``.
            names: Index into the events' names. Shape ``(k,)``.
            wanted: Which of them get a site. Shape ``(k,)``.

        Returns:
            Sites, 0 where not wanted. Shape ``(k,)``.
        """
        n_names = len(ctx.events.names)
        # Names repeat: a site is made for each distinct one.
        key, place = numbered(kinds[wanted] * n_names + names[wanted])
        numbers = [
            self.number(_site(ctx, KINDS[kind], name))
            for kind, name in (divmod(number, n_names) for number in key.tolist())
        ]

        sites = np.zeros(len(names), dtype=np.int64)
        sites[wanted] = np.array(numbers, dtype=np.int64)[place]
        return sites

    def build_flame(
        self,
        name: str,
        unit: FlameUnit,
        of: str,
        paths: Paths,
        node: Int64s,
        weight: Int64s,
        at_ns: Int64s | None = None,
        lives: Mapping[str, LiveGroups] = MappingProxyType({}),
    ) -> Flame:
        """Build the flame graph of weights at nodes.

        Args:
            of: What the weights add up to, in one sentence.
            node: The node of each weight in ``paths``. Shape ``(k,)``.
            weight: Shape ``(k,)``.
            at_ns: When each began, where that is known. Shape ``(k,)``.
            lives: Blocks by node in ``paths``, whose nodes are in the graph too.
        """
        parent, site = paths.columns()
        self_weight = sum_by_key(len(paths), node, weight)
        n = np.bincount(node, minlength=len(paths))

        # Nodes stay that have weights, or blocks of the history, and the nodes above them.
        is_end = n > 0
        for live_groups in lives.values():
            is_end[live_groups.group] = True
        used = over_subtrees(np.logical_or, is_end, parent)
        number = np.cumsum(used) - 1
        above = np.where(parent == NO_ROW, NO_ROW, number[parent])[used].astype(np.int32)

        used_sites, site_index = np.unique(site[used], return_inverse=True)
        all_sites = tuple(self._numbers)
        return Flame(
            name=name,
            unit=unit,
            of=of,
            sites=tuple(all_sites[used_site] for used_site in used_sites.tolist()),
            site=site_index.astype(np.int32),
            parent=above,
            n=n[used],
            own=self_weight[used],
            total=over_subtrees(np.add, self_weight[used], above),
            first_ns=None if at_ns is None else _first_ns(node, at_ns, len(paths), used, above),
            lives={
                device: replace(live_groups, group=number[live_groups.group])
                for device, live_groups in lives.items()
            },
        )


def _first_ns(node: Int64s, at_ns: Int64s, n: int, used: Mask, parent: Int32s) -> Int64s:
    """Return the first start of each used node or one of its descendants."""
    first = np.full(n, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(first, node, at_ns)
    return over_subtrees(np.minimum, first[used], parent)


_Values = TypeVar("_Values", Int64s, Mask)


def over_subtrees(join: np.ufunc, values: _Values, parent: Int32s) -> _Values:
    """Join the value of each node with the values of its descendants; parents precede children."""
    total: _Values = values.copy()
    depth = depths(parent)
    order = np.argsort(-depth, kind="stable")
    bounds = np.flatnonzero(np.diff(depth[order])) + 1

    # From the deepest level up, so that a node is complete before its parent uses it.
    for level in np.split(order, bounds):
        below = level[parent[level] != NO_ROW]
        join.at(total, parent[below], total[below])
    return total


def add_site(paths: Paths, node: Int64s, where: Mask, site: int) -> None:
    """Move some of the nodes to their child of one site."""
    above = node[where]
    node[where] = paths.children(above, np.full_like(above, site))


def _site(ctx: Context, kind: SiteKind, name: int) -> FlameSite:
    """Return the site of a name of events."""
    text = ctx.events.names[name]
    if kind != "python":
        return FlameSite(kind, text)
    if text.startswith(MODULE_PREFIX):
        return FlameSite("module", text.removeprefix(MODULE_PREFIX))

    frame = full_frame(ctx, text)
    return FlameSite("python", text if frame is None else frame.function, frame)


def host_sites(ctx: Context, sites: FlameSiteTable) -> Int64s:
    """Return the site of each host row; all steps share one. Shape ``(n,)``."""
    events = ctx.events
    on_host = np.zeros(len(events), dtype=np.bool_)
    on_host[ctx.tree.rows] = True
    by_category = [
        KINDS.index(CALL_KINDS.get(category, "unknown")) for category in range(len(Category))
    ]
    kinds = np.array(by_category, dtype=np.int64)[events.category]
    host_site = sites.names(ctx, kinds, events.name, on_host)
    if len(ctx.steps):
        # The names of steps are numbered: under one site their times add up.
        host_site[ctx.steps.annotations] = sites.number(FlameSite("step", "steps"))
    return host_site


def devices_of_work(ctx: Context, sites: FlameSiteTable) -> Int64s:
    """Return the site of the device of each piece of work. Shape of ``launches.work``."""
    device = device_of(ctx.events, ctx.launches.work)
    numbers, inverse = np.unique(device, return_inverse=True)
    device_sites = [
        sites.number(FlameSite("device", ctx.device_label(number))) for number in numbers
    ]
    return np.array(device_sites, dtype=np.int64)[inverse]


def thread_label(events: EventTable, lane: int) -> str:
    """Return the name of a host thread, or its number if the recording has no name."""
    place = events.lanes[lane]
    name = place.thread.removesuffix("()").strip()
    if name:
        return name
    return f"thread {place.tid}" if place.tid.lstrip("-").isdecimal() else place.tid
