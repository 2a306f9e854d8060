"""What to change, most costly first; each finding opens to its evidence, lines and cure."""

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

MAX_OPENING: Final = 60
"""So many findings open to all that is known of them; the others are rows of a table."""
MAX_PLACES: Final = 12
MAX_EXCERPTS: Final = 3
MAX_HOLDERS: Final = 6
_LONG_CHARACTERS: Final = 400
_SCRIPT: Final = "findings.js"
_UNIT: Final = re.compile(r"_(ns|bytes|share)$")
_KEYS: Final = {"events": "event_ids"}
_OF_RULE: Final = ("Why it matters", "When to ignore this")


@dataclass(frozen=True)
class Place:
    """Where a finding is.

    Attributes:
        name: ``train.py:12``, and what ran there.
        excerpt: The lines there, where this machine has them.
    """

    name: str
    source_snippet: SourceSnippet | None


@dataclass(frozen=True)
class Card:
    """A finding as the page shows it.

    Attributes:
        number: Its rank, from 1.
        finding: The finding.
        place: Its first place, or who holds what it is about.
        cost: What it costs.
        places: Its places with lines, the costliest first.
        more_places: How many others it has.
        holders: The chains of who holds what it is about.
        evidence: The figures that it rests on, spelled.
        range_ns: What the timeline can show of it, or None.
        instead: Code to write instead, of the rule's page.
        about: Of the rule's page what matters beyond the finding.
    """

    number: int
    finding: Finding
    place: str
    cost: str
    places: tuple[Place, ...]
    more_places: int
    holders: tuple[str, ...]
    evidence: tuple[tuple[str, str], ...]
    range_ns: tuple[int, int] | None
    instead: tuple[Passage, ...]
    about: Mapping[str, tuple[Passage, ...]]


def section(report: Report, options: Options) -> Section:
    """The findings, or that there are none.

    Args:
        options: Where lines are looked up, and whether there is a timeline.
    """
    pages = {rule.INFO.id: rule_page(rule) for rule in rules()}
    opening = report.findings[:MAX_OPENING]
    cards = [
        _card(report, options, number, finding, pages.get(finding.rule, {}))
        for number, finding in enumerate(opening, start=1)
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
    return Card(
        number=number,
        finding=finding,
        place=_head(finding, options),
        cost=cost_text(report, finding),
        places=tuple(
            Place(
                _long_place(where, options),
                source_snippet(where, options.base)
                if i < MAX_EXCERPTS and options.source
                else None,
            )
            for i, where in enumerate(places)
        ),
        more_places=len(finding.locations) - len(places),
        holders=tuple(_cut("".join(chain)) for chain in finding.holders[:MAX_HOLDERS]),
        evidence=tuple(_evidence(finding)),
        range_ns=_range(finding, options),
        instead=page.get("Use instead", ()),
        about={title: page[title] for title in _OF_RULE if title in page},
    )


def _cut(text: str) -> str:
    return middle_cut(visible(text), _LONG_CHARACTERS)


def _head(finding: Finding, options: Options) -> str:
    if not finding.locations:
        return _cut("".join(finding.holders[0])) if finding.holders else ""
    where = finding.locations[0]
    if where.file is None or where.line is None:
        return _cut(where.op or "")
    return _cut(f"{short_path(where.file, options.base)}:{where.line}")


def _long_place(where: Location, options: Options) -> str:
    words = []
    if where.file is not None and where.line is not None:
        words.append(f"{short_path(where.file, options.base)}:{where.line}")
    if where.function:
        words.append(f"in {where.function}")
    words += [f"{what} {name}" for what, name in (("op", where.op), ("module", where.module),
                                                  ("step", where.step)) if name]  # fmt: skip
    return _cut(" · ".join(words)) or "an unknown line"


def _evidence(finding: Finding) -> Iterator[tuple[str, str]]:
    """What a finding rests on: a name and a figure each, where there is one."""
    for key, value in finding.evidence.items():
        bare = _UNIT.sub("", key)
        # Beside another thing of that name the unit tells what this one is.
        name = key if bare != key and bare in finding.evidence else bare
        if value is not None:
            yield _words(_KEYS.get(name, name)), _figure(key, value)


def _words(key: str) -> str:
    return _cut(key.replace("_", " ").removeprefix("n ")) or "value"


def _figure(key: str, value: EvidenceValue) -> str:
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return _cut(str(value))
    if isinstance(value, int | float):
        if key.endswith("_ns"):
            return format_ns(value)
        if key.endswith("_bytes"):
            return format_bytes(value)
        return format_share(value) if key.endswith("_share") else f"{value:,}"
    shown = ", ".join(_figure(key, each) for each in value[:MAX_PLACES])
    more = len(value) - MAX_PLACES
    return _cut(shown) + (f" and {more} more" if more > 0 else "")


def _range(finding: Finding, options: Options) -> tuple[int, int] | None:
    """What the timeline shows of a finding: the longest time that it claims, else an event."""
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
    """The findings that are only rows."""
    others = report.findings[MAX_OPENING:]
    if not others:
        return None
    columns = (
        SortableColumn("Rank", "count"),
        SortableColumn("Finding", "text"),
        SortableColumn("Rule", "name"),
        SortableColumn("Severity", "text"),
        SortableColumn("Place", "place"),
        SortableColumn("Time", "ns", "what the cure can give back of the recording"),
        SortableColumn("Memory", "bytes"),
        SortableColumn("What happens", "text"),
    )
    rows = (
        (
            rank, each.title, each.rule, each.severity, _head(each, options), each.cost.ns,
            each.cost.bytes, cell(each.message)[:_LONG_CHARACTERS],
        )
        for rank, each in enumerate(others, start=MAX_OPENING + 1)
    )  # fmt: skip
    return table("more-findings", f"{counted(len(others), 'more finding')}", columns, rows)
