"""Finds the runs in a folder, the newest first.

A run is one recording, or the recordings of the ranks of one job. The time of a recording is in its
name, as profkit and ``tensorboard_trace_handler`` write it, which copies keep; otherwise it is that
of the file's last change. A search looks at names and times, and reads the beginning of a file only
where its name does not tell what it is.
"""

import contextlib
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from profkit.dataclass import dataclass
from profkit.errors import LoadError, MissingFileError, UnreadableFileError
from profkit.patterns import regex
from profkit.readers.archives import read_head
from profkit.readers.flight_recorder import may_be_dump
from profkit.readers.kineto import keys
from profkit.readers.live_memory import is_live
from profkit.readers.recordings import (
    DUMP,
    ENDING,
    POSSIBLE,
    Recording,
    group_files,
    read_rank,
)
from profkit.readers.remote import is_url
from profkit.readers.snapshot.worker_process import PICKLE_MAGIC
from profkit.readers.stream import open_plain, place_of

_MAX_DEPTH: Final = 12
_MAX_ENTRIES: Final = 200_000
"""Files and folders that a search looks at, since the folder may be anything."""
_MAX_OPENED: Final = 1_000
"""Files that a search opens because their names do not tell whether they are recordings."""
_MAX_APART_NS: Final = 600_000_000_000
"""The time between two ranks of a job that write one after the other; disks may be slow."""
_HEAD_BYTES: Final = 1 << 20

_TIME: Final = regex(r"\.(\d{13}|\d{19})$")
"""Milliseconds, as torch wrote until 2.0, or nanoseconds since 1970 at the end of a stem."""
_MS_DIGITS: Final = 13
_NS_PER_MS: Final = 1_000_000
_RANK: Final = regex(r"_(?:(?P<launch>restart\d+)_)?rank(?P<rank>\d+)(?:\.\d+)?$")
_DUMP_RANK: Final = regex(r"rank_(?P<rank>\d+)")
_RANK_FOLDER: Final = regex(r"(?i)\brank[_-]?\d+\b")
_TRACE: Final = regex(
    rb"%s|%s|^\s*\[\s*\{[^{}]*%s"
    % tuple(re.escape(keys.quote(key)) for key in (keys.EVENTS, keys.SCHEMA_VERSION, "ph"))
)
_SNAPSHOT_KEYS: Final = (b"segments", b"device_traces")


