"""Compares two recordings."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal

from profkit._version import __version__
from profkit.comparison.changes import (
    compare_calls,
    compare_findings,
    compare_memory,
    judge_fixes,
    match_findings,
)
from profkit.comparison.figures import compare_figures, renamed_devices
from profkit.dataclass import dataclass
from profkit.errors import UsageError
from profkit.model.difference import Difference, NotCompared
from profkit.model.report import Report, Source, SourceKind
from profkit.model.snapshot import MemorySnapshot

_MAX_OVERHEAD_DIFFERENCE: Final = 0.1
"""If the overheads of two recordings differ by more, their times are hard to compare."""

_KINDS: Final[dict[SourceKind, str]] = {
    "trace": "a trace",
    "snapshot": "a snapshot",
    "ranks": "a job of several ranks",
    "live": "a memory record",
    "flight-recorder": "a FlightRecorder dump",
}


@dataclass(frozen=True)
class Side:
    """One of two recordings.

    Attributes:
        snapshot: The snapshot of the report, if available.
        path: The given file; the report of a monitored program does not name its own.
    """

    report: Report
    snapshot: MemorySnapshot | None = None
    path: str = ""

    @property
    def source(self) -> Source:
        """Source of the recording, with its path."""
        source = self.report.source
        return source if source.path or not self.path else replace(source, path=self.path)


def compare(before: Side, after: Side) -> Difference:
    """Find new and fixed findings and memory, and the changes for the worse or better.

    Raises:
        UsageError: They are of different kinds, such as a trace and a snapshot.
    """
    old, new = before.report, after.report
    if old.source.kind != new.source.kind:
        raise UsageError(
            f"{before.source.path or 'The first'} is {_KINDS[old.source.kind]} and "
            f"{after.source.path or 'the second'} {_KINDS[new.source.kind]}.",
            "Compare two recordings of the same kind.",
        )

    not_compared = tuple(_find_one_sided(old, new))
    matched = match_findings(old, new, {rule.rule for rule in not_compared})
    changes = compare_findings(old, new, matched)

    # Snapshots have every stack, reports only the sites with the most memory.
    if before.snapshot is not None and after.snapshot is not None:
        changes = compare_memory(before.snapshot, after.snapshot) + changes

    return Difference(
        profkit=__version__,
        before=before.source,
        after=after.source,
        figures=compare_figures(old, new),
        changes=(*changes, *compare_calls(old, new)),
        not_compared=not_compared,
        notes=tuple(_collect_notes(before, after)),
        fixes=judge_fixes(old, new, matched.fixed),
    )


def _find_one_sided(old: Report, new: Report) -> Iterator[NotCompared]:
    """Yield the rules that were skipped on one side only."""
    left = {check.rule: check.reason for check in old.unchecked}
    right = {check.rule: check.reason for check in new.unchecked}

    for rule in sorted(left.keys() - right.keys()):
        yield NotCompared(rule, "before", left[rule])
    for rule in sorted(right.keys() - left.keys()):
        yield NotCompared(rule, "after", right[rule])


def _collect_notes(before: Side, after: Side) -> Iterator[str]:
    old, new = before.report, after.report
    for was, now in renamed_devices(old, new).items():
        yield f"{was} before and {now} after are compared as one device."

    overheads = [report.source.overhead_ratio or 0.0 for report in (old, new)]
    if abs(overheads[0] - overheads[1]) > _MAX_OVERHEAD_DIFFERENCE:
        yield "The overhead of recording differs: times are hard to compare."
    if bool(old.summary.steps) != bool(new.summary.steps):
        yield "One recording has no steps, so times are of the whole recordings."

    sides: tuple[tuple[Literal["before", "after"], Side], ...] = (
        ("before", before),
        ("after", after),
    )

    for name, side in sides:
        if side.snapshot is not None and not len(side.snapshot.stacks):
            yield f"The snapshot {name} was recorded without stacks."
        if side.snapshot is None and side.report.source.kind == "snapshot":
            yield f"The report {name} does not contain every stack: compare the snapshots instead."
        # A fault of a recording makes all of its figures doubtful.
        for fault in side.report.health:
            if fault.severity != "note":
                yield f"Figures {name} are less reliable: {fault.title}."
