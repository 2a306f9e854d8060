"""Tables that sort and search: the first rows as HTML, all of them as data for ``table.js``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from markupsafe import Markup

from profkit.names import middle_cut, visible
from profkit.renderers.html._section import fill
from profkit.units import format_bytes, format_count, format_ns, format_number, format_share

CellKind = Literal["name", "place", "text", "ns", "bytes", "count", "share", "number"]
Cell = str | int | float | None
MAX_CELL_CHARACTERS: Final = 600
"""Longer names are cut in their middle; the whole name stays in the JSON report."""
FIRST_ROWS: Final = 15
"""What is there to read and print without a script, and the length of a page of rows."""
TABLE_SCRIPT: Final = "table.js"

_SPELLED: Final[dict[str, Callable[[Any], str]]] = {
    "ns": format_ns,
    "bytes": format_bytes,
    "count": format_count,
    "share": format_share,
    "number": format_number,
}


@dataclass(frozen=True)
class SortableColumn:
    """A column of a table.

    Attributes:
        title: Its heading.
        kind: What it holds: names and places are set as code, figures at the right; a figure is
            in the unit that its kind names.
        about: What the figure is, in a few words; empty where the heading says it all.
    """

    title: str
    kind: CellKind
    about: str = ""

    @property
    def is_figure(self) -> bool:
        """Whether it holds numbers."""
        return self.kind in _SPELLED

    def spelled(self, cell: Cell) -> str:
        """A cell as it is read; a figure that is not known is a dash."""
        if cell is None:
            return "" if not self.is_figure else "–"  # noqa: RUF001  (a dash, not a minus)
        return _SPELLED[self.kind](cell) if self.is_figure else str(cell)


@dataclass(frozen=True)
class SortableTable:
    """A table.

    Attributes:
        id: Its anchor in the page.
        caption: What its rows are.
        columns: Its columns.
        rows: Its rows in the order that they have at first.
        sorted_by: The column that this order comes from, falling; None for another one.
        ranges: For each row the stretch of time that the timeline can show, as (start, end) in
            nanoseconds; empty where rows have none.
        hints: For each row the whole of what its first cell shortens; empty where none does.
        word: The word of the glossary that its caption is; empty where it is none.
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
        """Its first rows, and what ``table.js`` needs to show the others."""
        return fill("table.html.j2", table=self, first=self.rows[:FIRST_ROWS], n=len(self.rows))

    @property
    def data(self) -> dict[str, Any]:
        """All of it, for ``table.js``."""
        return {
            "kinds": [column.kind for column in self.columns],
            "rows": self.rows,
            "sortedBy": self.sorted_by,
            "ranges": self.ranges,
            "hints": self.hints,
            "pageRows": FIRST_ROWS,
        }


def cell(text: str | None) -> str:
    """A name as a cell has it: visible, and not without end.

    Args:
        text: The name, or None for none.
    """
    return "" if text is None else middle_cut(visible(text), MAX_CELL_CHARACTERS)


def table(
    id: str,
    caption: str,
    columns: Sequence[SortableColumn],
    rows: Iterable[Sequence[Cell]],
    *,
    sorted_by: int | None = None,
    ranges: Sequence[tuple[int, int]] = (),
    hints: Sequence[str] = (),
    word: str = "",
) -> SortableTable:
    """A table whose texts are safe to show, without columns in which there is nothing.

    Args:
        id: As in :class:`SortableTable`, like all that follow.
        caption: What its rows are.
        sorted_by: The column that their order comes from.
        ranges: What the timeline can show of each.
        hints: The whole of what first cells shorten.
        word: The word of the glossary that its caption is.
    """
    safe = [[cell(each) if isinstance(each, str) else each for each in row] for row in rows]
    told = [i for i in range(len(columns)) if any(row[i] not in {None, ""} for row in safe)]
    return SortableTable(
        id=id,
        caption=caption,
        columns=tuple(columns[i] for i in told),
        rows=tuple(tuple(row[i] for i in told) for row in safe),
        sorted_by=told.index(sorted_by) if sorted_by in told else None,
        ranges=tuple(ranges),
        hints=tuple(map(cell, hints)),
        word=word,
    )
