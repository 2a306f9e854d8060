"""What the slices of a timeline stand for: name, kind, line and launching operator."""

from dataclasses import replace
from typing import Final, get_args

import numpy as np

from profkit.engine.context import Context
from profkit.index.device.syncs import blocking_calls
from profkit.index.host.call_paths import numbered
from profkit.index.host.source import NO_FRAME
from profkit.index.runtime_calls import ALLOCATOR
from profkit.model.events import NO_ROW, Category, Int32s, Int64s
from profkit.model.timeline import SliceKind, TimelineSite

MAX_SITES: Final = 20_000
"""A page names no more; what is rarer still is drawn and counted, under one name for each kind."""

_KINDS: Final[tuple[SliceKind, ...]] = get_args(SliceKind)
_NUMBER: Final = {kind: number for number, kind in enumerate(_KINDS)}
_BY_CATEGORY: Final[dict[int, SliceKind]] = {
    Category.OP: "op",
    Category.ANNOTATION: "annotation",
    Category.DEVICE_ANNOTATION: "annotation",
    Category.KERNEL: "compute",
    Category.MEMCPY: "copy",
    Category.MEMSET: "copy",
    Category.RUNTIME: "call",
    Category.DRIVER: "call",
    Category.PYTHON: "python",
    Category.OVERHEAD: "overhead",
    Category.DEVICE_SYNC: "sync",
}


def kinds_of_events(ctx: Context) -> Int64s:
    """What each event is, as its place among the values of :data:`SliceKind`. Shape ``(n,)``."""
    events = ctx.events
    by_category = [_NUMBER[_BY_CATEGORY.get(each, "other")] for each in range(len(Category))]
    kind = np.array(by_category, dtype=np.int64)[events.category]
    kind[ctx.is_communication] = _NUMBER["communication"]
    kind[ALLOCATOR.rows(events)] = _NUMBER["allocator"]
    kind[blocking_calls(events, ctx.launches)] = _NUMBER["sync"]
    kind[ctx.data_waits] = _NUMBER["data"]
    kind[ctx.steps.rows] = _NUMBER["step"]
    return kind


def sites_of_events(ctx: Context) -> tuple[Int32s, list[TimelineSite]]:
    """The site of every event, and the sites. Shape ``(n,)``."""
    events, source, launches = ctx.events, ctx.source, ctx.launches
    n_names = len(events.names)
    frame = source.frame.astype(np.int64)
    work, launch, op = launches.work, launches.launch, launches.op
    cause = np.where(launch == NO_ROW, op, launch)
    frame[work] = np.where(cause == NO_ROW, NO_FRAME, source.frame[cause])
    op_name = np.full(len(events), -1, dtype=np.int64)
    op_name[work] = np.where(op == NO_ROW, -1, events.name[op])
    what, what_of = numbered(kinds_of_events(ctx) * n_names + events.name)
    where, where_of = numbered((frame + 1) * (n_names + 1) + op_name + 1)
    both, site = numbered(what_of * len(where) + where_of)
    total = np.zeros(len(both), dtype=np.int64)
    np.add.at(total, site, events.dur_ns)
    n = np.bincount(site, minlength=len(both))
    sites = []
    for number, key in enumerate(both.tolist()):
        kind, name = divmod(int(what[key // len(where)]), n_names)
        at, by = divmod(int(where[key % len(where)]), n_names + 1)
        sites.append(
            TimelineSite(
                name=events.names[name],
                kind=_KINDS[kind],
                frame=source.frames[at - 1] if at else None,
                op=events.names[by - 1] if by else None,
                n=int(n[number]),
                total_ns=int(total[number]),
            )
        )
    return site.astype(np.int32), sites


def ranked(sites: list[TimelineSite]) -> tuple[tuple[TimelineSite, ...], Int32s]:
    """Sites by their time, the longest first, and the new number of each old one.

    Beyond :data:`MAX_SITES` those of one kind become one site.
    """
    order = np.argsort([-site.total_ns for site in sites], kind="stable").tolist()
    kept = [sites[old] for old in order[:MAX_SITES]]
    number = np.zeros(len(sites), dtype=np.int32)
    number[order[:MAX_SITES]] = np.arange(len(kept), dtype=np.int32)
    rest: dict[SliceKind, int] = {}
    for old in order[MAX_SITES:]:
        site = sites[old]
        if site.kind not in rest:
            rest[site.kind] = len(kept)
            kept.append(TimelineSite("one of the rarer names", site.kind, None, None, 0, 0))
        new = rest[site.kind]
        before = kept[new]
        kept[new] = replace(before, n=before.n + site.n, total_ns=before.total_ns + site.total_ns)
        number[old] = new
    return tuple(kept), number
