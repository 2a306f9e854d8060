"""When a finding happens."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.index.intervals import Intervals, of_pairs
from profkit.model.events import Lane
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.finding_events import event_positions

MAX_INTERVALS: Final = 1000


@dataclass(frozen=True)
class ReferencedEvent:
    """An event that a finding refers to."""

    lane: Lane
    start_ns: int
    end_ns: int


def find_referenced_events(
    findings: Iterable[Finding], ctx: Context | None
) -> Mapping[int, ReferencedEvent]:
    """Return the events that findings refer to, by their position in the file."""
    if ctx is None or not ctx.has_trace:
        return {}

    wanted = sorted({number for finding in findings for number in event_positions(finding)})
    events, memory = ctx.events, ctx.trace.memory
    referenced = {}
    for row in np.flatnonzero(np.isin(memory.position, wanted)).tolist():
        at = int(memory.ts_ns[row])
        referenced[int(memory.position[row])] = ReferencedEvent(
            events.lanes[memory.lane[row]], at, at
        )
    for row in np.flatnonzero(np.isin(events.position, wanted)).tolist():
        lane = events.lanes[events.lane[row]]
        start, end = int(events.ts_ns[row]), int(events.end_ns[row])
        referenced[int(events.position[row])] = ReferencedEvent(lane, start, end)
    return referenced


def find_intervals(
    finding: Finding,
    events: Mapping[int, ReferencedEvent],
    report: Report,
    window: tuple[int, int],
) -> tuple[tuple[int, int], ...]:
    """Return when a finding happens, as (start, end) in nanoseconds, disjoint and in order.

    The intervals of its cost; else the events that it refers to; else its step; else the window.
    """
    referenced = [events[position] for position in event_positions(finding) if position in events]
    spans = tuple((event.start_ns, event.end_ns) for event in referenced)

    for pairs in (finding.spans, spans, tuple(_find_steps(finding, report))):
        covered = of_pairs(pairs)
        if len(covered):
            return _select_longest(covered)
        if pairs:
            # Instants, such as allocations: from the first to the last.
            return ((min(start for start, _ in pairs), max(end for _, end in pairs)),)
    return (window,)


def _find_steps(finding: Finding, report: Report) -> Iterator[tuple[int, int]]:
    names = {where.step for where in finding.locations if where.step is not None}
    for step in report.summary.steps:
        if step.name in names:
            yield step.start_ns, step.start_ns + step.dur_ns


def _select_longest(covered: Intervals) -> tuple[tuple[int, int], ...]:
    """Return the longest intervals, at most :data:`MAX_INTERVALS`."""
    if len(covered) <= MAX_INTERVALS:
        return covered.pairs()
    lengths = covered.ends_ns - covered.starts_ns
    longest = np.sort(np.argsort(-lengths, kind="stable")[:MAX_INTERVALS])
    return Intervals(covered.starts_ns[longest], covered.ends_ns[longest]).pairs()
