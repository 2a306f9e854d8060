"""The main figures of the report, and the parts of the step time."""

from collections.abc import Iterator
from typing import Any

from profkit.dataclass import dataclass
from profkit.engine.wording import counted
from profkit.model.report import Report
from profkit.present.labels import (
    breakdown_title,
    cost_text,
    device_noun,
    excluded_steps,
    host_step_time,
    step_range,
)
from profkit.present.main_figures import SAVING_TITLE, main_figures
from profkit.present.memory_text import devices_of, monitored_steps
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import cell
from profkit.units import format_bytes, format_count, format_ns, format_number, format_share


@dataclass(frozen=True)
class Tile:
    """A main figure: what it is, its value, and a detail."""

    label: str
    figure: str
    more: str = ""


def build_section(report: Report, options: Options) -> Section:
    """Return the main figures, which every report has."""
    breakdown = report.summary.breakdown
    body = fill(
        "overview.html.j2",
        tiles=list(_build_tiles(report)),
        whole=breakdown_title(report),
        whole_ns=breakdown.mean_ns if breakdown is not None else 0,
        parts=breakdown.parts if breakdown is not None else (),
    )
    return Section("overview", "Overview", body)


def _build_tiles(report: Report) -> Iterator[Tile]:
    summary = report.summary
    breakdown = summary.breakdown
    if breakdown is not None and breakdown.total_ns:
        yield Tile(breakdown_title(report), format_ns(breakdown.mean_ns), _step_range(report))
    yield from _build_rank_tiles(report)

    figures = main_figures(report)
    if figures.busy_share is not None:
        several = "at least one device " if len(summary.devices) > 1 else ""
        whole = "step time" if figures.step_ns is not None else "time from first to last work"
        title = f"{device_noun(report)} busy"
        yield Tile(title, format_share(figures.busy_share), f"{several}of the {whole}")

    flops = summary.flops
    if flops is not None and flops.utilization_share is not None:
        achieved = f"{format_number(flops.tflops_per_s)} TFLOP/s, {flops.precision}"
        yield Tile("FLOP utilization", format_share(flops.utilization_share), achieved)
    if flops is not None and flops.model_utilization_share is not None:
        share = format_share(flops.model_utilization_share)
        yield Tile("MFU", share, "of the tokens and parameters stated")

    # Of a single finding it is the cost, which stands right below.
    saving = " ".join(figures.saving)
    is_of_first = any(saving in cost_text(report, finding) for finding in report.findings[:1])
    if figures.saving_ns and not is_of_first:
        yield Tile(SAVING_TITLE, *figures.saving)
    yield from build_memory_tiles(report)


def _build_rank_tiles(report: Report) -> Iterator[Tile]:
    if report.ranks:
        waits = [rank.collective_wait_ns for rank in report.ranks]
        per_step = "per step, " if report.summary.steps else ""
        more = f"{per_step}mean of {counted(len(waits), 'rank')}"
        yield Tile("Waiting for ranks", format_ns(sum(waits) // len(waits)), more)

    slowdown = report.collectives.slowdown if report.collectives is not None else None
    if slowdown is not None:
        times = f"{format_ns(slowdown.actual_ns)} instead of {format_ns(slowdown.ideal_ns)}"
        more = f"{times} with equal ranks, by replay"
        yield Tile("Slowdown by ranks", f"{format_number(slowdown.ratio)} times", more)


def _step_range(report: Report) -> str:
    n_steps, spread = len(report.summary.steps), step_range(report)
    mean = f"mean of {n_steps} steps{f': {spread}' if spread else ''}"
    single = "one step" if n_steps else ""
    remarks = [mean if n_steps > 1 else single, host_step_time(report), excluded_steps(report)]
    return "; ".join(filter(None, remarks))


def build_memory_tiles(report: Report) -> Iterator[Tile]:
    """Yield the main figures of memory: its peak on the fullest device, and leaks."""
    memory = report.summary.memory
    if memory is None:
        return
    if memory.devices:
        fullest = max(memory.devices, key=lambda device: device.at_peak_bytes)
        more = f"{format_bytes(fullest.peak_reserved_bytes)} reserved"
        title = "Peak memory" if fullest.has_peak else "Active memory"
        yield Tile(f"{title}, {fullest.device}", format_bytes(fullest.at_peak_bytes), more)
    elif memory.peak:
        highest = max(memory.peak, key=lambda peak: peak.bytes)
        yield Tile(f"Peak memory, {highest.device}", format_bytes(highest.bytes))
    if memory.n_monitored_steps:
        n_leaks = "–" if memory.n_leaks is None else format_count(memory.n_leaks)  # noqa: RUF001  (a dash)
        yield Tile("Leaks", n_leaks, f"over {monitored_steps(memory)}")


def collect_figures(report: Report) -> dict[str, Any]:
    """Return the figures of a report that a page of several reports compares."""
    source, summary = report.source, report.summary
    breakdown, memory = summary.breakdown, summary.memory
    # Traces have peaks of their own, and snapshots have one for each device.
    peaks = (
        *(peak.bytes for peak in (memory.peak if memory else ())),
        *(device.at_peak_bytes for device in devices_of(report)),
    )

    return {
        "version": report.profkit,
        "path": cell(source.path),
        "rank": source.rank,
        "nSteps": len(summary.steps) or None,
        "wholeNs": (breakdown.mean_ns or None) if breakdown is not None else None,
        "partsNs": {part.kind: part.mean_ns for part in (breakdown.parts if breakdown else ())},
        "busyShare": main_figures(report).busy_share,
        "peakBytes": max(peaks, default=None),
        "nFindings": len(report.findings),
        "firstFinding": _first_finding(report),
    }


def _first_finding(report: Report) -> str:
    """Return the title of the first finding and its cost, or an empty text without findings."""
    first = next(iter(report.findings), None)
    if first is None:
        return ""
    return ": ".join(filter(None, (cell(first.title), cost_text(report, first))))
