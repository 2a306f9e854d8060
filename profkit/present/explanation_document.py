"""The explanation of a finding as a document."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from profkit.model.explanation import Explanation
from profkit.model.finding import Finding
from profkit.model.location import Location, first_with_file
from profkit.names import short_path, visible
from profkit.present.document import (
    Block,
    Cell,
    CodeBlock,
    Document,
    DocumentSection,
    Name,
    Paragraph,
    SourceLine,
    columns_of,
    list_section,
    one_line,
    table_section,
)
from profkit.present.evidence import evidence_texts
from profkit.present.explanation import CODE_INDENT
from profkit.present.renderer import ReadersOptions
from profkit.units import format_count, format_ns

_NOT_ABOUT_THE_PROGRAM: Final = ("Reads", "Source")
"""Sections for those who check or write rules."""


def build_explanation_document(explanation: Explanation, options: ReadersOptions) -> Document:
    """Build the document of an explanation."""
    finding = explanation.finding
    message = one_line(finding.message)
    # Many messages have the time itself; its share may be of the job's step and not the rank's.
    time = explanation.cost.removeprefix("about ").partition(" (")[0]
    cost = f" It costs {explanation.cost}." if time and time not in message else ""
    head = f"{finding.rule} {finding.name}, {finding.severity}"
    return Document(
        title=f"profkit: {one_line(explanation.id)}",
        program=f"profkit {one_line(explanation.profkit)}",
        paths=tuple(
            one_line(short_path(path, options.base)) for path in [explanation.path] if path
        ),
        origin=(one_line(head), f"{finding.confidence} confidence"),
        headline=f"{message}{cost}",
        sections=tuple(_build_sections(explanation, options)),
    )


def _build_sections(explanation: Explanation, options: ReadersOptions) -> Iterator[DocumentSection]:
    finding = explanation.finding
    if finding.fix:
        yield DocumentSection("Fix", (Paragraph(one_line(finding.fix)),))
    if explanation.source is not None:
        source = explanation.source
        place = first_with_file(finding.locations) or Location()
        lines = tuple(map(visible, source.lines))
        code = CodeBlock(lines, source.first, source.marked)
        yield DocumentSection(one_line(short_path(place.file or "", options.base)), (code,))

    yield from _build_places(finding, options.base)
    chains = ("".join(chain) for chain in finding.holders)
    yield from list_section("Held by", chains, is_detail=False)
    calls = (str(SourceLine(frame.file, frame.line, frame.function)) for frame in explanation.calls)
    yield from list_section("Called from", calls)
    yield from _build_events(explanation)

    shown = _find_shown_evidence(explanation)
    figures = {key: value for key, value in finding.evidence.items() if key not in shown}
    texts = evidence_texts(replace(finding, evidence=figures))
    evidence = (f"{label}: {figure}" for label, figure in texts)
    yield from list_section("Evidence", evidence)

    for section in explanation.rule:
        if section.title not in _NOT_ABOUT_THE_PROGRAM:
            yield DocumentSection(section.title, tuple(_split_blocks(section.text)))

    if explanation.change is not None:
        command = f"profkit what-if PATH --remove {explanation.change}"
        text = f"`{one_line(command)}` predicts the step time without it."
        yield DocumentSection("What if", (Paragraph(text),))


def _find_shown_evidence(explanation: Explanation) -> set[str]:
    """Return the keys of evidence that other sections have: events, source lines, places."""
    shown = {"events"}
    if explanation.source is not None:
        shown.add("code")
    stack = explanation.finding.evidence.get("stack")
    if isinstance(stack, list | tuple) and len(stack) == 1:
        shown.add("stack")
    return shown


def _build_places(finding: Finding, base: str) -> Iterator[DocumentSection]:
    lines = (
        ", ".join(filter(None, (_line(where, base), where.op, where.module, where.step)))
        for where in finding.locations
    )
    title = f"Where, {format_count(finding.n)} times" if finding.n > 1 else "Where"
    yield from list_section(title, lines, is_detail=False)


def _line(where: Location, base: str) -> str:
    if where.file is None:
        return ""
    is_function = where.precision == "function"
    return str(
        SourceLine(short_path(where.file, base), where.line, where.function or "", is_function)
    )


def _build_events(explanation: Explanation) -> Iterator[DocumentSection]:
    rows: list[tuple[Cell, ...]] = [
        (
            Name(one_line(event.name), is_kernel=event.category == "kernel"),
            str(event.id),
            format_ns(event.start_ns),
            format_ns(event.dur_ns),
            one_line(event.thread),
            one_line(event.step or ""),
        )
        for event in explanation.events
    ]
    columns = columns_of("event", ("id", "start", "duration"), ("on", "step"))
    yield from table_section(("Events", ""), columns, rows)


def _split_blocks(text: str) -> Iterator[Block]:
    for part in text.split("\n\n"):
        if part.startswith(CODE_INDENT):
            lines = (line.removeprefix(CODE_INDENT) for line in part.split("\n"))
            yield CodeBlock(tuple(map(visible, lines)))
        else:
            yield Paragraph(one_line(part))
