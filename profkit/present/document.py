"""The document that the terminal, Markdown and notebook formats lay out: its blocks.

:func:`~profkit.present.report_document.build_report_document` and
:func:`~profkit.present.difference_document.build_difference_document` decide the content: its
order, labels and figures, and what ``--top`` cuts. A format decides how a block looks, and may
shorten names to the width that it has. A screen of text shows sentences for tables, where they have
one; the other formats add and hide nothing.

All text in a document is on one line, and safe for a terminal: see :func:`~profkit.names.visible`.
Markup is up to the formats; code in sentences is between backticks.
"""

import posixpath
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.engine.wording import counted
from profkit.model.finding import Severity
from profkit.model.location import numbered_line
from profkit.names import middle_cut, short_kernel, tail_cut, visible
from profkit.present.memory_text import MemorySeriesRow
from profkit.units import format_count

PartKind = Literal["compute", "communication", "copy", "idle", "host"]
ColumnKind = Literal["name", "text", "figure", "change", "trend"]
Tone = Literal["better", "worse", ""]

_SMALL_SHARE: Final = 0.01
"""Parts of the step time below this share one line."""


@dataclass(frozen=True)
class Name:
    """A name from the program or recording: an operator, a kernel, a reference chain."""

    text: str
    is_kernel: bool = False

    def fitted(self, width: int) -> str:
        """Fit the name into ``width`` characters; kernels lose their template arguments."""
        return short_kernel(self.text, width) if self.is_kernel else middle_cut(self.text, width)


@dataclass(frozen=True)
class SourceLine:
    """A source line.

    Attributes:
        path: The file, relative to the base folder if it is inside.
        function: The function around it, or empty where it is not shown.
        is_function: Whether only the function is known, and ``line`` is where it begins.
        before_line: In a comparison, the number of the same line before, if that was another.
    """

    path: str
    line: int | None
    function: str = ""
    is_function: bool = False
    before_line: int | None = None

    def __str__(self) -> str:
        """``train.py:12``, ``train.py:12 in step``, or ``step (train.py:12)`` for a function."""
        return self._with(self.path, self.function)

    def _with(self, path: str, function: str) -> str:
        line = numbered_line(path, self.line)
        if self.is_function:
            return f"{function} ({line})"
        before = "" if self.before_line is None else f", was line {self.before_line}"
        return f"{line}{f' in {function}' if function else ''}{before}"

    @property
    def short(self) -> str:
        """Return the place without the file's folders."""
        return self._with(posixpath.basename(self.path), self.function)

    def fitted(self, width: int) -> str:
        """Fit the place into ``width`` characters: the function gives way first, then folders."""
        for text in (str(self), "" if self.is_function else self._with(self.path, "")):
            if text and len(text) <= width:
                return text
        if self.is_function:
            return middle_cut(self.short, width)
        return tail_cut(numbered_line(self.path, self.line), width)


Cell = str | Name | SourceLine | MemorySeriesRow


@dataclass(frozen=True)
class TableColumn:
    """A column of a table; figures and changes are never cut and are aligned to the right."""

    title: str
    kind: ColumnKind = "figure"

    @property
    def is_figure(self) -> bool:
        """Return whether the column's cells are never cut and are aligned to the right."""
        return self.kind in {"figure", "change"}


@dataclass(frozen=True)
class TableRow:
    """A row: a cell for each column, and below it the frames of a stack, innermost first.

    ``tone`` is whether the row's change is for the better, for formats that have colours; ``word``
    is what a row that is shown as a sentence has before its name, such as ``mostly``.
    """

    cells: tuple[Cell, ...]
    stack: tuple[SourceLine, ...] = ()
    tone: Tone = ""
    word: str = ""


