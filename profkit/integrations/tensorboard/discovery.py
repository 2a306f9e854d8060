"""Finds the recordings below TensorBoard's folders, in a bounded search that links cannot mislead.

A recording is a file and the files of other kinds with the same stem: a trace with the snapshot and
the memory samples of the same process. A run is a folder with recordings: of several ranks, or of
several times.
"""

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.names import visible
from profkit.patterns import regex

FileKind = Literal["trace", "snapshot", "live"]
"""Equal to the source kinds of a report, whose modules are too expensive to import here."""

_ENDING: Final = regex(
    r"\.(?:(?P<trace>pt\.trace\.json)|(?P<snapshot>snapshot\.pickle)|(?P<live>memory\.json))"
    r"(?:\.gz|\.zst)?$"
)
"""File names of recordings. ``tensorboard_trace_handler`` also writes ``.pt.trace.json``."""
_KINDS: Final[tuple[FileKind, ...]] = ("trace", "snapshot", "live")
"""A recording of several files has the first of these kinds."""
_PAUSE_S: Final = 5.0
_MAX_DEPTH: Final = 12
_MAX_ENTRIES: Final = 200_000
"""A logdir may be ``/``: the search is incomplete then, and reports that."""
MAX_RECORDINGS: Final = 5_000
_ID_LENGTH: Final = 24
_REMOTE: Final = regex(r"^[a-zA-Z][\w.+-]*://")


@dataclass(frozen=True)
class LogRoot:
    """A folder that TensorBoard was started on; ``name`` prefixes its runs if there are several."""

    path: str
    name: str = ""


@dataclass(frozen=True)
class DiscoveredRecording:
    """One recording.

    Attributes:
        id: Its name in requests. It does not reveal the path, and no path is built from it.
        run_id: The id of its run.
        run: Its folder relative to the root, safe to show.
        name: The stem of its file name, safe to show.
        paths: Its files, absolute.
        modified_ns: Time of the last modification, since 1970.
    """

    id: str
    run_id: str
    run: str
    name: str
    kind: FileKind
    paths: tuple[str, ...]
    n_bytes: int
    modified_ns: int

    @property
    def is_read_by_torch_tb_profiler(self) -> bool:
        """Return whether torch-tb-profiler reads its trace.

        Source: ``WORKER_PATTERN`` in ``consts.py`` of torch-tb-profiler 0.4.3.
        """
        return self.paths[0].endswith((".pt.trace.json", ".pt.trace.json.gz"))

    @property
    def state(self) -> str:
        """Return a text that changes whenever one of its files changes."""
        return "\0".join((*self.paths, str(self.n_bytes), str(self.modified_ns)))


@dataclass(frozen=True)
class DiscoveryResult:
    """The result of a search.

    Attributes:
        recordings: The recordings, the newest first.
        is_complete: Whether the search stayed within its limits.
        missing: Folders that do not exist on this machine, safe to show.
    """

    recordings: tuple[DiscoveredRecording, ...] = ()
    is_complete: bool = True
    missing: tuple[str, ...] = ()


def parse_roots(logdir: str | None, logdir_spec: str | None) -> tuple[LogRoot, ...]:
    """Return the folders in TensorBoard's options.

    Args:
        logdir: ``--logdir``: one folder.
        logdir_spec: ``--logdir_spec``: comma-separated ``name:folder`` and ``folder``.

    Source: ``_parse_event_files_spec`` in TensorBoard's ``data_ingester.py``.
    """
    if logdir:
        return (LogRoot(_absolute(logdir)),)

    # A colon may also be part of a path: an absolute one, or the address of a bucket.
    roots = []
    for part in filter(None, (logdir_spec or "").split(",")):
        name, colon, path = part.partition(":")
        has_name = colon and not part.startswith("/") and not _REMOTE.match(part)
        roots.append(LogRoot(_absolute(path if has_name else part), name if has_name else ""))

    if len(roots) == 1:
        return tuple(roots)
    return tuple(LogRoot(root.path, root.name or root.path.strip("/")) for root in roots)


def _absolute(path: str) -> str:
    if _REMOTE.match(path):
        return path
    return os.path.realpath(Path(path).expanduser())


def find_recordings(roots: tuple[LogRoot, ...]) -> DiscoveryResult:
    """Find the recordings below some folders."""
    search = _Search()
    for root in roots:
        if _REMOTE.match(root.path) or not os.path.isdir(root.path):  # noqa: PTH112  (a str may be any bytes)
            search.missing.append(visible(root.path))
            continue
        search.search(root)

    newest_first = sorted(search.recordings, key=lambda found: (-found.modified_ns, found.id))
    is_complete = search.n_left > 0 and len(newest_first) <= MAX_RECORDINGS
    return DiscoveryResult(tuple(newest_first[:MAX_RECORDINGS]), is_complete, tuple(search.missing))


