"""The figures of a report, as defined in ``profkit.model.report``."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from profkit.engine.context import Context
from profkit.engine.families.collectives.waits import find_host_waits
from profkit.engine.figures.categories import summarize_categories
from profkit.engine.figures.critical_path import summarize_critical_path
from profkit.engine.figures.memory import summarize_memory
from profkit.engine.figures.modules import summarize_modules
from profkit.engine.figures.per_step import calls_in_steps, device_work_in_steps, per_step
from profkit.engine.figures.sampled import summarize_sampled
from profkit.engine.figures.throughput import compute_throughput, select_timed_work
from profkit.engine.figures.top import (
    group_by_name,
    occupancy_share,
    summarize_kernels,
    summarize_lines,
    summarize_ops,
    summarize_regions,
    tensor_core_share,
)
from profkit.engine.figures.utilization import summarize_flops
from profkit.engine.windows import is_device_bound, windows
from profkit.index.device.breakdown import (
    partition_time,
    split_by_step,
    split_device,
    split_host,
    sum_parts,
)
from profkit.index.device.streams import DeviceActivity
from profkit.index.device.syncs import find_calls_by_profiler, find_user_reads, outermost_calls
from profkit.index.distinct import united
from profkit.index.host.steps import NO_STEP
from profkit.index.intervals import Intervals, covered_within, intersect, subtract, union
from profkit.index.runtime_calls import BLOCKING_COPY, EXPLICIT_SYNC, GRAPH_LAUNCH
from profkit.model.device_summary import DeviceSteps, DeviceSummary, IdleCause, IdleTime
from profkit.model.events import MISSING, NO_ROW, Category, Int32s, Rows
from profkit.model.report import Source, SourceKind, Summary
from profkit.model.step_summary import StepSummary
from profkit.model.sync_summary import CopySummary, SyncLine, SyncSiteSummary, SyncSummary
from profkit.model.trace import RecordedWith
from profkit.names import visible
from profkit.readers.process_memory import release_free_memory

_T = TypeVar("_T")
_STEP_LABELS: Final = {
    "user": "the steps that the program marked",
    "loader": "iterations of the loader",
    "optimizer": "optimizer steps",
    "trainer": "the steps of the trainer",
    "module": "calls of the first module",
    "entry": "entries of the profiled block",
}
_MARKS: Final = {
    "loader": "iterations of the loader, found by the starts of its `__next__`",
    "optimizer": "optimizer steps, found by the ends of `Optimizer.step`",
    "region": "repetitions of the region `{}`",
    "module": "calls of the module `{}`",
}
_MAX_SYNC_LINES: Final = 20
_UNIX_NS: Final = 10**18
"""Clocks before 2001 begin with the machine."""


def describe_source(ctx: Context) -> Source:
    """Describe the analyzed recording."""
    if not ctx.has_trace:
        return _describe_memory_source(ctx)

    trace = ctx.trace
    # The trace describes every visible device: name the devices that worked, if any did.
    worked = [trace.devices[d.device].name for d in ctx.devices if d.device in trace.devices]
    described = [device.name for device in trace.devices.values()]

    return Source(
        path=trace.path,
        kind="trace",
        n_events=trace.notes.n_events,
        torch=trace.torch,
        devices=tuple(worked or described),
        rank=trace.rank,
        world_size=trace.world_size,
        recorded_with=trace.recorded_with,
        overhead_ratio=trace.capture.cost.overhead_ratio if trace.capture else None,
        step_definition=_step_definition(ctx),
        step_origin=ctx.steps.origin if len(ctx.steps) else None,
        lines_from=ctx.source.origin,
        cpu=trace.capture.cpu if trace.capture else None,
        processor=trace.capture.processor if trace.capture else None,
        revision=trace.capture.revision if trace.capture else None,
        recorded_unix_ns=trace.base_ns if trace.base_ns > _UNIX_NS else None,
    )


def _step_definition(ctx: Context) -> str:
    """Return what a step of a trace is, and which marks delimit it if steps are not recorded."""
    steps, capture = ctx.steps, ctx.trace.capture
    if not len(steps):
        return ""
    if steps.origin in _MARKS:
        return _MARKS[steps.origin].format(visible(steps.mark))
    return "profiler steps" if capture is None else step_label(capture.steps)


def _describe_memory_source(ctx: Context) -> Source:
    """Describe the analyzed recording, if it has no trace."""
    live, snapshot = ctx.live, ctx.snapshot
    flight = ctx.flights[0] if ctx.flights else None
    n_events = 0 if snapshot is None else len(snapshot.history)
    kind: SourceKind = "live" if snapshot is None else "snapshot"

    if flight is not None and snapshot is None and live is None:
        kind, n_events = "flight-recorder", len(flight.calls)

    return Source(
        path=ctx.path,
        kind=kind,
        n_events=n_events,
        torch=live.torch if live else None,
        devices=live.devices if live else (),
        rank=flight.rank if flight else None,
        world_size=flight.world_size if flight else None,
        recorded_with=RecordedWith(),
        step_definition=step_label(live.step_definition) if live and live.n_steps else "",
        recorded_unix_ns=live.began_unix_us * 1000 or None if live else None,
    )


def step_label(kind: str) -> str:
    """Return the text for the kind of steps.

    Args:
        kind: As in :class:`~profkit.model.capture_info.CaptureInfo`.
    """
    return _STEP_LABELS.get(kind, kind)


def summarize(ctx: Context) -> Summary:
    """Compute all figures, except for the time that findings together claim."""
    if not ctx.has_trace:
        return Summary(
            window_ns=0, memory=summarize_memory(ctx), sync_sites=_summarize_sync_sites(ctx)
        )

    # The rules have left memory that their relations no longer need.
    release_free_memory()
    path = _released(summarize_critical_path(ctx))
    window = subtract(union(*windows(ctx)), ctx.own_time)
    parts, work = _released(time_parts(ctx, window)), select_timed_work(ctx)

    return Summary(
        window_ns=ctx.window_ns,
        devices=_summarize_devices(ctx, window),
        steps=_summarize_steps(ctx, parts),
        top_kernels=summarize_kernels(ctx, work),
        top_ops=_released(summarize_ops(ctx, work)),
        categories=_released(summarize_categories(ctx)),
        modules=summarize_modules(
            ctx, work.rows, lambda places: compute_throughput(ctx, work, places)
        ),
        lines=summarize_lines(ctx, work),
        flops=summarize_flops(ctx, work),
        regions=summarize_regions(ctx),
        syncs=_summarize_syncs(ctx),
        sync_sites=_summarize_sync_sites(ctx),
        sync_lines=_summarize_sync_lines(ctx),
        copies=_summarize_copies(ctx),
        n_gpu_events_without_launch=len(ctx.launches.orphans),
        n_graph_launches=len(GRAPH_LAUNCH.rows(ctx.events)),
        memory=summarize_memory(ctx),
        breakdown=sum_parts(window, len(ctx.steps), parts, host_per_step_ns=_host_per_step_ns(ctx))
        if len(ctx.events)
        else None,
        critical_path=path,
        n_incomplete_steps=ctx.steps.n_incomplete,
        n_disturbed_steps=ctx.steps.n_disturbed,
        sampled=summarize_sampled(ctx),
    )


def _released(figures: _T) -> _T:
    """Release the memory that it took to compute some figures, which are small, and return them.

    In a large recording this is tens of MiB each time, and the next figures cannot always reuse it.
    """
    release_free_memory()
    return figures


def _summarize_devices(ctx: Context, window: Intervals) -> tuple[DeviceSummary, ...]:
    described = ctx.trace.devices
    return tuple(
        DeviceSummary(
            device=ctx.device_label(device.device),
            name=described[device.device].name if device.device in described else "",
            span_ns=device.span_ns,
            busy_ns=device.busy.total_ns,
            idle_ns=subtract(device.idle, ctx.unrecorded).total_ns,
            unrecorded_ns=intersect(device.idle, ctx.unrecorded).total_ns,
            compute_ns=device.compute.total_ns,
            communication_ns=device.communication.total_ns,
            overlap_ns=device.overlap_ns,
            memcpy_ns=device.memcpy.total_ns,
            n_kernels=device.n_kernels,
            n_memcpy=device.n_memcpy,
            n_memset=device.n_memset,
            idle_causes=_idle_times({cause: time.total_ns for cause, time in causes.items()}),
            occupancy_share=occupancy_share(ctx, device.rows),
            tensor_core_share=tensor_core_share(ctx, device.rows),
            in_steps=_summarize_in_steps(ctx, device, window) if len(ctx.steps) else None,
        )
        for device, causes in zip(ctx.devices, ctx.idle_causes, strict=True)
    )


def _summarize_in_steps(ctx: Context, device: DeviceActivity, window: Intervals) -> DeviceSteps:
    """Return the activity of a device in the time of the steps."""
    busy = intersect(device.busy, window)
    unrecorded = subtract(intersect(ctx.unrecorded, window), busy)
    category = ctx.events.category[device.rows[device_work_in_steps(ctx, device.rows)]]

    return DeviceSteps(
        busy_ns=busy.total_ns,
        idle_ns=window.total_ns - busy.total_ns - unrecorded.total_ns,
        compute_ns=intersect(device.compute, window).total_ns,
        communication_ns=intersect(device.communication, window).total_ns,
        memcpy_ns=intersect(device.memcpy, window).total_ns,
        n_kernels=int(np.count_nonzero(category == Category.KERNEL)),
        n_memcpy=int(np.count_nonzero(category == Category.MEMCPY)),
    )


def _idle_times(by_cause: dict[IdleCause, int]) -> tuple[IdleTime, ...]:
    times = (IdleTime(cause, ns) for cause, ns in by_cause.items() if ns)
    return tuple(sorted(times, key=lambda idle: (-idle.ns, idle.cause)))


def _summarize_steps(ctx: Context, parts: Mapping[str, Intervals]) -> tuple[StepSummary, ...]:
    steps, host = ctx.steps, ctx.host_activity
    if not len(steps):
        return ()

    starts_ns, ends_ns = windows(ctx)
    on_device = is_device_bound(ctx)
    own_ns = covered_within(ctx.own_time, starts_ns, ends_ns)
    times = (ends_ns - starts_ns - own_ns).tolist()
    busy = covered_within(ctx.busy, starts_ns, ends_ns).tolist()

    # Unrecorded work of one device may run while another one is busy: it counts once.
    lost = covered_within(subtract(ctx.unrecorded, ctx.busy), starts_ns, ends_ns).tolist()

    # Waits are the host's: they lie in the step of the host, also if devices set the pace.
    data_ns = covered_within(host["data"], steps.starts_ns, steps.ends_ns).tolist()
    sync_ns = covered_within(host["sync"], steps.starts_ns, steps.ends_ns).tolist()
    own_on_host_ns = covered_within(ctx.own_time, steps.starts_ns, steps.ends_ns)
    lengths = (steps.ends_ns - steps.starts_ns - own_on_host_ns).tolist()

    by_step = split_by_step(starts_ns, ends_ns, parts)

    n_kernels, n_syncs = _kernels_by_step(ctx), _by_step(ctx, _sync_rows(ctx))

    return tuple(
        StepSummary(
            name=name,
            start_ns=int(steps.starts_ns[i]),
            dur_ns=lengths[i],
            gpu_busy_ns=busy[i] if ctx.has_device_work else None,
            gpu_idle_ns=times[i] - busy[i] - lost[i] if ctx.has_device_work else None,
            data_wait_ns=data_ns[i],
            sync_ns=sync_ns[i],
            parts=by_step[i],
            device_start_ns=int(starts_ns[i]) if on_device else None,
            device_dur_ns=times[i] if on_device else None,
            n_kernels=n_kernels[i] if ctx.has_device_work else None,
            n_syncs=n_syncs[i],
        )
        for i, name in enumerate(steps.names)
    )


def _kernels_by_step(ctx: Context) -> list[int]:
    """Count the kernels that each step launches, or starts if their launch is unknown."""
    work, launch = ctx.launches.work, ctx.launches.launch
    is_kernel = ctx.events.category[work] == Category.KERNEL
    return _by_step(ctx, np.where(launch == NO_ROW, work, launch)[is_kernel])


def _sync_rows(ctx: Context) -> Rows:
    """Return the rows of the program's syncs, or without a device of reads that would be syncs."""
    if not ctx.has_device_work:
        return find_user_reads(ctx.events, ctx.tree)
    rows = ctx.syncs.rows
    return rows[~find_calls_by_profiler(ctx.events, ctx.tree, ctx.launches, rows)]


