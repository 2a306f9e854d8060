"""The time that a rank waits for collectives, and the source lines that started them."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.windows import windows
from profkit.index.device.streams import DeviceActivity
from profkit.index.host.nesting import find_rows_open_at
from profkit.index.host.source import NO_FRAME
from profkit.index.intervals import Intervals, covered_by, intersect, subtract, union, unite
from profkit.index.ranks.collectives import (
    UNKNOWN_COLLECTIVE,
    collective_kind,
    collective_kinds,
    collective_rows,
    device_collectives,
    find_exposed_waits,
    find_late_launch_time,
    find_launching_ops,
    host_collectives,
    host_work_time,
    wait_by_collective,
)
from profkit.index.runtime_calls import names_matching
from profkit.model.events import MISSING, NO_ROW, Category, Int32s, Int64s, Mask, Rows
from profkit.model.location import Location
from profkit.model.torch_names import FRAMING

_SEED: Final = "aten::ones_like"
"""The first operator of ``loss.backward()``, on the calling thread."""


@dataclass(frozen=True)
class CollectiveWaits:
    """The collectives of one device, or of the host, and the time waited for each.

    Attributes:
        device: The device's ordinal; None if host threads run the collectives.
        rows: Kernels, or annotations of the host, by start. Shape ``(k,)``.
        starter: The host row that started each, or :data:`NO_ROW`. Shape ``(k,)``.
        kinds: The kind of each, such as ``all-reduce``.
        exposed_ns: Time in the windows in which a collective ran and nothing was computed.
        waited: The part of it in which the collective is the reason.
        share_ns: The part of that time for each collective. Shape ``(k,)``.
    """

    device: int | None
    rows: Rows
    starter: Int32s
    kinds: list[str]
    exposed_ns: int
    waited: Intervals
    share_ns: Int64s

    @property
    def by_kind(self) -> dict[str, int]:
        """Waited nanoseconds by kind, the most first."""
        total_ns: Counter[str] = Counter()
        for kind, ns in zip(self.kinds, self.share_ns.tolist(), strict=True):
            total_ns[kind] += ns
        return dict(total_ns.most_common())

    def are_of_kinds(self, kinds: Collection[str]) -> Mask:
        """Return which collectives are of one of some kinds. Shape ``(k,)``."""
        return np.array([kind in kinds for kind in self.kinds], dtype=np.bool_)


def find_device_waits(ctx: Context) -> CollectiveWaits | None:
    """Return the waits of the device that waits longest; None without collectives on devices.

    A device that computes nothing during a collective does not wait for it if the host has not
    launched further compute kernels, unless the device blocks the host.
    """
    waits = [
        _find_waits_of_device(ctx, device) for device in ctx.devices if len(device.communication)
    ]
    return max(waits, key=lambda device_waits: device_waits.waited.total_ns, default=None)


def _find_waits_of_device(ctx: Context, device: DeviceActivity) -> CollectiveWaits:
    events, launches = ctx.events, ctx.launches
    alone = intersect(subtract(device.communication, device.compute), union(*windows(ctx)))

    blocked = ctx.host_activity["sync"]
    late = find_late_launch_time(events, launches, device, ctx.is_communication, blocked)

    rows = device.rows[ctx.is_communication[device.rows]]
    rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]

    # The program calls the outermost operator, within which others launch the kernel.
    place = np.searchsorted(launches.work, rows)
    launch = launches.launch[place]
    starter = np.where(launches.op[place] != NO_ROW, launches.op[place], launch)
    outermost = ctx.tree.outermost(collective_rows(events) & (events.category == Category.OP))
    above = np.where(starter != NO_ROW, outermost[starter], NO_ROW)
    starter = np.where(above != NO_ROW, above, starter).astype(np.int32)

    waited = subtract(alone, late)
    return CollectiveWaits(
        device=device.device,
        rows=rows,
        starter=starter,
        kinds=_classify_kernels(ctx, rows, launch, starter),
        exposed_ns=alone.total_ns,
        waited=waited,
        share_ns=wait_by_collective(events, rows, waited),
    )


def _classify_kernels(ctx: Context, rows: Rows, launch: Int32s, starter: Int32s) -> list[str]:
    """Return the kind of each kernel's collective, from the first name that has one.

    The names are, in this order, of the operator that the program called, the collective in the
    kernel's metadata, the annotation around its launch, and the kernel: NCCL implements a barrier
    as an all-reduce, and all-to-all by kernels that send and receive.
    """
    events = ctx.events
    around = ctx.nearest(device_collectives(events))
    annotation = np.where(launch != NO_ROW, around[launch], NO_ROW)
    written = events.collective.at(rows).tolist()

    kind_of_texts: dict[tuple[int, ...], str] = {}
    kernel_kinds = []
    for texts in zip(
        [events.name[row] if row != NO_ROW else NO_ROW for row in starter.tolist()],
        [NO_ROW if number == MISSING else number for number in written],
        [events.name[row] if row != NO_ROW else NO_ROW for row in annotation.tolist()],
        events.name[rows].tolist(),
        strict=True,
    ):
        # Many kernels have few combinations of names: each is looked up once.
        if texts not in kind_of_texts:
            kinds = (collective_kind(events.names[number]) for number in texts if number != NO_ROW)
            kind_of_texts[texts] = next(
                (kind for kind in kinds if kind != UNKNOWN_COLLECTIVE), UNKNOWN_COLLECTIVE
            )
        kernel_kinds.append(kind_of_texts[texts])

    return kernel_kinds


def find_host_waits(ctx: Context) -> CollectiveWaits | None:
    """Return the waits for collectives that host threads run; None without such collectives."""
    events = ctx.events
    rows = host_collectives(events)
    starts, ends = windows(ctx)
    if not len(rows) or not len(starts):
        return None

    working = host_work_time(events, ctx.tree)
    # A rank whose device computes meanwhile does not wait.
    for device in ctx.devices:
        working = unite(working, device.compute)

    steps_time = union(starts, ends)
    waited = find_exposed_waits(events, rows, working, int(starts.min()), int(ends.max()))
    waited = intersect(waited, steps_time)

    return CollectiveWaits(
        device=None,
        rows=rows,
        starter=find_launching_ops(events, ctx.tree, rows),
        kinds=collective_kinds(events, rows),
        exposed_ns=intersect(subtract(covered_by(events, rows), working), steps_time).total_ns,
        waited=waited,
        share_ns=wait_by_collective(events, rows, waited),
    )


@dataclass(frozen=True)
class CollectiveSite:
    """A source line that started collectives.

    Attributes:
        location: The line, and the operator with most of the waited time.
        region: The innermost region around at least half of it, or empty.
        kind: The kind of collective with most of the waited time.
        ns: Waited time.
    """

    location: Location
    region: str
    kind: str
    ns: int


def find_collective_sites(ctx: Context, waits: CollectiveWaits) -> list[CollectiveSite]:
    """List the lines that started collectives with waited time, the longest first.

    Collectives whose start was not recorded have no line.
    """
    places = np.flatnonzero((waits.share_ns > 0) & (waits.starter != NO_ROW))
    places = places[np.argsort(-waits.share_ns[places], kind="stable")]
    ns, rows = waits.share_ns[places], _find_rows_with_line(ctx, waits.starter[places])
    regions = ctx.tree.nearest(_regions(ctx))[waits.starter[places]]

    sites = []
    for location, line_rows in ctx.by_line(rows):
        is_of_line = np.isin(rows, line_rows)
        # Places are sorted by time.
        heaviest = int(places[is_of_line][0])
        op = ctx.location(int(waits.starter[heaviest])).op
        sites.append(
            CollectiveSite(
                location=replace(location, op=op),
                region=_main_region(ctx, regions[is_of_line], ns[is_of_line]),
                kind=waits.kinds[heaviest],
                ns=int(ns[is_of_line].sum()),
            )
        )

    return sorted(sites, key=lambda site: -site.ns)


def _main_region(ctx: Context, regions: Int32s, ns: Int64s) -> str:
    """Name the region with at least half of the time; empty if there is none."""
    by_name: Counter[str] = Counter()
    for region, region_ns in zip(regions.tolist(), ns.tolist(), strict=True):
        if region != NO_ROW:
            by_name[ctx.events.name_of(region)] += region_ns
    return next((name for name, total in by_name.items() if 2 * total >= ns.sum()), "")


def _regions(ctx: Context) -> Mask:
    """Return annotations of the user's program, without collectives and steps. Shape ``(n,)``."""
    is_region = (ctx.events.category == Category.ANNOTATION) & ~collective_rows(ctx.events)
    is_region[ctx.steps.annotations] = False
    return np.asarray(is_region & ~names_matching(ctx.events, FRAMING)[ctx.events.name])


