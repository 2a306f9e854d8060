"""How the text page is laid out: its options, and the pieces that it is put together from."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from profkit.names import visible
from profkit.present.renderer import ReadersOptions

INDENT: Final = 4
LABEL_WIDTH: Final = 27
FIGURE_WIDTH: Final = 8
GLUE: Final = "\ue000"
"""Stands for a blank that no line may end at; of private use, so it comes from no name."""
_FIGURE: Final = re.compile(r"(\d) ((?:ns|µs|ms|s|B|KiB|MiB|GiB|TiB)\b)")


@dataclass(frozen=True)
class Options(ReadersOptions):
    """How the text is laid out; all of it has findings with their evidence.

    Attributes:
        width: Columns to fill.
        color: Whether to use terminal colours; otherwise it is plain text.
        unicode: Whether the reader can show more than ASCII.
    """

    width: int = 100
    color: bool = False
    unicode: bool = True


def grid(*, show_header: bool = False, header_style: str = "", gap: int = 1) -> Table:
    """A table without lines.

    Args:
        show_header: Whether its first line holds titles.
        header_style: How those look.
        gap: Blanks between columns.
    """
    return Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, show_header=show_header,
                 header_style=header_style)  # fmt: skip


def heading(title: str, figures: str) -> Text:
    """A section's heading: ``A step: 174 ms``.

    Args:
        title: What the section is of.
        figures: What stands behind it, or empty.
    """
    return Text(title, style="bold").append(
        prose(f": {figures}") if figures else "", style="not bold"
    )


def indented(text: str, indent: int = INDENT) -> RenderableType:
    """A paragraph.

    Args:
        indent: Blanks at the left of every line.
    """
    return Padding(Text(prose(text), overflow="fold"), (0, 0, 0, indent))


def hanging(lead: str, text: str, style: str, indent: int = INDENT) -> RenderableType:
    """A paragraph after a lead word, its further lines under its first.

    Args:
        lead: The lead word, with the blank behind it.
        text: The paragraph.
        style: How the lead word looks.
        indent: Blanks at the left of every line.
    """
    table = Table.grid(padding=0)
    table.add_column(width=min(cell_len(lead), LABEL_WIDTH), no_wrap=True, overflow="fold")
    table.add_column(overflow="fold")
    table.add_row(Text(visible(lead), style=style), Text(prose(text)))
    return Padding(table, (0, 0, 0, indent))


def both_ends(left: Text, right: Text, width: int) -> Iterable[RenderableType]:
    """Two texts at the ends of a line, or below each other where they do not fit.

    Args:
        left: What begins the line.
        right: What ends it.
        width: Columns of the line.
    """
    room = width - left.cell_len - right.cell_len
    if not right.plain:
        yield left
    elif room >= 2:  # noqa: PLR2004  (two blanks keep them apart)
        yield left.append(" " * room).append_text(right)
    else:
        yield left
        yield Padding(right, (0, 0, 0, INDENT))


def prose(text: str) -> str:
    """A sentence in one paragraph, whose figures no line end parts from their units."""
    return _FIGURE.sub(rf"\1{GLUE}\2", visible(" ".join(text.split())))


def bar(before: float, share: float, room: int, glyph: str) -> str:
    """A bar in its place in the whole: at least one column, however small its share.

    Args:
        before: The share of the whole that lies before it.
        share: Its own.
        room: Columns of the whole.
        glyph: What it is drawn with.
    """
    start = min(round(before * room), room - 1)
    end = max(start + 1, min(round((before + share) * room), room))
    return " " * start + glyph * (end - start)
