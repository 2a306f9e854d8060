"""Tables that sort and search: the first rows as HTML, all rows as data for ``table.js``."""

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal

from markupsafe import Markup

from profkit.dataclass import dataclass
from profkit.model.location import MODULE_LEVEL, Location, numbered_line
from profkit.names import middle_cut, short_kernel, short_path, visible
from profkit.present.tables.definition import FORMATS, Column, ColumnKind, Table
from profkit.renderers.html._section import fill

CellKind = Literal["name", "place", "text", "ns", "bytes", "count", "share", "number"]
Cell = str | int | float | None
MAX_CELL_CHARACTERS: Final = 600
"""Longer names are cut in the middle; the JSON report has them in full."""
FIRST_ROWS: Final = 15
"""Rows that are readable without a script, and rows per page of the table."""
TABLE_SCRIPT: Final = "table.js"

_KINDS: Final[Mapping[ColumnKind, CellKind]] = {
    "name": "name", "kernel": "name", "place": "place", "file": "place", "ns": "ns",
    "bytes": "bytes", "count": "count", "share": "share", "number": "number",
}  # fmt: skip
"""The kinds of columns of a report's tables here; all others are texts."""


@dataclass(frozen=True)
class SortableColumn:
    """A column of a table.

    Attributes:
        title: Its heading.
        kind: What it contains: ``name`` and ``place`` are shown as code; figures are aligned right
            and are in the unit that the kind names.
        value: What it shows of the item of a row: an attribute such as ``cost.ns``, or a function.
        about: Explanation of the figure; empty where the heading suffices.
    """

    title: str
    kind: CellKind
    value: str | Callable[[Any], Cell]
    about: str = ""

    def cell_of(self, item: object) -> Cell:
        """Return the cell of an item: texts are visible, and cut if they are very long."""
        value = attrgetter(self.value) if isinstance(self.value, str) else self.value
        content: Cell = value(item)
        return cell(content) if isinstance(content, str) else content

    @property
    def is_figure(self) -> bool:
        """Return whether it contains numbers."""
        return self.kind in FORMATS

    def formatted(self, cell: Cell) -> str:
        """Return a cell as text; an unknown figure is a dash."""
        if cell is None:
            return "" if not self.is_figure else "–"  # noqa: RUF001  (a dash, not a minus)
        return FORMATS[self.kind](cell) if self.is_figure else str(cell)


@dataclass(frozen=True)
class SortableTable:
    """A table.

    Attributes:
        id: Its anchor in the page.
        caption: What its rows are.
        columns: Its columns.
        rows: Its rows in their initial order.
        sorted_by: The column by which they are sorted, descending; None for any other order.
        ranges: For each row the time range that the timeline can show, as (start, end) in
            nanoseconds; empty where rows have none.
        hints: For each row the full text that its first cell shortens; empty where none does.
        word: The glossary term of the caption; empty where it is none.
    """

    id: str
    caption: str
    columns: tuple[SortableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sorted_by: int | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    hints: tuple[str, ...] = ()
    word: str = ""

    @property
    def body(self) -> Markup:
        """Return the first rows as HTML, with the elements to which ``table.js`` adds."""
        return fill("table.html.j2", table=self, first=self.rows[:FIRST_ROWS], n=len(self.rows))

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


def build_table(
    id: str,
    caption: str,
    columns: Sequence[SortableColumn],
    items: Iterable[object],
    *,
    sorted_by: str = "",
    ranges: Sequence[tuple[int, int]] = (),
    hints: Sequence[str] = (),
    word: str = "",
) -> SortableTable:
    """Build a table with a row for each item, without its empty columns.

    Args:
        sorted_by: The title of the column by which the items are sorted, if any.

    The other parameters are the attributes of :class:`SortableTable`.
    """
    # Many figures are recorded by some profilers or devices only.
    rows = [[column.cell_of(item) for column in columns] for item in items]
    filled = [i for i in range(len(columns)) if any(row[i] not in {None, ""} for row in rows)]
    titles = [columns[i].title for i in filled]

    return SortableTable(
        id=id,
        caption=caption,
        columns=tuple(columns[i] for i in filled),
        rows=tuple(tuple(row[i] for i in filled) for row in rows),
        sorted_by=titles.index(sorted_by) if sorted_by in titles else None,
        ranges=tuple(ranges),
        hints=tuple(map(cell, hints)),
        word=word,
    )


def build_report_table(
    table: Table,
    base: str = "",
    *,
    id: str = "",
    caption: str = "",
    ranges: Sequence[tuple[int, int]] = (),
    with_folders: bool = False,
) -> SortableTable:
    """Build a table of the report, without its empty columns.

    Args:
        base: A folder; source lines within it are relative to it.
        id: Its anchor, if it is not its name.
        caption: Its heading, if it is not its title.
        ranges: As in :class:`SortableTable`.
        with_folders: Whether lines outside of ``base`` have the path of their file.
    """
    columns = [
        SortableColumn(
            _capitalize(column.title),
            _KINDS.get(column.kind, "text"),
            _build_reader(column, base, with_folders=with_folders),
            column.about,
        )
        for column in table.columns
        if column.title
    ]

    names = table.full_name
    hints = [getattr(item, names) for item in table.for_people] if names else []
    return build_table(
        id or table.name,
        caption or table.title,
        columns,
        table.for_people,
        sorted_by=_capitalize(table.sorted_by),
        ranges=ranges,
        hints=hints,
        word=table.word,
    )


def _capitalize(title: str) -> str:
    return title[:1].upper() + title[1:]


def _build_reader(column: Column, base: str, *, with_folders: bool) -> Callable[[Any], Cell]:
    """Return what reads the cell of a column in an item."""

    def read(item: object) -> Cell:
        value: Any = column.value_in(item)
        match column.kind:
            case "place":
                return _describe_place(value, base, with_folders=with_folders)
            case "kernel":
                return short_kernel(value)
            case "id":
                return str(value)
            case _:
                content: Cell = value
                return content

    return read


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
