"""The document that the terminal, Markdown and notebook formats lay out.

:func:`report_document` and :func:`difference_document` decide what is shown, in which order, under
which labels, with which figures, and what ``--top`` cuts. A format decides how a block looks and
may shorten names to the width that it has; it adds and hides nothing else.

All text in a document is on one line, and safe for a terminal: see :func:`~profkit.names.visible`.
Markup is up to the formats; code in sentences is between backticks.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from profkit.comparison.messages import (
    TITLES,
    amount,
    label,
    share_of,
    signed,
    subject_of,
)
from profkit.comparison.messages import (
    headline as difference_headline,
)
from profkit.engine.wording import counted
from profkit.model.critical_path import PathLine
from profkit.model.difference import Change, Difference
from profkit.model.finding import Finding, Severity
from profkit.model.location import MODULE_LEVEL, NO_SOURCE_LINE, Location, numbered_line
from profkit.model.report import Breakdown, Report
from profkit.names import middle_cut, short_kernel, short_path, tail_cut, visible
from profkit.present.critical_path import (
    WITH_KERNEL_NAMES,
    large_lines,
    main_kinds,
    main_name,
    main_share,
    path_label,
    path_title,
    unexplained_text,
)
from profkit.present.headline import (
    breakdown_title,
    busiest_ops,
    cost_text,
    device_noun,
    facts,
    headline,
    host_step_time,
    incomplete_steps,
    origin,
    part_label,
    remarks,
    step_range,
    unchecked_by_reason,
)
from profkit.present.memory_text import (
    MemorySeriesRow,
    allocation_tables,
    device_series_rows,
    place_of,
    series_rows,
    shows_series,
    use_label,
)
from profkit.present.renderer import ReadersOptions
from profkit.units import format_bytes, format_count, format_ns, format_share

PartKind = Literal["compute", "communication", "copy", "idle", "host"]
ColumnKind = Literal["name", "text", "figure", "trend"]

_SMALL_SHARE: Final = 0.01
"""Parts of the step time below this share one line."""
_N_BRIEF_LINES: Final = 2
_MAX_HOLDERS: Final = 3
_MAX_OTHER_PLACES: Final = 3
_MAX_FIGURES: Final = 9
_IDLE: Final = ("idle-", "data", "python")
_WORK: Final[dict[str, PartKind]] = {
    "compute": "compute", "communication": "communication", "copy": "copy",
}  # fmt: skip


@dataclass(frozen=True)
class Name:
    """A name from the program or recording: an operator, a kernel, a reference chain."""

    text: str
    is_kernel: bool = False

    def fitted(self, width: int) -> str:
        """The name in at most ``width`` characters; kernels lose their template arguments."""
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
        """The same without the file's folders."""
        return self._with(posixpath.basename(self.path), self.function)

    def fitted(self, width: int) -> str:
        """The place in ``width`` characters: the function gives way first, then folders."""
        for text in (str(self), "" if self.is_function else self._with(self.path, "")):
            if text and len(text) <= width:
                return text
        if self.is_function:
            return middle_cut(self.short, width)
        return tail_cut(f"{self.path}:{self.line}", width)


Cell = str | Name | SourceLine | MemorySeriesRow


@dataclass(frozen=True)
class TableColumn:
    """A column of a table; figures are never cut and are aligned to the right."""

    title: str
    kind: ColumnKind = "figure"


@dataclass(frozen=True)
class TableRow:
    """A row: a cell for each column, and below it the frames of a stack, innermost first."""

    cells: tuple[Cell, ...]
    stack: tuple[SourceLine, ...] = ()


@dataclass(frozen=True)
class TableBlock:
    """A table; the first column has the names of the rows.

    Attributes:
        n_brief: How many rows a screen of text shows, each as a sentence without column titles;
            None for a table.
    """

    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    n_brief: int | None = None


