"""The report as one screen of text, for a terminal or, without colours, for a file.

From top to bottom: the headline, the parts of the step time, the findings, memory over time and by
allocation site, the operators and kernels with the longest times, faults of the recording, and the
skipped checks.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from profkit.dataclass import dataclass
from profkit.model.finding import Severity
from profkit.model.report import Report
from profkit.names import middle_cut, tail_cut
from profkit.patterns import regex
from profkit.present.document import (
    Block,
    Cell,
    CodeBlock,
    Document,
    DocumentSection,
    FindingBlock,
    Labelled,
    ListBlock,
    ListItem,
    Name,
    Paragraph,
    Part,
    Remainder,
    SourceLine,
    TableBlock,
    TimeParts,
)
from profkit.present.finding_section import ALSO_AT
from profkit.present.renderer import ReadersOptions, RendererInfo
from profkit.present.report_document import build_report_document
from profkit.renderers.text.tables import INDENT, TableLayout, fitted, grid
from profkit.units import format_share

__all__ = ["INFO", "Options", "render", "render_document"]

INFO = RendererInfo(name="text", suffix=".txt", media_type="text/plain")

_HEIGHT: Final = 40
"""Lines of a screen: a longer report is shortened, down to one finding in full."""
_SCREEN_WIDTH: Final = 80
_N_WHOLE_FINDINGS: Final = (3, 2, 1)
_MAX_PROSE_WIDTH: Final = 120
"""Longer lines are hard to read."""
_MAX_WIDTH: Final = 200
"""Tables hold no names that need more; a wider terminal stays empty at the right."""
_MIN_WIDTH: Final = 40
_MIN_WIDTH_FOR_BARS: Final = 60
_MIN_BAR_WIDTH: Final = 6
_MIN_PLACE_WIDTH: Final = 36
_MIN_BRIEF_PLACE_WIDTH: Final = 18
"""A finding on one line names its rule only where that leaves as much for its place."""
_MIN_NAME_WIDTH: Final = 16
_TIME_WIDTH: Final = 8
_SHARE_WIDTH: Final = 5
_RULE_WIDTH: Final = 8
_NO_BREAK: Final = "\ue000"
"""A blank at which no line is broken; a private-use character, so no name contains it."""
_FIGURE: Final = regex(r"(\d) ((?:ns|µs|ms|s|B|KiB|MiB|GiB|TiB)\b)")
_SENTENCE_END: Final = regex(r"(?<=\.) (?=[A-Z0-9`])")
_ASCII: Final = str.maketrans("█▒…·µ→±▁▂▃▄▅▆▇", "#.~-u>~_.,-=+*")
_SEVERITY_STYLE: Final = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_Changed = TypeVar("_Changed", TableBlock, ListBlock, FindingBlock, TimeParts)
_PART_STYLE: Final = {
    "compute": "green", "communication": "magenta", "copy": "cyan", "idle": "red", "host": "green",
}  # fmt: skip


@dataclass(frozen=True)
class Options(ReadersOptions):
    """How the text is laid out; ``verbose`` adds the evidence of findings.

    Attributes:
        width: Columns to fill, from 40 to 200.
        color: Whether to use terminal colours.
        unicode: Whether the terminal can show more than ASCII.
    """

    width: int = 100
    color: bool = False
    unicode: bool = True


def render(report: Report, options: Options) -> bytes:
    """Return the report as text in UTF-8, or in ASCII without ``unicode``."""
    return render_document(build_report_document(report, options), options)


def render_document(document: Document, options: Options) -> bytes:
    """Return a document as text in UTF-8, or in ASCII without ``unicode``."""
    wide = max(_MIN_WIDTH, min(options.width, _MAX_WIDTH))
    width = min(wide, _MAX_PROSE_WIDTH)
    console = Console(
        file=io.StringIO(),
        width=wide,
        force_terminal=options.color,
        color_system="standard" if options.color else None,
        no_color=not options.color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        force_jupyter=False,
    )
    begin = _print_lines(console, _build_beginning(document, width), width)
    laid_out = [_LaidOut.of(console, section, width, wide) for section in document.sections]

    # Nothing is left out that has room: one way to shorten after the other, until it fits.
    for shorten in () if options.verbose else _shorten_stepwise(width):
        if len(begin) + len(_join(laid_out)) <= _HEIGHT:
            break
        laid_out = [
            before if after is before.section else _LaidOut.of(console, after, width, wide)
            for before in laid_out
            for after in (shorten(before.section),)
            if after.blocks
        ]

    is_tight = not options.verbose and len(begin) + len(_join(laid_out)) > _HEIGHT
    lines = [*begin, *_join(laid_out, is_tight=is_tight)]
    text = "".join(f"{line.replace(_NO_BREAK, ' ').rstrip()}\n" for line in lines)
    if options.unicode:
        return text.encode("utf-8", "backslashreplace")
    return text.translate(_ASCII).encode("ascii", "backslashreplace")


@dataclass(frozen=True)
class _LaidOut:
    """A section with its lines; ``is_sentence`` if all of it is on the line of its title."""

    section: DocumentSection
    is_sentence: bool
    lines: list[str]

    @classmethod
    def of(cls, console: Console, section: DocumentSection, width: int, wide: int) -> "_LaidOut":
        """Lay out a section: sentences in ``width`` columns, tables in ``wide`` columns."""
        sentence = _sentence(section, width)
        parts = _render_section(section, width, wide)
        if sentence:
            is_hint = any(
                isinstance(block, ListBlock) and block.sentence for block in section.blocks
            )
            parts = iter((_headed(section.title, f": {sentence}", "dim" if is_hint else "bold"),))
        return cls(section, bool(sentence), _print_lines(console, parts, width, wide))


def _print_lines(
    console: Console, parts: Iterator[RenderableType], width: int, wide: int = 0
) -> list[str]:
    with console.capture() as captured:
        for part in parts:
            console.print(part, width=wide if isinstance(part, Grid) else width)
    return captured.get().split("\n")[:-1]


def _join(sections: list[_LaidOut], *, is_tight: bool = False) -> list[str]:
    """Return the lines of all sections: sentences follow each other without a blank line.

    Args:
        is_tight: Whether they follow any section without one.
    """
    lines: list[str] = []
    follows_sentence = False
    for section in sections:
        has_gap = not (follows_sentence or (is_tight and section.is_sentence))
        lines += [*([""] if has_gap else []), *section.lines]
        follows_sentence = section.is_sentence
    return lines


def _shorten_stepwise(width: int) -> Iterator[Callable[[DocumentSection], DocumentSection]]:
    """Return what shortens a section, in order of the loss; each returns the section or a new one.

    A step applies to the result of those before it.
    """
    yield _with_sentences
    yield partial(_with_first_sentences, severities=("note",))
    yield partial(_on_one_line, width=width)
    yield _without_other_places
    for n_whole in _N_WHOLE_FINDINGS:
        yield partial(_with_first_findings, n_whole=n_whole)
    yield partial(_with_first_sentences, severities=("note", "warning", "error"))
    yield _with_named_notes
    yield _with_brief_messages

    if width < _SCREEN_WIDTH:
        return  # whatever is left out, the report needs more than a screen

    yield partial(_with_short_figures, width=width)
    yield partial(_with_main_small_parts, width=width)
    yield partial(_with_named_notes, width=width)
    yield _without_hints
    yield _without_other_lines
    yield _without_one_rank
    yield _without_calls


def _change_blocks(
    section: DocumentSection, kind: type[_Changed], change: Callable[[_Changed], _Changed]
) -> DocumentSection:
    """Return a section with its blocks of a kind changed; the section itself if all are equal."""
    blocks = tuple(change(block) if isinstance(block, kind) else block for block in section.blocks)
    return section if blocks == section.blocks else replace(section, blocks=blocks)


def _with_sentences(section: DocumentSection) -> DocumentSection:
    match section.blocks:
        case ((TableBlock() | ListBlock()) as block, *_) if block.sentence_if_full:
            return replace(section, blocks=(replace(block, sentence=block.sentence_if_full),))
    return section


def _with_first_sentences(
    section: DocumentSection, severities: tuple[Severity, ...]
) -> DocumentSection:
    """Cut faults of the recording to their first sentence."""

    def shorten(block: ListBlock) -> ListBlock:
        items = (
            replace(item, text=_first_sentence(item.text)) if item.severity in severities else item
            for item in block.items
        )
        return replace(block, items=tuple(items))

    return _change_blocks(section, ListBlock, shorten)


def _first_sentence(text: str) -> str:
    return _SENTENCE_END.split(text, 1)[0]


def _on_one_line(section: DocumentSection, width: int) -> DocumentSection:
    """Cut sentences to the parts that fit on the line of their title."""

    def shorten(block: TableBlock) -> TableBlock:
        fits = len(block.sentence)
        while fits > 1 and cell_len(f"{section.title}: {_together(block.sentence[:fits])}") > width:
            fits -= 1
        return replace(block, sentence=block.sentence[:fits])

    return _change_blocks(section, TableBlock, shorten)


def _without_other_places(section: DocumentSection) -> DocumentSection:
    def shorten(block: FindingBlock) -> FindingBlock:
        labelled = tuple(entry for entry in block.labelled if entry.label != ALSO_AT)
        return replace(block, labelled=labelled)

    return _change_blocks(section, FindingBlock, shorten)


def _with_first_findings(section: DocumentSection, n_whole: int) -> DocumentSection:
    """Cut the findings after the first ``n_whole`` to their place, rule and cost."""

    def shorten(block: FindingBlock) -> FindingBlock:
        if block.number <= n_whole:
            return block
        return replace(block, message="", fix="", labelled=())

    return _change_blocks(section, FindingBlock, shorten)


def _with_brief_messages(section: DocumentSection) -> DocumentSection:
    """Cut the messages of findings to their first sentence; fixes stay whole."""
    return _change_blocks(
        section, FindingBlock, lambda block: replace(block, message=_first_sentence(block.message))
    )


def _with_named_notes(section: DocumentSection, width: int | None = None) -> DocumentSection:
    """Cut the notes on the recording to their rules.

    Args:
        width: With it, also a single note that does not fit on a line.
    """

    def shorten(block: ListBlock) -> ListBlock:
        notes = [item for item in block.items if item.severity == "note"]
        if len(notes) < 2 and not (width and notes and not _fits(notes[0], width)):  # noqa: PLR2004
            return block

        rules = ", ".join(item.lead.removeprefix("note ") for item in notes)
        faults = tuple(item for item in block.items if item not in notes)
        lead, them = ("notes", "them") if len(notes) > 1 else ("note", "it")
        joined = ListItem(f"--verbose explains {them}", f"{lead} {rules}", "note")
        return replace(block, items=(*faults, joined))

    return _change_blocks(section, ListBlock, shorten)


def _fits(item: ListItem, width: int) -> bool:
    return cell_len(f"{item.lead}: {item.text}") <= width - INDENT // 2


def _with_short_figures(section: DocumentSection, width: int) -> DocumentSection:
    """Cut figures after a heading to its line; the headline has the range of steps."""
    if not any(isinstance(block, TimeParts | TableBlock) for block in section.blocks):
        return section

    figures = section.figures
    while figures and cell_len(f"{section.title}: {figures}") > width:
        figures = figures.rpartition(" (" if figures.endswith(")") else ", ")[0]
    return replace(section, figures=figures) if figures else section


def _with_main_small_parts(section: DocumentSection, width: int) -> DocumentSection:
    """Cut the small parts of the step time to those that fit on one line."""

    def shorten(block: TimeParts) -> TimeParts:
        n = sum(part.is_small for part in block.parts)
        while n > 1 and cell_len(block.small) > width - INDENT // 2 - len("also: "):
            n -= 1
            block = replace(block, n_small=n)
        return block

    return _change_blocks(section, TimeParts, shorten)


def _without_hints(section: DocumentSection) -> DocumentSection:
    """Leave out sections that only say how many figures there are with ``--verbose``."""
    match section.blocks:
        case (ListBlock(sentence=sentence, sentence_if_full=hint),) if hint and sentence == hint:
            return replace(section, blocks=())
    return section


def _without_other_lines(section: DocumentSection) -> DocumentSection:
    """Leave out the lines on the critical path after the first."""
    return _change_blocks(
        section, TableBlock, lambda block: replace(block, n_brief=block.n_brief and 1)
    )


def _without_calls(section: DocumentSection) -> DocumentSection:
    """Leave out operators and kernels; their categories and modules stay."""
    match section.blocks:
        case (TableBlock(sentence_if_full=sentence),) if sentence and section.is_detail:
            return replace(section, blocks=())
    return section


def _without_one_rank(section: DocumentSection) -> DocumentSection:
    """Leave out the times of a single rank in a report on a job."""
    return replace(section, blocks=()) if section.is_of_one_rank else section


def _build_beginning(document: Document, width: int) -> Iterator[RenderableType]:
    yield Text(_format_header(document, width), style="dim", overflow="fold")
    yield ""
    yield Text(_prose(document.headline), style="bold")


def _together(sentence: tuple[str, ...]) -> str:
    return ", ".join(sentence)


def _sentence(section: DocumentSection, width: int) -> str:
    """Return what a section shows on the line of its title: of a list, one item if it fits."""
    match section.blocks:
        case ((TableBlock(sentence=sentence) | ListBlock(sentence=sentence)), *_) if sentence:
            return _together(sentence)
        case (ListBlock(items=(ListItem(text=text, lead=""),)),):
            return text if cell_len(f"{section.title}: {text}") <= width else ""
    return ""


def _format_header(document: Document, width: int) -> str:
    """Return the program, the recordings and their origin: on one line if they fit."""
    program, origin, paths = document.program, document.origin, document.paths
    joined_paths = [document.path_separator.join(paths)] if paths else []
    line = " · ".join((program, *joined_paths, *origin))
    if cell_len(line) <= width:
        return line

    if len(paths) > 1:
        labels = [f"{label}: ".ljust(8) for label in document.path_labels]
        labelled = zip(labels or [""] * len(paths), paths, strict=True)
        files = [f"  {label}{tail_cut(path, width - 10)}" for label, path in labelled]
        return "\n".join(filter(None, (program, *files, " · ".join(origin))))

    room = width - cell_len(program) - cell_len(" · ")
    first = " · ".join((program, *(tail_cut(path, room) for path in paths)))
    return "\n".join(filter(None, (first, " · ".join(origin))))


def _render_section(section: DocumentSection, width: int, wide: int) -> Iterator[RenderableType]:
    # The heading of a section that is one table takes the place of the title of its names.
    is_table = bool(section.blocks) and isinstance(section.blocks[0], TableBlock)
    title = "" if section.figures or not is_table else section.title
    if not title:
        figures = f": {section.figures}" if section.figures else ""
        yield _headed(section.title, figures)

    for block in section.blocks:
        match block:
            case TableBlock(n_brief=None):
                yield TableLayout(block, wide, title).build()
            case _:
                yield from _render_block(block, width)


def _render_block(block: Block, width: int) -> Iterator[RenderableType]:
    """Return what shows any block but a table in the terminal's whole width."""
    match block:
        case TimeParts():
            yield from _render_time_parts(block, width)
        case FindingBlock():
            yield from _render_finding(block, width)
        case TableBlock(n_brief=n_brief):
            yield from _render_brief(block, n_brief or 0, width)
        case ListBlock():
            for item in block.items:
                lead = f"{item.lead}: " if item.lead else "- "
                style = _SEVERITY_STYLE[item.severity] if item.severity else ""
                yield _hanging(lead, item.text, style, INDENT // 2)
        case Paragraph():
            yield Padding(Text(_prose(block.text)), (0, 0, 0, INDENT // 2))
        case CodeBlock():
            # Code is cut, not broken: a broken line would read as two.
            for line in block.numbered:
                yield Text(f"{' ' * INDENT}{line}", no_wrap=True, overflow="crop")
        case Remainder():
            yield Text(f"{' ' * INDENT}{_prose(block.text)}", style="dim")


def _headed(title: str, text: str, style: str = "bold") -> Text:
    return Text(_prose(title), style=style).append(_prose(text), style="not bold")


def _render_time_parts(block: TimeParts, width: int) -> Iterator[RenderableType]:
    """Return the parts of the step time, each with a bar that begins where the last one ends."""
    label_width = max((cell_len(part.label) for part in block.large), default=0)
    room = width - label_width - _TIME_WIDTH - _SHARE_WIDTH - INDENT - 2
    has_bars = width >= _MIN_WIDTH_FOR_BARS and room >= _MIN_BAR_WIDTH

    table = grid()
    table.add_column(no_wrap=has_bars, overflow="fold")
    table.add_column(justify="right", width=_TIME_WIDTH)
    table.add_column(justify="right", width=_SHARE_WIDTH)
    table.add_column(no_wrap=True, overflow="crop")
    for part in block.large:
        bar = Text(_bar(part, room) if has_bars else "", style=_PART_STYLE[part.kind])
        table.add_row(part.label, part.time, format_share(part.share), bar)

    if block.large:
        yield Padding(table, (0, 0, 0, INDENT // 2))
    if block.small:
        yield _hanging("also: ", block.small, "dim", INDENT // 2)


def _bar(part: Part, room: int) -> str:
    """Return a bar at its place in the step time, at least one column wide."""
    start = min(round(part.start * room), room - 1)
    end = max(start + 1, min(round((part.start + part.share) * room), room))
    return " " * start + ("▒" if part.kind == "idle" else "█") * (end - start)


def _render_brief(block: TableBlock, n_rows: int, width: int) -> Iterator[RenderableType]:
    """Return the first rows of a table without titles: kind, time and share, then the place."""
    rows = block.rows[:n_rows]
    label_width = max(cell_len(str(row.cells[0])) for row in rows)
    room = width - label_width - _TIME_WIDTH - _SHARE_WIDTH - INDENT - 2
    fits_on_line = room >= _MIN_PLACE_WIDTH

    for row in rows:
        label, time, share, place, name, name_share = row.cells
        head = f"{label!s:{label_width}} {time:>{_TIME_WIDTH}} {share:>{_SHARE_WIDTH}} "
        lead = {"mostly": "mostly ", "longest": "longest: "}.get(row.word, "")
        end = f" ({name_share})" if name_share else ""
        where = _fit_place(place, name, (lead, end), room if fits_on_line else width - INDENT)
        if fits_on_line:
            yield Text(" " * (INDENT // 2) + head + where)
        else:
            yield Padding(Text(head.replace("  ", " "), overflow="fold"), (0, 0, 0, INDENT // 2))
            yield Padding(Text(where, overflow="fold"), (0, 0, 0, INDENT))


def _fit_place(place: Cell, name: Cell, around: tuple[str, str], room: int) -> str:
    """Return ``train.py:46, mostly aten::mm (21%)`` in at most ``room`` columns.

    Args:
        around: What is before and after the name.
    """
    lead, end = around
    if not name:
        return fitted(place, room) if place else ""

    # The name gives way to the place, but keeps enough to be recognized.
    short = _short(place) if place else ""
    left = room - cell_len(lead) - cell_len(end) - 2
    fitted_name = fitted(name, max(left - cell_len(short), min(left, _MIN_NAME_WIDTH)))
    left -= cell_len(fitted_name)
    if place and left < min(cell_len(short), _MIN_NAME_WIDTH):
        return fitted(place, room)
    where = f"{fitted(place, left)}, " if place else ""
    return f"{where}{lead}{fitted_name}{end}"


def _render_finding(finding: FindingBlock, width: int) -> Iterator[RenderableType]:
    """Return a finding: its place and cost, what happens, the fix, and further facts."""
    heading, cost = _format_finding_heading(finding, width), Text(finding.cost, "bold")
    gap = width - heading.cell_len - cost.cell_len
    fits_on_line = gap >= 2  # noqa: PLR2004  (two blanks separate them)
    if finding.cost and fits_on_line:
        heading.append(" " * gap).append_text(cost)
    yield heading
    if finding.cost and not fits_on_line:
        yield Padding(cost, (0, 0, 0, INDENT))

    if finding.message:
        text = Text(_prose(finding.message + finding.doubt), overflow="fold")
        yield Padding(text, (0, 0, 0, INDENT))
    if finding.fix:
        yield _hanging("Fix: ", finding.fix, "green")
    for entry in finding.labelled:
        yield _hanging(f"{entry.label}: ", _list_values(entry, width), "dim")


def _format_finding_heading(finding: FindingBlock, width: int) -> Text:
    """Return a finding's number, place, severity and rule."""
    heading = Text(f"{finding.number:>2}  ")
    room = width - heading.cell_len - cell_len(f"  {finding.severity}")
    short_width = cell_len(_short(finding.place))
    rule = f" {finding.name} {finding.rule}"
    if not finding.message:
        rule = _fit_rule(finding, room)
    elif short_width + cell_len(rule) > room:
        rule = f" {middle_cut(finding.rule, _RULE_WIDTH)}"

    # The cost stays on the line: folders of the place give way before it does.
    room_with_cost = min(width // 2, room - cell_len(rule) - cell_len(finding.cost) - 2)
    place_width = max(room_with_cost, min(short_width + 2, room - cell_len(rule)))
    if not finding.message and room_with_cost >= min(short_width, _MIN_BRIEF_PLACE_WIDTH):
        place_width = room_with_cost

    heading.append(fitted(finding.place, place_width), style="bold").append("  ")
    return heading.append(finding.severity, style=_SEVERITY_STYLE[finding.severity]).append(rule)


def _fit_rule(finding: FindingBlock, room: int) -> str:
    """Return the name, the id or both of a rule, as they fit on one line with place and cost."""
    least = min(cell_len(_short(finding.place)), _MIN_BRIEF_PLACE_WIDTH)
    rules = (f" {finding.name} {finding.rule}", f" {finding.name}", f" {finding.rule}")
    taken = least + cell_len(finding.cost) + 2
    fitting = (rule for rule in rules if cell_len(rule) + taken <= room)
    return next(fitting, f" {middle_cut(finding.rule, _RULE_WIDTH)}")


def _short(value: Cell) -> str:
    return value.short if isinstance(value, SourceLine) else _text(value)


def _text(value: Cell) -> str:
    return value.text if isinstance(value, Name) else str(value)


def _list_values(labelled: Labelled, width: int) -> str:
    room = width - INDENT - cell_len(labelled.label) - len(": ,")
    values = (
        value.fitted(room) if isinstance(value, SourceLine) else _text(value)
        for value in labelled.values
    )
    return ", ".join(values) + labelled.rest


def _hanging(lead: str, text: str, style: str, indent: int = INDENT) -> RenderableType:
    """Return a paragraph after a lead word, with its further lines below its first."""
    table = Grid.grid(padding=0)
    table.add_column(width=cell_len(lead), no_wrap=True, overflow="fold")
    table.add_column(overflow="fold")
    table.add_row(Text(lead, style=style), Text(_prose(text)))
    return Padding(table, (0, 0, 0, indent))


def _prose(text: str) -> str:
    """Return a sentence in which no line end separates a figure from its unit."""
    return _FIGURE.sub(rf"\1{_NO_BREAK}\2", text)
