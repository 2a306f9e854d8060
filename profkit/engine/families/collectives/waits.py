"""Time that is lost to exchanges between ranks, and the lines that started them."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.windows import windows
from profkit.index.device.streams import DeviceActivity
from profkit.index.host.nesting import rows_open_at
from profkit.index.host.source import NO_FRAME
from profkit.index.intervals import Intervals, covered_by, intersect, subtract, union, unite
from profkit.index.ranks.collectives import (
    UNKNOWN_COLLECTIVE,
    collective_kind,
    collective_kinds,
    collective_rows,
    device_collectives,
    exposed_waits,
    host_collectives,
    host_work_time,
    late_launch_time,
    launching_ops,
    wait_by_collective,
)
from profkit.index.runtime_calls import names_matching
from profkit.model.events import MISSING, NO_ROW, Category, Int32s, Int64s, Mask, Rows
from profkit.model.location import Location
from profkit.model.torch_names import FRAMING

"""Annotations that PyTorch and profkit write by themselves around what the user calls."""
_SEED: Final = "aten::ones_like"
"""What ``loss.backward()`` begins with, on the thread that calls it."""


@dataclass(frozen=True)
class CollectiveWaits:
    """Exchanges of one device, or of the host, and how long each was waited for.

    Attributes:
        device: The device's ordinal; None where threads of the host run the exchanges.
        rows: Kernels, or annotations of the host, by their start. Shape ``(k,)``.
        starter: The host row that started each, or :data:`NO_ROW`. Shape ``(k,)``.
        kinds: What each is, such as ``all-reduce``.
        exposed_ns: Time in the windows in which any of them ran and nothing was computed.
        waited: The part of it in which that is why nothing was computed.
        share_ns: What each has of that time. Shape ``(k,)``.
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
        """Nanoseconds by kind, the most first."""
        found: dict[str, int] = {}
        for kind, ns in zip(self.kinds, self.share_ns.tolist(), strict=True):
            found[kind] = found.get(kind, 0) + ns
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def waits_of_devices(ctx: Context) -> CollectiveWaits | None:
    """The device that waits most for exchanges that devices run; None without any such exchange.

    A device that computes nothing during an exchange does not wait for it where the host has not
    launched anything more to compute, unless the host is itself held by the device.
    """
    found = [_of_device(ctx, each) for each in ctx.devices if len(each.communication)]
    return max(found, key=lambda each: each.waited.total_ns, default=None)


def _of_device(ctx: Context, device: DeviceActivity) -> CollectiveWaits:
    events, launches = ctx.events, ctx.launches
    alone = intersect(subtract(device.communication, device.compute), union(*windows(ctx)))
    held = ctx.host_activity["sync"]
    late = late_launch_time(events, launches, device, ctx.is_communication, held)
    rows = device.rows[ctx.is_communication[device.rows]]
    rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
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
        kinds=_kinds_of_kernels(ctx, rows, launch, starter),
        exposed_ns=alone.total_ns,
        waited=waited,
        share_ns=wait_by_collective(events, rows, waited),
    )


def _kinds_of_kernels(ctx: Context, rows: Rows, launch: Int32s, starter: Int32s) -> list[str]:
    """What each kernel exchanges, by the first name that tells.

    That is the operator that the program called, the collective written on the kernel, the
    annotation around its launch, and last its own name: NCCL makes a barrier of an all-reduce, and
    sends all-to-all by kernels that send and receive.
    """
    events = ctx.events
    is_annotation = np.zeros(len(events), dtype=np.bool_)
    is_annotation[device_collectives(events)] = True
    annotation = np.where(launch != NO_ROW, ctx.tree.nearest(is_annotation)[launch], NO_ROW)
    written = events.collective.at(rows).tolist()
    names: dict[tuple[int, ...], str] = {}
    found = []
    for texts in zip(
        [events.name[row] if row != NO_ROW else NO_ROW for row in starter.tolist()],
        [NO_ROW if number == MISSING else number for number in written],
        [events.name[row] if row != NO_ROW else NO_ROW for row in annotation.tolist()],
        events.name[rows].tolist(),
        strict=True,
    ):
        if texts not in names:
            kinds = (collective_kind(events.names[number]) for number in texts if number != NO_ROW)
            names[texts] = next(
                (kind for kind in kinds if kind != UNKNOWN_COLLECTIVE), UNKNOWN_COLLECTIVE
            )
        found.append(names[texts])
    return found