@dataclass(frozen=True)
class Part:
    """A part of the step time; ``start`` is the sum of the shares before it."""

    label: str
    kind: PartKind
    time: str
    share: float
    start: float

    @property
    def is_small(self) -> bool:
        """Whether it is named in a line with other small parts instead of having its own."""
        return self.share < _SMALL_SHARE


@dataclass(frozen=True)
class TimeParts:
    """The parts of the step time, which exclude each other and add up to it."""

    parts: tuple[Part, ...]

    @property
    def large(self) -> tuple[Part, ...]:
        """The parts with a line of their own."""
        return tuple(part for part in self.parts if not part.is_small)

    @property
    def small(self) -> str:
        """The other parts with their times, or empty."""
        return ", ".join(f"{part.label} {part.time}" for part in self.parts if part.is_small)


@dataclass(frozen=True)
class FindingBlock:
    """A finding.

    Attributes:
        place: The source line, else the operator or the first holder, else why there is none.
        labelled: Lists below the message, each under a label such as ``also at``.
    """

    number: int
    place: Name | SourceLine | str
    severity: Severity
    name: str
    rule: str
    title: str
    cost: str
    message: str
    fix: str
    labelled: tuple["Labelled", ...]


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
    """A list."""

    items: tuple[ListItem, ...]


@dataclass(frozen=True)
class Remainder:
    """A line that says how many are not shown, and which option shows them."""

    text: str


Block = TimeParts | FindingBlock | TableBlock | ListBlock | Remainder


@dataclass(frozen=True)
class DocumentSection:
    """A section.

    Attributes:
        title: Its heading.
        figures: What follows the heading after a colon, or empty.
        is_detail: Whether it is folded where the format can fold sections.
    """

    title: str
    blocks: tuple[Block, ...]
    figures: str = ""
    is_detail: bool = False

    @property
    def heading(self) -> str:
        """The title with its figures."""
        return f"{self.title}: {self.figures}" if self.figures else self.title


@dataclass(frozen=True)
class Document:
    """What the formats lay out.

    Attributes:
        title: The document's title, for formats that have one.
        program: profkit with its version.
        paths: The recordings: one of a report, and of a comparison ``before`` and ``after``.
        origin: Device names, torch's version and the rank.
        headline: One or two sentences.
    """

    title: str
    program: str
    paths: tuple[str, ...]
    origin: tuple[str, ...]
    headline: str
    sections: tuple[DocumentSection, ...]


def report_document(report: Report, options: ReadersOptions) -> Document:
    """A report as a document."""
    sections = (
        *_time(report),
        *_critical_path(report, options),
        *_findings(report, options),
        *_memory(report),
        *_allocation_sites(report, options),
        *_kernels(report, options),
        *_operators(report, options),
        *_list_section("Details", facts(report, everything=options.verbose)),
        *_skipped(report, options),
        *_recording(report, options),
    )
    path = _one_line(short_path(report.source.path, options.base))
    return Document(
        title="profkit report",
        program=f"profkit {_one_line(report.profkit)}",
        paths=(path,) if path else (),
        origin=tuple(map(_one_line, origin(report))),
        headline=_one_line(headline(report)),
        sections=sections,
    )


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))


def _name(text: str) -> Name:
    return Name(_one_line(text))


def _place(where: Location | None, base: str) -> SourceLine | None:
    """A location's source line, or None where it has none."""
    if where is None or where.file is None:
        return None
    path = _one_line(short_path(where.file, base))
    if where.precision == "function" and where.function not in (None, MODULE_LEVEL):
        return SourceLine(path, where.line, _one_line(where.function), is_function=True)
    return SourceLine(path, where.line)


def _time(report: Report) -> Iterator[DocumentSection]:
    breakdown = report.summary.breakdown
    if breakdown is None or not breakdown.total_ns:
        return
    parts = []
    start = 0.0
    for part in breakdown.parts:
        if part.ns:
            kind, time = _part_kind(part.kind), format_ns(part.mean_ns)
            parts.append(Part(part_label(part.kind), kind, time, part.share, start))
        start += part.share
    yield DocumentSection(
        breakdown_title(report), (TimeParts(tuple(parts)),), _time_figures(report, breakdown)
    )


