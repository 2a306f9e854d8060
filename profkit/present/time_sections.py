"""Sections on the step time: its parts, and the critical path."""

from collections.abc import Iterator
from typing import Final

from profkit.model.critical_path import PathLine
from profkit.model.report import Report
from profkit.model.step_summary import Breakdown, is_wait
from profkit.present.critical_path import (
    NO_FUNCTION,
    large_lines,
    main_kinds,
    main_name,
    main_word,
    path_title,
    unexplained_text,
)
from profkit.present.diagnosis import headline
from profkit.present.document import (
    Block,
    DocumentSection,
    ListBlock,
    ListItem,
    Part,
    PartKind,
    TableBlock,
    TableRow,
    TimeParts,
)
from profkit.present.labels import (
    breakdown_title,
    device_noun,
    excluded_steps,
    host_step_time,
    part_label,
    step_range,
)
from profkit.present.part_colors import color_number
from profkit.present.renderer import ReadersOptions
from profkit.present.tables.path_tables import define_path_lines
from profkit.present.tables.screen import lay_out_table
from profkit.units import format_count, format_ns, format_share

_N_BRIEF_LINES: Final = 2
_MIN_UNKNOWN_SHARE: Final = 0.9
"""Where the cause of more of the critical path is unknown, it says nothing but that."""
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
            color, hatched = color_number(part.kind), is_wait(part.kind)
            label = part_label(part.kind)
            parts.append(Part(label, kind, color, hatched, time, part.share, start))
        start += part.share

    yield DocumentSection(
        breakdown_title(report),
        (TimeParts(tuple(parts)),),
        _time_figures(report, breakdown),
        is_of_one_rank=bool(report.ranks),
    )


def _part_kind(kind: str) -> PartKind:
    return "idle" if is_wait(kind) else _WORK.get(kind, "host")


def _time_figures(report: Report, breakdown: Breakdown) -> str:
    """Return ``174 ms (mean of 6, 171 ms to 176 ms)``, with the excluded steps."""
    mean, n_steps = format_ns(breakdown.mean_ns), len(report.summary.steps)
    if on_host := host_step_time(report):
        mean = f"{mean} on the {device_noun(report)}, {on_host}"

    spread, excluded = step_range(report), excluded_steps(report)

    # A range of one step, or of a time that is not per step, would repeat the mean.
    about = []
    if breakdown.per_step_ns is not None and n_steps > 1:
        about.append(f"mean of {format_count(n_steps)}")
    about += filter(None, (spread if about else "", excluded))
    return f"{mean} ({', '.join(about)})" if about else mean


def build_path_section(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    """Yield the lines of the critical path with the most time, and its kinds."""
    path = report.summary.critical_path
    if path is None:
        return
    # Of a service, whose threads wait for sockets, the path is one gap.
    is_unknown = path.per_step_ns is None and path.unexplained_share >= _MIN_UNKNOWN_SHARE
    if is_unknown and not options.verbose:
        return

    lines = large_lines(path)[: options.limit]
    columns, cells = lay_out_table(define_path_lines(report), lines, options.base)
    words = map(main_word, lines)
    rows = tuple(TableRow(row, word=word) for row, word in zip(cells, words, strict=True))

    # A screen of text shows the first lines alone, each as a sentence, and none of them twice.
    said = headline(report)
    main_rows = list(zip(lines, rows, strict=True))[:_N_BRIEF_LINES]
    unsaid = tuple(row for line, row in main_rows if not _is_said(line, said))
    brief = rows if options.verbose else unsaid
    blocks: list[Block] = [TableBlock(columns, rows, brief)] if rows else []
    if unexplained := unexplained_text(path):
        blocks.append(ListBlock((ListItem(unexplained),)))

    kinds = main_kinds(path, everything=options.verbose)
    title, is_of_one_rank = path_title(path), bool(report.ranks)
    yield DocumentSection(title, tuple(blocks), kinds, is_of_one_rank=is_of_one_rank)


def _is_said(line: PathLine, said: str) -> bool:
    """Return whether the headline or the parts of the step time have the share of a line."""
    if line.location.file is None and main_name(line) == NO_FUNCTION:
        return True
    place = "" if line.location.file is None else line.location.place
    words = {word.strip("(),.:;") for word in said.split()}
    return place in said and format_share(line.share) in words
