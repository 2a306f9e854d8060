"""Findings by cost; each opens to its fix, source lines and evidence."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine.registry import rules
from profkit.engine.wording import counted
from profkit.model.finding import EvidenceValue, Finding
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.names import middle_cut, short_path, visible
from profkit.present.headline import cost_text
from profkit.present.rule_page import Passage, rule_page
from profkit.present.source_snippet import SourceSnippet, source_snippet
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, cell, table
from profkit.units import format_bytes, format_ns, format_share

MAX_CARDS: Final = 60
"""Findings with all their details; the others are rows of a table."""
MAX_PLACES: Final = 12
MAX_SNIPPETS: Final = 3
MAX_HOLDERS: Final = 6
_MAX_CHARACTERS: Final = 400
_SCRIPT: Final = "findings.js"
_UNIT: Final = re.compile(r"_(ns|bytes|share)$")
_LABELS: Final = {"events": "event_ids"}
_RULE_SECTIONS: Final = ("Why it matters", "When to ignore this")


@dataclass(frozen=True)
class Place:
    """A location of a finding: its name, and the source lines there if this machine has them."""

    name: str
    snippet: SourceSnippet | None


@dataclass(frozen=True)
class Card:
    """A finding as the page shows it.

    Attributes:
        place: Its first location, or the holder of the object that it is about.
        places: Its locations, the most expensive first.
        n_more_places: Locations that are not shown.
        holders: The reference chains of the object that it is about.
        evidence: Names and formatted values.
        range_ns: The time range that the timeline can show, or None.
        instead: Code to use instead, from the rule's page.
        about: Sections of the rule's page that help to judge the finding.
    """

    number: int
    finding: Finding
    place: str
    cost: str
    places: tuple[Place, ...]
    n_more_places: int
    holders: tuple[str, ...]
    evidence: tuple[tuple[str, str], ...]
    range_ns: tuple[int, int] | None
    instead: tuple[Passage, ...]
    about: Mapping[str, tuple[Passage, ...]]


def section(report: Report, options: Options) -> Section:
    """The findings, or a statement that there are none."""
    pages = {rule.INFO.id: rule_page(rule) for rule in rules()}
    cards = [
        _card(report, options, number, finding, pages.get(finding.rule, {}))
        for number, finding in enumerate(report.findings[:MAX_CARDS], start=1)
    ]
    rest = _rest(report, options)
    body = fill("findings.html.j2", cards=cards, rest=rest, n=len(report.findings),
                n_unchecked=len(report.unchecked))  # fmt: skip
    if rest is None:
        return Section("findings", "Findings", body, (_SCRIPT,))
    data = {"tables": {rest.id: rest.data}}
    return Section("findings", "Findings", body, (_SCRIPT, TABLE_SCRIPT), data)


def _card(
    report: Report,
    options: Options,
    number: int,
    finding: Finding,
    page: Mapping[str, tuple[Passage, ...]],
) -> Card:
    places = finding.locations[:MAX_PLACES]
    n_snippets = MAX_SNIPPETS if options.source else 0
    return Card(
        number=number,
        finding=finding,
        place=_short_place(finding, options),
        cost=cost_text(report, finding),
        places=tuple(
            Place(
                _long_place(where, options),
                source_snippet(where, options.base) if i < n_snippets else None,
            )
            for i, where in enumerate(places)
        ),
        n_more_places=len(finding.locations) - len(places),
        holders=tuple(_cut("".join(chain)) for chain in finding.holders[:MAX_HOLDERS]),
        evidence=tuple(_evidence(finding)),
        range_ns=_range(finding, options),
        instead=page.get("Use instead", ()),
        about={title: page[title] for title in _RULE_SECTIONS if title in page},
    )


def _cut(text: str) -> str:
    return middle_cut(visible(text), _MAX_CHARACTERS)


def _short_place(finding: Finding, options: Options) -> str:
    if not finding.locations:
        return _cut("".join(finding.holders[0])) if finding.holders else ""
    where = finding.locations[0]
    if where.file is None or where.line is None:
        return _cut(where.op or "")
    return _cut(f"{short_path(where.file, options.base)}:{where.line}")


def _long_place(where: Location, options: Options) -> str:
    parts = []
    if where.file is not None and where.line is not None:
        parts.append(f"{short_path(where.file, options.base)}:{where.line}")
    if where.function:
        parts.append(f"in {where.function}")
    parts += [f"{what} {name}" for what, name in (("op", where.op), ("module", where.module),
                                                  ("step", where.step)) if name]  # fmt: skip
    return _cut(" · ".join(parts)) or "no stack recorded"


def _evidence(finding: Finding) -> Iterator[tuple[str, str]]:
    for key, value in finding.evidence.items():
        bare = _UNIT.sub("", key)
        # The unit distinguishes `loader_ns` from `loader`.
        name = key if bare != key and bare in finding.evidence else bare
        label = _cut(_LABELS.get(name, name).replace("_", " ").removeprefix("n ")) or "value"
        if value is not None:
            yield label, _formatted(key, value)


def _formatted(key: str, value: EvidenceValue) -> str:
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return _cut(str(value))
    if isinstance(value, int | float):
        if key.endswith("_ns"):
            return format_ns(value)
        if key.endswith("_bytes"):
            return format_bytes(value)
        return format_share(value) if key.endswith("_share") else f"{value:,}"
    shown = ", ".join(_formatted(key, each) for each in value[:MAX_PLACES])
    n_more = len(value) - MAX_PLACES
    return _cut(shown) + (f" and {n_more} more" if n_more > 0 else "")


def _range(finding: Finding, options: Options) -> tuple[int, int] | None:
    """The longest time range that the finding claims, else its longest event."""
    if options.recording is None:
        return None
    if finding.claims:
        return max(finding.claims, key=lambda claim: (claim[1] - claim[0], -claim[0]))
    events = options.recording.context.events
    ids = finding.evidence.get("events")
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        return None
    rows = np.flatnonzero(np.isin(events.position, [each for each in ids if isinstance(each, int)]))
    if not len(rows):
        return None
    longest = rows[events.dur_ns[rows].argmax()]
    return int(events.ts_ns[longest]), int(events.end_ns[longest])


def _rest(report: Report, options: Options) -> SortableTable | None:
    """The findings beyond the cards."""
    others = report.findings[MAX_CARDS:]
    if not others:
        return None
    columns = (
        SortableColumn("Rank", "count"),
        SortableColumn("Finding", "text"),
        SortableColumn("Rule", "name"),
        SortableColumn("Severity", "text"),
        SortableColumn("Location", "place"),
        SortableColumn("Time", "ns", "what the fix can save over the whole recording"),
        SortableColumn("Memory", "bytes"),
        SortableColumn("Message", "text"),
    )
    rows = (
        (
            rank, each.title, each.rule, each.severity, _short_place(each, options), each.cost.ns,
            each.cost.bytes, cell(each.message)[:_MAX_CHARACTERS],
        )
        for rank, each in enumerate(others, start=MAX_CARDS + 1)
    )  # fmt: skip
    return table("more-findings", counted(len(others), "more finding"), columns, rows)