def _part_kind(kind: str) -> PartKind:
    if kind.startswith(_IDLE):
        return "idle"
    return _WORK.get(kind, "host")


def _time_figures(report: Report, breakdown: Breakdown) -> str:
    """``174 ms (mean of 6, 171 ms to 176 ms)``, with what is excluded."""
    mean, n_steps = format_ns(breakdown.mean_ns), len(report.summary.steps)
    if on_host := host_step_time(report):
        mean = f"{mean} on the {device_noun(report)}, {on_host}"
    spread, incomplete = step_range(report), incomplete_steps(report)
    about = []
    if breakdown.per_step_ns is not None and n_steps > 1:
        about.append(f"mean of {format_count(n_steps)}")
    about += [each for each in (spread if about else "", incomplete) if each]
    return f"{mean} ({', '.join(about)})" if about else mean


def _critical_path(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    path = report.summary.critical_path
    if path is None:
        return
    rows = tuple(
        TableRow(
            (
                path_label(line.kind),
                format_ns(line.mean_ns),
                format_share(line.share),
                _place(line.location, options.base) or "",
                name,
                main_share(line) if name else "",
            )
        )
        for line in large_lines(path)[: options.limit]
        for name in (_main_name(line),)
    )
    columns = (
        *_columns("critical path", ("time", "share"), ("source line", "mostly")),
        TableColumn("of the path", "text"),
    )
    n_brief = len(rows) if options.verbose else _N_BRIEF_LINES
    blocks: list[Block] = [TableBlock(columns, rows, n_brief)] if rows else []
    if unexplained := unexplained_text(path):
        blocks.append(ListBlock((ListItem(unexplained),)))
    kinds = main_kinds(path, everything=options.verbose)
    yield DocumentSection(path_title(path), tuple(blocks), kinds)


def _main_name(line: PathLine) -> Name | str:
    if line.kind in WITH_KERNEL_NAMES:
        return Name(_one_line(line.main_name), is_kernel=True)
    name = main_name(line)
    return _name(name) if name else ""


def _findings(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    every = report.findings
    if not every:
        return
    blocks: list[Block] = [
        _finding(report, number, finding, options)
        for number, finding in enumerate(every[: options.limit], start=1)
    ]
    blocks += _remainder(len(every) - len(blocks), f"--top {len(every)}")
    found = f"{format_count(len(every))} found"
    order = ", highest cost first" if len(every) > 1 else ""
    yield DocumentSection("Findings", tuple(blocks), found + order)


def _remainder(n_hidden: int, option: str) -> Iterator[Remainder]:
    if n_hidden > 0:
        yield Remainder(f"… and {format_count(n_hidden)} more ({option} shows all)")


def _finding(
    report: Report, number: int, finding: Finding, options: ReadersOptions
) -> FindingBlock:
    holders = [_name("".join(chain)) for chain in finding.holders]
    places = [
        _place(each, options.base) or (_name(each.op) if each.op else None)
        for each in finding.locations
    ]
    first = places[0] if places else None
    doubt = "" if finding.confidence == "high" else f" ({finding.confidence} confidence)"
    evidence = [
        _one_line(f"{key} {value}") for key, value in finding.evidence.items() if options.verbose
    ]
    lists = (
        _labelled("held by", holders, _MAX_HOLDERS, options),
        _labelled("also at", [each for each in places[1:] if each], _MAX_OTHER_PLACES, options),
        _labelled("evidence", evidence, len(evidence), options),
    )
    return FindingBlock(
        number,
        first or next(iter(holders), NO_SOURCE_LINE),
        finding.severity,
        _one_line(finding.name),
        _one_line(finding.rule),
        _one_line(finding.title),
        cost_text(report, finding),
        _one_line(finding.message) + doubt,
        _one_line(finding.fix),
        tuple(each for each in lists if each.values),
    )


def _labelled(
    label: str, values: Sequence[Name | SourceLine | str], limit: int, options: ReadersOptions
) -> Labelled:
    shown = tuple(values if options.verbose else values[:limit])
    return Labelled(label, shown, len(values) - len(shown))


def _columns(
    name: str, figures: Iterable[str], ends: Iterable[str] = (), kind: ColumnKind = "name"
) -> tuple[TableColumn, ...]:
    """The columns of a table: names, figures, and at the end columns of one kind."""
    return (
        TableColumn(name, "name"),
        *(TableColumn(title) for title in figures),
        *(TableColumn(title, kind) for title in ends),
    )


def _table_section(
    heading: tuple[str, str],
    columns: tuple[TableColumn, ...],
    rows: Iterable[tuple[Cell, ...]],
    *,
    hidden: Iterable[Remainder] = (),
    is_detail: bool = False,
) -> Iterator[DocumentSection]:
    """A section with a table, unless it is empty; ``heading`` is its title and figures."""
    title, figures = heading
    table = TableBlock(columns, tuple(TableRow(cells) for cells in rows))
    if table.rows:
        yield DocumentSection(title, (table, *hidden), figures, is_detail)


def _memory(report: Report) -> Iterator[DocumentSection]:
    columns = _columns("memory", ("first", "last", "peak"), ("trend",), "trend")
    of_steps = series_rows(report) if shows_series(report) else []
    every = (("Memory over steps", of_steps), ("Memory over time", device_series_rows(report)))
    for title, found in every:
        rows = (
            (
                _one_line(each.name),
                format_bytes(each.first_bytes),
                format_bytes(each.last_bytes),
                format_bytes(each.highest_bytes),
                each,
            )
            for each in found
        )
        yield from _table_section((title, ""), columns, rows)


def _allocation_sites(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    columns = _columns("allocated at", ("blocks", "bytes", "share"), ("used for",), "text")
    for each in allocation_tables(report, everything=options.verbose):
        rows = (
            (
                _place(site.location, options.base) or _one_line(place_of(site)),
                format_count(site.n),
                format_bytes(site.bytes),
                format_share(each.share(site)),
                use_label(site.category),
            )
            for site in each.sites[: options.limit]
        )
        heading = (_one_line(each.title), format_bytes(each.total_bytes))
        yield from _table_section(heading, columns, rows)


def _kernels(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    columns = _columns("kernel", ("calls", "total", "share"), ("source line", "operator"))
    rows = (
        (
            Name(_one_line(kernel.name), is_kernel=True),
            format_count(kernel.n_calls),
            format_ns(kernel.total_ns),
            format_share(kernel.share),
            _place(kernel.location, options.base) or "",
            _name(kernel.op) if kernel.op else "",
        )
        for kernel in report.summary.top_kernels[: options.limit]
    )
    yield from _table_section(("Kernels", ""), columns, rows, is_detail=True)


def _operators(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    on_device, every = busiest_ops(report)
    times = (f"on {device_noun(report)}", "self CPU") if on_device else ("total", "self")
    columns = _columns("operator", ("calls", *times), ("source line",))
    rows = (
        (
            _name(op.name),
            format_count(op.n_calls),
            format_ns(op.device_ns if on_device else op.total_ns),
            format_ns(op.self_ns),
            _place(op.location, options.base) or "",
        )
        for op in every[: options.limit]
    )
    yield from _table_section(("Operators", ""), columns, rows, is_detail=True)


def _list_section(
    title: str, lines: Iterable[str], *, is_detail: bool = True
) -> Iterator[DocumentSection]:
    items = tuple(ListItem(_one_line(line)) for line in lines)
    if items:
        yield DocumentSection(title, (ListBlock(items),), is_detail=is_detail)


def _skipped(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    n_checks = len({each.rule for each in report.unchecked})
    reasons = unchecked_by_reason(report, everything=options.verbose)
    lines = (f"{reason} ({rules})" for reason, rules in reasons)
    yield from _list_section(f"{counted(n_checks, 'check')} skipped", lines)


def _recording(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    items = [
        ListItem(
            _one_line(f"{fault.message} {fault.fix}"),
            f"{fault.severity} {_one_line(fault.rule)}",
            fault.severity,
        )
        for fault in report.health
    ]
    sentences = remarks(report, everything=options.verbose)
    items += [ListItem(_one_line(sentence)) for sentence in sentences]
    if items:
        is_sound = all(fault.severity == "note" for fault in report.health)
        yield DocumentSection("Recording", (ListBlock(tuple(items)),), is_detail=is_sound)


def difference_document(difference: Difference, options: ReadersOptions) -> Document:
    """A comparison of two recordings as a document."""
    sides = (difference.before, difference.after)
    not_compared = (f"{each.rule} ({each.side}): {each.reason}" for each in difference.not_compared)
    return Document(
        title="profkit diff",
        program=f"profkit {_one_line(difference.profkit)}",
        paths=tuple(_one_line(short_path(side.path, options.base)) or "a report" for side in sides),
        origin=(),
        headline=_one_line(difference_headline(difference)),
        sections=(
            *_compared_figures(difference, options),
            *_changes(difference, options),
            *_list_section("Not compared: checks skipped on one side", not_compared),
            *_list_section("Notes", difference.notes, is_detail=False),
        ),
    )


def _compared_figures(difference: Difference, options: ReadersOptions) -> Iterator[DocumentSection]:
    every = difference.figures
    shown = every if options.verbose else every[:_MAX_FIGURES]
    rows = (
        (
            label(each),
            amount(each.before, each.unit) or "?",
            amount(each.after, each.unit) or "?",
            signed(each),
            share_of(each),
        )
        for each in shown
    )
    columns = _columns("figure", ("before", "after", "change", "%"))
    hidden = _remainder(len(every) - len(shown), "--verbose")
    yield from _table_section(("Figures", ""), columns, rows, hidden=hidden)


def _changes(difference: Difference, options: ReadersOptions) -> Iterator[DocumentSection]:
    columns = (
        TableColumn("what", "name"),
        TableColumn("status", "text"),
        TableColumn("change"),
        TableColumn("source line", "name"),
    )
    for kind, title in TITLES:
        every = difference.of_kind(kind)
        shown = every[: options.limit]
        rows = tuple(
            TableRow(
                (_subject(each), each.status, signed(each), _changed_place(each, options.base)),
                _stack(each, options.base) if options.verbose else (),
            )
            for each in shown
        )
        if rows:
            hidden = _remainder(len(every) - len(shown), f"--top {len(every)}")
            figures = f"{format_count(len(every))} changed"
            yield DocumentSection(title, (TableBlock(columns, rows), *hidden), figures)


def _subject(change: Change) -> Cell:
    if change.kind == "memory":
        return subject_of(change)
    return Name(_one_line(change.name), is_kernel=change.kind == "kernel")


def _changed_place(change: Change, base: str) -> Cell:
    where = change.location
    if where is None or where.file is None or where.line is None:
        no_place = NO_SOURCE_LINE if change.kind == "memory" else ""
        return _name(where.op) if where and where.op else no_place
    path, function = _one_line(short_path(where.file, base)), _one_line(where.function or "")
    return SourceLine(path, where.line, function, before_line=change.before_line)


def _stack(change: Change, base: str) -> tuple[SourceLine, ...]:
    return tuple(
        SourceLine(_one_line(short_path(frame.file, base)), frame.line, _one_line(frame.function))
        for frame in change.stack
    )
