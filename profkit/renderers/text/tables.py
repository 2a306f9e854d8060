"""Tables in a terminal: as wide as their cells and no wider than the screen."""

import io
from collections.abc import Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from profkit.names import middle_cut
from profkit.present.document import Cell, Name, SourceLine, TableBlock, Tone

INDENT: Final = 4
_GAP: Final = 2
_MIN_NAME_WIDTH: Final = 16
_MIN_STACKED_WIDTH: Final = 10
"""Names that would get less than this are on a line of their own, above their figures."""
_MIN_END_WIDTH: Final = 20
_NAME_WIDTH: Final = 30
"""Shorter names leave it unfilled, so that the columns of a page's tables are aligned."""
_TREND_WIDTHS: Final = (8, 24)
_TONE_STYLE: Final[dict[Tone, str]] = {"better": "green", "worse": "red", "": ""}


def build_console(width: int, *, color: bool) -> Console:
    """Build a console that lays out tables and texts, and prints nothing by itself."""
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        force_jupyter=False,
    )


class SpacedGrid(Grid):
    """A table without rules, with blanks between its columns.

    The blanks are columns: before version 14.3, rich reserves room for the padding of the last
    column and does not fill it, so that a table which just fits is cut.

    Args:
        gap: The number of blanks.
    """

    def __init__(self, *, gap: int = 1, show_header: bool = False) -> None:
        super().__init__(
            box=None, padding=0, pad_edge=False, show_header=show_header, header_style="bold"
        )
        self._gap = gap

    def add_spaced_column(self, title: str = "", **options: Any) -> None:  # noqa: ANN401  (rich's)
        """Add a column, and blanks before it unless it is the first."""
        if self.columns:
            self.add_column(width=self._gap)
        self.add_column(title, **options)

    def add_spaced_row(self, *cells: str | Text) -> None:
        """Add a row with a cell for each column."""
        first, *others = cells
        self.add_row(first, *(part for cell in others for part in ("", cell)))


def fitted(cell: Cell, width: int) -> str:
    """Return a name, source line or text in at most ``width`` characters."""
    if isinstance(cell, Name | SourceLine):
        return cell.fitted(width)
    return middle_cut(str(cell), width)


