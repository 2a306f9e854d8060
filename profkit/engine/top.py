"""Kernels, operators and regions by the time they take."""

from dataclasses import dataclass

import numpy as np

from profkit.engine.context import Context
from profkit.index.nesting import self_ns
from profkit.model.events import NO_ROW, Category, Int32s, Int64s, Mask, Rows
from profkit.model.report import KernelSummary, OpSummary, RegionSummary

MOST = 100
"""How many kernels and operators a report lists. The rest is the tail that nobody reads."""

_FRAMING = (
    "ProfilerStep",
    "Optimizer.",
    "enumerate(DataLoader)",
    "profkit.data_wait",
    "nccl:",
    "gloo:",
)
"""Annotations that PyTorch or profkit writes by itself: no region of the user's."""


@dataclass(frozen=True)
class _Group:
    """Events of one name.

    Attributes:
        name: The name.
        places: Their places among the rows that were grouped, ascending. Shape ``(k,)``.
        total_ns: Sum of their lengths.
    """

    name: str
    places: Rows
    total_ns: int


def _by_name(ctx: Context, rows: Rows) -> list[_Group]:
    """Group rows by name: by total length, the longest first, then by name."""
    names, lengths = ctx.events.name[rows], ctx.events.dur_ns[rows]
    order = np.argsort(names, kind="stable")
    found, first = np.unique(names[order], return_index=True)
    totals = np.add.reduceat(lengths[order], first) if len(rows) else lengths
    groups = [
        _Group(ctx.events.names[name], places, int(total))
        for name, places, total in zip(found, np.split(order, first[1:]), totals, strict=False)
    ]
    return sorted(groups, key=lambda group: (-group.total_ns, group.name))


def _heaviest(rows: Rows, key: Int32s, weights: Int64s) -> int:
    """Of groups of rows with the same key the heaviest; its first row."""
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    totals = np.zeros(len(first), dtype=np.int64)
    np.add.at(totals, number, weights)
    return int(rows[first[np.argmax(totals)]])


def top_kernels(ctx: Context) -> tuple[KernelSummary, ...]:
    """Kernels by total time, then name."""
    events, launches = ctx.events, ctx.launches
    is_kernel = events.category[launches.work] == Category.KERNEL
    rows, ops, calls = launches.work[is_kernel], launches.op[is_kernel], launches.launch[is_kernel]
    origin = np.where(ops != NO_ROW, ops, calls)
    everything = int(events.dur_ns[rows].sum())
    found = []
    for group in _by_name(ctx, rows)[:MOST]:
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
                share=group.total_ns / everything if everything else 0.0,
                op=location.op if location else None,
                module=location.module if location else None,
                location=location,
            )
        )
    return tuple(found)


def top_ops(ctx: Context) -> tuple[OpSummary, ...]:
    """Operators by total time, then name."""
    events, launches = ctx.events, ctx.launches
    is_op: Mask = events.category == Category.OP
    rows = np.flatnonzero(is_op)
    own = self_ns(events, ctx.tree, is_op)
    device = np.zeros(len(events), dtype=np.int64)
    launched = launches.op != NO_ROW
    np.add.at(device, launches.op[launched], events.dur_ns[launches.work[launched]])
    found = []
    for group in _by_name(ctx, rows)[:MOST]:
        here = rows[group.places]
        heaviest = _heaviest(here, ctx.source.frame[here], events.dur_ns[here])
        found.append(
            OpSummary(
                name=group.name,
                n_calls=len(here),
                total_ns=group.total_ns,
                self_ns=int(own[here].sum()),
                device_ns=int(device[here].sum()),
                location=ctx.location(heaviest),
            )
        )
    return tuple(found)


def regions(ctx: Context) -> tuple[RegionSummary, ...]:
    """The user's named regions by total time, then name."""
    events = ctx.events
    framing = np.array([name.startswith(_FRAMING) for name in events.names], dtype=np.bool_)
    wanted = (events.category == Category.ANNOTATION) & ~framing[events.name]
    wanted[ctx.steps.rows] = False
    rows = np.flatnonzero(wanted)
    device = _launched_within(ctx, rows)
    return tuple(
        RegionSummary(
            name=group.name,
            n_calls=len(group.places),
            total_ns=group.total_ns,
            device_ns=int(device[group.places].sum()),
        )
        for group in _by_name(ctx, rows)[:MOST]
    )


def _launched_within(ctx: Context, rows: Rows) -> Int64s:
    """Device time launched while each row ran, on any thread: backward has its own.

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
