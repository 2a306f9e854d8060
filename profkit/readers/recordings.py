"""Finds the recordings at some paths: files, folders and globs, on this machine or at a URL.

A recording is a file, or the files of several kinds that one process wrote: a trace, and the
snapshot and the memory samples of the same process, with the same name up to the ending.
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
from profkit.readers.archives import MEMBER, read_head
from profkit.readers.flight_recorder import may_be_dump
from profkit.readers.kineto import keys
from profkit.readers.live_memory import is_live
from profkit.readers.remote import glob_urls, is_url, list_urls, url_n_bytes
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
DUMP: Final = regex(r"(?:nccl_trace_rank_|fr_rank)\d+(?:\.(?:json|pickle))?(?:\.gz|\.zst)?$")
"""File names of the FlightRecorder's dumps: by default, and in PyTorch's tutorial."""
POSSIBLE: Final = regex(r"(?:\.(?:json|pickle)|rank[_-]?\d+)(?:\.gz|\.zst)?$")
"""Other file names that recordings may have."""
_GLOB: Final = regex(r"[*?\[]")
_FILE: Final = regex(r"\.(json|gz|zst|pickle|pkl|zip|tar|tgz)$", re.IGNORECASE)
_WEB: Final = ("http://", "https://")
"""These have no folders, and a question mark begins a query."""
_START_BYTES: Final = 256
_HEAD_BYTES: Final = 1 << 20
_EVENTS: Final = keys.quote(keys.EVENTS)
_DISTRIBUTED: Final = keys.quote(keys.DISTRIBUTED) + rb"\s*:\s*\{[^{}\[\]]*?"
_RANK: Final = regex(_DISTRIBUTED + rb'"rank"\s*:\s*"?(\d+)')
_WORLD_SIZE: Final = regex(_DISTRIBUTED + rb'"world_size"\s*:\s*"?(\d+)')
_COMPRESSION_RATIO: Final = 16
"""By which a compressed file is taken to be smaller than its text."""
_PLAIN: Final = (".json", ".pickle", ".pkl")
_AT_ONCE: Final = 16
"""Requests to a server for the sizes of its files."""


@dataclass(frozen=True)
class Recording:
    """A recording of one process.

    Attributes:
        paths: The files, by kind: first the trace.
        is_member: Whether they were found in a folder or an archive, or by a glob.
    """

    paths: tuple[str, ...]
    is_member: bool = False


def find_recordings(paths: Iterable[str]) -> list[Recording]:
    """Find the recordings at some paths, in their order. Archives are not opened.

    A file is read together with the other files of its recording in the same folder.

    Raises:
        MissingFileError: A folder has no recordings, or a glob matches nothing.
        UnreadableFileError: A folder cannot be read.
    """
    files: list[tuple[str, bool]] = []
    named: set[str] = set()
    added: set[str] = set()
    for path in paths:
        members = _find_members(path)
        paths_here = [file for file in members or [path] if file not in added]
        named.update(paths_here)
        files += [(file, members is not None) for file in paths_here]

        # A file that was added for an earlier path is not read again for its own.
        if paths_here == [path]:
            siblings = [file for file in _find_siblings(path) if file not in named]
            added.update(siblings)
            files += [(file, False) for file in siblings]
    return group_files(files)


def group_files(files: Iterable[tuple[str, bool]]) -> list[Recording]:
    """Group files with the same name up to their endings to recordings, with one file per kind.

    Args:
        files: Paths, each with whether it was found in a folder or an archive.
    """
    by_stem: dict[object, dict[str, tuple[str, bool]]] = {}
    for number, (path, is_member) in enumerate(files):
        ending = ENDING.search(path)
        kind = ending.lastgroup if ending is not None and ending.lastgroup else ""
        stem: object = path[: ending.start()] if ending is not None else number
        # A second file of one kind is a recording of its own.
        if kind in by_stem.get(stem, ()):
            stem = number
        by_stem.setdefault(stem, {})[kind] = (path, is_member)

    order = ("", *KINDS)
    return [
        Recording(
            tuple(by_kind[kind][0] for kind in order if kind in by_kind),
            all(is_member for _, is_member in by_kind.values()),
        )
        for by_kind in by_stem.values()
    ]


def _find_siblings(path: str) -> list[str]:
    """Find the files of a recording, which have the same name up to their endings."""
    ending = ENDING.search(path)
    if ending is None or is_url(path):
        return [path]
    stem = path[: ending.start()]
    # The file itself is among the names even if it does not exist: reading it then says so.
    names = (f"{stem}.{kind}{packed}" for kind in _KIND_ENDINGS for packed in ("", ".gz", ".zst"))
    return [name for name in names if name == path or os.path.exists(name)]  # noqa: PTH110


def _find_members(path: str) -> list[str] | None:
    """Find the files of a folder or a glob; None for other paths.

    Raises:
        MissingFileError: It has no files.
        UnreadableFileError: It cannot be read.
    """
    if not path:
        # As a path it would be the working folder.
        raise MissingFileError("The path is empty.", "Is a variable of the shell not set?")

    if is_url(path):
        if "::" in path or path.startswith(_WEB):
            return None
        if _GLOB.search(path):
            return _require_files(glob_urls(path), path)
        files = None if _FILE.search(path) else list_urls(path)
        return None if files is None else _require_files(_select_recordings(files), path)

    if is_folder(place_of(path)):
        return list_folder(path)
    if not _GLOB.search(path) or os.path.lexists(path):
        return None
    matches = sorted(glob.glob(path, recursive=True))  # noqa: PTH207  (absolute or relative)
    files = [match for match in matches if not is_folder(Path(match))]
    folders = [match for match in matches if is_folder(Path(match))]
    return _require_files(files or [f for folder in folders for f in list_folder(folder)], path)


def _require_files(files: list[str], path: str) -> list[str]:
    if not files:
        raise MissingFileError(f"There are no recordings at {path}.", "Check the path.")
    return files


def list_folder(folder: str) -> list[str]:
    """List the files that may be recordings in a folder and the folders in it, by name.

    Raises:
        MissingFileError: The folder has no such files.
        UnreadableFileError: It cannot be read.
    """
    try:
        paths = sorted(str(path) for path in Path(folder).rglob("*") if _may_be_file(path.name))
    except OSError as error:
        message = f"The folder {folder} cannot be read: {error.strerror or error}."
        raise UnreadableFileError(message, "Give one of its files.") from error
    files = _select_recordings(paths)
    if not files:
        raise MissingFileError(f"{folder} is a folder without traces.", "Give a trace file.")
    return files


def _may_be_file(name: str) -> bool:
    return "." in name or POSSIBLE.search(name) is not None


def _select_recordings(files: Iterable[str]) -> list[str]:
    """Select the files that profilers named; if there are none, those that may be recordings."""
    named = [(file, file.replace("\\", "/").rpartition("/")[2]) for file in files]
    named = [(file, name) for file, name in named if not name.startswith(".")]

    # Memory samples alone do not decide: the program may have written a trace by another name.
    endings = [(file, ENDING.search(name) or DUMP.search(name)) for file, name in named]
    if any(ending is not None and ending.lastgroup != "live" for _, ending in endings):
        return [file for file, ending in endings if ending is not None]
    return [file for file, name in named if POSSIBLE.search(name)]


def detect_kind(place: Place) -> FileKind:
    """Detect the kind of a file by its first bytes; a trace if they are of no other kind.

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
    """Return which recordings may be ranks of one job, as far as their first bytes tell."""
    if len(recordings) == 1:
        return [False]
    heads = [read_rank(recording.paths[0]) for recording in recordings]
    ranks: dict[int, set[int]] = defaultdict(set)
    for rank, world_size in filter(None, heads):
        ranks[world_size].add(rank)
    return [head is None or (head != () and len(ranks[head[1]]) > 1) for head in heads]


