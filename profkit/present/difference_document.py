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
    Tone,
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


def build_difference_document(difference: Difference, options: ReadersOptions) -> Document:
    """Build the document of a comparison of two recordings."""
    sides = (difference.before, difference.after)

    return Document(
        title="profkit diff",
        program=f"profkit {one_line(difference.profkit)}",
        paths=tuple(one_line(short_path(side.path, options.base)) or "a report" for side in sides),
        origin=(),
        headline=one_line(summarize_difference(difference)),
        sections=(
            *_build_figures(difference, options),
            *_build_changes(difference, options),
            *list_section(
                "Not compared: checks skipped on one side", _list_not_compared(difference)
            ),
            *list_section("Notes", difference.notes, is_detail=False),
        ),
        path_labels=("before", "after"),
    )


def _list_not_compared(difference: Difference) -> Iterator[str]:
    """Yield a line for each reason, with the rules that were skipped for it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for check in difference.not_compared:
        groups.setdefault((check.side, check.reason), []).append(check.rule)
    for (side, reason), rules in groups.items():
        yield f"{side}: {reason} ({id_ranges(dict.fromkeys(rules))})"


def _build_figures(difference: Difference, options: ReadersOptions) -> Iterator[DocumentSection]:
    figures = _distinct(difference.figures)
    shown = figures if options.verbose else figures[:_MAX_FIGURES]
    rows = (
        TableRow(
            (
                label(figure),
                amount(figure.before, figure.unit) or "?",
                amount(figure.after, figure.unit) or "?",
                signed(figure),
                share_of(figure),
            ),
            tone=tone(figure),
        )
        for figure in shown
    )
    columns = (
        *columns_of("figure", ("before", "after")),
        TableColumn("change", "change"),
        TableColumn("%", "change"),
    )

    hidden = remainder(len(figures) - len(shown), "--verbose")
    if shown:
        yield DocumentSection("Figures", (TableBlock(columns, tuple(rows)), *hidden))


def _distinct(figures: Sequence[Figure]) -> list[Figure]:
    """Drop the figures of a device that equal the figures of all devices together."""
    # With a single device, its figures equal the figures of all devices.
    of_all = {
        figure.name: (figure.before, figure.after) for figure in figures if figure.device is None
    }
    return [
        figure
        for figure in figures
        if figure.device is None
        or of_all.get(f"gpu_{figure.name}") != (figure.before, figure.after)
    ]


def _build_changes(difference: Difference, options: ReadersOptions) -> Iterator[DocumentSection]:
    columns = (
        TableColumn("what", "name"),
        TableColumn("status", "text"),
        TableColumn("change", "change"),
        TableColumn("source line", "name"),
    )
    for kind, title in TITLES:
        changes = difference.of_kind(kind)
        shown = changes[: options.limit]
        rows = tuple(
            TableRow(
                (
                    _subject(change),
                    change.status,
                    signed(change),
                    _changed_place(change, options.base),
                ),
                _stack(change, options.base) if options.verbose else (),
                _change_tone(change),
            )
            for change in shown
        )

        if rows:
            hidden = remainder(len(changes) - len(shown), f"--top {len(changes)}")
            figures = f"{format_count(len(changes))} changed"
            yield DocumentSection(title, (TableBlock(columns, rows), *hidden), figures)


def _change_tone(change: Change) -> Tone:
    """Return whether a change is for the better."""
    # Work moves between kernels: a fused one is new, and those that it replaces are gone.
    if change.kind in {"kernel", "operator"} and change.status in {"new", "fixed"}:
        return ""
    return "better" if change.status in {"better", "fixed"} else "worse"


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
