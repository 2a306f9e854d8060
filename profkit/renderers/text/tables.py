"""Tables of names, figures and places, as wide as what they hold and no wider than the screen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from profkit.names import middle_cut
from profkit.renderers.text.layout import INDENT, grid

_GAP: Final = 2
_SHORTEST_NAME: Final = 16
_SHORTEST_END: Final = 20
_NAME_COLUMN: Final = 30
"""Shorter names leave it unfilled, so that the tables of a page stand below each other."""


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
        name: What it is of.
        figures: Numbers with units, one for each column between.
        last: What stands at its end: such as a line of code, and the operator there.
        short: What stands there where that does not fit: such as the line alone.
        style: How that looks.
    """

    name: str
    figures: tuple[str, ...]
    last: str = ""
    short: str = ""
    style: str = ""

    def end(self, width: int) -> Text:
        """What stands at its end, in so many columns."""
        fits = cell_len(self.last) <= width
        return Text(self.last if fits else middle_cut(self.short or self.last, width), self.style)


def rows_of(titles: Sequence[str], rows: Sequence[Row], width: int) -> RenderableType:
    """A table whose figures are never cut, and whose names keep their ends.

    Where names, figures and what stands at the end do not fit beside each other, the last stands
    below its name.

    Args:
        titles: Of the names, of each figure, and of the end.
        rows: The lines.
        width: Columns of the screen.
    """
    figure_widths = [
        max(cell_len(title), *(cell_len(row.figures[at]) for row in rows))
        for at, title in enumerate(titles[1:-1])
    ]
    room = width - sum(each + _GAP for each in figure_widths)
    longest = max(_NAME_COLUMN, cell_len(titles[0]), *(cell_len(row.name) for row in rows))
    if not any(row.last for row in rows):
        return _beside(titles, rows, figure_widths, min(longest, room), 0)
    room -= _GAP
    end_width = _end_width(titles[-1], rows, max(room * 3 // 5, room - longest))
    if room - end_width < _SHORTEST_NAME:
        return _below(titles, rows, figure_widths, min(longest, _NAME_COLUMN), width)
    return _beside(titles, rows, figure_widths, min(longest, room - end_width), end_width)


def _end_width(title: str, rows: Sequence[Row], most: int) -> int:
    """Columns for what stands at the end: all of it where that fits, else the short forms."""
    longest = max(cell_len(title), *(cell_len(row.last) for row in rows))
    if longest > most:
        longest = max(cell_len(title), *(cell_len(row.short or row.last) for row in rows))
    return min(longest, max(most, _SHORTEST_END))


def _beside(
    titles: Sequence[str],
    rows: Sequence[Row],
    figure_widths: list[int],
    name_width: int,
    end_width: int,
) -> Table:
    table = _table(titles, figure_widths, name_width)
    if end_width:
        table.add_column(titles[-1], width=end_width, no_wrap=True, overflow="ellipsis")
    for row in rows:
        end = [row.end(end_width)] if end_width else []
        table.add_row(middle_cut(row.name, name_width), *row.figures, *end)
    return table


def _below(
    titles: Sequence[str],
    rows: Sequence[Row],
    figure_widths: list[int],
    name_width: int,
    width: int,
) -> RenderableType:
    """Two lines for a row: the second has what stands at its end."""
    name_width = min(name_width, width - sum(each + 1 for each in figure_widths))
    whole = Table.grid(padding=0)
    whole.add_column(no_wrap=False)
    whole.add_row(_table(titles, figure_widths, name_width, gap=1))
    for row in rows:
        one = _table(titles, figure_widths, name_width, gap=1, show_header=False)
        one.add_row(middle_cut(row.name, name_width), *row.figures)
        whole.add_row(one)
        if row.last:
            whole.add_row(Padding(row.end(width - INDENT), (0, 0, 0, INDENT)))
    return whole


def _table(
    titles: Sequence[str],
    figure_widths: list[int],
    name_width: int,
    *,
    gap: int = _GAP,
    show_header: bool = True,
) -> Table:
    """A table without its last column."""
    table = grid(show_header=show_header, header_style="bold", gap=gap)
    table.add_column(titles[0], width=name_width, no_wrap=True, overflow="ellipsis")
    for title, figure_width in zip(titles[1:-1], figure_widths, strict=True):
        table.add_column(title, justify="right", width=figure_width, no_wrap=True)
    return table
