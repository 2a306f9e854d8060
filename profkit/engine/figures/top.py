"""Kernels, operators and regions by time."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.figures.per_step import calls_in_steps, device_work_in_steps, per_step
from profkit.engine.figures.throughput import TimedWork, compute_throughput
from profkit.index.compute.categories import WORK_CATEGORIES
from profkit.index.device.occupancy import (
    mean_by_time,
    names_cuda_cores,
    names_tensor_cores,
    tensor_core_rows,
)
from profkit.index.host.source import NO_FRAME
from profkit.index.runtime_calls import names_matching
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Category, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import COLLECTIVE, FRAMING
from profkit.model.work_summary import KernelSummary, LineSummary, OpSummary, RegionSummary

MAX_ENTRIES: Final = 100
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


def group_by_name(ctx: Context, rows: Rows | Int32s, limit: int | None = None) -> list[NameGroup]:
    """Group rows by name, the longest total duration first.

    Args:
        limit: The maximum number of groups; by default all.
    """
    events = ctx.events
    totals = sum_by_key(len(events.names), events.name[rows], events.dur_ns[rows])

    # A stable sort leaves the rows of each name in their order, one group after the other.
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


def _heaviest(rows: Rows | Int32s, key: Int32s, weights: Int64s) -> int:
    """Return the first row of the group with the highest weight; rows with one key are a group."""
    return int(rows[_heaviest_place(key, weights)])


def _heaviest_place(key: Int32s | Int64s, weights: Int64s) -> int:
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return int(first[np.argmax(sum_by_key(len(first), number, weights))])


def summarize_kernels(ctx: Context, work: TimedWork) -> tuple[KernelSummary, ...]:
    """Summarize the kernels by total time, then name."""
    events, launches = ctx.events, ctx.launches
    is_kernel = events.category[launches.work] == Category.KERNEL
    rows, origin = launches.work[is_kernel], launches.op_or_call[is_kernel]

    all_ns = int(events.dur_ns[rows].sum())
    in_steps = device_work_in_steps(ctx, rows)

    blocks = events.blocks_per_sm.figures_at(rows)
    occupancy = events.occupancy_percent.figures_at(rows) / _PERCENT
    by_kernel = _places_by_name(ctx, work.kernel)

    summaries = []
    for group in group_by_name(ctx, rows, MAX_ENTRIES):
        kernel_rows = rows[group.places]

        # Kernels of one name may do several kinds of work: the longest kind names them.
        categories = ctx.work_categories[kernel_rows]

        # The line that launched most of the kernel's time stands for all of them.
        attributed = group.places[origin[group.places] != NO_ROW]
        location = None
        if len(attributed):
            key = ctx.source.frame[origin[attributed]]
            location = ctx.location(
                _heaviest(origin[attributed], key, events.dur_ns[rows[attributed]])
            )

        summaries.append(
            KernelSummary(
                name=group.name,
                n_calls=len(group.places),
                total_ns=group.total_ns,
                mean_ns=round(group.total_ns / len(group.places)),
                share=group.total_ns / all_ns if all_ns else 0.0,
                op=location.op if location else None,
                module=location.module if location else None,
                location=location,
                blocks_per_sm=mean_by_time(blocks[group.places], events.dur_ns[kernel_rows]),
                occupancy_share=mean_by_time(occupancy[group.places], events.dur_ns[kernel_rows]),
                tensor_cores=names_tensor_cores(group.name),
                cuda_cores=names_cuda_cores(group.name),
                category=WORK_CATEGORIES[
                    categories[_heaviest_place(categories, events.dur_ns[kernel_rows])]
                ],
                throughput=compute_throughput(ctx, work, by_kernel.get(group.name, _NOWHERE)),
                per_step_ns=per_step(
                    ctx, int(events.dur_ns[kernel_rows][in_steps[group.places]].sum())
                ),
            )
        )

    return tuple(summaries)


def occupancy_share(ctx: Context, rows: Rows) -> float | None:
    """Return the profiler's estimated occupancy, weighted by kernel time; None if unknown.

    Args:
        rows: Device work; only kernels have an estimate.
    """
    occupancy = ctx.events.occupancy_percent.figures_at(rows) / _PERCENT
    return mean_by_time(occupancy, ctx.events.dur_ns[rows])


def tensor_core_share(ctx: Context, rows: Rows) -> float | None:
    """Return the share of kernel time in kernels named for tensor cores; None without kernels.

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
    """Return the indices of some rows by the name of their event; NO_ROW is left out."""
    places = np.flatnonzero(rows != NO_ROW)
    groups = group_by_name(ctx, rows[places].astype(np.intp))
    return {group.name: places[group.places] for group in groups}