def _summarize_sync_lines(ctx: Context) -> tuple[SyncLine, ...]:
    rows = _sync_rows(ctx)
    sync_lines = []
    for location, sync_rows in ctx.by_line(rows[ctx.step_of(rows) != NO_STEP]):
        in_step = max(_by_step(ctx, sync_rows))
        sync_lines.append(SyncLine(replace(location, step=None), len(sync_rows), in_step))

    return tuple(sorted(sync_lines, key=lambda line: -line.n_in_step)[:_MAX_SYNC_LINES])


def _by_step(ctx: Context, rows: Rows | Int32s) -> list[int]:
    """Count the rows that begin in each step."""
    step = ctx.step_of(rows)

    counts: list[int] = np.bincount(step[step != NO_STEP], minlength=len(ctx.steps)).tolist()
    return counts


def _host_per_step_ns(ctx: Context) -> int | None:
    """Return the mean duration of a step on the host, if the host runs ahead of the devices."""
    if not is_device_bound(ctx):
        return None
    return per_step(ctx, ctx.steps.total_ns)


def _summarize_syncs(ctx: Context) -> tuple[SyncSummary, ...]:
    events = ctx.events
    named = united(EXPLICIT_SYNC.rows(events), BLOCKING_COPY.rows(events))
    rows = outermost_calls(events, ctx.tree, named)
    in_steps_ns = events.dur_ns[rows] * calls_in_steps(ctx, rows)

    return tuple(
        SyncSummary(
            call=group.name,
            n_calls=len(group.places),
            total_ns=group.total_ns,
            per_step_ns=per_step(ctx, int(in_steps_ns[group.places].sum())),
        )
        for group in sorted(group_by_name(ctx, rows), key=lambda group: group.name)
    )


