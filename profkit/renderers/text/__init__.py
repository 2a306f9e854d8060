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
from profkit.present.renderer import ReadersOptions, RendererInfo
from profkit.present.report_document import ALSO_AT, build_report_document
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
    """The report as text in UTF-8, or in ASCII without ``unicode``."""
    return render_document(build_report_document(report, options), options)


def render_document(document: Document, options: Options) -> bytes:
    """A document as text in UTF-8, or in ASCII without ``unicode``."""
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
    begin = _lines(console, _beginning(document, width), width)
    laid_out = [_LaidOut.of(console, section, width, wide) for section in document.sections]
    for shorter in () if options.verbose else _ever_shorter(width):
        if len(begin) + len(_joined(laid_out)) <= _HEIGHT:
            break
        laid_out = [
            before if after is before.section else _LaidOut.of(console, after, width, wide)
            for before in laid_out
            for after in (shorter(before.section),)
            if after.blocks
        ]
    is_tight = not options.verbose and len(begin) + len(_joined(laid_out)) > _HEIGHT
    lines = [*begin, *_joined(laid_out, is_tight=is_tight)]
    text = "".join(f"{line.replace(_NO_BREAK, ' ').rstrip()}\n" for line in lines)
    if options.unicode:
        return text.encode("utf-8", "backslashreplace")
    return text.translate(_ASCII).encode("ascii", "backslashreplace")


@dataclass(frozen=True)
class _LaidOut:
    """A section with its lines; ``is_sentence`` is one that is on the line of its title."""

    section: DocumentSection
    is_sentence: bool
    lines: list[str]

    @classmethod
    def of(cls, console: Console, section: DocumentSection, width: int, wide: int) -> "_LaidOut":
        """Sentences in ``width`` columns, tables in ``wide`` columns."""
        sentence = _sentence(section, width)
        shown = _section(section, width, wide)
        if sentence:
            is_hint = any(isinstance(each, ListBlock) and each.sentence for each in section.blocks)
            shown = iter((_headed(section.title, f": {sentence}", "dim" if is_hint else "bold"),))
        return cls(section, bool(sentence), _lines(console, shown, width, wide))


def _lines(
    console: Console, parts: Iterator[RenderableType], width: int, wide: int = 0
) -> list[str]:
    with console.capture() as captured:
        for part in parts:
            console.print(part, width=wide if isinstance(part, Grid) else width)
    return captured.get().split("\n")[:-1]


def _joined(sections: list[_LaidOut], *, is_tight: bool = False) -> list[str]:
    """The lines of all sections: sentences follow each other without a blank line.

    Args:
        is_tight: Whether they follow any section without one.
    """
    lines: list[str] = []
    follows_sentence = False
    for each in sections:
        has_gap = not (follows_sentence or (is_tight and each.is_sentence))
        lines += [*([""] if has_gap else []), *each.lines]
        follows_sentence = each.is_sentence
    return lines


def _ever_shorter(width: int) -> Iterator[Callable[[DocumentSection], DocumentSection]]:
    """What makes a section shorter, one after the other; each returns the section or a new one."""
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
        return  # that is never a screen, whatever is left out
    yield partial(_with_short_figures, width=width)
    yield partial(_with_main_small_parts, width=width)
    yield partial(_with_named_notes, width=width)
    yield _without_hints
    yield _without_other_lines
    yield _without_one_rank
    yield _without_calls


def _changed(
    section: DocumentSection, kind: type[_Changed], change: Callable[[_Changed], _Changed]
) -> DocumentSection:
    """A section with some blocks changed; the section itself if none is another one."""
    blocks = tuple(change(each) if isinstance(each, kind) else each for each in section.blocks)
    return section if blocks == section.blocks else replace(section, blocks=blocks)


def _with_sentences(section: DocumentSection) -> DocumentSection:
    match section.blocks:
        case ((TableBlock() | ListBlock()) as block, *_) if block.sentence_if_full:
            return replace(section, blocks=(replace(block, sentence=block.sentence_if_full),))
    return section


def _with_first_sentences(
    section: DocumentSection, severities: tuple[Severity, ...]
) -> DocumentSection:
    """Faults of the recording keep their first sentence."""

    def shorter(block: ListBlock) -> ListBlock:
        items = (
            replace(item, text=_first_sentence(item.text)) if item.severity in severities else item
            for item in block.items
        )
        return replace(block, items=tuple(items))

    return _changed(section, ListBlock, shorter)


def _first_sentence(text: str) -> str:
    return _SENTENCE_END.split(text, 1)[0]


