"""One door for every file: it looks what the file is, and hands it to the reader of that kind."""

import os
from pathlib import Path
from typing import Final

from profkit.errors import MissingFileError, NotATraceError
from profkit.load.kineto.read import read_kineto
from profkit.load.live import is_live, read_live
from profkit.load.memory.read import read_snapshot
from profkit.load.stream import open_plain, place_of
from profkit.model.live import LiveMemory
from profkit.model.snapshot import MemorySnapshot
from profkit.model.trace import Trace

_PICKLE_MAGIC: Final = b"\x80"
_START_BYTES: Final = 256


def load(
    path: str | os.PathLike[str], *, limit_bytes: int | None = None
) -> Trace | MemorySnapshot | LiveMemory:
    """Read a file, whatever wrote it.

    Args:
        path: A Kineto trace, an autograd profiler's array, a snapshot of the allocator's memory,
            or what ``profkit run`` wrote of a program's memory: a file, or a URL (with the extra
            ``remote``); packed by gzip, Zstandard (with the extra ``zstd``), zip or tar, or not.
        limit_bytes: How large it may be unpacked; by default 4 GiB, or 200 times the packed file.

    Raises:
        LoadError: There is no such file, it cannot be read, or it is none of these. Each kind has
            its own class in :mod:`profkit.errors`.
    """
    place = place_of(path)
    if isinstance(place, Path) and place.is_dir():
        raise _folder(place)
    with open_plain(place) as stream:
        start = stream.read(_START_BYTES)
    if start.startswith(_PICKLE_MAGIC):
        return read_snapshot(place, limit_bytes)
    if is_live(start):
        return read_live(place, limit_bytes)
    return read_kineto(place, limit_bytes)


def load_trace(path: str | os.PathLike[str], *, limit_bytes: int | None = None) -> Trace:
    """Read a trace.

    Args:
        path: As for :func:`load`.
        limit_bytes: Likewise.

    Raises:
        NotATraceError: It is another kind of file.
        LoadError: As for :func:`load`.
    """
    loaded = load(path, limit_bytes=limit_bytes)
    if not isinstance(loaded, Trace):
        kind = "a memory snapshot" if isinstance(loaded, MemorySnapshot) else "a record of memory"
        raise NotATraceError(f"{path} is {kind}, and no trace.", "profkit analyze reports on it.")
    return loaded


def _folder(folder: Path) -> MissingFileError:
    traces = sorted(path for end in ("*.json", "*.json.gz") for path in folder.rglob(end))
    if not traces:
        return MissingFileError(f"{folder} is a folder without traces.", "Give a trace file.")
    message = f"{folder} is a folder; {len(traces)} of its files look like traces."
    return MissingFileError(message, f"Give one of them, such as {traces[-1]}.")