def read_rank(path: str) -> tuple[int, ...] | None:
    """Read rank and world size of a trace, or empty; None if its first bytes do not tell."""
    try:
        with open_plain(place_of(path)) as stream:
            head = read_head(stream, _HEAD_BYTES)
    except LoadError:
        return None
    if head.startswith(PICKLE_MAGIC) or is_live(head):
        return ()

    # Kineto writes the ranks above the events, so a trace whose events have begun has none.
    rank, world_size = _RANK.search(head), _WORLD_SIZE.search(head)
    if rank and world_size:
        return int(rank[1]), int(world_size[1])
    return () if _EVENTS in head else None


def stored_bytes(path: str) -> int:
    """Return the size of a file, or of the archive that it is in; 0 if unknown, as for a URL."""
    try:
        return os.stat(path.partition(MEMBER)[0]).st_size  # noqa: PTH116  (any text)
    except (OSError, ValueError):
        return 0


def estimate_text_bytes(recordings: Sequence[Recording]) -> list[int]:
    """Estimate the bytes of each recording when it is decompressed."""
    paths = [
        (number, path) for number, recording in enumerate(recordings) for path in recording.paths
    ]
    unique_paths = dict.fromkeys(path for _, path in paths)

    # A server takes a while to answer, so several sizes are requested at once.
    if any(map(is_url, unique_paths)):
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (needed for URLs only)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            n_bytes = list(threads.map(_n_bytes, unique_paths))
    else:
        n_bytes = list(map(_n_bytes, unique_paths))

    # The true size of a compressed file is known only after it was read.
    bytes_of = dict(zip(unique_paths, n_bytes, strict=True))
    sizes = [0] * len(recordings)
    for number, path in paths:
        is_plain = path.lower().endswith(_PLAIN)
        sizes[number] += bytes_of[path] * (1 if is_plain else _COMPRESSION_RATIO)

    return sizes


def _n_bytes(path: str) -> int:
    try:
        return url_n_bytes(path) if is_url(path) else stored_bytes(path)
    except LoadError:
        # Reading the file fails as well, and reports why.
        return 0
