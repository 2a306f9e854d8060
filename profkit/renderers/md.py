"""The report as GitHub-flavoured Markdown: for a pull request, an issue, or a lab book.

Findings are visible at once; tables and lists of details are folded. Unless ``verbose``, the text
fits into a comment on GitHub.

Source: GitHub refuses a comment of more than 65,536 characters ("body is too long").
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from profkit.model.report import Report
from profkit.patterns import regex
from profkit.present.document import (
    Block,
    Cell,
    ChartBlock,
    CodeBlock,
    Document,
    DocumentSection,
    FindingBlock,
    ListBlock,
    Name,
    SourceLine,
    TableBlock,
    TimeParts,
)
from profkit.present.renderer import ReadersOptions as Options
from profkit.present.renderer import RendererInfo
from profkit.present.report_document import build_report_document
from profkit.units import format_share

__all__ = ["INFO", "Options", "render", "render_document"]

INFO = RendererInfo(name="md", suffix=".md", media_type="text/markdown", is_for_people=True)

_SPECIAL: Final = regex(r"[\\`*\[\]<>~&$@#]|(?<![^\W_])_|_(?![^\W_])")
_MAX_KERNEL_WIDTH: Final = 80
_BAR_WIDTH: Final = 20
_MAX_COMMENT: Final = 65_536
_OMITTED: Final = "… the rest is omitted: it does not fit into a comment."


def render(report: Report, options: Options) -> bytes:
    """Return the report as Markdown in UTF-8."""
    return render_document(build_report_document(report, options), options)


def render_document(document: Document, options: Options) -> bytes:
    """Return a document as Markdown in UTF-8."""
    blocks = [f"# {document.title}", _prose(document.headline)]
    for section in document.sections:
        blocks += _write_section(section)

    files = document.path_separator.join(map(_code, document.paths))
    words = (_prose(document.program), files, *map(_prose, document.origin))
    origin = f"<sub>{' · '.join(word for word in words if word)}</sub>"
    blocks = [*(blocks if options.verbose else _fit(blocks, len(origin))), origin]
    return ("\n\n".join(blocks) + "\n").encode("utf-8", "backslashreplace")


def _fit(blocks: list[str], n_taken: int) -> list[str]:
    """Return the blocks that fit into a comment in addition to ``n_taken`` characters."""
    # A block is shown whole or not at all: half a table or a folded list without its end would
    # change how the rest is shown.
    gap = len("\n\n")
    room = _MAX_COMMENT - n_taken - len(_OMITTED) - 2 * gap
    fitting = []
    for block in blocks:
        if len(block) + gap <= room:
            fitting.append(block)
            room -= len(block) + gap
    return fitting if len(fitting) == len(blocks) else [*fitting, _OMITTED]


def _write_section(section: DocumentSection) -> Iterator[str]:
    blocks = [text for block in section.blocks for text in _write_block(block)]
    if section.is_detail:
        body = "\n\n".join(blocks)
        title = _prose(section.heading)
        yield f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"
    else:
        yield f"## {_prose(section.heading)}"
        yield from blocks


def _write_block(block: Block) -> Iterator[str]:
    match block:
        case TimeParts():
            rows = [
                (
                    _prose(part.label),
                    part.time,
                    format_share(part.share),
                    "█" * round(part.share * _BAR_WIDTH),
                )
                for part in block.large
            ]
            if rows:
                yield _write_table(("part", "time", "share", ""), (False, True, True, False), rows)
            if block.small:
                yield f"also: {_prose(block.small)}"

        case FindingBlock():
            yield _write_finding(block)

        case TableBlock():
            titles = [_prose(column.title) for column in block.columns]
            right = [column.is_figure for column in block.columns]
            cells = [[_cell(cell) for cell in row.cells] for row in block.rows]
            for row, texts in zip(block.rows, cells, strict=True):
                texts[-1] = "<br>".join((texts[-1], *(_code(str(frame)) for frame in row.stack)))
            yield _write_table(titles, right, cells)
        case ChartBlock():
            return
        case ListBlock():
            leads = (f"{item.lead}: " if item.lead else "" for item in block.items)
            yield "\n".join(
                f"- {_prose(lead + item.text)}"
                for lead, item in zip(leads, block.items, strict=True)
            )
        case CodeBlock():
            # A fence within the code would end it.
            fence = "```" if not any("```" in line for line in block.lines) else "~~~~"
            yield "\n".join(
                (f"{fence}python" if block.first is None else fence, *block.numbered, fence)
            )
        case _:
            yield _prose(block.text)


def _write_finding(finding: FindingBlock) -> str:
    head = [
        f"**{_cell(finding.place)}**",
        f"{finding.severity} {_prose(finding.name)} ({_prose(finding.rule)})",
        *([f"**{finding.cost}**"] if finding.cost else []),
    ]
    lines = [f"{finding.number}. {' · '.join(head)}", _prose(finding.message + finding.doubt)]
    if finding.fix:
        lines.append(f"*Fix:* {_prose(finding.fix)}")
    for entry in finding.labelled:
        values = ", ".join(map(_cell, entry.values))
        lines.append(f"*{entry.label}:* {values}{entry.rest}")
    # Indented, so that all of them are in one item of the numbered list.
    return "\n\n   ".join(lines)


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _prose(cell)
    if isinstance(cell, SourceLine):
        return _code(str(cell))
    if isinstance(cell, Name):
        return _code(cell.fitted(_MAX_KERNEL_WIDTH) if cell.is_kernel else cell.text)
    return cell.trend(_BAR_WIDTH)


def _write_table(
    titles: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[str]]
) -> str:
    """Return a table of cells in Markdown; the columns in ``right`` are aligned to the right."""
    lines = [
        f"| {' | '.join(titles)} |",
        f"|{'|'.join('--:' if is_right else '---' for is_right in right)}|",
        *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows),
    ]
    return "\n".join(lines)


def _prose(text: str) -> str:
    """Return text that Markdown and HTML show as it is; code between backticks stays code."""
    # An odd number of backticks encloses nothing.
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _escape(text)
    return "".join(
        _escape(part) if place % 2 == 0 else _code(part) for place, part in enumerate(parts)
    )


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda match: f"\\{match.group()}", text)


def _code(text: str) -> str:
    """Return text as code that no table, tag or backtick within can break."""
    shown = text.strip()
    if not shown:
        return ""
    # Code ends at as many backticks as it begins with: one more than any run within.
    fence = "`" * (max((len(run) for run in re.findall(r"`+", shown)), default=0) + 1)
    edge = " " if "`" in shown else ""
    return f"{fence}{edge}{shown}{edge}{fence}"