def _on_one_line(section: DocumentSection, width: int) -> DocumentSection:
    """Sentences keep the parts that fit on the line of their title."""

    def shorter(block: TableBlock) -> TableBlock:
        fits = len(block.sentence)
        while fits > 1 and cell_len(f"{section.title}: {_together(block.sentence[:fits])}") > width:
            fits -= 1
        return replace(block, sentence=block.sentence[:fits])

    return _changed(section, TableBlock, shorter)


def _without_other_places(section: DocumentSection) -> DocumentSection:
    def shorter(block: FindingBlock) -> FindingBlock:
        labelled = tuple(each for each in block.labelled if each.label != ALSO_AT)
        return replace(block, labelled=labelled)

    return _changed(section, FindingBlock, shorter)


def _with_first_findings(section: DocumentSection, n_whole: int) -> DocumentSection:
    """The findings after the first ``n_whole`` keep their place, rule and cost."""

    def shorter(block: FindingBlock) -> FindingBlock:
        if block.number <= n_whole:
            return block
        return replace(block, message="", fix="", labelled=())

    return _changed(section, FindingBlock, shorter)


def _with_brief_messages(section: DocumentSection) -> DocumentSection:
    """The messages of findings keep their first sentence; fixes stay whole."""
    return _changed(
        section, FindingBlock, lambda block: replace(block, message=_first_sentence(block.message))
    )


def _with_named_notes(section: DocumentSection, width: int | None = None) -> DocumentSection:
    """Of the notes on the recording, the rules stay.

    Args:
        width: With it, also of a single note that does not fit on a line.
    """

    def shorter(block: ListBlock) -> ListBlock:
        notes = [item for item in block.items if item.severity == "note"]
        if len(notes) < 2 and not (width and notes and not _fits(notes[0], width)):  # noqa: PLR2004
            return block
        rules = ", ".join(item.lead.removeprefix("note ") for item in notes)
        others = tuple(item for item in block.items if item not in notes)
        lead, them = ("notes", "them") if len(notes) > 1 else ("note", "it")
        joined = ListItem(f"--verbose explains {them}", f"{lead} {rules}", "note")
        return replace(block, items=(*others, joined))

    return _changed(section, ListBlock, shorter)


def _fits(item: ListItem, width: int) -> bool:
    return cell_len(f"{item.lead}: {item.text}") <= width - INDENT // 2


def _with_short_figures(section: DocumentSection, width: int) -> DocumentSection:
    """Figures after a heading keep what fits on its line; the headline has the range of steps."""
    if not any(isinstance(block, TimeParts | TableBlock) for block in section.blocks):
        return section
    figures = section.figures
    while figures and cell_len(f"{section.title}: {figures}") > width:
        figures = figures.rpartition(" (" if figures.endswith(")") else ", ")[0]
    return replace(section, figures=figures) if figures else section


def _with_main_small_parts(section: DocumentSection, width: int) -> DocumentSection:
    """Small parts of the step time keep those that fit on one line."""

    def shorter(block: TimeParts) -> TimeParts:
        n = sum(part.is_small for part in block.parts)
        while n > 1 and cell_len(block.small) > width - INDENT // 2 - len("also: "):
            n -= 1
            block = replace(block, n_small=n)
        return block

    return _changed(section, TimeParts, shorter)


def _without_hints(section: DocumentSection) -> DocumentSection:
    """Sections that only say how many figures there are with ``--verbose`` are left out."""
    match section.blocks:
        case (ListBlock(sentence=sentence, sentence_if_full=hint),) if hint and sentence == hint:
            return replace(section, blocks=())
    return section


def _without_other_lines(section: DocumentSection) -> DocumentSection:
    """Of the lines on the critical path, the first stays."""
    return _changed(section, TableBlock, lambda block: replace(block, n_brief=block.n_brief and 1))


def _without_calls(section: DocumentSection) -> DocumentSection:
    """Operators and kernels are left out, and their categories and modules stay."""
    match section.blocks:
        case (TableBlock(sentence_if_full=sentence),) if sentence and section.is_detail:
            return replace(section, blocks=())
    return section


def _without_one_rank(section: DocumentSection) -> DocumentSection:
    """In a report on a job, the times of one rank are left out."""
    return replace(section, blocks=()) if section.is_of_one_rank else section


def _beginning(document: Document, width: int) -> Iterator[RenderableType]:
    yield Text(_header(document, width), style="dim", overflow="fold")
    yield ""
    yield Text(_prose(document.headline), style="bold")


def _together(sentence: tuple[str, ...]) -> str:
    return ", ".join(sentence)


def _sentence(section: DocumentSection, width: int) -> str:
    """What is shown of a section on the line of its title: of a list, one item if it fits."""
    match section.blocks:
        case ((TableBlock(sentence=sentence) | ListBlock(sentence=sentence)), *_) if sentence:
            return _together(sentence)
        case (ListBlock(items=(ListItem(text=text, lead=""),)),):
            return text if cell_len(f"{section.title}: {text}") <= width else ""
    return ""


