"""Kernels, operators and regions by time."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.figures.per_step import calls_in_steps, device_work_in_steps, per_step
from profkit.engine.figures.throughput import TimedWork, throughput
from profkit.index.compute.categories import WORK_CATEGORIES
from profkit.index.device.occupancy import (
    mean_by_time,
    names_cuda_cores,
    names_tensor_cores,
    tensor_core_rows,
)
from profkit.index.host.source import NO_FRAME
from profkit.index.runtime_calls import names_matching
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows
from profkit.model.report import KernelSummary, LineSummary, OpSummary, RegionSummary
from profkit.model.torch_names import COLLECTIVE, FRAMING

MAX_ENTRIES = 100
"""Maximum number of kernels and of operators in a report."""

_PERCENT: Final = 100
_NOWHERE: Final = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True)
class NameGroup:
    """Events of one name.

    Attributes:
        name: The name.
        places: Their indices in the grouped rows, ascending. Shape ``(k,)``.
        total_ns: Sum of their durations.
    """

    name: str
    places: Int32s
    total_ns: int


def by_name(ctx: Context, rows: Rows | Int32s, limit: int | None = None) -> list[NameGroup]:
    """Group rows by name, the longest total duration first: all groups, or the first few."""
    events = ctx.events
    totals = _by_number(events, events.name[rows], events.dur_ns[rows])
    order = np.argsort(events.name[rows], kind="stable").astype(np.int32)
    ordered = events.name[rows[order]]
    first = np.flatnonzero(np.append([True] * bool(len(ordered)), ordered[1:] != ordered[:-1]))
    bounds = np.append(first, len(order)).tolist()
    numbers = ordered[first].tolist()
    ranked = sorted(
        (-total, events.names[number], place)
        for place, (number, total) in enumerate(zip(numbers, totals[numbers].tolist(), strict=True))
    )
    return [
        NameGroup(name, order[bounds[place] : bounds[place + 1]], -total)
        for total, name, place in ranked[:limit]
    ]


def _by_number(events: EventTable, names: Int32s, lengths: Int64s) -> Int64s:
    """Sum of durations by name number."""
    return _sums(len(events.names), names, lengths)


def _sums(n: int, keys: Int32s, weights: Int64s) -> Int64s:
    """Sum of weights by key, exact for integers. Shape ``(n,)``."""
    sums = np.zeros(n, dtype=np.int64)
    np.add.at(sums, keys, weights)
    return sums


def _heaviest(rows: Rows | Int32s, key: Int32s, weights: Int64s) -> int:
    """The first row of the group with the highest weight; rows with the same key are a group."""
    return int(rows[_heaviest_place(key, weights)])


def _heaviest_place(key: Int32s | Int64s, weights: Int64s) -> int:
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    totals = np.zeros(len(first), dtype=np.int64)
    np.add.at(totals, number, weights)
    return int(first[np.argmax(totals)])


def top_kernels(ctx: Context, work: TimedWork) -> tuple[KernelSummary, ...]:
    """Kernels by total time, then name."""
    events, launches = ctx.events, ctx.launches
    is_kernel = events.category[launches.work] == Category.KERNEL
    rows, ops, calls = launches.work[is_kernel], launches.op[is_kernel], launches.launch[is_kernel]
    origin = np.where(ops != NO_ROW, ops, calls)
    all_ns = int(events.dur_ns[rows].sum())
    in_steps = device_work_in_steps(ctx, rows)
    blocks = events.blocks_per_sm.figures_at(rows)
    occupancy = events.occupancy_percent.figures_at(rows) / _PERCENT
    by_kernel = _places_by_name(ctx, work.kernel)
    found = []
    for group in by_name(ctx, rows, MAX_ENTRIES):
        here = rows[group.places]
        kinds = ctx.work_categories[here]
        known = group.places[origin[group.places] != NO_ROW]
        location = None
        if len(known):
            key = ctx.source.frame[origin[known]]
            location = ctx.location(_heaviest(origin[known], key, events.dur_ns[rows[known]]))
        found.append(
            KernelSummary(
                name=group.name,
                n_calls=len(group.places),
                total_ns=group.total_ns,
                mean_ns=round(group.total_ns / len(group.places)),
                share=group.total_ns / all_ns if all_ns else 0.0,
                op=location.op if location else None,
                module=location.module if location else None,
                location=location,
                blocks_per_sm=mean_by_time(blocks[group.places], events.dur_ns[here]),
                occupancy_share=mean_by_time(occupancy[group.places], events.dur_ns[here]),
                tensor_cores=names_tensor_cores(group.name),
                cuda_cores=names_cuda_cores(group.name),
                category=WORK_CATEGORIES[kinds[_heaviest_place(kinds, events.dur_ns[here])]],
                throughput=throughput(ctx, work, by_kernel.get(group.name, _NOWHERE)),
                per_step_ns=per_step(ctx, int(events.dur_ns[here][in_steps[group.places]].sum())),
            )
        )
    return tuple(found)


def occupancy_share(ctx: Context, rows: Rows) -> float | None:
    """The profiler's estimated occupancy, as a mean weighted by kernel time; None if unknown.

    Args:
        rows: Device work; only kernels have an estimate.
    """
    occupancy = ctx.events.occupancy_percent.figures_at(rows) / _PERCENT
    return mean_by_time(occupancy, ctx.events.dur_ns[rows])


def tensor_core_share(ctx: Context, rows: Rows) -> float | None:
    """The share of kernel time in kernels whose name implies tensor cores; None without kernels.

    Args:
        rows: Device work.
    """
    events = ctx.events
    kernels = rows[events.category[rows] == Category.KERNEL]
    all_ns = int(events.dur_ns[kernels].sum())
    if not all_ns:
        return None
    on_tensor_cores = kernels[tensor_core_rows(events, kernels)]
    return int(events.dur_ns[on_tensor_cores].sum()) / all_ns


def _places_by_name(ctx: Context, rows: Rows | Int32s) -> dict[str, Rows]:
    """The indices of some rows by their events' name; rows that are :data:`NO_ROW` are left out."""
    places = np.flatnonzero(rows != NO_ROW)
    groups = by_name(ctx, rows[places].astype(np.intp))
    return {group.name: places[group.places] for group in groups}


