"""The report as one screen of text, for a terminal or, without colours, for a file.

From top to bottom: the headline, the parts of the step time, the findings, memory over time and by
allocation site, the operators and kernels with the longest times, faults of the recording, and the
skipped checks.
"""

from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from profkit.dataclass import dataclass
from profkit.model.report import Report
from profkit.names import tail_cut
from profkit.present.document import (
    Document,
    DocumentSection,
    ListBlock,
    ListItem,
    TableBlock,
)
from profkit.present.renderer import ReadersOptions, RendererInfo
from profkit.present.report_document import build_report_document
from profkit.renderers.text.blocks import NO_BREAK, headed, prose, render_section
from profkit.renderers.text.shorten import (
    join_sentence,
    keep_findings,
    on_one_line_if_free,
    shorten_stepwise,
    without_said_rows,
)
from profkit.renderers.text.tables import build_console

__all__ = ["INFO", "Options", "render", "render_document"]

INFO = RendererInfo(name="text", suffix=".txt", media_type="text/plain", is_for_people=True)

_HEIGHT: Final = 40
"""Lines of a screen: a longer report is shortened, down to one finding in full."""
_MAX_PROSE_WIDTH: Final = 120
"""Longer lines are hard to read."""
_MAX_WIDTH: Final = 200
"""Tables hold no names that need more; a wider terminal stays empty at the right."""
_MIN_WIDTH: Final = 40
_ASCII: Final = str.maketrans("█▒…·µ→±▁▂▃▄▅▆▇", "#.~-u>~_.,-=+*")


@dataclass(frozen=True)
class Options(ReadersOptions):
    """How the text is laid out; ``verbose`` adds the evidence of findings.

    Attributes:
        width: Columns to fill, from 40 to 200.
        color: Whether to use terminal colours.
        unicode: Whether the terminal can show more than ASCII.
        brief: Whether to show no more than the headline and a line for each finding, so that a
            traceback above the report stays on the screen.
    """

    width: int = 100
    color: bool = False
    unicode: bool = True
    brief: bool = False


def render(report: Report, options: Options) -> bytes:
    """Return the report as text in UTF-8, or in ASCII without ``unicode``."""
    return render_document(build_report_document(report, options), options)


def render_document(document: Document, options: Options) -> bytes:
    """Return a document as text in UTF-8, or in ASCII without ``unicode``."""
    wide = max(_MIN_WIDTH, min(options.width, _MAX_WIDTH))
    width = min(wide, _MAX_PROSE_WIDTH)
    console = build_console(wide, color=options.color)
    begin = _print_lines(console, _build_beginning(document, width), width)
    sections = keep_findings(document.sections) if options.brief else document.sections
    if not options.verbose:
        sections = map(without_said_rows, map(on_one_line_if_free, sections))
        sections = (section for section in sections if section.blocks)
    laid_out = [_LaidOut.of(console, section, width, wide) for section in sections]

    # Nothing is left out that has room: one way to shorten after the other, until it fits.
    for shorten in () if options.verbose else shorten_stepwise(width):
        if len(begin) + len(_join(laid_out)) <= _HEIGHT:
            break
        laid_out = [
            before if after is before.section else _LaidOut.of(console, after, width, wide)
            for before in laid_out
            for after in (shorten(before.section),)
            if after.blocks
        ]

    is_tight = not options.verbose and len(begin) + len(_join(laid_out)) > _HEIGHT
    if is_tight:
        begin = _print_lines(console, _build_beginning(document, width, is_tight=True), width)
    lines = [*begin, *_join(laid_out, is_tight=is_tight)]
    text = "".join(f"{line.replace(NO_BREAK, ' ').rstrip()}\n" for line in lines)
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
        parts = render_section(section, width, wide)
        if sentence:
            is_hint = any(
                isinstance(block, ListBlock) and block.sentence for block in section.blocks
            )
            parts = iter((headed(section.title, f": {sentence}", "dim" if is_hint else "bold"),))
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


def _build_beginning(
    document: Document, width: int, *, is_tight: bool = False
) -> Iterator[RenderableType]:
    yield Text(_format_header(document, width), style="dim", overflow="fold")
    yield ""
    caution = "" if is_tight else document.caution
    yield Text(prose(document.headline.removesuffix(caution).rstrip()), style="bold")
    if caution:
        yield Text(prose(caution), style="yellow")


def _sentence(section: DocumentSection, width: int) -> str:
    """Return what a section shows on the line of its title: of a list, one item if it fits."""
    match section.blocks:
        case ((TableBlock(sentence=sentence) | ListBlock(sentence=sentence)), *_) if sentence:
            return join_sentence(sentence)
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
