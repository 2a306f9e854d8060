"""What a table is: its columns, each defined once for all formats that show it.

A column is in all six formats unless it says otherwise. ``title`` heads it on the HTML page,
``screen`` in the terminal, in Markdown and in a notebook, and ``name`` in CSV and Parquet: a column
without one of them is not in these formats. So a new figure is one line::

    Column("ns", "longest_ns", "longest", "its longest call")

What a format makes of a value follows from the column's kind: how it is rounded, which unit it has,
whether it is aligned to the right.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from profkit.dataclass import dataclass, replace
from profkit.units import format_bytes, format_count, format_ns, format_number, format_share

ColumnKind = Literal[
    "name", "kernel", "place", "file", "text", "tally", "trend", "id",
    "ns", "us", "bytes", "count", "share", "number",
]  # fmt: skip
"""Names are code: ``name`` and ``kernel``. A ``place`` is a ``Location``, or a text in its stead; a
``file`` is a path, a ``tally`` a text with a figure such as ``rank 2 in 8``, a ``trend`` a history,
an ``id`` a number that nobody adds up. A figure is in the unit of its kind."""

FORMATS: Final[Mapping[ColumnKind, Callable[[Any], str]]] = {
    "ns": format_ns, "bytes": format_bytes, "count": format_count, "share": format_share,
    "number": format_number,
}  # fmt: skip
"""How the formats for people write a figure."""


@dataclass(frozen=True)
class Column:
    """A column of a table in all formats.

    Attributes:
        kind: What its values are.
        name: Its name in CSV and Parquet, which ends in the unit; empty where it is not in them.
        title: Its heading on the page, which begins with a capital there; empty where it is not on
            the page.
        about: Explanation of the figure on the page; empty where the heading suffices.
        screen: Its heading in the terminal, in Markdown and in a notebook; empty where it is not in
            them; by default the title.
        value: Its value in the item of a row: a path of attributes such as ``cost.ns``, or a
            function; by default the attribute ``name``.
    """

    kind: ColumnKind
    name: str = ""
    title: str = ""
    about: str = ""
    screen: str | None = None
    value: str | Callable[[Any], Any] = ""

    @property
    def screen_title(self) -> str:
        """Return the heading in the terminal, in Markdown and in a notebook, or empty."""
        return self.title if self.screen is None else self.screen

    @property
    def is_figure(self) -> bool:
        """Return whether the formats for people write its values as figures."""
        return self.kind in FORMATS

    def value_in(self, item: object) -> Any:  # noqa: ANN401  (a figure, a text or a location)
        """Return the value in an item, None where it or a part of its path is not known."""
        if callable(self.value):
            return self.value(item)

        # Optional parts of the report, such as a throughput, have optional figures.
        value = item
        for part in (self.value or self.name).split("."):
            value = None if value is None else getattr(value, part)
        return value


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        name: Its name in CSV and Parquet, and its anchor in the page.
        title: Its heading.
        columns: Its columns, in the order in which people read them.
        items: What its rows are of, in the order of the report.
        ranked: The same for people, the main ones first; None for the order of the report.
        sorted_by: The title of the column by which these are sorted, if any.
        word: The glossary term of the heading; empty where it is none.
        full_name: The path of the text that the first column of the page shortens, if any, such
            as ``site.name``.
        exported: The first columns in CSV and Parquet. Programs may read columns by their place:
            new ones follow, and these keep the order in which they were released.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    items: tuple[Any, ...]
    ranked: tuple[Any, ...] | None = None
    sorted_by: str = ""
    word: str = ""
    full_name: str = ""
    exported: str = ""

    @property
    def for_people(self) -> tuple[Any, ...]:
        """Return what the rows are of, the main ones first."""
        return self.items if self.ranked is None else self.ranked


def with_screen_titles(columns: Iterable[Column], titles: Mapping[str, str]) -> tuple[Column, ...]:
    """Return columns with other headings on a screen of text, by their titles."""
    return tuple(
        replace(column, screen=titles.get(column.title, column.screen)) for column in columns
    )
