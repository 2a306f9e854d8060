"""Finds the recordings of some paths: files, folders and globs, on this machine or at a URL.

A recording is a file, or the files of several kinds that one process wrote: a trace, and with the
same name up to its ending the snapshot and the memory samples of the same process.
"""

import glob
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.errors import LoadError, MissingFileError, UnreadableFileError
from profkit.patterns import regex
from profkit.readers.archives import MEMBER
from profkit.readers.flight_recorder import may_be_dump
from profkit.readers.live_memory import is_live
from profkit.readers.remote import glob_urls, is_url, urls_in
from profkit.readers.snapshot.worker_process import PICKLE_MAGIC
from profkit.readers.stream import Place, is_folder, open_plain, place_of

FileKind = Literal["trace", "snapshot", "live", "flight"]
"""Equal to the source kinds of a report."""

ENDING: Final = regex(
    r"\.(?:(?P<trace>pt\.trace\.json)|(?P<snapshot>snapshot\.pickle)|(?P<live>memory\.json)"
    r"|(?P<flight>flight\.json))"
    r"(?:\.gz|\.zst)?$"
)
"""File names of recordings. ``tensorboard_trace_handler`` also writes ``.pt.trace.json``."""
_KIND_ENDINGS: Final = ("pt.trace.json", "snapshot.pickle", "memory.json", "flight.json")
KINDS: Final[tuple[FileKind, ...]] = ("trace", "snapshot", "live", "flight")
"""A recording of several files has the first of these kinds."""
_DUMP: Final = regex(r"(?:nccl_trace_rank_|fr_rank)\d+(?:\.(?:json|pickle))?(?:\.gz|\.zst)?$")
"""File names of the FlightRecorder's dumps: by default, and in PyTorch's tutorial."""
_ANY: Final = regex(r"(?:\.(?:json|pickle)|rank[_-]?\d+)(?:\.gz|\.zst)?$")
"""What else a recording may be called."""
_GLOB: Final = regex(r"[*?\[]")
_FILE: Final = regex(r"\.(json|gz|zst|pickle|pkl|zip|tar|tgz)$", re.IGNORECASE)
_WEB: Final = ("http://", "https://")
"""These have no folders, and a question mark begins a query."""
_START_BYTES: Final = 256
_HEAD_BYTES: Final = 1 << 20
_EVENTS: Final = b'"traceEvents"'
_RANK: Final = regex(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*"?(\d+)')
_WORLD_SIZE: Final = regex(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"world_size"\s*:\s*"?(\d+)')


@dataclass(frozen=True)
class Recording:
    """A recording of one process.

    Attributes:
        paths: Its files, by kind: first the trace.
        is_member: Whether it was found in a folder or an archive, or by a glob.
    """

    paths: tuple[str, ...]
    is_member: bool = False


def find_recordings(paths: Iterable[str]) -> list[Recording]:
    """The recordings of some paths, in their order. Archives are not opened.

    A file is read with the others of its recording beside it.

    Raises:
        MissingFileError: A folder has no recordings, or a glob matches nothing.
        UnreadableFileError: A folder cannot be read.
    """
    found: list[tuple[str, bool]] = []
    named: set[str] = set()
    beside: set[str] = set()
    for path in paths:
        members = _members(path)
        own = [each for each in members or [path] if each not in beside]
        named.update(own)
        others = (
            [each for each in _files_beside(path) if each not in named] if own == [path] else []
        )
        beside.update(others)
        found += [(each, members is not None) for each in own] + [(each, False) for each in others]
    return grouped(found)


def grouped(files: Iterable[tuple[str, bool]]) -> list[Recording]:
    """Files with the same name up to their endings are one recording, each kind once.

    Args:
        files: Each with whether it was found in a folder or an archive.
    """
    by_stem: dict[object, dict[str, tuple[str, bool]]] = {}
    for number, (path, is_member) in enumerate(files):
        ending = ENDING.search(path)
        kind = ending.lastgroup if ending is not None and ending.lastgroup else ""
        stem: object = path[: ending.start()] if ending is not None else number
        if kind in by_stem.get(stem, ()):
            stem = number
        by_stem.setdefault(stem, {})[kind] = (path, is_member)
    order = ("", *KINDS)
    return [
        Recording(
            tuple(of_kind[kind][0] for kind in order if kind in of_kind),
            all(is_member for _, is_member in of_kind.values()),
        )
        for of_kind in by_stem.values()
    ]


def _files_beside(path: str) -> list[str]:
    """A file with the other files of its recording: those of the same name up to their endings."""
    ending = ENDING.search(path)
    if ending is None or is_url(path):
        return [path]
    stem = path[: ending.start()]
    names = (f"{stem}.{kind}{packed}" for kind in _KIND_ENDINGS for packed in ("", ".gz", ".zst"))
    return [name for name in names if name == path or os.path.exists(name)]  # noqa: PTH110


def _members(path: str) -> list[str] | None:
    """The files of a folder or a glob; None for a path of neither.

    Raises:
        MissingFileError: It has none.
        UnreadableFileError: It cannot be read.
    """
    if not path:
        # As a path it would be the working folder, with whatever is in that.
        raise MissingFileError("The path is empty.", "Is a variable of the shell not set?")
    if is_url(path):
        if "::" in path or path.startswith(_WEB):
            return None
        if _GLOB.search(path):
            return _some(glob_urls(path), path)
        files = None if _FILE.search(path) else urls_in(path)
        return None if files is None else _some(possible(files), path)
    if is_folder(place_of(path)):
        return folder_files(path)
    if not _GLOB.search(path) or os.path.lexists(path):
        return None
    matched = sorted(glob.glob(path, recursive=True))  # noqa: PTH207  (absolute or relative)
    files = [each for each in matched if not is_folder(Path(each))]
    folders = [each for each in matched if is_folder(Path(each))]
    return _some(files or [file for each in folders for file in folder_files(each)], path)


def _some(found: list[str], path: str) -> list[str]:
    if not found:
        raise MissingFileError(f"There are no recordings at {path}.", "Check the path.")
    return found


def folder_files(folder: str) -> list[str]:
    """The files of a folder and the folders in it that may be recordings, by name.

    Raises:
        MissingFileError: There are none.
        UnreadableFileError: It cannot be read.
    """
    try:
        files = sorted(str(path) for path in Path(folder).rglob("*") if _has_type(path.name))
    except OSError as error:
        message = f"The folder {folder} cannot be read: {error.strerror or error}."
        raise UnreadableFileError(message, "Give one of its files.") from error
    found = possible(files)
    if not found:
        raise MissingFileError(f"{folder} is a folder without traces.", "Give a trace file.")
    return found


def _has_type(name: str) -> bool:
    return "." in name or _ANY.search(name) is not None


def possible(files: Iterable[str]) -> list[str]:
    """Those of some files that may be recordings: that profilers named, or else any others."""
    named = [(file, file.replace("\\", "/").rpartition("/")[2]) for file in files]
    named = [each for each in named if not each[1].startswith(".")]
    found = [(file, ENDING.search(name) or _DUMP.search(name)) for file, name in named]
    if any(ending is not None and ending.lastgroup != "live" for _, ending in found):
        return [file for file, ending in found if ending is not None]
    return [file for file, name in named if _ANY.search(name)]


def kind_of(place: Place) -> FileKind:
    """The kind of a file, by its first bytes; a trace where nothing says otherwise.

    Raises:
        LoadError: It cannot be read.
    """
    with open_plain(place) as stream:
        start = stream.read(_START_BYTES)
    if start.startswith(PICKLE_MAGIC):
        return "snapshot"
    if is_live(start):
        return "live"
    return "flight" if may_be_dump(start) else "trace"


def may_be_ranks(recordings: Sequence[Recording]) -> list[bool]:
    """Which recordings may be ranks of a job with another one, as their first bytes tell."""
    if len(recordings) == 1:
        return [False]
    heads = [_rank_at_start(each.paths[0]) for each in recordings]
    ranks: dict[int, set[int]] = defaultdict(set)
    for rank, world_size in filter(None, heads):
        ranks[world_size].add(rank)
    return [head is None or (head != () and len(ranks[head[1]]) > 1) for head in heads]


def _rank_at_start(path: str) -> tuple[int, ...] | None:
    """Rank and world size of a trace, or empty; None if its first bytes do not tell."""
    head = b""
    try:
        with open_plain(place_of(path)) as stream:
            while len(head) < _HEAD_BYTES and (chunk := stream.read(_HEAD_BYTES)):
                head += chunk
    except LoadError:
        return None
    if head.startswith(PICKLE_MAGIC) or is_live(head):
        return ()
    rank, world_size = _RANK.search(head), _WORLD_SIZE.search(head)
    if rank and world_size:
        return int(rank[1]), int(world_size[1])
    return () if _EVENTS in head else None


def stored_bytes(path: str) -> int:
    """The size of a file, of an archive for its members; 0 if it is not known, as of a URL."""
    try:
        return os.stat(path.partition(MEMBER)[0]).st_size  # noqa: PTH116  (any text)
    except (OSError, ValueError):
        return 0
