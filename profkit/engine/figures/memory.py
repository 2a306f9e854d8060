"""The figures on memory, as defined in ``profkit.model.memory_summary``."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.figures.snapshot import summarize_snapshot
from profkit.index.host.nesting import find_rows_open_at
from profkit.index.snapshot.annotated_regions import find_peaks_between
from profkit.index.sums import sum_by_key
from profkit.index.trace_memory.live_bytes import WindowPeak, device_label, find_window_peaks, peaks
from profkit.model.events import MISSING, NO_ROW
from profkit.model.live_memory import LiveMemory, MemorySample
from profkit.model.memory_summary import MemorySummary, PeakMemory, PeakSite, StepMemory

_NS_PER_US: Final = 1000
MAX_PEAK_SITES: Final = 5


def summarize_memory(ctx: Context) -> MemorySummary | None:
    """Compute all figures on memory, or return None if the recording has none."""
    summary = _of_trace(ctx)
    if ctx.snapshot is not None:
        summary = replace(summary or MemorySummary(), devices=summarize_snapshot(ctx))
    if ctx.live is not None:
        summary = _with_steps(summary or MemorySummary(), ctx.live, _step_peaks(ctx, ctx.live))
    return summary


def _of_trace(ctx: Context) -> MemorySummary | None:
    allocations = ctx.allocations
    if not len(allocations.table):
        return None
    unfreed = allocations.unfreed
    has_frees = allocations.has_addresses

    return MemorySummary(
        n_events=len(allocations.table),
        n_unfreed=int(unfreed.sum()) if has_frees else None,
        unfreed_bytes=int(allocations.n_bytes[unfreed].sum()) if has_frees else None,
        n_frees_of_earlier=allocations.n_frees_of_earlier if has_frees else None,
        peak=tuple(_peaks(ctx)),
    )


def _peaks(ctx: Context) -> Iterator[PeakMemory]:
    in_window = {
        device_label(window_peak.device_type, window_peak.device): window_peak
        for window_peak in find_window_peaks(ctx.allocations)
    }
    for device, n_bytes in peaks(ctx.allocations.table).items():
        peak = in_window.get(device)
        if peak is None:
            yield PeakMemory(device, n_bytes)
        else:
            yield PeakMemory(device, n_bytes, peak.n_bytes, _peak_sites(ctx, peak))


def _peak_sites(ctx: Context, peak: WindowPeak) -> tuple[PeakSite, ...]:
    """Return the lines with most of the blocks that are live at a peak."""
    table, place = ctx.trace.memory, ctx.allocations.alloc[peak.live]
    row = find_rows_open_at(ctx.events, ctx.tree, table.lane[place], table.ts_ns[place])
    is_known = row != NO_ROW

    rows, group, counts = np.unique(row[is_known], return_inverse=True, return_counts=True)
    n_bytes = sum_by_key(len(rows), group, ctx.allocations.n_bytes[peak.live][is_known])

    sites = []
    for location, line_rows in ctx.by_line(rows):
        places = np.searchsorted(rows, line_rows)
        site = replace(location, step=None)
        sites.append(PeakSite(site, int(counts[places].sum()), int(n_bytes[places].sum())))
    return tuple(sorted(sites, key=lambda site: -site.bytes)[:MAX_PEAK_SITES])


def _step_peaks(ctx: Context, live: LiveMemory) -> list[int | None]:
    """Return the highest peak of any device since the previous sample, for each sample."""
    highest: list[int | None] = [None] * len(live.samples)
    if ctx.snapshot is None or not live.began_unix_us:
        return highest

    ends = [live.began_unix_us + sample.ts_ns // _NS_PER_US for sample in live.samples]
    # The first sample is at the end of the first step: peaks before it are unknown.
    bounds = np.array(ends, dtype=np.int64)

    for memory in ctx.device_memories:
        peaks = find_peaks_between(ctx.snapshot, memory.replay, bounds).tolist()
        for place, peak in enumerate(peaks, start=1):
            if peak != MISSING:
                highest[place] = max(highest[place] or 0, peak)
    return highest


def _with_steps(summary: MemorySummary, live: LiveMemory, peaks: list[int | None]) -> MemorySummary:
    return replace(
        summary,
        steps=tuple(map(_step_memory, live.samples, peaks)),
        n_monitored_steps=live.n_steps,
        n_evaluated_steps=live.n_evaluated_steps,
        n_leaks=len(live.leaks) if live.n_evaluated_steps else None,
        unexplained_per_step_bytes=live.unexplained_per_step_bytes,
        host_peak=live.host_peak,
        not_measured=live.not_measured,
        monitoring_ns=live.cost.total_ns,
        monitoring_share=live.cost.share,
        monitoring_bytes=live.cost.memory_bytes or None,
    )


def _step_memory(sample: MemorySample, peak_bytes: int | None) -> StepMemory:
    return StepMemory(
        step=sample.step,
        host_rss_bytes=sample.host_rss_bytes,
        tensor_bytes=None if sample.tensor_bytes is None else sum(sample.tensor_bytes.values()),
        graph_bytes=sample.graph_bytes,
        allocated_bytes=sample.allocated_bytes,
        reserved_bytes=sample.reserved_bytes,
        worker_bytes=sample.worker_bytes,
        peak_bytes=peak_bytes,
        heap_bytes=sample.heap_bytes,
        heap_free_bytes=sample.heap_free_bytes,
    )
