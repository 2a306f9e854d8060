"""Figures and findings of many reports, by commit."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final

from profkit._version import __version__
from profkit.budgets.baseline import baseline_of, devices_of
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


def history_of(reports: Iterable[Report]) -> History:
    """Figures and findings by commit, device and version of PyTorch."""
    groups: dict[Hashable, list[Report]] = {}
    for number, report in enumerate(reports):
        source = report.source
        commit = source.revision or number
        key = _program(report), commit, source.torch, devices_of([report])
        groups.setdefault(key, []).append(report)
    ordered = sorted(groups.values(), key=_time_ns)
    entries = tuple(map(_entry, ordered))
    return History(__version__, entries, tuple(_lines(entries)), _findings(ordered, entries))


def _program(report: Report) -> str:
    own = _OWN_FILE.search(report.source.path)
    return own["program"] if own else ""


def _recorded_ns(report: Report) -> int | None:
    own = _OWN_FILE.search(report.source.path)
    return report.source.recorded_unix_ns or (int(own["ns"]) if own else None)


def _time_ns(reports: Sequence[Report]) -> int:
    known = [ns for ns in map(_recorded_ns, reports) if ns is not None]
    return min(known, default=0)


def _entry(reports: Sequence[Report]) -> HistoryEntry:
    kept = baseline_of(reports)
    counts = {severity: sum(rules.values()) for severity, rules in kept.findings.items()}
    return HistoryEntry(
        program=_program(reports[0]),
        revision=kept.revision,
        torch=kept.torch,
        devices=kept.devices,
        recorded_unix_ns=_time_ns(reports) or None,
        paths=tuple(dict.fromkeys(each.source.path for each in reports if each.source.path)),
        figures={
            figure.name: HistoryFigure(known.value, known.error if figure.is_time else None)
            for figure in FIGURES
            if (known := kept.figures.get(figure.name)) is not None
        },
        n_findings={severity: counts[severity] for severity in SEVERITIES if severity in counts},
    )


def _lines(entries: Sequence[HistoryEntry]) -> Iterator[FigureLine]:
    """Each figure of each program; on each device for itself, since its times are its own."""
    series = dict.fromkeys((each.program, each.devices) for each in entries)
    for figure in FIGURES:
        for program, devices in series:
            found = tuple(
                place
                for place, each in enumerate(entries)
                if (each.program, each.devices) == (program, devices)
                and figure.name in each.figures
            )
            if any(entries[place].figures[figure.name].value for place in found):
                yield FigureLine(figure.name, figure.title, figure.unit, program, devices, found)


def _identity(finding: Finding) -> Hashable:
    """What is the same finding in another commit, in which its line may have moved."""
    where = finding.locations[0] if finding.locations else None
    if where is None or where.file is None:
        return finding.rule, where.op if where else None, finding.holders[:1]
    return finding.rule, where.file.replace("\\", "/").rpartition("/")[2], where.function


def _findings(
    groups: Sequence[Sequence[Report]], entries: Sequence[HistoryEntry]
) -> tuple[FindingHistory, ...]:
    places: dict[Hashable, list[int]] = {}
    latest: dict[Hashable, Finding] = {}
    for place, reports in enumerate(groups):
        for finding in (each for report in reports for each in report.findings):
            key = entries[place].program, _identity(finding)
            latest[key] = finding
            known = places.setdefault(key, [])
            if place not in known[-1:]:
                known.append(place)
    found = []
    for identity, known in places.items():
        finding, last = latest[identity], known[-1]
        program = entries[last].program
        fixed = (
            place
            for place in range(last + 1, len(entries))
            if entries[place].program == program and _is_checked(groups[place], finding.rule)
        )
        found.append(
            FindingHistory(
                rule=finding.rule,
                name=finding.name,
                program=program,
                severity=finding.severity,
                location=finding.locations[0] if finding.locations else None,
                first=known[0],
                last=last,
                n=len(known),
                fixed=next(fixed, None),
            )
        )
    return tuple(sorted(found, key=_rank))


def _is_checked(reports: Iterable[Report], rule: str) -> bool:
    return any(all(each.rule != rule for each in report.unchecked) for report in reports)


def _rank(found: FindingHistory) -> tuple[bool, int, int, str]:
    severity: Severity = found.severity
    return found.fixed is not None, -found.last, -SEVERITIES.index(severity), found.rule
