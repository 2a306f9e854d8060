"""The figures that matter, and where the time of a step goes."""

from collections.abc import Iterator
from dataclasses import dataclass

from profkit.engine.wording import counted
from profkit.model.finding import SEVERITIES
from profkit.model.report import Breakdown, Report
from profkit.present.headline import breakdown_title, device_noun, part_label
from profkit.renderers.html._colors import color_of
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.units import format_bytes, format_ns, format_share


@dataclass(frozen=True)
class Tile:
    """A figure that stands out.

    Attributes:
        label: What it is.
        figure: It.
        more: What belongs to it, in a few words.
    """

    label: str
    figure: str
    more: str = ""


@dataclass(frozen=True)
class Bar:
    """A part of the time of a step.

    Attributes:
        label: What it is.
        ns: Its length, of a step where there are steps.
        share: The same as a share of the whole.
        before_share: Where it begins, likewise.
        color: The custom property of its colour.
        is_idle: Whether nothing worked; it is hatched, so that colour is not the only sign.
    """

    label: str
    ns: int
    share: float
    before_share: float
    color: str
    is_idle: bool


def section(report: Report, options: Options) -> Section:
    """The figures of any report.

    Args:
        options: Nothing of them is needed.
    """
    breakdown = report.summary.breakdown
    return Section(
        id="overview",
        title="Overview",
        body=fill(
            "overview.html.j2",
            tiles=list(_tiles(report)),
            whole=breakdown_title(report),
            whole_ns=_whole_ns(breakdown),
            bars=list(_bars(breakdown)),
        ),
    )


def _whole_ns(breakdown: Breakdown | None) -> int:
    if breakdown is None:
        return 0
    return breakdown.total_ns if breakdown.per_step_ns is None else breakdown.per_step_ns


def _tiles(report: Report) -> Iterator[Tile]:
    summary = report.summary
    breakdown = summary.breakdown
    if breakdown is not None and breakdown.total_ns:
        yield Tile(breakdown_title(report), format_ns(_whole_ns(breakdown)), _spread(report))
    for device in summary.devices:
        if device.span_ns and len(summary.devices) == 1:
            busy = format_share(device.busy_ns / device.span_ns)
            more = f"{format_ns(device.busy_ns)} of {format_ns(device.span_ns)}"
            yield Tile(f"{device_noun(report)} busy", busy, more)
    if summary.recoverable_ns:
        share = ""
        if breakdown is not None and breakdown.total_ns:
            share = f"of {format_ns(breakdown.total_ns)} recorded"
        yield Tile("Could be saved", format_ns(summary.recoverable_ns), share)
    yield from _memory_tiles(report)
    yield _findings_tile(report)


def _spread(report: Report) -> str:
    lengths = [step.dur_ns for step in report.summary.steps]
    if len(lengths) < 2:  # noqa: PLR2004  (one has no spread)
        return "one step" if lengths else ""
    shortest, longest = format_ns(min(lengths)), format_ns(max(lengths))
    return f"mean of {len(lengths)}: {shortest} to {longest}"


def _memory_tiles(report: Report) -> Iterator[Tile]:
    memory = report.summary.memory
    if memory is None:
        return
    if memory.devices:
        fullest = max(memory.devices, key=lambda device: device.at_peak_bytes)
        more = f"{format_bytes(fullest.peak_reserved_bytes)} reserved"
        peak = format_bytes(fullest.at_peak_bytes)
        yield Tile(f"Memory at the peak, {fullest.device}", peak, more)
    elif memory.peak:
        fullest_of_trace = max(memory.peak, key=lambda peak: peak.bytes)
        peak = format_bytes(fullest_of_trace.bytes)
        yield Tile(f"Memory at the peak, {fullest_of_trace.device}", peak)
    if memory.n_monitored_steps:
        growing = counted(memory.n_leaks, "thing") if memory.n_leaks is not None else "–"  # noqa: RUF001  (a dash)
        yield Tile(
            "Grows with every step", growing, f"watched over {memory.n_monitored_steps} steps"
        )


def _findings_tile(report: Report) -> Tile:
    by_severity = [
        counted(n, severity)
        for severity in reversed(SEVERITIES)
        if (n := sum(each.severity == severity for each in report.findings))
    ]
    not_checked = f"{counted(len(report.unchecked), 'rule')} could not look"
    more = ", ".join(by_severity) or (not_checked if report.unchecked else "every rule looked")
    return Tile("Findings", f"{len(report.findings):,}", more)


def _bars(breakdown: Breakdown | None) -> Iterator[Bar]:
    before = 0.0
    for part in breakdown.parts if breakdown is not None else ():
        idle = part.kind.startswith("idle-") or part.kind in {"data", "python"}
        ns = part.ns if part.per_step_ns is None else part.per_step_ns
        yield Bar(part_label(part.kind), ns, part.share, before, color_of(part.kind), idle)
        before += part.share
