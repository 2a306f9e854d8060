"""Figures and findings over commits as a document, and its texts."""

import math
import posixpath
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from profkit.comparison.messages import amount
from profkit.engine.wording import counted
from profkit.model.history import FigureLine, FindingHistory, History, HistoryEntry
from profkit.model.location import NO_SOURCE_LINE
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
"""From this ratio on, a percentage is no longer read."""
_SHORT: Final = {
    "gpu_ms": "GPU busy", "exposed_communication_ms": "exposed", "kernels": "kernels",
    "syncs": "syncs", "graph_breaks": "graph breaks", "recompiles": "recompiles", "peak": "peak",
    "growth": "growth",
}  # fmt: skip
"""Titles of columns; all figures of time and counts of work are per step."""


def history_document(history: History, options: ReadersOptions) -> Document:
    """Figures and findings over commits as a document."""
    return Document(
        title="profkit history",
        program=f"profkit {one_line(history.profkit)}",
        paths=(),
        origin=(),
        headline=one_line(_headline(history)),
        sections=(*_figures(history), *_findings(history, options)),
    )


def entry_label(entry: HistoryEntry) -> str:
    """The commit; without one the time, or the file's name."""
    if entry.revision:
        return one_line(entry.revision[:_REVISION_LENGTH])
    if entry.recorded_unix_ns is not None:
        return _date(entry.recorded_unix_ns)
    return one_line(posixpath.basename(entry.paths[0].replace("\\", "/"))) if entry.paths else "?"


def _date(unix_ns: int | None) -> str:
    if unix_ns is None:
        return "?"
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).strftime("%Y-%m-%d")


def _headline(history: History) -> str:
    n = len(history.entries)
    if not n:
        return "There are no reports."
    sentences = [_latest(history, line) for line in history.lines[:1]]
    there = [each for each in history.findings if each.fixed is None]
    sentences.append(f"{counted(len(there), 'finding')} not fixed.")
    return " ".join(sentences)


def _latest(history: History, line: FigureLine) -> str:
    """The last value of a figure, and its change since the first."""
    first, last = (history.entries[line.entries[at]] for at in (0, -1))
    then, now = first.figures[line.name], last.figures[line.name]
    before, after = then.value, now.value
    subject = f"{line.title[:1].upper()}{line.title[1:]}"
    text = f"{subject} is {amount(after, line.unit)} at {entry_label(last)}"
    if len(line.entries) == 1 or not before or before == after:
        return f"{text}."
    change = (
        f"{format_share(abs(after - before) / before)} {'more' if after > before else 'less'} than"
    )
    if after >= _MAX_RATIO * before:
        change = f"{format_count(round(after / before))} times that"
    if abs(after - before) <= math.hypot(then.error or 0, now.error or 0):
        change = f"within the noise of {amount(before, line.unit)}"
    return f"{text}, {change} at {entry_label(first)}, {len(line.entries)} commits in all."


def _figures(history: History) -> Iterator[DocumentSection]:
    """A section for each program and device, whose figures are comparable."""
    series: dict[tuple[str, tuple[str, ...]], list[HistoryEntry]] = {}
    for entry in history.entries:
        series.setdefault((entry.program, entry.devices), []).append(entry)
    for (program, devices), entries in series.items():
        lines = [
            each for each in history.lines if (each.program, each.devices) == (program, devices)
        ]
        where = " on ".join(filter(None, (program, ", ".join(devices))))
        charts = (_chart(line, entries) for line in lines if len(line.entries) > 1)
        yield DocumentSection(
            "Commits",
            (_table(lines, entries), *charts),
            one_line(where) or format_count(len(entries)),
        )


def _table(lines: Sequence[FigureLine], entries: Sequence[HistoryEntry]) -> TableBlock:
    has_versions = len({each.torch for each in entries}) > 1
    rows = []
    for entry in entries:
        cells: list[Cell] = [entry_label(entry), _date(entry.recorded_unix_ns)]
        cells += [one_line(entry.torch or "-")] if has_versions else []
        cells += [_value(entry, line) for line in lines]
        cells.append(_counts(entry))
        rows.append(TableRow(tuple(cells)))
    texts = ("recorded", "torch") if has_versions else ("recorded",)
    columns = (
        TableColumn("commit", "name"),
        *(TableColumn(title, "text") for title in texts),
        *(TableColumn(_SHORT.get(line.name, line.title)) for line in lines),
        TableColumn("findings", "text"),
    )
    return TableBlock(columns, tuple(rows))


def _value(entry: HistoryEntry, line: FigureLine) -> str:
    figure = entry.figures.get(line.name)
    return "-" if figure is None else amount(figure.value, line.unit)


def _counts(entry: HistoryEntry) -> str:
    found = [counted(n, severity) for severity, n in reversed(list(entry.n_findings.items()))]
    return ", ".join(found) or "0"


def _chart(line: FigureLine, entries: Sequence[HistoryEntry]) -> ChartBlock:
    """A figure over the commits that have it; its error is in the text of each point."""
    known = [(at, each, each.figures[line.name]) for at, each in enumerate(entries)
             if line.name in each.figures]  # fmt: skip
    top = max(figure.value for _, _, figure in known)
    points = []
    for at, entry, figure in known:
        error = f" ± {amount(figure.error, line.unit)}" if figure.error else ""
        text = f"{entry_label(entry)}: {_value(entry, line)}{error}"
        points.append(ChartPoint(at / (len(entries) - 1), figure.value / top, text))
    return ChartBlock(f"{line.title}, up to {amount(top, line.unit)}", tuple(points))


def _findings(history: History, options: ReadersOptions) -> Iterator[DocumentSection]:
    every = history.findings
    shown = every if options.verbose else every[: options.limit]
    rows = (
        (
            Name(one_line(f"{each.rule} {each.name}")),
            each.severity,
            entry_label(history.entries[each.first]),
            entry_label(history.entries[each.last]),
            str(each.n),
            _state(each, history.entries),
            _place(each, options.base),
        )
        for each in shown
    )
    columns = (
        *columns_of("finding", (), ("severity", "first in", "last in"), "text"),
        TableColumn("commits"),
        TableColumn("now", "text"),
        TableColumn("source line", "name"),
    )
    hidden = remainder(len(every) - len(shown), f"--top {len(every)}")
    yield from table_section(("Findings over commits", ""), columns, rows, hidden=hidden)


def _state(found: FindingHistory, entries: Sequence[HistoryEntry]) -> str:
    return "there" if found.fixed is None else f"fixed in {entry_label(entries[found.fixed])}"


def _place(found: FindingHistory, base: str) -> Cell:
    where = found.location
    if where is None or where.file is None or where.line is None:
        return one_line(where.op) if where and where.op else NO_SOURCE_LINE
    path = one_line(short_path(where.file, base))
    return SourceLine(path, where.line, one_line(where.function or ""))
