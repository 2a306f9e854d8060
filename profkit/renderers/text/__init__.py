"""The report as one screen of text, for a terminal or, without colours, for a file.

From top to bottom: the headline, the parts of the step time, the findings, memory over time and by
allocation site, the operators and kernels with the longest times, faults of the recording, and the
skipped checks.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from profkit.dataclass import dataclass
from profkit.model.report import Report
from profkit.names import middle_cut, tail_cut
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
from profkit.present.report_document import report_document
from profkit.renderers.text.tables import INDENT, TableLayout, fitted, grid
from profkit.units import format_share

__all__ = ["INFO", "Options", "render", "render_document"]

INFO = RendererInfo(name="text", suffix=".txt", media_type="text/plain")

_HEIGHT: Final = 40
"""Lines of a screen: a longer report is shortened, down to one finding in full."""
_N_WHOLE_FINDINGS: Final = (3, 2, 1)
_MAX_PROSE_WIDTH: Final = 120
"""Longer lines are hard to read."""
_MAX_WIDTH: Final = 200
"""Tables hold no names that need more; a wider terminal stays empty at the right."""
_MIN_WIDTH: Final = 40
_MIN_WIDTH_FOR_BARS: Final = 60
_MIN_BAR_WIDTH: Final = 6
_MIN_PLACE_WIDTH: Final = 40
_MIN_NAME_WIDTH: Final = 16
_TIME_WIDTH: Final = 8
_SHARE_WIDTH: Final = 5
_RULE_WIDTH: Final = 8
_NO_BREAK: Final = "\ue000"
"""A blank at which no line is broken; a private-use character, so no name contains it."""
_FIGURE: Final = re.compile(r"(\d) ((?:ns|µs|ms|s|B|KiB|MiB|GiB|TiB)\b)")
_SENTENCE_END: Final = re.compile(r"(?<=\.) (?=[A-Z`])")
_ASCII: Final = str.maketrans("█▒…·µ→±▁▂▃▄▅▆▇", "#.~-u>~_.,-=+*")
_SEVERITY_STYLE: Final = {"error": "bold red", "warning": "yellow", "note": "cyan"}
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
    return render_document(report_document(report, options), options)


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
    for shown in (document,) if options.verbose else _ever_shorter(document):
        with console.capture() as captured:
            for part in _page(shown, width, wide):
                console.print(part, width=wide if isinstance(part, Grid) else width)
        lines = captured.get().replace(_NO_BREAK, " ").rstrip("\n").split("\n")
        if len(lines) <= _HEIGHT:
            break
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    if options.unicode:
        return text.encode("utf-8", "backslashreplace")
    return text.translate(_ASCII).encode("ascii", "backslashreplace")


def _ever_shorter(document: Document) -> Iterator[Document]:
    """The document; then with sentences for tables, notes in brief, and fewer findings in full."""
    yield document
    sections = tuple(map(_with_sentences, document.sections))
    yield replace(document, sections=sections)
    sections = tuple(map(_with_short_notes, sections))
    yield replace(document, sections=sections)
    for n_whole in _N_WHOLE_FINDINGS:
        shorter = tuple(_with_first_findings(each, n_whole) for each in sections)
        yield replace(document, sections=shorter)


def _with_sentences(section: DocumentSection) -> DocumentSection:
    match section.blocks:
        case ((TableBlock() | ListBlock()) as block, *_) if block.sentence_if_full:
            return replace(section, blocks=(replace(block, sentence=block.sentence_if_full),))
    return section


def _with_short_notes(section: DocumentSection) -> DocumentSection:
    """Notes on the recording keep their first sentence."""
    blocks = (
        replace(
            block,
            items=tuple(
                replace(item, text=_SENTENCE_END.split(item.text, 1)[0])
                if item.severity == "note"
                else item
                for item in block.items
            ),
        )
        if isinstance(block, ListBlock)
        else block
        for block in section.blocks
    )
    return replace(section, blocks=tuple(blocks))


def _with_first_findings(section: DocumentSection, n_whole: int) -> DocumentSection:
    """The findings after the first ``n_whole`` keep their place, rule and cost."""
    blocks = (
        replace(block, message="", fix="", labelled=())
        if isinstance(block, FindingBlock) and block.number > n_whole
        else block
        for block in section.blocks
    )
    return replace(section, blocks=tuple(blocks))


def _page(document: Document, width: int, wide: int) -> Iterator[RenderableType]:
    """Everything on the page: sentences in ``width`` columns, tables in ``wide`` columns."""
    yield Text(_header(document, width), style="dim", overflow="fold")
    yield ""
    yield Text(_prose(document.headline), style="bold")
    follows_sentence = False
    for section in document.sections:
        if not follows_sentence:
            yield ""
        sentence = _sentence(section, width)
        follows_sentence = bool(sentence)
        if sentence:
            is_hint = any(isinstance(each, ListBlock) and each.sentence for each in section.blocks)
            yield _headed(section.title, f": {sentence}", "dim" if is_hint else "bold")
        else:
            yield from _section(section, width, wide)


def _sentence(section: DocumentSection, width: int) -> str:
    """What is shown of a section on the line of its title: of a list, one item if it fits."""
    match section.blocks:
        case ((TableBlock(sentence=sentence) | ListBlock(sentence=sentence)), *_) if sentence:
            return sentence
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
    return Text(title, style=style).append(_prose(text), style="not bold")


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
    rows = [row.cells for row in block.rows[:n_rows]]
    label_width = max(cell_len(str(cells[0])) for cells in rows)
    room = width - label_width - _TIME_WIDTH - _SHARE_WIDTH - INDENT - 2
    is_beside = room >= _MIN_PLACE_WIDTH
    for label, time, share, place, name, name_share in rows:
        head = f"{label!s:{label_width}} {time:>{_TIME_WIDTH}} {share:>{_SHARE_WIDTH}} "
        where = _where(place, name, str(name_share), room if is_beside else width - INDENT)
        if is_beside:
            yield Text(" " * (INDENT // 2) + head + where)
        else:
            yield Padding(Text(head.replace("  ", " "), overflow="fold"), (0, 0, 0, INDENT // 2))
            yield Padding(Text(where, overflow="fold"), (0, 0, 0, INDENT))


def _where(place: Cell, name: Cell, share: str, room: int) -> str:
    """``train.py:46, mostly aten::mm (21%)`` in at most ``room`` columns."""
    lead, end = ("mostly ", f" ({share})") if share else ("", "")
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
    rule = f" {finding.name} {finding.rule}"
    room = width - left.cell_len - cell_len(f"  {finding.severity}")
    if cell_len(_short(finding.place)) + cell_len(rule) > room:
        rule = f" {middle_cut(finding.rule, _RULE_WIDTH)}"
    # The cost stays on the line: folders of the place give way before it does.
    beside = min(width // 2, room - cell_len(rule) - cell_len(finding.cost) - 2)
    fits = max(beside, min(cell_len(_short(finding.place)) + 2, room - cell_len(rule)))
    left.append(fitted(finding.place, fits), style="bold").append("  ")
    left.append(finding.severity, style=_SEVERITY_STYLE[finding.severity]).append(rule)
    cost = Text(finding.cost, "bold")
    gap = width - left.cell_len - cost.cell_len
    is_beside = gap >= 2  # noqa: PLR2004  (two blanks separate them)
    yield left.append(" " * gap).append_text(cost) if finding.cost and is_beside else left
    if finding.cost and not is_beside:
        yield Padding(cost, (0, 0, 0, INDENT))
    if finding.message:
        yield Padding(Text(_prose(finding.message), overflow="fold"), (0, 0, 0, INDENT))
    if finding.fix:
        yield _hanging("Fix: ", finding.fix, "green")
    for each in finding.labelled:
        yield _hanging(f"{each.label}: ", _listed(each, width), "dim")


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
