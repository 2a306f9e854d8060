"""Figures and findings over commits as a document, and its texts."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from profkit.comparison.messages import amount
from profkit.engine.wording import counted
from profkit.model.history import FigureLine, FindingHistory, History, HistoryEntry
from profkit.model.location import NO_SOURCE_LINE, base_name
from profkit.names import short_path
from profkit.present.document import (
    Cell,
    ChartBlock,
    ChartPoint,
    Document,
    DocumentSection,
    Name,
    SourceLine,
    TableBlock,
    TableColumn,
    TableRow,
    columns_of,
    one_line,
    remainder,
    table_section,
)
from profkit.present.renderer import ReadersOptions
from profkit.units import format_count, format_share

_REVISION_LENGTH: Final = 10
_MAX_RATIO: Final = 10
"""A change by this factor is shown as a factor instead of a percentage."""
_SHORT: Final = {
    "gpu_ms": "GPU busy", "exposed_communication_ms": "exposed", "kernels": "kernels",
    "syncs": "syncs", "graph_breaks": "graph breaks", "recompiles": "recompiles", "peak": "peak",
    "growth": "growth",
}  # fmt: skip
"""Titles of columns; all figures of time and counts of work are per step."""


def build_history_document(history: History, options: ReadersOptions) -> Document:
    """Build the document of figures and findings over commits."""
    return Document(
        title="profkit history",
        program=f"profkit {one_line(history.profkit)}",
        paths=(),
        origin=(),
        headline=one_line(_headline(history)),
        sections=(*_build_figures(history), *_build_findings(history, options)),
    )


def entry_label(entry: HistoryEntry) -> str:
    """Return the commit; without one the time, or the file's name."""
    if entry.revision:
        return one_line(entry.revision[:_REVISION_LENGTH])
    if entry.recorded_unix_ns is not None:
        return _format_time(entry.recorded_unix_ns, "%m-%d %H:%M:%S")
    return one_line(base_name(entry.paths[0])) if entry.paths else "?"


