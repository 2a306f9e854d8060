"""What a report loses to fit on a screen of text: one way to shorten it after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Final, TypeVar

from rich.cells import cell_len

from profkit.model.finding import Severity
from profkit.patterns import regex
from profkit.present.document import (
    DocumentSection,
    FindingBlock,
    ListBlock,
    ListItem,
    TableBlock,
    TimeParts,
)
from profkit.present.finding_section import ALSO_AT
from profkit.renderers.text.tables import INDENT

_SCREEN_WIDTH: Final = 80
_N_WHOLE_FINDINGS: Final = (3, 2, 1)
_SENTENCE_END: Final = regex(r"(?<=\.) (?=[A-Z0-9`])")
_Changed = TypeVar("_Changed", TableBlock, ListBlock, FindingBlock, TimeParts)


def shorten_stepwise(width: int) -> Iterator[Callable[[DocumentSection], DocumentSection]]:
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


def on_one_line_if_free(section: DocumentSection) -> DocumentSection:
    """Cut findings that cost nothing here to their place and rule."""
    return _change_blocks(
        section, FindingBlock, lambda block: _on_first_line(block) if block.is_free else block
    )


def without_said_rows(section: DocumentSection) -> DocumentSection:
    """Leave out a table of which the headline has said all rows that a screen shows."""
    is_unsaid = [
        not (isinstance(block, TableBlock) and block.brief == ()) for block in section.blocks
    ]
    return replace(section, blocks=tuple(compress(section.blocks, is_unsaid)))


def keep_findings(sections: Sequence[DocumentSection]) -> Iterator[DocumentSection]:
    """Yield the findings alone: a line of each, and of an error what has happened."""
    for section in sections:
        findings = (block for block in section.blocks if isinstance(block, FindingBlock))
        blocks = tuple(
            replace(
                _on_first_line(finding),
                message=_first_sentence(finding.message) if finding.severity == "error" else "",
            )
            for finding in findings
        )
        if blocks:
            yield replace(section, blocks=blocks)


def _on_first_line(finding: FindingBlock) -> FindingBlock:
    """Cut a finding to its place, rule and cost."""
    return replace(finding, message="", fix="", labelled=())


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
        while (
            fits > 1
            and cell_len(f"{section.title}: {join_sentence(block.sentence[:fits])}") > width
        ):
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
        return block if block.number <= n_whole else _on_first_line(block)

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
        joined = ListItem(f"`profkit analyze -v` explains {them}", f"{lead} {rules}", "note")
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
        section, TableBlock, lambda block: replace(block, brief=block.brief and block.brief[:1])
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


def join_sentence(sentence: tuple[str, ...]) -> str:
    """Return the parts of a sentence as one text."""
    return ", ".join(sentence)
