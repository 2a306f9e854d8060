"""The windows that rules measure: each step, or the whole recording if it has no steps."""

import re
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.wording import time_per_step
from profkit.index.device.syncs import SyncKind, Syncs
from profkit.index.distinct import are_among
from profkit.index.intervals import (
    Intervals,
    clip,
    complement,
    covered_by,
    covered_within,
    intersect,
    union,
    unite,
)
from profkit.index.runtime_calls import rows_named
from profkit.model.events import NO_ROW, Category, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import DEVICE_OPERATOR
from profkit.readers.kineto.categories import needs_device
from profkit.units import format_share

MAX_EVENT_IDS: Final = 20
"""Enough event ids to find a finding in the trace, and few enough to keep a report readable."""


def windows(ctx: Context) -> tuple[Int64s, Int64s]:
    """Return starts and ends in nanoseconds: of each step, or of the whole recording.

    If the host runs ahead of the devices, a step is the time from the completion of the previous
    step to its own: the steady-state step time, once the host has to wait.

    Without steps and with device work, the window is from the first device work to the last: a
    device's activity before its first recorded event is unknown, so it does not count as idle.
    """
    if len(ctx.steps):
        if is_device_bound(ctx):
            return ctx.replay.windows
        return ctx.steps.starts_ns, ctx.steps.ends_ns

    if ctx.devices:
        start = min(device.start_ns for device in ctx.devices)
        return np.array([start]), np.array([max(device.end_ns for device in ctx.devices)])

    events = ctx.events
    if not len(events):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return events.ts_ns.min(keepdims=True), events.end_ns.max(keepdims=True)


def is_device_bound(ctx: Context) -> bool:
    """Return whether the devices take longer per step than the host, which runs ahead."""
    return ctx.has_device_work and ctx.replay.is_device_bound


def windows_ns(ctx: Context) -> int:
    """Return the total length of the windows, each at least 1, so that shares of it are defined."""
    starts, ends = windows(ctx)
    return int(np.maximum(ends - starts, 1).sum())


def reaches_share(ctx: Context, ns: int | None, share: float) -> bool:
    """Return whether a time is at least a share of the windows; an unknown time is none."""
    return (ns or 0) >= share * windows_ns(ctx)


def in_windows(ctx: Context, rows: Rows) -> Mask:
    """Return which rows begin in a window. Shape of ``rows``."""
    if not len(ctx.steps):
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray(ctx.step_of(rows) >= 0)


def find_rows(ctx: Context, pattern: re.Pattern[str], *categories: Category) -> Rows:
    """Find the events of some categories with a matching name that begin in a window."""
    rows = np.flatnonzero(rows_named(ctx.events, pattern, *categories))
    return rows[in_windows(ctx, rows)]


def select_on_cpu(ctx: Context, ops: Rows) -> Rows:
    """Select the operators that run on the CPU: those that launch no device work."""
    _, launching = ctx.launched_by(ops)
    return np.asarray(ops[~are_among(ops, launching)])


def find_computing(ctx: Context, ops: Rows) -> Rows:
    """Find what operators compute with: themselves on the CPU, or the device work they launch."""
    work, launching = ctx.launched_by(ops)
    on_cpu = ops[~are_among(ops, launching)]
    return np.asarray(np.concatenate((on_cpu, work)), dtype=np.intp)


def launched_in_windows(ctx: Context, is_wanted: Mask) -> tuple[Rows, Rows]:
    """Return some device work of operators in the windows, and the operator of each.

    It counts where it was launched: a kernel may run in a later step.

    Args:
        is_wanted: Which of ``ctx.launches.work``.
    """
    launches = ctx.launches
    is_launched = is_wanted & (launches.op != NO_ROW)
    work, op = launches.work[is_launched], launches.op[is_launched].astype(np.intp)
    inside = in_windows(ctx, op)
    return work[inside], op[inside]


def waits_in_windows(ctx: Context, kind: SyncKind) -> Syncs:
    """Return the calls of one kind that block the host in the windows."""
    waits = ctx.syncs.of_kind(kind)
    return waits.select(in_windows(ctx, waits.rows))


def idle_in_windows(ctx: Context) -> Intervals:
    """Return the time without device work between the first window's start and the last one's end.

    Unrecorded device work counts as work.
    """
    starts, ends = windows(ctx)
    if not len(starts):
        return ctx.busy
    start, end = int(starts.min()), int(ends.max())
    return complement(clip(unite(ctx.busy, ctx.unrecorded), start, end), start, end)


def device_time(ctx: Context, work: Rows | Int32s) -> Intervals:
    """Return the time within the windows in which some device work ran."""
    return intersect(covered_by(ctx.events, work), union(*windows(ctx)))


def busy_ns(ctx: Context) -> int:
    """Return how long a device was busy in the windows, at least 1 so that shares are defined."""
    return max(1, int(covered_within(ctx.busy, *windows(ctx)).sum()))


def time_with_share(ctx: Context, ns: int) -> str:
    """``1.20 ms per step (12%)``: a time, and its share of the windows."""
    return f"{time_per_step(ctx, ns)} ({format_share(ns / windows_ns(ctx))})"


def time_with_busy_share(ctx: Context, ns: int) -> str:
    """``1.20 ms per step (12% of the GPU's busy time)``."""
    return f"{time_per_step(ctx, ns)} ({format_share(ns / busy_ns(ctx))} of the GPU's busy time)"


def event_ids(ctx: Context, rows: Rows | Int32s) -> list[int]:
    """Return ids of the first events of a finding, for its evidence."""
    return [int(position) for position in ctx.events.position[rows[:MAX_EVENT_IDS]]]


def uses_device(ctx: Context) -> bool:
    """Return whether the program used any device, even if the recording does not show its work.

    Events of a kind that only a device's runtime writes are enough, of any vendor, and operators
    that only a GPU runs.
    """
    by_kind = ctx.has_device_work or any(map(needs_device, ctx.trace.notes.categories))
    return by_kind or bool(rows_named(ctx.events, DEVICE_OPERATOR, Category.OP).any())
