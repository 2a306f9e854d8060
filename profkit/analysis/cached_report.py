"""Reports in the cache: for a second look with the same rules and options."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from profkit.engine.detector import Rule
from profkit.model.change import ProgramChange
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.readers.cache import Cache, Entry, Key
from profkit.readers.stream import place_of

_KIND: Final = b"report"
_OURS: Final = "profkit."


class _Change(msgspec.Struct, array_like=True):
    """A :class:`~profkit.model.change.ProgramChange` whose rows are arrays of the entry by name."""

    calls: str
    scaled: tuple[tuple[str, float], ...]
    host_time: tuple[tuple[int, int], ...]
    captured: str


class _Stored(msgspec.Struct, array_like=True):
    """A report, and the changes of its findings, those of the recording's health last."""

    report: Report
    changes: tuple[_Change | None, ...]


def report_key(
    cache: Cache, paths: Sequence[str], rules: Sequence[Rule], options: Sequence[object]
) -> Key | None:
    """The key of the report that some rules make of files; None if it is not to be cached.

    Args:
        options: Everything else that the report depends on, as plain data.
    """
    try:
        given = msgspec.msgpack.encode((paths, [rule.INFO.id for rule in rules], options))
        others = [rule for rule in rules if not rule.__name__.startswith(_OURS)]
        plugins = repr(list(map(_state_of, others))).encode("utf-8", "surrogateescape")
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # options that are no plain data; reading says so
        return None
    return cache.key([place_of(path) for path in paths], _KIND, given, plugins)


def _state_of(rule: Rule) -> tuple[object, ...]:
    """What changes with the rule of another package."""
    file = getattr(rule, "__file__", None)
    status = os.stat(file) if file and Path(file).is_file() else None  # noqa: PTH116
    return rule.__name__, file, status and (status.st_size, status.st_mtime_ns)


def entry_of(report: Report) -> Entry:
    """A report as an entry of the cache.

    Raises:
        ValueError: A text cannot be encoded.
        OverflowError: An integer has more than 64 bits.
    """
    arrays: dict[str, Any] = {}
    numbers = count()

    def stored(rows: Any) -> str:  # noqa: ANN401  (an array of rows)
        name = str(next(numbers))
        arrays[name] = np.asarray(rows, dtype=np.int64)
        return name

    def change_of(finding: Finding) -> _Change | None:
        change = finding.change
        if change is None:
            return None
        scaled = tuple((stored(rows), factor) for rows, factor in change.scaled)
        return _Change(stored(change.calls), scaled, change.host_time, stored(change.captured))

    changes = tuple(map(change_of, (*report.findings, *report.health)))
    bare = replace(report, findings=_bare(report.findings), health=_bare(report.health))
    return Entry(msgspec.msgpack.encode(_Stored(bare, changes)), arrays)


def _bare(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(replace(each, change=None) for each in findings)


def find_report(cache: Cache, key: Key) -> Report | None:
    """The cached report; an entry that is no valid one is removed."""
    entry = cache.find(key)
    report = None if entry is None else _report_of(entry)
    if entry is not None and report is None:
        cache.remove(key)
    return report


def _report_of(entry: Entry) -> Report | None:
    try:
        stored = msgspec.msgpack.decode(entry.data, type=_Stored)
        changes = _changes(stored, entry)
        report = stored.report
        findings = tuple(replace(each, change=next(changes)) for each in report.findings)
        health = tuple(replace(each, change=next(changes)) for each in report.health)
    except (msgspec.MsgspecError, ValueError, LookupError, RecursionError, StopIteration):
        return None
    return replace(report, findings=findings, health=health)


def _changes(stored: _Stored, entry: Entry) -> Iterator[ProgramChange | None]:
    """The changes of all findings.

    Raises:
        ValueError: Rows are not those of the recording.
        LookupError: Rows are missing.
    """
    n_rows = stored.report.source.n_events

    def rows(name: str) -> Any:  # noqa: ANN401  (an array of rows)
        found = entry.arrays[name]
        if found.dtype != np.int64 or (len(found) and not 0 <= found.min() <= found.max() < n_rows):
            raise ValueError(name)
        return found.astype(np.intp, copy=False)

    for each in stored.changes:
        yield (
            None
            if each is None
            else ProgramChange(
                rows(each.calls),
                tuple((rows(name), factor) for name, factor in each.scaled),
                each.host_time,
                rows(each.captured),
            )
        )