def waits_of_host(ctx: Context) -> CollectiveWaits | None:
    """The time lost to exchanges that threads of the host run; None without any such exchange."""
    events = ctx.events
    rows = host_collectives(events)
    starts, ends = windows(ctx)
    if not len(rows) or not len(starts):
        return None
    working = host_work_time(events, ctx.tree)
    for device in ctx.devices:
        working = unite(working, device.compute)
    within = union(starts, ends)
    waited = exposed_waits(events, rows, working, int(starts.min()), int(ends.max()))
    waited = intersect(waited, within)
    return CollectiveWaits(
        device=None,
        rows=rows,
        starter=launching_ops(events, ctx.tree, rows),
        kinds=collective_kinds(events, rows),
        exposed_ns=intersect(subtract(covered_by(events, rows), working), within).total_ns,
        waited=waited,
        share_ns=wait_by_collective(events, rows, waited),
    )


@dataclass(frozen=True)
class CollectiveSite:
    """A line that started exchanges.

    Attributes:
        location: The line, and the operator that most of the waiting was for.
        region: The innermost named region around most of it, or empty.
        kind: The kind of exchange that most of the waiting was for.
        ns: Time waited.
    """

    location: Location
    region: str
    kind: str
    ns: int


def collective_sites(ctx: Context, waits: CollectiveWaits) -> list[CollectiveSite]:
    """The lines that started exchanges that were waited for, the most waited for first.

    Args:
        waits: The exchanges. Those whose start was not recorded belong to no line.
    """
    counts = np.flatnonzero((waits.share_ns > 0) & (waits.starter != NO_ROW))
    counts = counts[np.argsort(-waits.share_ns[counts], kind="stable")]
    ns, seats = waits.share_ns[counts], _seats(ctx, waits.starter[counts])
    regions = ctx.tree.nearest(_regions(ctx))[waits.starter[counts]]
    found = []
    for location, here in ctx.by_line(seats):
        mine = np.isin(seats, here)
        heaviest = int(counts[mine][0])
        op = ctx.location(int(waits.starter[heaviest])).op
        found.append(
            CollectiveSite(
                location=replace(location, op=op),
                region=_most_of(ctx, regions[mine], ns[mine]),
                kind=waits.kinds[heaviest],
                ns=int(ns[mine].sum()),
            )
        )
    return sorted(found, key=lambda each: -each.ns)


def _most_of(ctx: Context, regions: Int32s, ns: Int64s) -> str:
    """The name of the regions that have at least half of some time; empty if there are none."""
    by_name: dict[str, int] = {}
    for region, each_ns in zip(regions.tolist(), ns.tolist(), strict=True):
        if region != NO_ROW:
            name = ctx.events.name_of(region)
            by_name[name] = by_name.get(name, 0) + each_ns
    return next((name for name, total in by_name.items() if 2 * total >= ns.sum()), "")


def _regions(ctx: Context) -> Mask:
    """Annotations that are the user's, not those of exchanges or of steps. Shape ``(n,)``."""
    own = (ctx.events.category == Category.ANNOTATION) & ~collective_rows(ctx.events)
    own[ctx.steps.rows] = False
    return np.asarray(own & ~names_matching(ctx.events.names, FRAMING)[ctx.events.name])


def _seats(ctx: Context, starter: Int32s) -> Int32s:
    """The rows whose lines stand for some operators.

    An operator that autograd's own thread runs has no line. It belongs to the call of
    ``backward()`` that the main thread is in, if the recording tells which that is.
    """
    events, tree, frame = ctx.events, ctx.tree, ctx.source.frame
    homeless = (frame[starter] == NO_FRAME) & (events.lane[starter] != _main_lane(ctx))
    if not homeless.any():
        return starter
    at_ns = events.ts_ns[starter[homeless]]
    lane = np.full(len(at_ns), _main_lane(ctx), dtype=np.int32)
    ops = np.flatnonzero((events.category == Category.OP) & (events.lane == _main_lane(ctx)))
    ops = ops[tree.enclosing(events.category == Category.OP)[ops] == NO_ROW]
    ops = ops[np.argsort(events.ts_ns[ops], kind="stable")]
    seat: Int32s = starter.copy()
    if len(ops):
        place = np.searchsorted(events.ts_ns[ops], at_ns, side="right") - 1
        last = ops[np.maximum(place, 0)]
        is_seed = np.array([events.names[name] == _SEED for name in events.name[last].tolist()])
        python = tree.nearest(events.category == Category.PYTHON)
        open_now = rows_open_at(events, tree, lane, at_ns)
        is_frame = (open_now != NO_ROW) & (python[open_now] != NO_ROW)
        called = np.where((place >= 0) & is_seed, last, np.where(is_frame, open_now, NO_ROW))
        has = (called != NO_ROW) & (frame[called] != NO_FRAME)
        seat[homeless] = np.where(has, called, seat[homeless])
    return seat


def _main_lane(ctx: Context) -> int:
    """The thread that the steps are on; without steps the one with the most operators."""
    events = ctx.events
    if len(ctx.steps):
        return int(events.lane[ctx.steps.rows[0]])
    ops = events.rows_of(Category.OP)
    return int(np.bincount(events.lane[ops]).argmax()) if len(ops) else 0
