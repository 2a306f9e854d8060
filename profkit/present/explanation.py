"""One finding with its events, calls, source lines and rule."""

from collections.abc import Iterator
from typing import Final

from profkit.engine.registry import rules
from profkit.model.explanation import EventRow, Explanation, RuleSection
from profkit.model.finding import Finding
from profkit.model.location import Location, SourceSnippet, first_with_file
from profkit.model.report import Report
from profkit.present.event_rows import build_event_rows, find_rows
from profkit.present.finding_events import event_positions, find_call_path
from profkit.present.finding_ids import find_finding, finding_ids, selector
from profkit.present.labels import cost_text
from profkit.present.renderer import LoadedRecording
from profkit.present.rule_page import rule_page
from profkit.present.source_snippet import source_snippet

CODE_INDENT: Final = "    "
"""Before each line of code in the text of a section."""


def explain(
    report: Report, recording: LoadedRecording | None, word: str, base: str = ""
) -> Explanation:
    """Explain a finding with its events, calls, source lines and rule.

    Args:
        recording: What the report was made from; without it there are no events.
        word: The finding's id, its number, or its rule if that has no other.
        base: The folder of relative source paths.

    Raises:
        UsageError: There is no such finding, or there are several.
    """
    findings = (*report.findings, *report.health)
    number = find_finding(report, word)
    finding, finding_id = findings[number], finding_ids(findings)[number]

    ctx = recording.context if recording is not None else None
    events: tuple[EventRow, ...] = ()
    # A saved report and a snapshot have no events.
    if ctx is not None and ctx.has_trace:
        events = tuple(build_event_rows(ctx, find_rows(ctx, event_positions(finding))))

    return Explanation(
        profkit=report.profkit,
        path=report.source.path,
        id=finding_id,
        number=number + 1,
        finding=finding,
        cost=cost_text(report, finding),
        events=events,
        calls=find_call_path(report, recording, finding),
        source=_source(finding, base),
        rule=tuple(_sections(finding.rule)),
        change=selector(finding_id) if finding.change is not None else None,
    )


def _source(finding: Finding, base: str) -> SourceSnippet | None:
    return source_snippet(first_with_file(finding.locations) or Location(), base)


def _sections(rule_id: str) -> Iterator[RuleSection]:
    """Yield the page of a rule; nothing for an unknown rule, as in a report of a plugin's rule."""
    for rule in rules():
        if rule.INFO.id == rule_id:
            for title, passages in rule_page(rule).items():
                texts = (
                    _indented(passage.text) if passage.is_code else passage.text
                    for passage in passages
                )
                yield RuleSection(title, "\n\n".join(texts).replace("``", "`"))


def _indented(code: str) -> str:
    return "\n".join(f"{CODE_INDENT}{line}".rstrip() for line in code.split("\n"))
