"""A table as the terminal, Markdown and notebooks have it: names, then figures, then texts."""

from collections.abc import Sequence
from typing import Any, Final

from profkit.model.location import MODULE_LEVEL, Location
from profkit.names import short_path
from profkit.present.document import (
    Cell,
    Name,
    SourceLine,
    TableColumn,
    one_line,
)
from profkit.present.document import ColumnKind as ScreenKind
from profkit.present.memory_text import MemorySeriesRow
from profkit.present.tables.definition import FORMATS, Column, ColumnKind, Table

_KINDS: Final[dict[ColumnKind, ScreenKind]] = {
    "name": "name", "kernel": "name", "place": "name", "text": "text", "id": "text",
    "trend": "trend",
}  # fmt: skip
"""The kinds of columns that are not figures here."""


def lay_out_table(
    table: Table, items: Sequence[object], base: str = ""
) -> tuple[tuple[TableColumn, ...], list[tuple[Cell, ...]]]:
    """Return the columns of a table and the rows of the items that are shown."""
    columns = [column for column in table.columns if column.screen_title]
    rows = [[_build_cell(column, item, base) for column in columns] for item in items]

    # Many figures are recorded by some profilers or devices only.
    chosen = [
        i
        for i, column in enumerate(columns)
        if column.kind in _KINDS or any(row[i] for row in rows)
    ]
    # Texts of any length would push the figures after them out of sight.
    chosen[1:] = sorted(chosen[1:], key=lambda i: columns[i].kind in _KINDS)

    titles = tuple(_build_column(columns[i]) for i in chosen)
    return titles, [tuple(row[i] for i in chosen) for row in rows]


def _build_column(column: Column) -> TableColumn:
    return TableColumn(column.screen_title, _KINDS.get(column.kind, "figure"))


def _build_cell(column: Column, item: object, base: str) -> Cell:
    """Return a cell; an unknown value is empty."""
    value: Any = column.value_in(item)
    if isinstance(value, Location):
        return place_cell(value, base) or ""
    if value is None or value == "":
        return ""
    if isinstance(value, MemorySeriesRow | Name):
        return value

    if column.kind in FORMATS:
        return FORMATS[column.kind](value)
    text = one_line(str(value))
    is_name = column.kind in {"name", "kernel"}
    return Name(text, is_kernel=column.kind == "kernel") if is_name else text


def place_cell(where: Location | None, base: str) -> SourceLine | None:
    """Return a location's source line, or None where it has none."""
    if where is None or where.file is None:
        return None

    path = one_line(short_path(where.file, base))
    # A sampled frame may have the line where its function begins: the function says more.
    if where.precision == "function" and where.function not in (None, MODULE_LEVEL):
        return SourceLine(path, where.line, one_line(where.function), is_function=True)
    return SourceLine(path, where.line)