def _find_rows_with_line(ctx: Context, starter: Int32s) -> Int32s:
    """Return for each operator the row whose source line it belongs to.

    An operator on autograd's thread has no source line. It belongs to the call of ``backward()``
    that is open on the main thread, if the recording shows it.
    """
    events, tree, frame = ctx.events, ctx.tree, ctx.source.frame
    is_lost = (frame[starter] == NO_FRAME) & (events.lane[starter] != _main_lane(ctx))
    if not is_lost.any():
        return starter

    at_ns = events.ts_ns[starter[is_lost]]
    lane = np.full(len(at_ns), _main_lane(ctx), dtype=np.int32)

    ops = np.flatnonzero((events.category == Category.OP) & (events.lane == _main_lane(ctx)))
    ops = ops[tree.op_around[ops] == NO_ROW]
    ops = ops[np.argsort(events.ts_ns[ops], kind="stable")]

    line_rows: Int32s = starter.copy()
    if len(ops):
        # The call of backward() is the open Python function, or without stacks the row of its seed.
        place = np.searchsorted(events.ts_ns[ops], at_ns, side="right") - 1
        last = ops[np.maximum(place, 0)]
        is_seed = np.array([events.names[name] == _SEED for name in events.name[last].tolist()])
        python = tree.nearest(events.category == Category.PYTHON)
        open_now = find_rows_open_at(events, tree, lane, at_ns)
        is_frame = (open_now != NO_ROW) & (python[open_now] != NO_ROW)
        called = np.where((place >= 0) & is_seed, last, np.where(is_frame, open_now, NO_ROW))
        has_line = (called != NO_ROW) & (frame[called] != NO_FRAME)
        line_rows[is_lost] = np.where(has_line, called, line_rows[is_lost])

    return line_rows


def _main_lane(ctx: Context) -> int:
    """Return the thread with the steps; without steps the one with the most operators."""
    events = ctx.events
    if len(ctx.steps):
        return int(events.lane[ctx.steps.rows[0]])
    ops = events.rows_of(Category.OP)
    return int(np.bincount(events.lane[ops]).argmax()) if len(ops) else 0
