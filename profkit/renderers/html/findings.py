"""Findings by cost; each opens to its fix, source lines and evidence."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.registry import rules
from profkit.engine.wording import counted
from profkit.model.finding import SEVERITIES, Finding
from profkit.model.growth import Growth
from profkit.model.location import NO_SOURCE_LINE, Location, base_name
from profkit.model.report import Report
from profkit.present.diagnosis import no_findings
from profkit.present.evidence import evidence_texts
from profkit.present.finding_events import times_of
from profkit.present.labels import cost_text, is_free, ranking, source_line
from profkit.present.memory_text import NO_PROBLEMS
from profkit.present.rule_page import Passage, rule_page
from profkit.present.source_snippet import find_adding_line, source_snippet
from profkit.present.tables.definition import Column, Table
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import CHART_SCRIPT, Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableTable, build_table, cell, table_data
from profkit.units import format_bytes, format_count

MAX_CARDS: Final = 60
"""Findings with all their details; the others are rows of a table."""
MAX_PLACES: Final = 12
MAX_SNIPPETS: Final = 3
MAX_HOLDERS: Final = 6
_MAX_CHARACTERS: Final = 400
_SCRIPT: Final = "findings.js"
_GROWTH_SCRIPT: Final = "growth.js"
_SAME_LINE: Final = 0.05
"""Two lines that differ by less of their height look the same."""
_MAX_APART: Final = 8
"""Lines to edit and to look at are shown together if no more lines are between them."""
_RULE_SECTIONS: Final = ("Example", "Use instead", "Why it matters", "When to ignore this")
"""What the rule's page says of every program: its code is an example, and not of this one."""


def build_section(report: Report, options: Options) -> Section:
    """Return the findings, or a statement that there are none."""
    pages = {rule.INFO.id: rule_page(rule) for rule in rules()}
    cards = [
        _build_card(report, options, number, finding, pages.get(finding.rule, {}))
        for number, finding in enumerate(report.findings[:MAX_CARDS], start=1)
    ]
    more = _build_more_table(report, options)
    statement = no_findings(report)
    body = fill(
        "findings.html.j2",
        cards=cards,
        rest=more,
        n=len(report.findings),
        by_severity=_count_by_severity(report.findings),
        notes_last=ranking(report.findings).partition("first")[2],
        statement=statement,
        is_explained=statement == NO_PROBLEMS,
        n_unchecked=len(report.unchecked),
    )

    charts = [chart for card in cards for chart in card["growth"]]
    data: dict[str, Any] = {"growth": charts} if charts else {}
    scripts = (CHART_SCRIPT, _GROWTH_SCRIPT, _SCRIPT) if charts else (_SCRIPT,)
    if more is not None:
        scripts = (*scripts, TABLE_SCRIPT)
        data |= table_data(more)
    return Section("findings", "Findings", body, scripts, data)


def _count_by_severity(findings: Sequence[Finding]) -> str:
    """Return ``1 error, 2 warnings``."""
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(
        counted(counts[severity], severity) for severity in reversed(SEVERITIES) if counts[severity]
    )


def _build_card(
    report: Report,
    options: Options,
    number: int,
    finding: Finding,
    page: Mapping[str, tuple[Passage, ...]],
) -> dict[str, Any]:
    """Return what ``findings.html.j2`` shows of a finding."""
    locations = finding.locations[:MAX_PLACES]
    edited = _find_line_to_edit(finding, options)
    places: list[dict[str, Any]] = [
        {
            "name": _long_place(where, options),
            "lines": _read_lines(finding, where, edited, options, with_edited=number == 0)
            if number < MAX_SNIPPETS and options.source
            else [],
        }
        for number, where in enumerate(locations)
    ]

    # The line to edit may be far from the line that allocates: it gets a place of its own.
    if edited is not None and all(line["number"] != edited for line in places[0]["lines"]):
        where = replace(locations[0], line=edited, op=None, module=None, step=None)
        lines = _read_lines(finding, where, edited, options)
        places.insert(0, {"name": _long_place(where, options), "lines": lines})

    place = short_place(finding, options)
    about = {title: page[title] for title in _RULE_SECTIONS if title in page}
    return {
        "number": number,
        "finding": finding,
        # Of what costs nothing here, a line is enough.
        "is_open": number == 1 and not is_free(finding),
        "place": place,
        "short_place": base_name(place) if finding.locations else place,
        "cost": cost_text(report, finding),
        "places": places,
        "n_more_places": len(finding.locations) - len(locations),
        "holders": [
            [cell(part, _MAX_CHARACTERS) for part in chain]
            for chain in finding.holders[:MAX_HOLDERS]
        ],
        "growth": list(_build_growth_charts(number, finding.growth)),
        "evidence": list(evidence_texts(finding)),
        "range_ns": _find_range(finding, options),
        "about": about,
        "about_title": ", ".join(about).capitalize(),
    }


def _find_line_to_edit(finding: Finding, options: Options) -> int | None:
    """Return the line in the first location's file that adds to what grows, or None."""
    name = finding.evidence.get("holder_name")
    if not (options.source and finding.locations and isinstance(name, str)):
        return None
    return find_adding_line(name, finding.locations[0], options.base)


