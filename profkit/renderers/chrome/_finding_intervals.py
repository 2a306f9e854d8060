"""Where on the timeline a finding is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.intervals import Intervals, of_pairs
from profkit.model.events import Lane
from profkit.model.finding import Finding
from profkit.model.report import Report

MOST_STRETCHES: Final = 1000
_EVENTS: Final = "events"
"""The evidence that holds the numbers of events."""


@dataclass(frozen=True)
class Named:
    """An event that a finding rests on.

    Attributes:
        lane: Its process and thread.
        start_ns: Its start.
        end_ns: Its end.
    """

    lane: Lane
    start_ns: int
    end_ns: int


def named_events(findings: Iterable[Finding], ctx: Context | None) -> Mapping[int, Named]:
    """The events that any of some findings names, by their number in the file.

    Args:
        ctx: What was recorded, or None.
    """
    if ctx is None or not ctx.has_trace:
        return {}
    wanted = sorted({number for finding in findings for number in event_numbers(finding)})
    events, memory = ctx.events, ctx.trace.memory
    found = {}
    for row in np.flatnonzero(np.isin(memory.position, wanted)).tolist():
        at = int(memory.ts_ns[row])
        found[int(memory.position[row])] = Named(events.lanes[memory.lane[row]], at, at)
    for row in np.flatnonzero(np.isin(events.position, wanted)).tolist():
        lane = events.lanes[events.lane[row]]
        start, end = int(events.ts_ns[row]), int(events.end_ns[row])
        found[int(events.position[row])] = Named(lane, start, end)
    return found


def event_numbers(finding: Finding) -> list[int]:
    """The numbers of the events that a finding names."""
    given = finding.evidence.get(_EVENTS)
    if not isinstance(given, Sequence) or isinstance(given, str):
        return []
    return [number for number in given if isinstance(number, int)]


def stretches_of(
    finding: Finding, named: Mapping[int, Named], report: Report, whole: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """When a finding happens, as (start, end) in nanoseconds, apart and in order.

    What its cost is taken from; else the events that it names; else its step; else all the time.

    Args:
        named: The events that findings name.
        report: The report, for its steps.
        whole: The recording's start and end.
    """
    events = [named[number] for number in event_numbers(finding) if number in named]
    spans = tuple((event.start_ns, event.end_ns) for event in events)
    for pairs in (finding.claims, spans, tuple(_steps_of(finding, report))):
        covered = of_pairs(pairs)
        if len(covered):
            return _longest(covered)
        if pairs:
            # Moments, such as allocations: from the first to the last.
            return ((min(start for start, _ in pairs), max(end for _, end in pairs)),)
    return (whole,)


def _steps_of(finding: Finding, report: Report) -> Iterator[tuple[int, int]]:
    names = {where.step for where in finding.locations if where.step is not None}
    for step in report.summary.steps:
        if step.name in names:
            yield step.start_ns, step.start_ns + step.dur_ns


def _longest(covered: Intervals) -> tuple[tuple[int, int], ...]:
    """At most so many stretches, the longest."""
    if len(covered) <= MOST_STRETCHES:
        return covered.pairs()
    lengths = covered.ends_ns - covered.starts_ns
    kept = np.sort(np.argsort(-lengths, kind="stable")[:MOST_STRETCHES])
    return Intervals(covered.starts_ns[kept], covered.ends_ns[kept]).pairs()
