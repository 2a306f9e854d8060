"""The section with the findings: each with its place, cost, message and fix."""

from collections.abc import Iterator, Sequence
from typing import Final

from profkit.engine.wording import the_ranks
from profkit.model.finding import Finding
from profkit.model.location import NO_SOURCE_LINE
from profkit.model.report import Report
from profkit.present.document import (
    Block,
    DocumentSection,
    FindingBlock,
    Labelled,
    Name,
    SourceLine,
    name_of,
    one_line,
    remainder,
)
from profkit.present.evidence import evidence_texts
from profkit.present.labels import cost_text, is_free, ranking
from profkit.present.renderer import ReadersOptions
from profkit.present.tables.screen import place_cell
from profkit.units import format_count

_MAX_HOLDERS: Final = 3
_MAX_OTHER_PLACES: Final = 3
ALSO_AT: Final = "also at"
"""The label of a finding's further places."""


def build_finding_section(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    """Yield the findings, highest cost first."""
    findings = report.findings
    if not findings:
        return
    blocks: list[Block] = [
        _build_finding(report, number, finding, options)
        for number, finding in enumerate(findings[: options.limit], start=1)
    ]
    blocks += remainder(len(findings) - len(blocks), f"--top {len(findings)}")

    order = f", {ranking(findings)}" if len(findings) > 1 else ""
    figures = f"{format_count(len(findings))} found{order}"
    yield DocumentSection("Findings", tuple(blocks), figures)


def _build_finding(
    report: Report, number: int, finding: Finding, options: ReadersOptions
) -> FindingBlock:
    holders = [name_of("".join(chain)) for chain in finding.holders]
    places = [
        place_cell(location, options.base) or (name_of(location.op) if location.op else None)
        for location in finding.locations
    ]
    main_place = places[0] if places else None
    other_places = [place for place in places[1:] if place]
    shown_evidence = evidence_texts(finding) if options.verbose else ()
    evidence = [one_line(f"{label} {figure}") for label, figure in shown_evidence]
    lists = (
        _labelled("held by", holders, _MAX_HOLDERS, options),
        _labelled(ALSO_AT, other_places, _MAX_OTHER_PLACES, options),
        _labelled("evidence", evidence, len(evidence), options),
    )

    # Without a place, the block's first line already names the ranks.
    on_ranks = name_ranks(report, finding) if main_place else ""
    doubt = "" if finding.confidence == "high" else f" ({finding.confidence} confidence)"
    return FindingBlock(
        number,
        main_place or next(iter(holders), _without_place(report, finding)),
        finding.severity,
        one_line(finding.name),
        one_line(finding.rule),
        one_line(finding.title),
        cost_text(report, finding),
        on_ranks + one_line(finding.message),
        doubt,
        one_line(finding.fix),
        tuple(labelled for labelled in lists if labelled.values),
        is_free(finding),
    )


def _without_place(report: Report, finding: Finding) -> str:
    """Return the text in place of a source line: the ranks in a report on a job."""
    if not report.ranks:
        return NO_SOURCE_LINE
    is_of_all = not finding.ranks or len(finding.ranks) == len(report.ranks)
    return "all ranks" if is_of_all else the_ranks(finding.ranks)


def name_ranks(report: Report, finding: Finding) -> str:
    """Name a finding's ranks, unless it is on all ranks of a job or its message names them."""
    where = the_ranks(finding.ranks)
    if not finding.ranks or len(finding.ranks) == len(report.ranks):
        return ""
    return "" if where in finding.message.lower() else f"On {where}: "


def _labelled(
    label: str, values: Sequence[Name | SourceLine | str], limit: int, options: ReadersOptions
) -> Labelled:
    shown = tuple(values if options.verbose else values[:limit])
    return Labelled(label, shown, len(values) - len(shown))