def top_ops(ctx: Context, timed: TimedWork) -> tuple[OpSummary, ...]:
    """Operators by total time, then name."""
    events, launches = ctx.events, ctx.launches
    is_op: Mask = events.category == Category.OP
    rows = np.flatnonzero(is_op).astype(np.int32)
    groups = by_name(ctx, rows, MAX_ENTRIES)
    launched = launches.op != NO_ROW
    work, ops = launches.work[launched], launches.op[launched]
    device = _by_number(events, events.name[ops], events.dur_ns[work])
    is_step_work = device_work_in_steps(ctx, work)
    device_in_steps = _by_number(
        events, events.name[ops[is_step_work]], events.dur_ns[work[is_step_work]]
    )
    by_op = _places_by_name(ctx, timed.rows)
    found = []
    for group in groups:
        here = rows[group.places]
        in_steps = here[calls_in_steps(ctx, here)]
        heaviest = _heaviest(here, ctx.source.frame[here], events.dur_ns[here])
        found.append(
            OpSummary(
                name=group.name,
                n_calls=len(here),
                total_ns=group.total_ns,
                self_ns=int(ctx.op_self_ns[here].sum()),
                device_ns=int(device[events.name[here[0]]]),
                location=ctx.location(heaviest),
                throughput=throughput(ctx, timed, by_op.get(group.name, _NOWHERE)),
                per_step_ns=per_step(ctx, int(events.dur_ns[in_steps].sum())),
                self_per_step_ns=per_step(ctx, int(ctx.op_self_ns[in_steps].sum())),
                device_per_step_ns=per_step(ctx, int(device_in_steps[events.name[here[0]]])),
            )
        )
    return tuple(found)


def top_lines(ctx: Context, timed: TimedWork) -> tuple[LineSummary, ...]:
    """Source lines by the device time of their operators, or without devices by host time."""
    events, launches, frame = ctx.events, ctx.launches, ctx.source.frame
    n = len(ctx.source.frames)
    if not n:
        return ()
    ops = np.flatnonzero((events.category == Category.OP) & (frame != NO_FRAME))
    cause = np.where(launches.op != NO_ROW, launches.op, launches.launch)
    known = (cause != NO_ROW) & (frame[cause] != NO_FRAME)
    work, causes = launches.work[known], cause[known]
    host_ns = _sums(n, frame[ops], ctx.op_self_ns[ops])
    device_ns = _sums(n, frame[causes], events.dur_ns[work])
    in_steps, is_step_work = ops[calls_in_steps(ctx, ops)], device_work_in_steps(ctx, work)
    host_in_steps = _sums(n, frame[in_steps], ctx.op_self_ns[in_steps])
    device_in_steps = _sums(n, frame[causes[is_step_work]], events.dur_ns[work[is_step_work]])
    n_ops = np.bincount(frame[ops], minlength=n)
    of_work = frame[timed.rows]
    spent_ns = device_ns if ctx.has_device_work else host_ns
    return tuple(
        LineSummary(
            location=ctx.source.frames[number].location,
            n_ops=int(n_ops[number]),
            host_ns=int(host_ns[number]),
            device_ns=int(device_ns[number]) if ctx.has_device_work else None,
            throughput=throughput(ctx, timed, np.flatnonzero(of_work == number)),
            host_per_step_ns=per_step(ctx, int(host_in_steps[number])),
            device_per_step_ns=per_step(ctx, int(device_in_steps[number]))
            if ctx.has_device_work
            else None,
        )
        for number in np.argsort(-spent_ns, kind="stable")[:MAX_ENTRIES].tolist()
        if spent_ns[number]
    )


def regions(ctx: Context) -> tuple[RegionSummary, ...]:
    """The user's named regions by total time, then name."""
    events = ctx.events
    framing = names_matching(events, FRAMING) | names_matching(events, COLLECTIVE)
    wanted = (events.category == Category.ANNOTATION) & ~framing[events.name]
    wanted[ctx.steps.annotations] = False
    rows = np.flatnonzero(wanted)
    device = _launched_within(ctx, rows)
    in_steps = calls_in_steps(ctx, rows)
    return tuple(
        RegionSummary(
            name=group.name,
            n_calls=len(group.places),
            total_ns=group.total_ns,
            device_ns=int(device[group.places].sum()),
            per_step_ns=per_step(ctx, int((events.dur_ns[rows] * in_steps)[group.places].sum())),
        )
        for group in by_name(ctx, rows, MAX_ENTRIES)
    )


def _launched_within(ctx: Context, rows: Rows) -> Int64s:
    """Device time launched during each row, on any thread, since backward has its own.

    Shape of ``rows``.
    """
    events, launches = ctx.events, ctx.launches
    known = launches.launch != NO_ROW
    at_ns = events.ts_ns[launches.launch[known]]
    order = np.argsort(at_ns, kind="stable")
    lengths = events.dur_ns[launches.work[known]][order]
    before = np.concatenate(([0], np.cumsum(lengths)))
    first = np.searchsorted(at_ns[order], events.ts_ns[rows], side="left")
    last = np.searchsorted(at_ns[order], events.end_ns[rows], side="left")
    return np.asarray(before[last] - before[first])