def _header(document: Document, width: int) -> str:
    """The program, the recordings and their origin: on one line if they fit, else on several."""
    program, origin = document.program, document.origin
    line = " · ".join(
        (program, *[document.path_separator.join(document.paths)][: len(document.paths)], *origin)
    )
    if cell_len(line) <= width:
        return line
    if len(document.paths) > 1:
        labels = [f"{label}: ".ljust(8) for label in document.path_labels]
        labels = labels or [""] * len(document.paths)
        labelled = zip(labels, document.paths, strict=True)
        files = [f"  {label}{tail_cut(path, width - 10)}" for label, path in labelled]
        return "\n".join(filter(None, (program, *files, " · ".join(origin))))
    room = width - cell_len(program) - cell_len(" · ")
    first = " · ".join((program, *(tail_cut(path, room) for path in document.paths)))
    return "\n".join(filter(None, (first, " · ".join(origin))))


def _section(section: DocumentSection, width: int, wide: int) -> Iterator[RenderableType]:
    # The heading of a section that is one table takes the place of the title of its names.
    is_table = bool(section.blocks) and isinstance(section.blocks[0], TableBlock)
    title = "" if section.figures or not is_table else section.title
    if not title:
        figures = f": {section.figures}" if section.figures else ""
        yield _headed(section.title, figures)
    for block in section.blocks:
        match block:
            case TableBlock(n_brief=None):
                yield TableLayout(block, wide, title).laid_out()
            case _:
                yield from _block(block, width)


