"""The main figures of recordings that were analyzed, in the cache, so that a list has them at once.

An entry is a small JSON file. Its name is a hash of the names, sizes and times of the recording's
files, of what decides which findings there are, and of profkit's own sources.
"""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from profkit.analysis.options import AnalysisOptions
from profkit.dataclass import dataclass
from profkit.folders import cache_folder, cache_limit, make_own_folder
from profkit.model.report import Report
from profkit.present.finding_ids import finding_ids
from profkit.present.main_figures import main_figures
from profkit.readers.cache import hash_code

_FOLDER: Final = "figures"
_ENDING: Final = ".json"
_MAX_ENTRIES: Final = 4_000
"""Beyond this the older half is removed."""


@dataclass(frozen=True)
class TopFinding:
    """The finding that a report shows first.

    Attributes:
        id: As ``profkit explain`` takes it.
        rule: The rule's id.
        name: The rule's name.
        place: Its line, or empty.
    """

    id: str
    rule: str
    name: str
    severity: str
    place: str


@dataclass(frozen=True)
class RunFigures:
    """The main figures of a run.

    Attributes:
        step_ns: Mean step time in nanoseconds; None without steps.
        n_findings: Number of findings.
        finding: The first one, or None.
    """

    step_ns: int | None
    n_findings: int
    finding: TopFinding | None


def summarize_report(report: Report) -> RunFigures:
    """Return the main figures of a report."""
    finding = None
    for first, finding_id in zip(
        report.findings[:1], finding_ids(report.findings[:1]), strict=True
    ):
        place = first.locations[0].place if first.locations else ""
        finding = TopFinding(finding_id, first.rule, first.name, first.severity, place)
    return RunFigures(main_figures(report).step_ns, len(report.findings), finding)


def find_figures(paths: Sequence[str], options: AnalysisOptions) -> RunFigures | None:
    """Find the figures of some files in the cache; None if they are not there."""
    with contextlib.suppress(OSError, ValueError, RuntimeError, msgspec.MsgspecError):
        entry = _choose_entry(paths, options)
        if entry is not None:
            return msgspec.json.decode(entry.read_bytes(), type=RunFigures)
    return None


def keep_figures(report: Report, paths: Sequence[str], options: AnalysisOptions) -> RunFigures:
    """Keep the figures of a report for later lists, if the cache can be written; return them.

    Args:
        report: The report.
        paths: The files that it was made from, of all ranks.
        options: What it was made with.
    """
    figures = summarize_report(report)
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        entry = _choose_entry(paths, options)
        if entry is not None:
            _write_entry(entry, msgspec.json.encode(figures))
    return figures


def _choose_entry(paths: Sequence[str], options: AnalysisOptions) -> Path | None:
    """Return the file of an entry; None without a cache.

    Raises:
        OSError: One of the recording's files is not on this machine.
        RuntimeError: The user has no home.
    """
    code_state = hash_code()
    if cache_limit() == 0 or code_state is None:
        return None

    # By name only: a folder may be given by another path, or have moved.
    states = []
    for path in paths:
        status = os.stat(path)  # noqa: PTH116  (any text)
        states.append((os.path.split(path)[1], status.st_size, status.st_mtime_ns))
    chosen = (options.select, options.ignore, options.thresholds, options.peaks)

    key = repr((sorted(states), chosen)).encode("utf-8", "backslashreplace")
    return cache_folder(_FOLDER) / (hashlib.sha256(code_state + key).hexdigest()[:32] + _ENDING)


def _write_entry(entry: Path, text: bytes) -> None:
    """Write an entry as a whole, and make room for it.

    Raises:
        OSError: It cannot be written.
    """
    folder = entry.parent
    make_own_folder(folder)

    # Entries are never updated, so that the oldest are of recordings that nobody lists.
    names = os.listdir(folder)  # noqa: PTH208  (names, of which there may be thousands)
    if len(names) >= _MAX_ENTRIES:
        _remove_older_half(folder, names)

    draft = entry.with_suffix(f".{os.getpid()}.draft")
    draft.write_bytes(text)
    draft.replace(entry)


def _remove_older_half(folder: Path, names: Sequence[str]) -> None:
    dated = []
    for name in names:
        with contextlib.suppress(OSError):
            dated.append(((folder / name).stat().st_mtime_ns, name))
    for _, name in sorted(dated)[: len(dated) // 2]:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