def summarize_ops(ctx: Context, timed: TimedWork) -> tuple[OpSummary, ...]:
    """Summarize the operators by total time, then name."""
    events, launches = ctx.events, ctx.launches
    is_op: Mask = events.category == Category.OP
    op_rows = np.flatnonzero(is_op).astype(np.int32)

    # Device work counts for the innermost operator that launched it.
    is_launched = launches.op != NO_ROW
    work, ops = launches.work[is_launched], launches.op[is_launched]
    is_step_work = device_work_in_steps(ctx, work)
    n = len(events.names)
    device_ns = sum_by_key(n, events.name[ops], events.dur_ns[work])
    device_in_steps_ns = sum_by_key(
        n, events.name[ops[is_step_work]], events.dur_ns[work[is_step_work]]
    )

    by_op = _places_by_name(ctx, timed.rows)
    summaries = []
    for group in group_by_name(ctx, op_rows, MAX_ENTRIES):
        group_rows = op_rows[group.places]
        in_steps = group_rows[calls_in_steps(ctx, group_rows)]
        heaviest = _heaviest(group_rows, ctx.source.frame[group_rows], events.dur_ns[group_rows])

        summaries.append(
            OpSummary(
                name=group.name,
                n_calls=len(group_rows),
                total_ns=group.total_ns,
                self_ns=int(ctx.op_self_ns[group_rows].sum()),
                device_ns=int(device_ns[events.name[group_rows[0]]]),
                location=ctx.location(heaviest),
                throughput=compute_throughput(ctx, timed, by_op.get(group.name, _NOWHERE)),
                per_step_ns=per_step(ctx, int(events.dur_ns[in_steps].sum())),
                self_per_step_ns=per_step(ctx, int(ctx.op_self_ns[in_steps].sum())),
                device_per_step_ns=per_step(
                    ctx, int(device_in_steps_ns[events.name[group_rows[0]]])
                ),
            )
        )

    return tuple(summaries)


def summarize_lines(ctx: Context, timed: TimedWork) -> tuple[LineSummary, ...]:
    """Summarize lines by the device time of their operators, or without devices by host time."""
    events, launches, frame = ctx.events, ctx.launches, ctx.source.frame
    n = len(ctx.source.frames)
    if not n:
        return ()

    # An operator counts with its own time: the operators within it count where they are.
    ops = np.flatnonzero((events.category == Category.OP) & (frame != NO_FRAME))
    cause = launches.op_or_call
    is_known = (cause != NO_ROW) & (frame[cause] != NO_FRAME)
    work, causes = launches.work[is_known], cause[is_known]

    host_ns = sum_by_key(n, frame[ops], ctx.op_self_ns[ops])
    device_ns = sum_by_key(n, frame[causes], events.dur_ns[work])
    in_steps, is_step_work = ops[calls_in_steps(ctx, ops)], device_work_in_steps(ctx, work)
    host_in_steps = sum_by_key(n, frame[in_steps], ctx.op_self_ns[in_steps])
    device_in_steps = sum_by_key(n, frame[causes[is_step_work]], events.dur_ns[work[is_step_work]])
    n_ops = np.bincount(frame[ops], minlength=n)

    of_work = frame[timed.rows]
    spent_ns = device_ns if ctx.has_device_work else host_ns
    return tuple(
        LineSummary(
            location=ctx.source.frames[number].location,
            n_ops=int(n_ops[number]),
            host_ns=int(host_ns[number]),
            device_ns=int(device_ns[number]) if ctx.has_device_work else None,
            throughput=compute_throughput(ctx, timed, np.flatnonzero(of_work == number)),
            host_per_step_ns=per_step(ctx, int(host_in_steps[number])),
            device_per_step_ns=per_step(ctx, int(device_in_steps[number]))
            if ctx.has_device_work
            else None,
        )
        for number in np.argsort(-spent_ns, kind="stable")[:MAX_ENTRIES].tolist()
        if spent_ns[number]
    )


def summarize_regions(ctx: Context) -> tuple[RegionSummary, ...]:
    """Summarize the user's named regions by total time, then name."""
    events = ctx.events
    # Steps and torch's own annotations are not regions of the user.
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
        for group in group_by_name(ctx, rows, MAX_ENTRIES)
    )


def _launched_within(ctx: Context, rows: Rows) -> Int64s:
    """Return the device time launched during each row, on any thread, since backward has its own.

    Shape of ``rows``.
    """
    events, launches = ctx.events, ctx.launches
    is_known = launches.launch != NO_ROW

    at_ns = events.ts_ns[launches.launch[is_known]]
    order = np.argsort(at_ns, kind="stable")
    lengths = events.dur_ns[launches.work[is_known]][order]

    # Work that one row launches is a run in the order of launches: the difference of two sums.
    before = np.concatenate(([0], np.cumsum(lengths)))
    first = np.searchsorted(at_ns[order], events.ts_ns[rows], side="left")
    last = np.searchsorted(at_ns[order], events.end_ns[rows], side="left")
    return np.asarray(before[last] - before[first])
