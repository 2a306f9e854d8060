"""One finding with all that is known of it, and as a document."""

from collections.abc import Iterator
from typing import Final

from profkit.engine.registry import rules
from profkit.model.explanation import EventRow, Explanation, RuleSection
from profkit.model.finding import Finding
from profkit.model.location import Location, SourceSnippet
from profkit.model.report import Report
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
from profkit.present.event_rows import event_rows, rows_at
from profkit.present.finding_events import call_path, event_positions
from profkit.present.finding_ids import finding_ids, numbered_finding, selector
from profkit.present.headline import cost_text
from profkit.present.renderer import LoadedRecording, ReadersOptions
from profkit.present.rule_page import rule_page
from profkit.present.source_snippet import source_snippet
from profkit.units import format_count, format_ns

_CODE_INDENT: Final = "    "
_NOT_ABOUT_THE_PROGRAM: Final = ("Reads", "Source")
"""Sections for those who check or write rules."""


def explain(
    report: Report, recording: LoadedRecording | None, word: str, base: str = ""
) -> Explanation:
    """All that is known of a finding.

    Args:
        recording: What the report was made from; without it there are no events.
        word: The finding's id, its number, or its rule if that has no other.
        base: The folder of relative source paths.

    Raises:
        UsageError: There is no such finding, or there are several.
    """
    every = (*report.findings, *report.health)
    number = numbered_finding(report, word)
    finding, own_id = every[number], finding_ids(every)[number]
    ctx = recording.context if recording is not None else None
    events: tuple[EventRow, ...] = ()
    if ctx is not None and ctx.has_trace:
        events = tuple(event_rows(ctx, rows_at(ctx, event_positions(finding))))
    return Explanation(
        profkit=report.profkit,
        path=report.source.path,
        id=own_id,
        number=number + 1,
        finding=finding,
        cost=cost_text(report, finding),
        events=events,
        calls=call_path(report, recording, finding),
        source=_source(finding, base),
        rule=tuple(_sections(finding.rule)),
        change=selector(own_id) if finding.change is not None else None,
    )


def _source(finding: Finding, base: str) -> SourceSnippet | None:
    place = next((where for where in finding.locations if where.file), Location())
    return source_snippet(place, base)


def _sections(rule_id: str) -> Iterator[RuleSection]:
    """The page of a rule; of an unknown one, as in a report of a plugin's rule, nothing."""
    for rule in rules():
        if rule.INFO.id == rule_id:
            for title, passages in rule_page(rule).items():
                texts = (_indented(each.text) if each.is_code else each.text for each in passages)
                yield RuleSection(title, "\n\n".join(texts).replace("``", "`"))


def _indented(code: str) -> str:
    return "\n".join(f"{_CODE_INDENT}{line}".rstrip() for line in code.split("\n"))


def explanation_document(explanation: Explanation, options: ReadersOptions) -> Document:
    """A finding with all that is known of it, as a document."""
    finding = explanation.finding
    cost = f" It costs {explanation.cost}." if explanation.cost else ""
    head = f"{finding.rule} {finding.name}, {finding.severity}"
    return Document(
        title=f"profkit: {one_line(explanation.id)}",
        program=f"profkit {one_line(explanation.profkit)}",
        paths=tuple(
            one_line(short_path(path, options.base)) for path in [explanation.path] if path
        ),
        origin=(one_line(head), f"{finding.confidence} confidence"),
        headline=f"{one_line(finding.message)}{cost}",
        sections=tuple(_document_sections(explanation, options)),
    )


def _document_sections(
    explanation: Explanation, options: ReadersOptions
) -> Iterator[DocumentSection]:
    finding = explanation.finding
    if finding.fix:
        yield DocumentSection("Fix", (Paragraph(one_line(finding.fix)),))
    if explanation.source is not None:
        source = explanation.source
        place = next(where for where in finding.locations if where.file)
        lines = tuple(map(visible, source.lines))
        code = CodeBlock(lines, source.first, source.marked)
        yield DocumentSection(one_line(short_path(place.file or "", options.base)), (code,))
    yield from _places(finding, options.base)
    chains = ("".join(chain) for chain in finding.holders)
    yield from list_section("Held by", chains, is_detail=False)
    calls = (str(SourceLine(each.file, each.line, each.function)) for each in explanation.calls)
    yield from list_section("Called from", calls)
    yield from _events(explanation)
    evidence = (f"{key}: {value}" for key, value in finding.evidence.items() if key != "events")
    yield from list_section("Evidence", evidence)
    for section in explanation.rule:
        if section.title not in _NOT_ABOUT_THE_PROGRAM:
            yield DocumentSection(section.title, tuple(_blocks(section.text)))
    if explanation.change is not None:
        command = f"profkit what-if PATH --remove {explanation.change}"
        text = f"`{one_line(command)}` predicts the step time without it."
        yield DocumentSection("What if", (Paragraph(text),))


def _places(finding: Finding, base: str) -> Iterator[DocumentSection]:
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


def _events(explanation: Explanation) -> Iterator[DocumentSection]:
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


def _blocks(text: str) -> Iterator[Block]:
    for part in text.split("\n\n"):
        if part.startswith(_CODE_INDENT):
            lines = (line.removeprefix(_CODE_INDENT) for line in part.split("\n"))
            yield CodeBlock(tuple(map(visible, lines)))
        else:
            yield Paragraph(one_line(part))