@dataclass(frozen=True)
class TableBlock:
    """A table; the first column has the names of the rows.

    Attributes:
        brief: The rows that a screen of text shows, each as a sentence without column titles, or
            none where it has said all of it; None for a table.
        sentence: What a screen of text shows instead of it, in parts of which the last ones give
            way; empty for a table.
        sentence_if_full: What it shows instead where the whole report does not fit on it.
    """

    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    brief: tuple[TableRow, ...] | None = None
    sentence: tuple[str, ...] = ()
    sentence_if_full: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A part of the step time.

    Attributes:
        color: Its number in :data:`~profkit.present.part_colors.SERIES`, from 1.
        is_hatched: Whether it is drawn hatched.
        start: The sum of the shares before it.
    """

    label: str
    kind: PartKind
    color: int
    is_hatched: bool
    time: str
    share: float
    start: float

    @property
    def is_small(self) -> bool:
        """Return whether the part shares a line with other small parts."""
        return self.share < _SMALL_SHARE


@dataclass(frozen=True)
class TimeParts:
    """The parts of the step time, which exclude each other and add up to it.

    ``n_small`` is how many of the small ones are named, the longest; None for all.
    """

    parts: tuple[Part, ...]
    n_small: int | None = None

    @property
    def large(self) -> tuple[Part, ...]:
        """Return the parts with a line of their own."""
        return tuple(part for part in self.parts if not part.is_small)

    @property
    def small(self) -> str:
        """Return the small parts with their times, or an empty text."""
        small = [part for part in self.parts if part.is_small]
        named = sorted(small, key=lambda part: -part.share)[: self.n_small]
        # The parts keep the order of the report, work before idle time.
        texts = [f"{part.label} {part.time}" for part in small if part in named]
        return ", ".join((*texts, *(["…"] if len(named) < len(small) else ())))


@dataclass(frozen=True)
class FindingBlock:
    """A finding.

    Attributes:
        place: The source line, else the operator or the first holder, else why there is none.
        doubt: `` (medium confidence)`` after the message, or empty.
        labelled: Lists below the message, each under a label such as ``also at``.
        is_free: Whether it costs nothing here: a screen of text has its first line alone.
    """

    number: int
    place: Name | SourceLine | str
    severity: Severity
    name: str
    rule: str
    title: str
    cost: str
    message: str
    doubt: str
    fix: str
    labelled: tuple["Labelled", ...]
    is_free: bool = False


@dataclass(frozen=True)
class Labelled:
    """Places and names under a label; ``n_hidden`` more are shown with ``--verbose``."""

    label: str
    values: tuple[Name | SourceLine | str, ...]
    n_hidden: int = 0

    @property
    def rest(self) -> str:
        """How many are not shown, such as `` and 2 others``, or empty."""
        return f" and {counted(self.n_hidden, 'other')}" if self.n_hidden else ""


@dataclass(frozen=True)
class ListItem:
    """A line of a list; a fault of the recording has a severity and its rule in ``lead``."""

    text: str
    lead: str = ""
    severity: Severity | None = None


@dataclass(frozen=True)
class ListBlock:
    """A list; ``sentence`` and ``sentence_if_full`` are as those of a table."""

    items: tuple[ListItem, ...]
    sentence: tuple[str, ...] = ()
    sentence_if_full: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class CodeBlock:
    """Lines of code, which are never broken.

    Attributes:
        first: The number of the first line, or None for code of no file.
        marked: The number of a line that is marked.
    """

    lines: tuple[str, ...]
    first: int | None = None
    marked: int | None = None

    @property
    def numbered(self) -> tuple[str, ...]:
        """Return the lines with their numbers, and ``>`` before the marked one."""
        if self.first is None:
            return self.lines

        width = len(str(self.first + len(self.lines)))
        return tuple(
            f"{'>' if number == self.marked else ' '} {number:{width}}  {line}".rstrip()
            for number, line in enumerate(self.lines, start=self.first)
        )


@dataclass(frozen=True)
class Remainder:
    """A line that says how many are not shown, and which option shows them."""

    text: str


@dataclass(frozen=True)
class ChartPoint:
    """A point of a line: where it is, from 0 to 1, and what it stands for."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class ChartBlock:
    """A line; a table next to it has its figures, for formats that cannot draw.

    Attributes:
        title: The figure, with its value at the upper end of the axis; the lower end is 0.
        points: From left to right.
    """

    title: str
    points: tuple[ChartPoint, ...]


