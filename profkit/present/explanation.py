"""One finding with all that is known of it."""

from collections.abc import Iterator
from typing import Final

from profkit.engine.registry import rules
from profkit.model.explanation import EventRow, Explanation, RuleSection
from profkit.model.finding import Finding
from profkit.model.location import Location, SourceSnippet
from profkit.model.report import Report
from profkit.present.event_rows import event_rows, rows_at
from profkit.present.finding_events import call_path, event_positions
from profkit.present.finding_ids import finding_ids, numbered_finding, selector
from profkit.present.headline import cost_text
from profkit.present.renderer import LoadedRecording
from profkit.present.rule_page import rule_page
from profkit.present.source_snippet import source_snippet

CODE_INDENT: Final = "    "
"""Before each line of code in the text of a section."""


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
    return "\n".join(f"{CODE_INDENT}{line}".rstrip() for line in code.split("\n"))