class TableLayout:
    """A table whose figures are never cut, and whose names keep their ends.

    The columns after the last figure, the *end* of a row, share one column if there is room;
    otherwise they are below the names.

    Args:
        title: A title for the first column in place of its own, or empty.
    """

    def __init__(self, table: TableBlock, width: int, title: str) -> None:
        figures = [column.is_figure for column in table.columns]
        n_fixed = len(figures) - figures[::-1].index(True)
        ends = table.columns[n_fixed:]

        self.rows = table.rows
        self.width = width
        self.title = title or table.columns[0].title
        self.columns = table.columns[1:n_fixed]
        self.figures = [
            tuple(
                Text(str(cell), _TONE_STYLE[row.tone] if column.kind == "change" else "")
                for column, cell in zip(self.columns, row.cells[1:n_fixed], strict=True)
            )
            for row in self.rows
        ]
        self.widths = [
            max(cell_len(column.title), *(row[i].cell_len for row in self.figures))
            for i, column in enumerate(self.columns)
        ]

        self.end_title = " · ".join(column.title for column in ends)
        self.end_style = "cyan" if any(column.kind == "trend" for column in ends) else ""
        self.ends = [[cell for cell in row.cells[n_fixed:] if cell] for row in self.rows]

    def build(self) -> Grid:
        """Return the table in the widest layout that fits."""
        names = [fitted(row.cells[0], max(self.width // 2, _NAME_WIDTH)) for row in self.rows]
        longest = max(_NAME_WIDTH, cell_len(self.title), *map(cell_len, names))

        # Ends in a column of their own, or no ends.
        room = self.width - sum(width + _GAP for width in self.widths)
        if not any(self.ends):
            if room >= _MIN_NAME_WIDTH:
                return self._build_grid(min(longest, room), 0, _GAP)
        else:
            room -= _GAP
            end_width = self._choose_end_width(room, longest)
            if room - end_width >= _MIN_NAME_WIDTH:
                return self._build_grid(min(longest, room - end_width), end_width, _GAP)

        # Ends below the names, and columns closer to each other.
        room = self.width - sum(width + 1 for width in self.widths)
        return self._build_grid(min(_NAME_WIDTH, room), 0, 1)

    def _choose_end_width(self, room: int, longest_name: int) -> int:
        """Return the width of the ends: in full if no name is cut for it, else in a short form."""
        limit = max(room * 3 // 5, room - longest_name)
        for form, form_limit in enumerate((room - longest_name, limit, limit)):
            texts = [self._forms(end)[form] for end in self.ends]
            longest = max(cell_len(self.end_title), *map(cell_len, texts))
            if longest <= form_limit:
                return longest
        return max(limit, _MIN_END_WIDTH)

    def _forms(self, end: Sequence[Cell]) -> tuple[str, str, str]:
        """Return an end in full, with files without folders, and with its first cell alone."""
        full = [self._text(cell) for cell in end]
        short = [cell.short if isinstance(cell, SourceLine) else self._text(cell) for cell in end]
        return " · ".join(full), " · ".join(short), "".join(short[:1])

    def _text(self, cell: Cell) -> str:
        if isinstance(cell, Name):
            return cell.text
        if isinstance(cell, str | SourceLine):
            return str(cell)
        shortest, longest = _TREND_WIDTHS
        return cell.trend(max(min(self.width // 3, longest), shortest))

    def _end(self, end: Sequence[Cell], width: int) -> str:
        """Return the longest form of an end that fits."""
        for text in self._forms(end):
            if cell_len(text) <= width:
                return text
        first = end[0]
        return first.fitted(width) if isinstance(first, SourceLine) else middle_cut(text, width)

    def _build_grid(self, name_width: int, end_width: int, gap: int) -> Grid:
        """Return the rows; below each its end, if it has no column, and the frames of its stack."""
        is_stacked = name_width < _MIN_STACKED_WIDTH
        column_width = 0 if is_stacked else name_width
        whole = Grid.grid(padding=0)
        whole.add_column(no_wrap=False)
        whole.add_row(self._build_line(column_width, end_width, gap, show_header=True))

        # A table per row: a single one could not have lines of the whole width between its rows.
        for row, figures, end in zip(self.rows, self.figures, self.ends, strict=True):
            below = [] if end_width or not end else [self._end(end, self.width - INDENT)]
            below += [frame.fitted(self.width - INDENT) for frame in row.stack]
            name = fitted(row.cells[0], self.width if is_stacked else name_width)
            if is_stacked:
                whole.add_row(Text(name))

            line = self._build_line(column_width, end_width, gap)
            last = [Text(self._end(end, end_width), self.end_style)] if end_width and end else []
            line.add_spaced_row("" if is_stacked else name, *figures, *last)
            whole.add_row(line)
            for text in below:
                whole.add_row(Padding(Text(text, self.end_style), (0, 0, 0, INDENT)))
        return whole

    def _build_line(
        self, name_width: int, end_width: int, gap: int, *, show_header: bool = False
    ) -> SpacedGrid:
        line = SpacedGrid(show_header=show_header, gap=gap)
        line.add_spaced_column(self.title, width=name_width, no_wrap=True, overflow="ellipsis")

        for column, width in zip(self.columns, self.widths, strict=True):
            justify = "right" if column.is_figure else "left"
            line.add_spaced_column(column.title, justify=justify, width=width, no_wrap=True)

        if end_width:
            title = middle_cut(self.end_title, end_width)
            line.add_spaced_column(title, width=end_width, no_wrap=True, overflow="ellipsis")
        return line
