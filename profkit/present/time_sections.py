"""Sections on the step time: its parts, and the critical path."""

from collections.abc import Iterator
from typing import Final

from profkit.model.critical_path import PathLine
from profkit.model.report import Breakdown, Report
from profkit.present.critical_path import (
    WITH_KERNEL_NAMES,
    large_lines,
    main_kinds,
    main_name,
    main_share,
    main_word,
    path_label,
    path_title,
    unexplained_text,
)
from profkit.present.document import (
    Block,
    DocumentSection,
    ListBlock,
    ListItem,
    Name,
    Part,
    PartKind,
    TableBlock,
    TableColumn,
    TableRow,
    TimeParts,
    columns_of,
    name_of,
    one_line,
)
from profkit.present.labels import (
    breakdown_title,
    device_noun,
    host_step_time,
    incomplete_steps,
    part_label,
    step_range,
)
from profkit.present.part_colors import color_number, is_idle
from profkit.present.renderer import ReadersOptions
from profkit.present.tables.screen import place_cell
from profkit.units import format_count, format_ns, format_share

_N_BRIEF_LINES: Final = 2
_WORK: Final[dict[str, PartKind]] = {
    "compute": "compute", "communication": "communication", "copy": "copy",
}  # fmt: skip


def build_time_section(report: Report) -> Iterator[DocumentSection]:
    """Yield the parts of the step time."""
    breakdown = report.summary.breakdown
    if breakdown is None or not breakdown.total_ns:
        return

    parts = []
    start = 0.0
    for part in breakdown.parts:
        if part.ns:
            kind, time = _part_kind(part.kind), format_ns(part.mean_ns)
            color, hatched = color_number(part.kind), is_idle(part.kind)
            label = part_label(part.kind)
            parts.append(Part(label, kind, color, hatched, time, part.share, start))
        start += part.share

    yield DocumentSection(
        breakdown_title(report), (TimeParts(tuple(parts)),), _time_figures(report, breakdown),
        is_of_one_rank=bool(report.ranks),
    )  # fmt: skip


def _part_kind(kind: str) -> PartKind:
    return "idle" if is_idle(kind) else _WORK.get(kind, "host")


def _time_figures(report: Report, breakdown: Breakdown) -> str:
    """Return ``174 ms (mean of 6, 171 ms to 176 ms)``, with the excluded steps."""
    mean, n_steps = format_ns(breakdown.mean_ns), len(report.summary.steps)
    if on_host := host_step_time(report):
        mean = f"{mean} on the {device_noun(report)}, {on_host}"

    spread, incomplete = step_range(report), incomplete_steps(report)

    # A range of one step, or of a time that is not per step, would repeat the mean.
    about = []
    if breakdown.per_step_ns is not None and n_steps > 1:
        about.append(f"mean of {format_count(n_steps)}")
    about += filter(None, (spread if about else "", incomplete))
    return f"{mean} ({', '.join(about)})" if about else mean


def build_path_section(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    """Yield the lines of the critical path with the most time, and its kinds."""
    path = report.summary.critical_path
    if path is None:
        return

    rows = tuple(
        TableRow(
            (
                path_label(line.kind),
                format_ns(line.mean_ns),
                format_share(line.share),
                place_cell(line.location, options.base) or "",
                name,
                main_share(line) if name else "",
            ),
            word=main_word(line) if name else "",
        )
        for line in large_lines(path)[: options.limit]
        for name in (_main_name(line),)
    )
    columns = (
        *columns_of("critical path", ("time", "share"), ("source line", "longest")),
        TableColumn("of the path", "text"),
    )
    # A screen of text shows the first lines alone, each as a sentence.
    n_brief = len(rows) if options.verbose else _N_BRIEF_LINES
    blocks: list[Block] = [TableBlock(columns, rows, n_brief)] if rows else []
    if unexplained := unexplained_text(path):
        blocks.append(ListBlock((ListItem(unexplained),)))

    kinds = main_kinds(path, everything=options.verbose)
    title, is_of_one_rank = path_title(path), bool(report.ranks)
    yield DocumentSection(title, tuple(blocks), kinds, is_of_one_rank=is_of_one_rank)


def _main_name(line: PathLine) -> Name | str:
    if line.kind in WITH_KERNEL_NAMES:
        return Name(one_line(line.main_name), is_kernel=True)
    name = main_name(line)
    return name_of(name) if name else ""