def _format_time(unix_ns: int | None, pattern: str) -> str:
    return (
        "?" if unix_ns is None else format(datetime.fromtimestamp(unix_ns // 10**9, UTC), pattern)
    )


def _name_entries(entries: Sequence[HistoryEntry]) -> str:
    """Return what the entries are: commits, or the runs of a program that has no repository."""
    return "commits" if any(entry.revision for entry in entries) else "runs"


def _headline(history: History) -> str:
    n = len(history.entries)
    if not n:
        return "There are no reports."
    sentences = [_describe_latest(history, line) for line in history.lines[:1]]
    open_findings = [finding for finding in history.findings if finding.fixed is None]
    sentences.append(f"{counted(len(open_findings), 'finding')} not fixed.")
    return " ".join(sentences)


def _describe_latest(history: History, line: FigureLine) -> str:
    """Say the last value of a figure, and its change since the first."""
    first, last = (history.entries[line.entries[at]] for at in (0, -1))
    first_figure, last_figure = first.figures[line.name], last.figures[line.name]
    before, after = first_figure.value, last_figure.value
    subject = f"{line.title[:1].upper()}{line.title[1:]}"
    text = f"{subject} is {amount(after, line.unit)} at {entry_label(last)}"
    if len(line.entries) == 1 or not before or before == after:
        return f"{text}."

    share = format_share(abs(after - before) / before)
    change = f"{share} {'more' if after > before else 'less'} than"
    if after >= _MAX_RATIO * before:
        change = f"{format_count(round(after / before))} times that"
    # Errors of independent figures add up as squares.
    if abs(after - before) <= math.hypot(first_figure.error or 0, last_figure.error or 0):
        change = f"within the noise of {amount(before, line.unit)}"
    entries = f"{len(line.entries)} {_name_entries(history.entries)} in all"
    return f"{text}, {change} at {entry_label(first)}, {entries}."


def _build_figures(history: History) -> Iterator[DocumentSection]:
    """Yield a section for each program and device, whose figures are comparable."""
    series: dict[tuple[str, tuple[str, ...]], list[HistoryEntry]] = {}
    for entry in history.entries:
        series.setdefault((entry.program, entry.devices), []).append(entry)

    for (program, devices), entries in series.items():
        lines = [
            line for line in history.lines if (line.program, line.devices) == (program, devices)
        ]
        where = " on ".join(filter(None, (program, ", ".join(devices))))
        charts = (_build_chart(line, entries) for line in lines if len(line.entries) > 1)
        yield DocumentSection(
            _name_entries(entries).capitalize(),
            (_build_table(lines, entries), *charts),
            one_line(where) or format_count(len(entries)),
        )


def _build_table(lines: Sequence[FigureLine], entries: Sequence[HistoryEntry]) -> TableBlock:
    # A version that does not change needs no column.
    has_versions = len({entry.torch for entry in entries}) > 1
    # The name of an entry without a commit is its time.
    has_dates = any(entry.revision for entry in entries)
    rows = []
    for entry in entries:
        cells: list[Cell] = [entry_label(entry)]
        cells += [_format_time(entry.recorded_unix_ns, "%Y-%m-%d")] if has_dates else []
        cells += [one_line(entry.torch or "-")] if has_versions else []
        cells += [_value(entry, line) for line in lines]
        cells.append(_counts(entry))
        rows.append(TableRow(tuple(cells)))

    texts = (*(("recorded",) * has_dates), *(("torch",) * has_versions))
    columns = (
        TableColumn("commit" if has_dates else "run", "name"),
        *(TableColumn(title, "text") for title in texts),
        *(TableColumn(_SHORT.get(line.name, line.title)) for line in lines),
        TableColumn("findings", "text"),
    )
    return TableBlock(columns, tuple(rows))


def _value(entry: HistoryEntry, line: FigureLine) -> str:
    figure = entry.figures.get(line.name)
    return "-" if figure is None else amount(figure.value, line.unit)


def _counts(entry: HistoryEntry) -> str:
    counts = [counted(n, severity) for severity, n in reversed(list(entry.n_findings.items()))]
    return ", ".join(counts) or "0"


def _build_chart(line: FigureLine, entries: Sequence[HistoryEntry]) -> ChartBlock:
    """Draw a figure over the commits that have it; its error is in the text of each point."""
    figures = [
        (place, entry, entry.figures[line.name])
        for place, entry in enumerate(entries)
        if line.name in entry.figures
    ]
    top = max(figure.value for _, _, figure in figures)

    points = []
    for place, entry, figure in figures:
        error = f" ± {amount(figure.error, line.unit)}" if figure.error else ""
        text = f"{entry_label(entry)}: {_value(entry, line)}{error}"
        points.append(ChartPoint(place / (len(entries) - 1), figure.value / top, text))
    return ChartBlock(f"{line.title}, up to {amount(top, line.unit)}", tuple(points))


def _build_findings(history: History, options: ReadersOptions) -> Iterator[DocumentSection]:
    findings = history.findings
    shown = findings if options.verbose else findings[: options.limit]
    rows = (
        (
            Name(one_line(f"{finding.rule} {finding.name}")),
            finding.severity,
            entry_label(history.entries[finding.first]),
            entry_label(history.entries[finding.last]),
            str(finding.n),
            _state(finding, history.entries),
            _place(finding, options.base),
        )
        for finding in shown
    )

    noun = _name_entries(history.entries)
    columns = (
        *columns_of("finding", (), ("severity", "first in", "last in"), "text"),
        TableColumn(noun),
        TableColumn("now", "text"),
        TableColumn("source line", "name"),
    )
    hidden = remainder(len(findings) - len(shown), f"--top {len(findings)}")
    yield from table_section((f"Findings over {noun}", ""), columns, rows, hidden=hidden)


def _state(finding: FindingHistory, entries: Sequence[HistoryEntry]) -> str:
    return "there" if finding.fixed is None else f"fixed in {entry_label(entries[finding.fixed])}"


def _place(finding: FindingHistory, base: str) -> Cell:
    where = finding.location
    if where is None or where.file is None or where.line is None:
        return one_line(where.op) if where and where.op else NO_SOURCE_LINE
    path = one_line(short_path(where.file, base))
    return SourceLine(path, where.line, one_line(where.function or ""))
