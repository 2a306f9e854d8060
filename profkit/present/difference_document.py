"""A comparison of two recordings as a document."""

from collections.abc import Iterator, Sequence
from typing import Final

from profkit.comparison.messages import (
    TITLES,
    amount,
    label,
    share_of,
    signed,
    subject_of,
    summarize_difference,
    tone,
)
from profkit.model.difference import Change, Difference, Figure
from profkit.model.location import NO_SOURCE_LINE
from profkit.names import short_path
from profkit.present.document import (
    Cell,
    Document,
    DocumentSection,
    Name,
    SourceLine,
    TableBlock,
    TableColumn,
    TableRow,
    columns_of,
    list_section,
    name_of,
    one_line,
    remainder,
)
from profkit.present.facts import id_ranges
from profkit.present.renderer import ReadersOptions
from profkit.units import format_count

_MAX_FIGURES: Final = 9


def difference_document(difference: Difference, options: ReadersOptions) -> Document:
    """A comparison of two recordings as a document."""
    sides = (difference.before, difference.after)
    return Document(
        title="profkit diff",
        program=f"profkit {one_line(difference.profkit)}",
        paths=tuple(one_line(short_path(side.path, options.base)) or "a report" for side in sides),
        origin=(),
        headline=one_line(summarize_difference(difference)),
        sections=(
            *_compared_figures(difference, options),
            *_changes(difference, options),
            *list_section("Not compared: checks skipped on one side", _not_compared(difference)),
            *list_section("Notes", difference.notes, is_detail=False),
        ),
        path_labels=("before", "after"),
    )


def _not_compared(difference: Difference) -> Iterator[str]:
    """A line for each reason, with the rules that were skipped for it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in difference.not_compared:
        groups.setdefault((each.side, each.reason), []).append(each.rule)
    for (side, reason), rules in groups.items():
        yield f"{side}: {reason} ({id_ranges(dict.fromkeys(rules))})"


def _compared_figures(difference: Difference, options: ReadersOptions) -> Iterator[DocumentSection]:
    every = _distinct(difference.figures)
    shown = every if options.verbose else every[:_MAX_FIGURES]
    rows = (
        TableRow(
            (
                label(each),
                amount(each.before, each.unit) or "?",
                amount(each.after, each.unit) or "?",
                signed(each),
                share_of(each),
            ),
            tone=tone(each),
        )
        for each in shown
    )
    columns = (
        *columns_of("figure", ("before", "after")),
        TableColumn("change", "change"),
        TableColumn("%", "change"),
    )
    hidden = remainder(len(every) - len(shown), "--verbose")
    if shown:
        yield DocumentSection("Figures", (TableBlock(columns, tuple(rows)), *hidden))


def _distinct(figures: Sequence[Figure]) -> list[Figure]:
    """The figures without those of a device that are the same of all devices together."""
    known = {each.name: (each.before, each.after) for each in figures if each.device is None}
    return [
        each
        for each in figures
        if each.device is None or known.get(f"gpu_{each.name}") != (each.before, each.after)
    ]


def _changes(difference: Difference, options: ReadersOptions) -> Iterator[DocumentSection]:
    columns = (
        TableColumn("what", "name"),
        TableColumn("status", "text"),
        TableColumn("change", "change"),
        TableColumn("source line", "name"),
    )
    for kind, title in TITLES:
        every = difference.of_kind(kind)
        shown = every[: options.limit]
        rows = tuple(
            TableRow(
                (_subject(each), each.status, signed(each), _changed_place(each, options.base)),
                _stack(each, options.base) if options.verbose else (),
                "better" if each.status in {"better", "fixed"} else "worse",
            )
            for each in shown
        )
        if rows:
            hidden = remainder(len(every) - len(shown), f"--top {len(every)}")
            figures = f"{format_count(len(every))} changed"
            yield DocumentSection(title, (TableBlock(columns, rows), *hidden), figures)


def _subject(change: Change) -> Cell:
    if change.kind == "memory":
        return subject_of(change)
    return Name(one_line(change.name), is_kernel=change.kind == "kernel")


def _changed_place(change: Change, base: str) -> Cell:
    where = change.location
    if where is None or where.file is None or where.line is None:
        no_place = NO_SOURCE_LINE if change.kind == "memory" else ""
        return name_of(where.op) if where and where.op else no_place
    path, function = one_line(short_path(where.file, base)), one_line(where.function or "")
    return SourceLine(path, where.line, function, before_line=change.before_line)


def _stack(change: Change, base: str) -> tuple[SourceLine, ...]:
    return tuple(
        SourceLine(one_line(short_path(frame.file, base)), frame.line, one_line(frame.function))
        for frame in change.stack
    )