Block = (
    ChartBlock
    | TimeParts
    | FindingBlock
    | TableBlock
    | ListBlock
    | Paragraph
    | CodeBlock
    | Remainder
)


@dataclass(frozen=True)
class DocumentSection:
    """A section.

    Attributes:
        title: Its heading.
        figures: What follows the heading after a colon, or empty.
        is_detail: Whether it is folded where the format can fold sections.
        is_of_one_rank: Whether it has figures of one rank, in a report on all ranks of a job.
    """

    title: str
    blocks: tuple[Block, ...]
    figures: str = ""
    is_detail: bool = False
    is_of_one_rank: bool = False

    @property
    def heading(self) -> str:
        """Return the title with its figures."""
        return f"{self.title}: {self.figures}" if self.figures else self.title


@dataclass(frozen=True)
class Document:
    """A document for formats to lay out.

    Attributes:
        title: The document's title, for formats that have one.
        program: profkit with its version.
        paths: The recordings.
        origin: Device names, torch's version and the rank.
        headline: One or two sentences.
        caution: The end of the headline that says why figures are less reliable, or nothing. A
            screen shows it on a line of its own.
        path_labels: What each recording is, if they are compared: ``before`` and ``after``.
    """

    title: str
    program: str
    paths: tuple[str, ...]
    origin: tuple[str, ...]
    headline: str
    sections: tuple[DocumentSection, ...]
    path_labels: tuple[str, ...] = ()
    caution: str = ""

    @property
    def path_separator(self) -> str:
        """Return what separates the recordings: an arrow if they are compared."""
        return " → " if self.path_labels else ", "


def one_line(text: str) -> str:
    """Return a text on one line, safe for a terminal."""
    return visible(" ".join(text.split()))


def name_of(text: str) -> Name:
    """Return the name of something that is not a kernel."""
    return Name(one_line(text))


def remainder(n_hidden: int, option: str) -> Iterator[Remainder]:
    """Yield a line on the hidden rows, if any are."""
    if n_hidden > 0:
        yield Remainder(f"… and {format_count(n_hidden)} more ({option} shows all)")


def columns_of(
    name: str, figures: Iterable[str], ends: Iterable[str] = (), kind: ColumnKind = "name"
) -> tuple[TableColumn, ...]:
    """Return the columns of a table: names, figures, and at the end columns of one kind."""
    return (
        TableColumn(name, "name"),
        *(TableColumn(title) for title in figures),
        *(TableColumn(title, kind) for title in ends),
    )


def table_section(
    heading: tuple[str, str],
    columns: tuple[TableColumn, ...],
    rows: Iterable[tuple[Cell, ...]],
    *,
    hidden: Iterable[Remainder] = (),
    is_detail: bool = False,
    sentence: tuple[str, ...] = (),
    sentence_if_full: tuple[str, ...] = (),
) -> Iterator[DocumentSection]:
    """Yield a section with a table, unless it is empty; ``heading`` is its title and figures."""
    title, figures = heading
    table = TableBlock(
        columns,
        tuple(TableRow(cells) for cells in rows),
        sentence=sentence,
        sentence_if_full=sentence_if_full,
    )

    if table.rows:
        yield DocumentSection(title, (table, *hidden), figures, is_detail)


def list_section(
    title: str,
    lines: Iterable[str],
    *,
    is_detail: bool = True,
    sentence: tuple[str, ...] = (),
    sentence_if_full: tuple[str, ...] = (),
) -> Iterator[DocumentSection]:
    """Yield a section with a list, unless it is empty."""
    items = tuple(ListItem(one_line(line)) for line in lines)
    if items:
        block = ListBlock(items, sentence, sentence_if_full)
        yield DocumentSection(title, (block,), is_detail=is_detail)