@dataclass(frozen=True)
class Run:
    """One recording, or those of the ranks of a job.

    Attributes:
        recordings: The newest first.
        time_ns: When the newest of them was recorded, in nanoseconds since 1970.
        program: The program's name, as far as folder and file name tell.
        group: What runs of one program have in common: their folder and kind.
        n_ranks: Number of ranks, of which each may have several recordings, such as a later dump.
    """

    recordings: tuple[Recording, ...]
    time_ns: int
    program: str
    group: tuple[str, str]
    n_ranks: int = 1

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files of all recordings."""
        return tuple(path for recording in self.recordings for path in recording.paths)

    @property
    def newest(self) -> str:
        """Return the first file of the recording that is the newest."""
        return self.recordings[0].paths[0]


class _Rank(NamedTuple):
    """What tells the ranks of a job apart, and from those of other jobs."""

    kind: str
    job: tuple[str, int]
    number: int


@dataclass(frozen=True)
class _DatedRecording:
    """A recording of a search.

    Attributes:
        files: Its files, as in :class:`Recording`.
        group: As in :class:`Run`.
    """

    files: Recording
    time_ns: int
    group: tuple[str, str]

    @property
    def path(self) -> str:
        """Return its first file."""
        return self.files.paths[0]

    @property
    def name(self) -> str:
        """Return the name of its first file."""
        return os.path.split(self.path)[1]


def find_runs(folder: str) -> Iterator[Run]:
    """Find the runs in a folder and the folders in it, the newest first.

    Hidden files, and those that are still being written by profkit, are left out. Archives are not
    opened.

    Raises:
        MissingFileError: There is no such folder.
        UnreadableFileError: It is not a folder, or cannot be read.
    """
    times = _scan_folder(folder)
    recordings = group_files((path, True) for path in sorted(times))
    return _iterate_runs(_date_recording(recording, times) for recording in recordings)


def find_runs_among(recordings: Sequence[Recording]) -> Iterator[Run]:
    """Find the runs among some recordings, the newest first."""
    times = {path: _read_change_ns(path) for files in recordings for path in files.paths}
    return _iterate_runs(_date_recording(recording, times) for recording in recordings)


def take_two(runs: Iterable[Run]) -> Sequence[Run]:
    """Return the newest run, and the one before it of the same program."""
    two: list[Run] = []
    for run in runs:
        if not two or run.group == two[0].group:
            two.append(run)
        if len(two) == 2:  # noqa: PLR2004  (a pair)
            break
    return two


def _scan_folder(folder: str) -> dict[str, int]:
    """Return the files below a folder that may be recordings, with the time of their last change.

    Raises:
        MissingFileError: There is no such folder.
        UnreadableFileError: It is not a folder, or cannot be read.
    """
    try:
        os.scandir(folder).close()
    except FileNotFoundError as error:
        raise MissingFileError(f"There is no folder {folder}.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableFileError(f"The folder {folder} cannot be read: {reason}.") from error

    scan = _Scan()
    scan.search(folder)
    return scan.times


class _Scan:
    """A search in progress.

    Attributes:
        times: The files so far, with the time of their last change.
    """

    def __init__(self) -> None:
        self.times: dict[str, int] = {}
        self._visited: set[tuple[int, int]] = set()
        self._n_left = _MAX_ENTRIES

    def search(self, root: str) -> None:
        """Search a folder and those in it, breadth first."""
        # The list grows while it is walked. Shallow folders come first, should the limit be hit.
        pending = [(root, 0)]
        for folder, depth in pending:
            if self._n_left <= 0 or not self._is_new(folder):
                continue
            folders = self._scan_entries(folder)
            if depth < _MAX_DEPTH:
                pending += [(subfolder, depth + 1) for subfolder in folders]

    def _is_new(self, folder: str) -> bool:
        """Mark a folder as visited; False if it was before, by any path: a link may lead back."""
        try:
            status = os.stat(folder)  # noqa: PTH116  (any text)
        except (OSError, ValueError):
            return False
        key = (status.st_dev, status.st_ino)
        is_new = key not in self._visited
        self._visited.add(key)
        return is_new

    def _scan_entries(self, folder: str) -> list[str]:
        """Add the files of a folder, and return the folders in it."""
        folders = []
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                self._n_left -= 1
                if self._n_left <= 0:
                    break
                if entry.name.startswith("."):
                    continue

                # A file may be removed between the two calls, which is no reason to stop.
                with contextlib.suppress(OSError):
                    if entry.is_dir():
                        folders.append(entry.path)
                    elif _is_named(entry.name) or POSSIBLE.search(entry.name):
                        status = entry.stat()
                        if stat.S_ISREG(status.st_mode):
                            self.times[entry.path] = status.st_mtime_ns
        return folders


def _is_named(name: str) -> bool:
    """Tell whether a profiler names its files like this."""
    return ENDING.search(name) is not None or DUMP.search(name) is not None


def _read_change_ns(path: str) -> int:
    try:
        return 0 if is_url(path) else os.stat(path).st_mtime_ns  # noqa: PTH116  (any text)
    except (OSError, ValueError):
        return 0


def _date_recording(recording: Recording, times: Mapping[str, int]) -> _DatedRecording:
    """Date a recording by its name, or else by the last change of its files."""
    folder, name = os.path.split(recording.paths[0])
    ending = ENDING.search(name)
    # A trace by any other name is compared with those that torch names.
    kind = (ending.lastgroup if ending is not None else None) or "trace"

    written = _TIME.search(_stem(name))
    if written is None:
        time_ns = max(times[path] for path in recording.paths)
    else:
        time_ns = int(written[1]) * (_NS_PER_MS if len(written[1]) == _MS_DIGITS else 1)
    return _DatedRecording(recording, time_ns, (_RANK_FOLDER.sub("rank", folder), kind))


def _stem(name: str) -> str:
    """Return a file name without the ending of a recording."""
    ending = ENDING.search(name)
    return name[: ending.start()] if ending is not None else name.partition(".")[0]


def _iterate_runs(recordings: Iterable[_DatedRecording]) -> Iterator[Run]:
    """Yield runs, the newest first, with the ranks of a job as one."""
    newest_first = sorted(recordings, key=lambda dated: (-dated.time_ns, dated.files.paths))
    by_folder: dict[str, list[_DatedRecording]] = defaultdict(list)
    for dated in newest_first:
        by_folder[dated.group[0]].append(dated)

    n_passed: Counter[str] = Counter()
    taken: set[str] = set()
    n_opened = 0
    for dated in newest_first:
        folder = dated.group[0]
        n_passed[folder] += 1
        if dated.path in taken:
            continue
        if dated.files.is_member and not _is_named(dated.name):
            n_opened += 1
            if n_opened > _MAX_OPENED or not _is_recording(dated.path):
                continue

        # Not a slice: one for each run would take quadratic time.
        older = map(by_folder[folder].__getitem__, range(n_passed[folder], len(by_folder[folder])))
        ranks = [dated, *_find_ranks(dated, (rank for rank in older if rank.path not in taken))]
        taken.update(rank.path for rank in ranks)
        files = tuple(rank.files for rank in ranks)
        n_ranks = len({identity and identity.number for identity in map(_identify_rank, ranks)})
        yield Run(files, dated.time_ns, _name_program(dated.path), dated.group, n_ranks)


def _find_ranks(
    newest: _DatedRecording, older: Iterable[_DatedRecording]
) -> Iterator[_DatedRecording]:
    """Yield the other ranks of the job that a recording is of, if it is a rank."""
    first = _identify_rank(newest)
    if first is None:
        return

    seen, last_ns = {first}, newest.time_ns
    for dated in older:
        if last_ns - dated.time_ns > _MAX_APART_NS:
            return
        rank = _identify_rank(dated)
        if rank is None or rank.job != first.job:
            continue
        # The same rank again is of an earlier run.
        if rank in seen:
            return
        seen.add(rank)
        last_ns = dated.time_ns
        yield dated


def _identify_rank(dated: _DatedRecording) -> _Rank | None:
    """Return which rank of which job a recording is of, by its name or its beginning."""
    kind, name = dated.group[1], dated.name
    if match := _RANK.search(_stem(name)):
        return _Rank(kind, (match["launch"] or "", 0), int(match["rank"]))
    if DUMP.search(name) and (match := _DUMP_RANK.search(name)):
        return _Rank("flight", ("", 0), int(match["rank"]))
    if kind != "trace" or is_url(dated.path):
        return None

    # torch has the rank in no name, but in the file.
    head = read_rank(dated.path)
    return _Rank(kind, ("", head[1]), head[0]) if head and head[1] > 1 else None


def _is_recording(path: str) -> bool:
    """Tell from its beginning whether a file is a recording, and not a report or other data."""
    try:
        with open_plain(place_of(path)) as stream:
            head = read_head(stream, _HEAD_BYTES)
    except LoadError:
        # What it is comes to light when it is read.
        return False

    if head.startswith(PICKLE_MAGIC):
        return any(key in head for key in _SNAPSHOT_KEYS)
    return is_live(head) or may_be_dump(head) or _TRACE.search(head) is not None


def _name_program(path: str) -> str:
    """Name the program of a recording: by its folder if the file name is that of a process."""
    folder, name = os.path.split(path)
    stem = _stem(name)
    if _TIME.search(stem) is None and DUMP.search(name) is None:
        return stem
    parent = Path(folder)
    while _RANK_FOLDER.fullmatch(parent.name):
        parent = parent.parent
    return parent.name or stem