@dataclass
class _Search:
    """A search in progress; ``visited`` folders are (device, inode), ``n_left`` limits entries."""

    recordings: list[DiscoveredRecording] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    visited: set[tuple[int, int]] = field(default_factory=set)
    n_left: int = _MAX_ENTRIES

    def search(self, root: LogRoot) -> None:
        """Search a folder breadth-first."""
        # The list grows while it is walked. Shallow folders come first, should the limit be hit.
        pending = [(root.path, 0)]
        for folder, depth in pending:
            if self.n_left <= 0 or not self._is_new(folder):
                continue
            files, folders = self._list_entries(folder)
            self.recordings += _group_files(root, folder, files)
            if depth < _MAX_DEPTH:
                pending += [(subfolder, depth + 1) for subfolder in folders]

    def _is_new(self, folder: str) -> bool:
        """Mark a folder as visited; False if it was visited before, by any path."""
        try:
            status = os.stat(folder)  # noqa: PTH116  (a str may be any bytes)
        except (OSError, ValueError):
            return False
        key = (status.st_dev, status.st_ino)
        is_new = key not in self.visited
        self.visited.add(key)
        return is_new

    def _list_entries(self, folder: str) -> tuple[list[tuple[str, os.stat_result]], list[str]]:
        """Return the recordings' files in a folder, and its folders."""
        files, folders = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    # The limit ends a search that would list a whole file system.
                    self.n_left -= 1
                    if self.n_left <= 0:
                        break

                    if entry.is_dir():
                        folders.append(entry.path)
                    elif _ENDING.search(entry.name) and not entry.name.startswith("."):
                        status = entry.stat()
                        if stat.S_ISREG(status.st_mode):
                            files.append((entry.name, status))
        except OSError:
            pass  # it was removed, or is not readable: the search goes on

        return sorted(files), sorted(folders)


def _group_files(
    root: LogRoot, folder: str, files: list[tuple[str, os.stat_result]]
) -> Iterator[DiscoveredRecording]:
    # Of a file that exists both compressed and not, the first by name counts.
    by_stem: dict[str, dict[str, tuple[str, os.stat_result]]] = {}
    for name, status in files:
        ending = _ENDING.search(name)
        if ending is not None and ending.lastgroup is not None:
            of_stem = by_stem.setdefault(name[: ending.start()], {})
            of_stem.setdefault(ending.lastgroup, (name, status))

    below = os.path.relpath(folder, root.path)
    run = "/".join(filter(None, (root.name, "" if below == "." else below))) or "."
    for stem, of_stem in by_stem.items():
        kinds = [kind for kind in _KINDS if kind in of_stem]
        yield DiscoveredRecording(
            id=_id("recording", root.path, below, stem),
            run_id=_id("run", root.path, below),
            run=visible(run),
            name=visible(stem),
            kind=kinds[0],
            paths=tuple(os.path.join(folder, of_stem[kind][0]) for kind in kinds),  # noqa: PTH118  (a str may be any bytes)
            n_bytes=sum(status.st_size for _, status in of_stem.values()),
            modified_ns=max(status.st_mtime_ns for _, status in of_stem.values()),
        )


def _id(*parts: str) -> str:
    text = b"\0".join(os.fsencode(part) for part in parts)
    return hashlib.sha256(text).hexdigest()[:_ID_LENGTH]


class Scanner:
    """Searches some folders repeatedly, on a background thread, while the tab is in use.

    Args:
        roots: The folders.
        pause_s: Seconds from the end of one scan to the start of the next.
        on_found: Called with the result of each scan, on its thread.

    Attributes:
        found: The result of the last scan.
    """

    def __init__(
        self,
        roots: tuple[LogRoot, ...],
        pause_s: float = _PAUSE_S,
        on_found: Callable[[DiscoveryResult], None] | None = None,
    ) -> None:
        self._roots = roots
        self._pause_s = pause_s
        self._on_found = on_found
        self._lock = threading.Lock()
        self._running = False
        self._ended_s: float | None = None
        self.found = DiscoveryResult()
        self._by_id: dict[str, DiscoveredRecording] = {}

    @property
    def has_scanned(self) -> bool:
        """Return whether a scan has completed."""
        return self._ended_s is not None

    def recording(self, ident: str) -> DiscoveredRecording | None:
        """Return the recording with an id, or None; the id may come from any client."""
        return self._by_id.get(ident)

    def start(self) -> None:
        """Start a scan, unless one is running or has just ended. Returns at once."""
        with self._lock:
            is_due = self._ended_s is None or time.monotonic() - self._ended_s >= self._pause_s
            if self._running or not is_due:
                return
            self._running = True
        threading.Thread(target=self._scan, name="profkit scan", daemon=True).start()

    def _scan(self) -> None:
        try:
            result = find_recordings(self._roots)
            self._by_id = {recording.id: recording for recording in result.recordings}
            self.found = result
            if self._on_found is not None:
                self._on_found(result)
        finally:
            with self._lock:
                self._running = False
                self._ended_s = time.monotonic()