def _read_lines(
    finding: Finding,
    where: Location,
    edited: int | None,
    options: Options,
    *,
    with_edited: bool = False,
) -> list[dict[str, Any]]:
    """Return the source lines around a location; empty if this machine has no such file.

    Where memory grows, it is noted which line allocates and which adds to what grows. With
    ``with_edited``, the latter is among the lines if it is near.
    """
    also = edited if with_edited and _are_near(where.line, edited) else None
    snippet = source_snippet(where, options.base, also=also)
    if snippet is None:
        return []

    is_first_file = bool(finding.locations) and where.file == finding.locations[0].file
    finding_lines = {place.line for place in finding.locations if place.file == where.file}
    lines = []
    for number, text in enumerate(snippet.lines, snippet.first):
        is_edited = is_first_file and number == edited
        allocates = number in finding_lines if edited is not None else number == snippet.marked
        notes = ["edit"] * is_edited + ["allocates"] * (allocates and edited is not None)
        kind = "edited" if is_edited else "marked" if allocates else ""
        lines.append({"number": number, "text": text, "kind": kind, "note": ", ".join(notes)})
    return lines


def _are_near(line: int | None, other: int | None) -> bool:
    """Return whether two lines, if both are known, are shown together."""
    return line is not None and other is not None and abs(line - other) <= _MAX_APART


def _build_growth_charts(number: int, grown: Growth | None) -> Iterator[dict[str, Any]]:
    """Return what ``growth.js`` draws: the bytes over the steps, and the number of objects.

    Objects of one size would give the same line twice: their number is then in the title.
    """
    if grown is None:
        return
    is_one_line = _is_proportional(grown)
    for unit, title, values in (("bytes", "Bytes", grown.bytes), ("count", "Objects", grown.n)):
        if not values or (unit == "count" and is_one_line):
            continue
        show = format_bytes if unit == "bytes" else format_count
        least, most = (show(extreme(values)) for extreme in (min, max))
        objects = f", {counted(max(grown.n), 'object')}" if unit == "bytes" and is_one_line else ""
        yield {
            "id": f"growth-{number}-{unit}",
            "title": f"{title}: {least} to {most}, steps {grown.steps[0]} to {grown.steps[-1]}"
            f"{objects}",
            "unit": unit,
            "label": title.lower(),
            "at": grown.steps,
            "values": values,
        }


def _is_proportional(grown: Growth) -> bool:
    """Return whether the bytes grow as the number of objects does."""
    most_bytes, most = max(grown.bytes, default=0), max(grown.n, default=0)
    return bool(most_bytes and most) and all(
        abs(n_bytes / most_bytes - n / most) < _SAME_LINE
        for n_bytes, n in zip(grown.bytes, grown.n, strict=True)
    )


def short_place(finding: Finding, options: Options) -> str:
    """Return the source line, operator or reference chain of a finding, or an empty text."""
    if not finding.locations:
        return cell("".join(finding.holders[0]), _MAX_CHARACTERS) if finding.holders else ""
    where = finding.locations[0]
    if where.file is None:
        return cell(where.op or "", _MAX_CHARACTERS)
    line = source_line(where.file, where.line, options.base)
    return cell(line, _MAX_CHARACTERS)


def _long_place(where: Location, options: Options) -> str:
    parts = []
    if where.file is not None:
        parts.append(source_line(where.file, where.line, options.base))
    if where.function:
        parts.append(f"in {where.function}")
    parts += [
        f"{what} {name}"
        for what, name in (("op", where.op), ("module", where.module), ("step", where.step))
        if name
    ]
    return cell(" · ".join(parts), _MAX_CHARACTERS) or NO_SOURCE_LINE


def _find_range(finding: Finding, options: Options) -> tuple[int, int] | None:
    """Return (start, end) in nanoseconds of the longest range of a finding, or of its events."""
    if options.recording is None:
        return None
    starts, ends = times_of(options.recording.context, finding)
    if not len(starts):
        return None
    # The first of the longest: the last key of lexsort is its primary one.
    longest = np.lexsort((starts, starts - ends))[0]
    return int(starts[longest]), int(ends[longest])


@dataclass(frozen=True)
class _RankedFinding:
    """A finding with its number in the report."""

    rank: int
    finding: Finding


def _build_more_table(report: Report, options: Options) -> SortableTable | None:
    """Return the findings beyond the cards, or None without any."""
    rows = tuple(
        _RankedFinding(rank, finding)
        for rank, finding in enumerate(report.findings[MAX_CARDS:], start=MAX_CARDS + 1)
    )
    if not rows:
        return None

    columns = (
        Column("count", "rank", "rank"),
        Column("text", "", "finding", value="finding.title"),
        Column("name", "", "rule", value="finding.rule"),
        Column("text", "", "severity", value="finding.severity"),
        Column("place", "", "location", value=lambda row: short_place(row.finding, options)),
        Column(
            "ns",
            "",
            "time",
            "what the fix can save over the whole recording",
            value="finding.cost.ns",
        ),
        Column("bytes", "", "memory", value="finding.cost.bytes"),
        Column(
            "text", "", "message", value=lambda row: cell(row.finding.message)[:_MAX_CHARACTERS]
        ),
    )
    return build_table(Table("more-findings", counted(len(rows), "more finding"), columns, rows))
