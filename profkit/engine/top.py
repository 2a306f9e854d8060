"""Kernels, operators and regions by the time they take."""

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


def _by_name(names: Int32s, weights: Int64s) -> tuple[Int32s, Rows, Int64s]:
    """Names, how often each occurs, and the sum of its weights."""
    found, number, count = np.unique(names, return_inverse=True, return_counts=True)
    totals = np.zeros(len(found), dtype=np.int64)
    np.add.at(totals, number, weights)
    return found, count, totals


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
    names, counts, totals = _by_name(events.name[rows], events.dur_ns[rows])
    everything = int(totals.sum())
    order = sorted(range(len(names)), key=lambda i: (-totals[i], events.names[names[i]]))
    found = []
    for i in order[:MOST]:
        here = np.flatnonzero(events.name[rows] == names[i])
        known = here[(ops[here] != NO_ROW) | (calls[here] != NO_ROW)]
        location = None
        if len(known):
            origin = np.where(ops[known] != NO_ROW, ops[known], calls[known])
            key = ctx.source.frame[origin]
            location = ctx.location(_heaviest(origin, key, events.dur_ns[rows[known]]))
        found.append(
            KernelSummary(
                name=events.names[names[i]],
                n_calls=int(counts[i]),
                total_ns=int(totals[i]),
                mean_ns=round(int(totals[i]) / int(counts[i])),
                share=int(totals[i]) / everything if everything else 0.0,
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
    names, counts, totals = _by_name(events.name[rows], events.dur_ns[rows])
    _, _, own_totals = _by_name(events.name[rows], own[rows])
    _, _, device_totals = _by_name(events.name[rows], device[rows])
    order = sorted(range(len(names)), key=lambda i: (-totals[i], events.names[names[i]]))
    found = []
    for i in order[:MOST]:
        here = rows[events.name[rows] == names[i]]
        heaviest = _heaviest(here, ctx.source.frame[here], events.dur_ns[here])
        found.append(
            OpSummary(
                name=events.names[names[i]],
                n_calls=int(counts[i]),
                total_ns=int(totals[i]),
                self_ns=int(own_totals[i]),
                device_ns=int(device_totals[i]),
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
    names, counts, totals = _by_name(events.name[rows], events.dur_ns[rows])
    _, _, device_totals = _by_name(events.name[rows], _launched_within(ctx, rows))
    order = sorted(range(len(names)), key=lambda i: (-totals[i], events.names[names[i]]))
    return tuple(
        RegionSummary(
            name=events.names[names[i]],
            n_calls=int(counts[i]),
            total_ns=int(totals[i]),
            device_ns=int(device_totals[i]),
        )
        for i in order[:MOST]
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
