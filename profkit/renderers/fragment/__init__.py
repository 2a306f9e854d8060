"""The report as a piece of HTML without scripts: what notebooks show, and other pages can hold.

It is small, since a notebook keeps it in its file, and nothing in it asks for a network. Its style
reaches nothing around it. The whole page, with plots, is the format ``html``.
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from profkit.model.finding import Finding
from profkit.model.location import Location
from profkit.model.report import Breakdown, Report
from profkit.names import middle_cut, short_kernel, short_path, visible
from profkit.present.headline import (
    breakdown_title,
    busiest_ops,
    cost_text,
    facts,
    headline,
    origin,
    overhead_text,
    part_label,
    unchecked_by_reason,
)
from profkit.present.memory_text import (
    MemorySeriesRow,
    allocation_tables,
    device_series_rows,
    not_measured,
    place_of,
    series_rows,
    shows_series,
    use_of,
)
from profkit.present.renderer import ReadersOptions as Options
from profkit.present.renderer import RendererInfo
from profkit.renderers.fragment.templating import Table, fill
from profkit.units import format_bytes, format_count, format_ns, format_share

__all__ = ["INFO", "Options", "render"]

INFO = RendererInfo(
    name="fragment", suffix=".fragment.html", media_type="text/html", shows="recording"
)

_LONGEST_NAME: Final = 90
_COURSE_WIDTH: Final = 24
_MOST_PLACES: Final = 8
_MOST_HOLDERS: Final = 3


def render(report: Report, options: Options) -> bytes:
    """The report as a ``<div>`` in UTF-8.

    Args:
        options: What to show.
    """
    most = options.most
    shown = report.findings[:most]
    return fill(
        "report.html.j2",
        headline=headline(report),
        whole=_whole(report.summary.breakdown, report),
        parts=_parts(report.summary.breakdown),
        n_findings=len(report.findings),
        findings=[_card(report, each, options.base) for each in shown],
        n_hidden=len(report.findings) - len(shown),
        tables=list(_tables(report, options, most)),
        facts=facts(report, everything=options.verbose),
        n_unchecked=len(report.unchecked),
        unchecked=unchecked_by_reason(report, everything=options.verbose),
        health=report.health,
        recording=list(_recording(report)),
        origin=[f"profkit {report.profkit}", *origin(report)],
        path=short_path(report.source.path, options.base),
        command=_command(report.source.path),
    )


def _command(path: str) -> str:
    """What opens the whole page; nothing for a path that cannot be typed."""
    return f"profkit view {shlex.quote(path)}" if path and visible(path) == path else ""


def _whole(breakdown: Breakdown | None, report: Report) -> str:
    if breakdown is None or not breakdown.total_ns:
        return ""
    ns = breakdown.total_ns if breakdown.per_step_ns is None else breakdown.per_step_ns
    return f"{breakdown_title(report)}: {format_ns(ns)}"


def _parts(breakdown: Breakdown | None) -> list[dict[str, object]]:
    """The parts of a step's time, each with the width of its bar in percent."""
    if breakdown is None or not breakdown.total_ns:
        return []
    return [
        {
            "label": part_label(part.kind),
            "time": format_ns(part.ns if part.per_step_ns is None else part.per_step_ns),
            "share": format_share(part.share),
            "width": f"{part.share * 100:.2f}",
            "is_work": not part.kind.startswith(("idle-", "data", "python")),
        }
        for part in breakdown.parts
        if part.ns
    ]


def _card(report: Report, finding: Finding, base: str) -> dict[str, object]:
    places = [each.place for each in finding.locations]
    if base:
        places = [short_path(each, base) for each in places]
    holders = ["".join(chain) for chain in finding.holders[:_MOST_HOLDERS]]
    return {
        "finding": finding,
        "place": next(filter(None, (*places[:1], *holders)), "no line known"),
        "cost": cost_text(report, finding),
        "others": [each for each in places[1:] if each][:_MOST_PLACES],
        "holders": holders,
    }


def _tables(report: Report, options: Options, most: int | None) -> Iterator[tuple[str, Table]]:
    if shows_series(report):
        yield from _courses("Memory by step", series_rows(report))
    yield from _courses("Memory over the history", device_series_rows(report))
    for each in allocation_tables(report, everything=options.verbose):
        rows = tuple(
            (
                place_of(site) if site.location.line is None else site.location.place,
                format_count(site.n),
                format_bytes(site.bytes),
                format_share(each.share(site)),
                use_of(site),
            )
            for site in each.sites[:most]
        )
        title = f"{each.title}: {format_bytes(each.total_bytes)}"
        yield title, Table(("allocated at", "blocks", "bytes", "share", "used for"), rows)
    yield from _kernels(report, most)
    yield from _operators(report, most)


def _courses(title: str, every: Sequence[MemorySeriesRow]) -> Iterator[tuple[str, Table]]:
    rows = tuple(
        (
            course.name,
            format_bytes(course.first_bytes),
            format_bytes(course.last_bytes),
            format_bytes(course.highest_bytes),
            course.drawn(_COURSE_WIDTH),
        )
        for course in every
    )
    if rows:
        yield title, Table(("memory", "first", "last", "highest", "course"), rows)


def _kernels(report: Report, most: int | None) -> Iterator[tuple[str, Table]]:
    rows = tuple(
        (
            short_kernel(kernel.name, _LONGEST_NAME),
            format_count(kernel.n_calls),
            format_ns(kernel.total_ns),
            format_share(kernel.share),
            kernel.op or "",
            _line(kernel.location),
        )
        for kernel in report.summary.top_kernels[:most]
    )
    if rows:
        yield "Kernels", Table(("kernel", "calls", "total", "share", "operator", "line"), rows, 2)


def _operators(report: Report, most: int | None) -> Iterator[tuple[str, Table]]:
    on_device, every = busiest_ops(report)
    rows = tuple(
        (
            middle_cut(op.name, _LONGEST_NAME),
            format_count(op.n_calls),
            format_ns(op.self_ns),
            format_ns(op.device_ns if on_device else op.total_ns),
            _line(op.location),
        )
        for op in every[:most]
    )
    if rows:
        last = "on device" if on_device else "total"
        yield "Operators", Table(("operator", "calls", "self", last, "line"), rows)


def _line(where: Location | None) -> str:
    return "" if where is None or where.line is None else where.place


def _recording(report: Report) -> Iterator[str]:
    if report.source.overhead_ratio is not None:
        yield overhead_text(report.source.overhead_ratio)
    yield from not_measured(report)
