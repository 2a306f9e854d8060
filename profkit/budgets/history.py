"""Figures and findings of many reports, by commit."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final

from profkit._version import __version__
from profkit.budgets.baseline import build_baseline, devices_of
from profkit.budgets.figures import FIGURES
from profkit.model.finding import SEVERITIES, Finding, Severity
from profkit.model.history import (
    FigureLine,
    FindingHistory,
    History,
    HistoryEntry,
    HistoryFigure,
)
from profkit.model.report import Report
from profkit.patterns import regex

_OWN_FILE: Final = regex(
    r"(?:^|[/\\])(?P<program>[^/\\]+)[/\\][^/\\]+_\d+\S*?\.(?P<ns>\d{19})\.(?:pt\.trace|memory)\.json"
)
"""A file that profkit has recorded; see ``profkit/capture/process/files.py``."""


def build_history(reports: Iterable[Report]) -> History:
    """Group figures and findings by commit, device and version of PyTorch."""
    groups: dict[Hashable, list[Report]] = {}
    for number, report in enumerate(reports):
        source = report.source
        # A report without a commit is an entry of its own.
        commit = source.revision or number
        key = _program(report), commit, source.torch, devices_of([report])
        groups.setdefault(key, []).append(report)

    ordered = sorted(groups.values(), key=_time_ns)
    entries = tuple(map(_build_entry, ordered))
    return History(
        __version__, entries, tuple(_build_lines(entries)), _track_findings(ordered, entries)
    )


def _program(report: Report) -> str:
    file = _OWN_FILE.search(report.source.path)
    return file["program"] if file else ""


def _recorded_ns(report: Report) -> int | None:
    file = _OWN_FILE.search(report.source.path)
    # Earlier recordings state their time in the name of the file alone.
    return report.source.recorded_unix_ns or (int(file["ns"]) if file else None)


def _time_ns(reports: Sequence[Report]) -> int:
    times = [ns for ns in map(_recorded_ns, reports) if ns is not None]
    return min(times, default=0)


def _build_entry(reports: Sequence[Report]) -> HistoryEntry:
    baseline = build_baseline(reports)
    counts = {severity: sum(rules.values()) for severity, rules in baseline.findings.items()}
    measured = [
        (figure, figure_value)
        for figure in FIGURES
        if (figure_value := baseline.figures.get(figure.name)) is not None
    ]

    return HistoryEntry(
        program=_program(reports[0]),
        revision=baseline.revision,
        torch=baseline.torch,
        devices=baseline.devices,
        recorded_unix_ns=_time_ns(reports) or None,
        paths=tuple(dict.fromkeys(report.source.path for report in reports if report.source.path)),
        # Counts and sizes are exact.
        figures={
            figure.name: HistoryFigure(value.value, value.error if figure.is_time else None)
            for figure, value in measured
        },
        n_findings={severity: counts[severity] for severity in SEVERITIES if severity in counts},
    )


def _build_lines(entries: Sequence[HistoryEntry]) -> Iterator[FigureLine]:
    """Yield each figure of each program and device: devices have times of their own."""
    series = dict.fromkeys((entry.program, entry.devices) for entry in entries)
    for figure in FIGURES:
        for program, devices in series:
            places = tuple(
                place
                for place, entry in enumerate(entries)
                if (entry.program, entry.devices) == (program, devices)
                and figure.name in entry.figures
            )
            # A figure that is 0 in every commit needs no line.
            if any(entries[place].figures[figure.name].value for place in places):
                yield FigureLine(figure.name, figure.title, figure.unit, program, devices, places)


def _identity(finding: Finding) -> Hashable:
    """Identify a finding in other commits, in which its line may have moved."""
    location = finding.locations[0] if finding.locations else None
    if location is None or location.file is None:
        return finding.rule, location.op if location else None, finding.holders[:1]
    return finding.rule, location.file.replace("\\", "/").rpartition("/")[2], location.function


def _identify_findings(reports: Sequence[Report]) -> Iterator[tuple[Hashable, Finding]]:
    """Yield the findings of repeated runs, each with what it has in common with other commits."""
    for report in reports:
        # A rule may have several findings in one function, of which none hides another. Their
        # order by line lasts longer than that by cost.
        by_line = sorted(report.findings, key=_read_line)
        n_seen: Counter[Hashable] = Counter()
        for finding in by_line:
            identity = _identity(finding)
            n_seen[identity] += 1
            yield (identity, n_seen[identity]), finding


def _read_line(finding: Finding) -> int:
    return (finding.locations[0].line or 0) if finding.locations else 0


def _track_findings(
    groups: Sequence[Sequence[Report]], entries: Sequence[HistoryEntry]
) -> tuple[FindingHistory, ...]:
    places: dict[Hashable, list[int]] = {}
    latest: dict[Hashable, Finding] = {}
    for place, reports in enumerate(groups):
        for identity, finding in _identify_findings(reports):
            key = entries[place].program, identity
            latest[key] = finding
            seen = places.setdefault(key, [])
            if place not in seen[-1:]:
                seen.append(place)

    histories = []
    for identity, seen in places.items():
        finding, last = latest[identity], seen[-1]
        program = entries[last].program

        # A finding is fixed in the first later commit of its program in which its rule ran.
        fixed = (
            place
            for place in range(last + 1, len(entries))
            if entries[place].program == program and _is_checked(groups[place], finding.rule)
        )

        histories.append(
            FindingHistory(
                rule=finding.rule,
                name=finding.name,
                program=program,
                severity=finding.severity,
                location=finding.locations[0] if finding.locations else None,
                first=seen[0],
                last=last,
                n=len(seen),
                fixed=next(fixed, None),
            )
        )

    return tuple(sorted(histories, key=_rank))


def _is_checked(reports: Iterable[Report], rule: str) -> bool:
    return any(all(check.rule != rule for check in report.unchecked) for report in reports)


def _rank(finding: FindingHistory) -> tuple[bool, int, int, str]:
    severity: Severity = finding.severity
    return finding.fixed is not None, -finding.last, -SEVERITIES.index(severity), finding.rule
