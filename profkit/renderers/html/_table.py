"""Tables that sort and search: the first rows as HTML, all rows as data for ``table.js``."""

import posixpath
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from markupsafe import Markup

from profkit.dataclass import dataclass, replace
from profkit.model.location import MODULE_LEVEL, Location, numbered_line
from profkit.names import middle_cut, short_kernel, short_path, visible
from profkit.present.tables.definition import FORMATS, Column, ColumnKind, Table
from profkit.renderers.html._section import fill

Cell = str | int | float | None
MAX_CELL_CHARACTERS: Final = 600
"""Longer names are cut in the middle; the JSON report has them in full."""
_MAX_NAME: Final = 48
"""Characters of a name of which the full one is shown on demand."""
FIRST_ROWS: Final = 15
"""Rows that are readable without a script, and rows per page of the table."""
TABLE_SCRIPT: Final = "table.js"

_KINDS: Final[Mapping[ColumnKind, ColumnKind]] = {
    "name": "name", "kernel": "name", "place": "place", "file": "place", "ns": "ns",
    "bytes": "bytes", "count": "count", "share": "share", "number": "number",
}  # fmt: skip
"""The kinds of columns that the page styles; all others are texts."""


@dataclass(frozen=True)
class SortableTable:
    """A table.

    Attributes:
        id: Its anchor in the page.
        caption: What its rows are.
        columns: Its columns, with titles and kinds as the page has them.
        rows: Its rows in their initial order.
        sorted_by: The column by which they are sorted, descending; None for any other order.
        ranges: For each row the time range that the timeline can show, as (start, end) in
            nanoseconds; empty where rows have none.
        hints: For each row the full text that its first cell shortens; empty where none does.
        word: The glossary term of the caption; empty where it is none.
    """

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sorted_by: int | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    hints: tuple[str, ...] = ()
    word: str = ""

    @property
    def body(self) -> Markup:
        """Return the first rows as HTML, with the elements to which ``table.js`` adds."""
        first = [
            [
                (column.kind, _format_cell(column, content))
                for column, content in zip(self.columns, row, strict=True)
            ]
            for row in self.rows[:FIRST_ROWS]
        ]
        return fill("table.html.j2", table=self, first=first, n=len(self.rows))

    @property
    def data(self) -> dict[str, Any]:
        """Return all rows, for ``table.js``."""
        return {
            "kinds": [column.kind for column in self.columns],
            "rows": self.rows,
            "sortedBy": self.sorted_by,
            "ranges": self.ranges,
            "hints": self.hints,
            "pageRows": FIRST_ROWS,
        }


def cell(text: str, limit: int = MAX_CELL_CHARACTERS) -> str:
    """Return a name as a cell shows it: made visible, and cut to ``limit`` characters."""
    return middle_cut(visible(text), limit)


def table_data(*tables: SortableTable) -> dict[str, Any]:
    """Return the rows of the tables of a section, as ``table.js`` finds them in its data."""
    return {"tables": {table.id: table.data for table in tables}}


def build_table(
    table: Table,
    base: str = "",
    *,
    id: str = "",
    caption: str = "",
    ranges: Sequence[tuple[int, int]] = (),
    with_folders: bool = False,
) -> SortableTable:
    """Build a table for the page, without its empty columns.

    Args:
        base: A folder; source lines within it are relative to it.
        id: Its anchor, if it is not its name.
        caption: Its heading, if it is not its title.
        ranges: As in :class:`SortableTable`.
        with_folders: Whether lines outside of ``base`` have the path of their file.
    """
    columns = [column for column in table.columns if column.title]
    items = table.for_people
    rows = [
        [_read_cell(column, item, base, with_folders=with_folders) for column in columns]
        for item in items
    ]

    # A kernel's name may take five lines, and its full one is shown on demand.
    if table.full_name:
        rows = [[middle_cut(str(name), _MAX_NAME), *figures] for name, *figures in rows]

    # Many figures are recorded by some profilers or devices only.
    filled = [i for i in range(len(columns)) if any(row[i] not in {None, ""} for row in rows)]
    titles = [columns[i].title for i in filled]
    hints = map(attrgetter(table.full_name), items) if table.full_name else ()

    return SortableTable(
        id=id or table.name,
        caption=caption or table.title,
        columns=tuple(_adapt_column(columns[i]) for i in filled),
        rows=tuple(tuple(row[i] for i in filled) for row in rows),
        sorted_by=titles.index(table.sorted_by) if table.sorted_by in titles else None,
        ranges=tuple(ranges),
        hints=tuple(map(cell, hints)),
        word=table.word,
    )


def _adapt_column(column: Column) -> Column:
    title = column.title[:1].upper() + column.title[1:]
    return replace(column, title=title, kind=_KINDS.get(column.kind, "text"))


def _read_cell(column: Column, item: object, base: str, *, with_folders: bool) -> Cell:
    """Read the cell of an item: texts are visible, and cut if they are very long."""
    content: Any = column.value_in(item)
    match column.kind:
        case "place":
            content = _describe_place(content, base, with_folders=with_folders)
        case "kernel":
            content = short_kernel(content)
        case "id":
            content = str(content)

    shown: Cell = cell(content) if isinstance(content, str) else content
    return shown


def _format_cell(column: Column, content: Cell) -> str:
    """Return a cell as text; an unknown figure is a dash."""
    if content is None:
        return "–" if column.is_figure else ""  # noqa: RUF001  (a dash, not a minus)
    return FORMATS[column.kind](content) if column.is_figure else str(content)


def _describe_place(where: Location | str | None, base: str, *, with_folders: bool) -> str:
    """Return ``train.py:12``, ``lib/model.py:forward`` for a function, or nothing."""
    if isinstance(where, str):
        return where
    if where is None or where.file is None:
        return ""

    # Files of libraries are outside of the base: their whole paths would widen the table.
    path = short_path(where.file, base)
    file = posixpath.basename(path) if path.startswith("/") and not with_folders else path
    by_function = where.precision == "function" and where.function != MODULE_LEVEL
    return f"{file}:{where.function}" if by_function else numbered_line(file, where.line)
