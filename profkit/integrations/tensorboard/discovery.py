"""What recordings lie below TensorBoard's folders: a bounded walk that no link leads astray.

A recording is a file, and what profkit wrote beside it of the same program under another ending: a
trace with the snapshot and the watched memory of the same process. A run is a folder that holds
recordings: several ranks, or several moments.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from profkit.names import visible

FileKind = Literal["trace", "snapshot", "live"]
"""As a report's source has it; the report's own modules are more than a server has to import."""

_ENDING: Final = re.compile(
    r"\.(?:(?P<trace>pt\.trace\.json)|(?P<snapshot>snapshot\.pickle)|(?P<live>memory\.json))"
    r"(?:\.gz|\.zst)?$"
)
"""How recordings end. ``.pt.trace.json`` is also what ``tensorboard_trace_handler`` writes."""
_KINDS: Final[tuple[FileKind, ...]] = ("trace", "snapshot", "live")
"""What a recording is called when there are several files of it: by the first of these."""
_DEEPEST: Final = 12
_MOST_ENTRIES: Final = 200_000
"""A logdir may be set to ``/``: the walk ends somewhere, and says so."""
MOST_RECORDINGS: Final = 5_000
_ID_LENGTH: Final = 24
_REMOTE: Final = re.compile(r"^[a-zA-Z][\w.+-]*://")


@dataclass(frozen=True)
class LogRoot:
    """A folder that TensorBoard was started on.

    Attributes:
        path: The folder.
        name: What its runs begin with, or empty where there is one folder alone.
    """

    path: str
    name: str = ""


@dataclass(frozen=True)
class DiscoveredRecording:
    """One recording.

    Attributes:
        id: What a page names it by. It tells nothing of the path, and no path is made from it.
        run_id: The same of its run.
        run: Its folder below the root, safe to show.
        name: Its file's name without the ending, safe to show.
        kind: What it is.
        paths: Its files, absolute.
        n_bytes: Their lengths together.
        modified_ns: When the newest of them was written, since 1970.
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
    def state(self) -> str:
        """What changes when one of its files does."""
        return "\0".join((*self.paths, str(self.n_bytes), str(self.modified_ns)))


@dataclass(frozen=True)
class DiscoveryResult:
    """What a walk found.

    Attributes:
        recordings: The recordings, the newest first.
        is_whole: Whether the walk came to its end within its bounds.
        not_here: Folders that this machine does not have, safe to show.
    """

    recordings: tuple[DiscoveredRecording, ...] = ()
    is_whole: bool = True
    not_here: tuple[str, ...] = ()


def roots_of(logdir: str | None, logdir_spec: str | None) -> tuple[LogRoot, ...]:
    """The folders that TensorBoard's options name.

    Args:
        logdir: ``--logdir``: one folder.
        logdir_spec: ``--logdir_spec``: ``name:folder``s and ``folder``s with commas between them.

    Source: ``_parse_event_files_spec`` in TensorBoard's ``data_ingester.py``.
    """
    if logdir:
        return (LogRoot(_absolute(logdir)),)
    found = []
    for part in filter(None, (logdir_spec or "").split(",")):
        name, colon, path = part.partition(":")
        named = colon and not part.startswith("/") and not _REMOTE.match(part)
        found.append(LogRoot(_absolute(path if named else part), name if named else ""))
    if len(found) == 1:
        return tuple(found)
    return tuple(LogRoot(each.path, each.name or each.path.strip("/")) for each in found)


def _absolute(path: str) -> str:
    if _REMOTE.match(path):
        return path
    return os.path.realpath(Path(path).expanduser())


def find_recordings(roots: tuple[LogRoot, ...]) -> DiscoveryResult:
    """Look for recordings.

    Args:
        roots: The folders to look in.
    """
    walk = _Walk()
    for root in roots:
        if _REMOTE.match(root.path) or not os.path.isdir(root.path):  # noqa: PTH112  (a str may be any bytes)
            walk.not_here.append(visible(root.path))
            continue
        walk.through(root)
    newest_first = sorted(walk.recordings, key=lambda each: (-each.modified_ns, each.id))
    is_whole = walk.n_left > 0 and len(newest_first) <= MOST_RECORDINGS
    return DiscoveryResult(tuple(newest_first[:MOST_RECORDINGS]), is_whole, tuple(walk.not_here))


@dataclass
class _Walk:
    """A walk in progress.

    Attributes:
        recordings: What it found.
        not_here: Folders that are not there.
        seen: Folders that it has been in, as (device, inode).
        n_left: Entries that it may still look at.
    """

    recordings: list[DiscoveredRecording] = field(default_factory=list)
    not_here: list[str] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)
    n_left: int = _MOST_ENTRIES

    def through(self, root: LogRoot) -> None:
        """Go through a folder and those below it, the upper ones first."""
        waiting = [(root.path, 0)]
        for folder, depth in waiting:
            if self.n_left <= 0 or not self._is_new(folder):
                continue
            files, folders = self._entries(folder)
            self.recordings += _of_folder(root, folder, files)
            if depth < _DEEPEST:
                waiting += [(each, depth + 1) for each in folders]

    def _is_new(self, folder: str) -> bool:
        """Whether the walk has not been in a folder yet, by whatever path."""
        try:
            status = os.stat(folder)  # noqa: PTH116  (a str may be any bytes)
        except (OSError, ValueError):
            return False
        key = (status.st_dev, status.st_ino)
        is_new = key not in self.seen
        self.seen.add(key)
        return is_new

    def _entries(self, folder: str) -> tuple[list[tuple[str, os.stat_result]], list[str]]:
        """The regular files of a folder that end as recordings do, and its folders."""
        files, folders = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
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
            pass  # it went away, or is not ours to read: the rest of the walk goes on
        return sorted(files), sorted(folders)


def _of_folder(
    root: LogRoot, folder: str, files: list[tuple[str, os.stat_result]]
) -> Iterator[DiscoveredRecording]:
    """The recordings that the files of one folder are."""
    together: dict[str, dict[str, tuple[str, os.stat_result]]] = {}
    for name, status in files:
        ending = _ENDING.search(name)
        if ending is not None and ending.lastgroup is not None:
            of_stem = together.setdefault(name[: ending.start()], {})
            of_stem.setdefault(ending.lastgroup, (name, status))
    below = os.path.relpath(folder, root.path)
    run = "/".join(filter(None, (root.name, "" if below == "." else below))) or "."
    for stem, of_stem in together.items():
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