def _summarize_sync_sites(ctx: Context) -> tuple[SyncSiteSummary, ...] | None:
    sites = None if ctx.live is None else ctx.live.sync_sites
    if sites is None:
        return None
    return tuple(
        SyncSiteSummary(
            operation=line.operation,
            n_calls=line.n_calls,
            allowed_reason=line.allowed_reason,
            location=None if line.frame is None else line.frame.location,
        )
        for line in sites
    )


def _summarize_copies(ctx: Context) -> tuple[CopySummary, ...]:
    events = ctx.events
    rows = events.copies
    in_steps_ns = events.dur_ns[rows] * device_work_in_steps(ctx, rows)
    copies = []

    for group in group_by_name(ctx, rows):
        n_bytes = events.n_bytes.at(rows[group.places])
        is_known = n_bytes != MISSING
        copies.append(
            CopySummary(
                kind=group.name,
                n_calls=len(group.places),
                total_ns=group.total_ns,
                bytes=int(n_bytes[is_known].sum()) if is_known.any() else None,
                per_step_ns=per_step(ctx, int(in_steps_ns[group.places].sum())),
            )
        )

    return tuple(copies)


def time_parts(ctx: Context, window: Intervals) -> dict[str, Intervals]:
    """Split the time of a window into parts by kind, which exclude each other."""
    if ctx.has_device_work:
        return partition_time(
            window, split_device(ctx.devices, ctx.idle_causes, ctx.host_activity, ctx.unrecorded)
        )

    waits = find_host_waits(ctx)
    waited = {"communication": waits.waited} if waits else {}
    return partition_time(window, waited | split_host(ctx.events))
