"""The blocks of a document in a terminal: parts of the step time, findings, lists, code."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from profkit.names import middle_cut
from profkit.patterns import regex
from profkit.present.document import (
    Block,
    Cell,
    CodeBlock,
    DocumentSection,
    FindingBlock,
    Labelled,
    ListBlock,
    Name,
    Paragraph,
    Part,
    Remainder,
    SourceLine,
    TableBlock,
    TableRow,
    TimeParts,
)
from profkit.renderers.text.tables import INDENT, SpacedGrid, TableLayout, fitted
from profkit.units import format_share

_MIN_WIDTH_FOR_BARS: Final = 60
_MIN_BAR_WIDTH: Final = 6
_MIN_PLACE_WIDTH: Final = 36
_MIN_BRIEF_PLACE_WIDTH: Final = 18
"""A finding on one line names its rule only where that leaves as much for its place."""
_MIN_NAME_WIDTH: Final = 16
_TIME_WIDTH: Final = 8
_SHARE_WIDTH: Final = 5
_RULE_WIDTH: Final = 8
NO_BREAK: Final = "\ue000"
"""A blank at which no line is broken; a private-use character, so no name contains it."""
_FIGURE: Final = regex(r"(\d) ((?:ns|µs|ms|s|B|KiB|MiB|GiB|TiB)\b)")
_SEVERITY_STYLE: Final = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_PART_STYLE: Final = {
    "compute": "green", "communication": "magenta", "copy": "cyan", "idle": "red", "host": "green",
}  # fmt: skip


def render_section(section: DocumentSection, width: int, wide: int) -> Iterator[RenderableType]:
    """Return what shows a section, with its tables in ``wide`` columns."""
    # The heading of a section that is one table takes the place of the title of its names.
    is_table = bool(section.blocks) and isinstance(section.blocks[0], TableBlock)
    title = "" if section.figures or not is_table else section.title
    if not title:
        figures = f": {section.figures}" if section.figures else ""
        yield headed(section.title, figures)

    for block in section.blocks:
        match block:
            case TableBlock(brief=None):
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
        case TableBlock(brief=rows):
            yield from _render_brief(rows or (), width)
        case ListBlock():
            for item in block.items:
                lead = f"{item.lead}: " if item.lead else "- "
                style = _SEVERITY_STYLE[item.severity] if item.severity else ""
                yield _hanging(lead, item.text, style, INDENT // 2)
        case Paragraph():
            yield Padding(Text(prose(block.text)), (0, 0, 0, INDENT // 2))
        case CodeBlock():
            # Code is cut, not broken: a broken line would read as two.
            for line in block.numbered:
                yield Text(f"{' ' * INDENT}{line}", no_wrap=True, overflow="crop")
        case Remainder():
            yield Text(f"{' ' * INDENT}{prose(block.text)}", style="dim")


def headed(title: str, text: str, style: str = "bold") -> Text:
    """Return a title with the text after it."""
    return Text(prose(title), style=style).append(prose(text), style="not bold")


def _render_time_parts(block: TimeParts, width: int) -> Iterator[RenderableType]:
    """Return the parts of the step time, each with a bar that begins where the last one ends."""
    label_width = max((cell_len(part.label) for part in block.large), default=0)
    room = width - label_width - _TIME_WIDTH - _SHARE_WIDTH - INDENT - 2
    has_bars = width >= _MIN_WIDTH_FOR_BARS and room >= _MIN_BAR_WIDTH

    table = SpacedGrid()
    table.add_spaced_column(no_wrap=has_bars, overflow="fold")
    table.add_spaced_column(justify="right", width=_TIME_WIDTH)
    table.add_spaced_column(justify="right", width=_SHARE_WIDTH)
    table.add_spaced_column(no_wrap=True, overflow="crop")
    for part in block.large:
        bar = Text(_bar(part, room) if has_bars else "", style=_PART_STYLE[part.kind])
        table.add_spaced_row(part.label, part.time, format_share(part.share), bar)

    if block.large:
        yield Padding(table, (0, 0, 0, INDENT // 2))
    if block.small:
        yield _hanging("also: ", block.small, "dim", INDENT // 2)


def _bar(part: Part, room: int) -> str:
    """Return a bar at its place in the step time, at least one column wide."""
    start = min(round(part.start * room), room - 1)
    end = max(start + 1, min(round((part.start + part.share) * room), room))
    return " " * start + ("▒" if part.kind == "idle" else "█") * (end - start)


def _render_brief(rows: Sequence[TableRow], width: int) -> Iterator[RenderableType]:
    """Return rows of a table without titles: kind, time and share, then the place."""
    label_width = max((cell_len(str(row.cells[0])) for row in rows), default=0)
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
        text = Text(prose(finding.message + finding.doubt), overflow="fold")
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
    table.add_row(Text(lead, style=style), Text(prose(text)))
    return Padding(table, (0, 0, 0, indent))


def prose(text: str) -> str:
    """Return a sentence in which no line end separates a figure from its unit."""
    return _FIGURE.sub(rf"\1{NO_BREAK}\2", text)