def _block(block: Block, width: int) -> Iterator[RenderableType]:
    """A block that is no table in the terminal's whole width."""
    match block:
        case TimeParts():
            yield from _time_parts(block, width)
        case FindingBlock():
            yield from _finding(block, width)
        case TableBlock(n_brief=n_brief):
            yield from _brief(block, n_brief or 0, width)
        case ListBlock():
            for item in block.items:
                lead = f"{item.lead}: " if item.lead else "- "
                style = _SEVERITY_STYLE[item.severity] if item.severity else ""
                yield _hanging(lead, item.text, style, INDENT // 2)
        case Paragraph():
            yield Padding(Text(_prose(block.text)), (0, 0, 0, INDENT // 2))
        case CodeBlock():
            for line in block.numbered:
                yield Text(f"{' ' * INDENT}{line}", no_wrap=True, overflow="crop")
        case Remainder():
            yield Text(f"{' ' * INDENT}{_prose(block.text)}", style="dim")


def _headed(title: str, text: str, style: str = "bold") -> Text:
    return Text(_prose(title), style=style).append(_prose(text), style="not bold")


def _time_parts(block: TimeParts, width: int) -> Iterator[RenderableType]:
    """The parts of the step time, each with a bar that begins where the one before ends."""
    label_width = max((cell_len(part.label) for part in block.large), default=0)
    room = width - label_width - _TIME_WIDTH - _SHARE_WIDTH - INDENT - 2
    draws = width >= _MIN_WIDTH_FOR_BARS and room >= _MIN_BAR_WIDTH
    table = grid()
    table.add_column(no_wrap=draws, overflow="fold")
    table.add_column(justify="right", width=_TIME_WIDTH)
    table.add_column(justify="right", width=_SHARE_WIDTH)
    table.add_column(no_wrap=True, overflow="crop")
    for part in block.large:
        bar = Text(_bar(part, room) if draws else "", style=_PART_STYLE[part.kind])
        table.add_row(part.label, part.time, format_share(part.share), bar)
    if block.large:
        yield Padding(table, (0, 0, 0, INDENT // 2))
    if block.small:
        yield _hanging("also: ", block.small, "dim", INDENT // 2)


def _bar(part: Part, room: int) -> str:
    """A bar at its place in the step time: at least one column, however small its share."""
    start = min(round(part.start * room), room - 1)
    end = max(start + 1, min(round((part.start + part.share) * room), room))
    return " " * start + ("▒" if part.kind == "idle" else "█") * (end - start)


def _brief(block: TableBlock, n_rows: int, width: int) -> Iterator[RenderableType]:
    """The first rows of a table without titles: kind, time and share, then where and in what."""
    rows = block.rows[:n_rows]
    label_width = max(cell_len(str(row.cells[0])) for row in rows)
    room = width - label_width - _TIME_WIDTH - _SHARE_WIDTH - INDENT - 2
    is_beside = room >= _MIN_PLACE_WIDTH
    for row in rows:
        label, time, share, place, name, name_share = row.cells
        head = f"{label!s:{label_width}} {time:>{_TIME_WIDTH}} {share:>{_SHARE_WIDTH}} "
        lead = {"mostly": "mostly ", "longest": "longest: "}.get(row.word, "")
        end = f" ({name_share})" if name_share else ""
        where = _where(place, name, (lead, end), room if is_beside else width - INDENT)
        if is_beside:
            yield Text(" " * (INDENT // 2) + head + where)
        else:
            yield Padding(Text(head.replace("  ", " "), overflow="fold"), (0, 0, 0, INDENT // 2))
            yield Padding(Text(where, overflow="fold"), (0, 0, 0, INDENT))


def _where(place: Cell, name: Cell, around: tuple[str, str], room: int) -> str:
    """``train.py:46, mostly aten::mm (21%)`` in at most ``room`` columns.

    Args:
        around: What is before and after the name.
    """
    lead, end = around
    if not name:
        return fitted(place, room) if place else ""
    short = _short(place) if place else ""
    left = room - cell_len(lead) - cell_len(end) - 2
    shown = fitted(name, max(left - cell_len(short), min(left, _MIN_NAME_WIDTH)))
    left -= cell_len(shown)
    if place and left < min(cell_len(short), _MIN_NAME_WIDTH):
        return fitted(place, room)
    where = f"{fitted(place, left)}, " if place else ""
    return f"{where}{lead}{shown}{end}"


def _finding(finding: FindingBlock, width: int) -> Iterator[RenderableType]:
    """A finding: its place and cost, what happens, the fix, and what else is known of it."""
    left = Text(f"{finding.number:>2}  ")
    room = width - left.cell_len - cell_len(f"  {finding.severity}")
    rule = f" {finding.name} {finding.rule}"
    if not finding.message:
        rule = _brief_rule(finding, room)
    elif cell_len(_short(finding.place)) + cell_len(rule) > room:
        rule = f" {middle_cut(finding.rule, _RULE_WIDTH)}"
    # The cost stays on the line: folders of the place give way before it does.
    beside = min(width // 2, room - cell_len(rule) - cell_len(finding.cost) - 2)
    short = cell_len(_short(finding.place))
    fits = max(beside, min(short + 2, room - cell_len(rule)))
    if not finding.message and beside >= min(short, _MIN_BRIEF_PLACE_WIDTH):
        fits = beside
    left.append(fitted(finding.place, fits), style="bold").append("  ")
    left.append(finding.severity, style=_SEVERITY_STYLE[finding.severity]).append(rule)
    cost = Text(finding.cost, "bold")
    gap = width - left.cell_len - cost.cell_len
    is_beside = gap >= 2  # noqa: PLR2004  (two blanks separate them)
    yield left.append(" " * gap).append_text(cost) if finding.cost and is_beside else left
    if finding.cost and not is_beside:
        yield Padding(cost, (0, 0, 0, INDENT))
    if finding.message:
        text = Text(_prose(finding.message + finding.doubt), overflow="fold")
        yield Padding(text, (0, 0, 0, INDENT))
    if finding.fix:
        yield _hanging("Fix: ", finding.fix, "green")
    for each in finding.labelled:
        yield _hanging(f"{each.label}: ", _listed(each, width), "dim")


def _brief_rule(finding: FindingBlock, room: int) -> str:
    """The rule of a finding that is to be on one line with its cost: by name and id, or by one."""
    least = min(cell_len(_short(finding.place)), _MIN_BRIEF_PLACE_WIDTH)
    rules = (f" {finding.name} {finding.rule}", f" {finding.name}", f" {finding.rule}")
    taken = least + cell_len(finding.cost) + 2
    fitting = (rule for rule in rules if cell_len(rule) + taken <= room)
    return next(fitting, f" {middle_cut(finding.rule, _RULE_WIDTH)}")


def _short(value: Cell) -> str:
    return value.short if isinstance(value, SourceLine) else _text(value)


def _text(value: Cell) -> str:
    return value.text if isinstance(value, Name) else str(value)


def _listed(labelled: Labelled, width: int) -> str:
    room = width - INDENT - cell_len(labelled.label) - len(": ,")
    values = (
        each.fitted(room) if isinstance(each, SourceLine) else _text(each)
        for each in labelled.values
    )
    return ", ".join(values) + labelled.rest


def _hanging(lead: str, text: str, style: str, indent: int = INDENT) -> RenderableType:
    """A paragraph after a lead word, with its further lines below its first."""
    table = Grid.grid(padding=0)
    table.add_column(width=cell_len(lead), no_wrap=True, overflow="fold")
    table.add_column(overflow="fold")
    table.add_row(Text(lead, style=style), Text(_prose(text)))
    return Padding(table, (0, 0, 0, indent))


def _prose(text: str) -> str:
    """A sentence in which no line end separates a figure from its unit."""
    return _FIGURE.sub(rf"\1{_NO_BREAK}\2", text)
