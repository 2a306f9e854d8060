"""One door for every file: it looks what the file is, and hands it to the reader of that kind."""

import os
from pathlib import Path
from typing import Final

from profkit.errors import LoadError, MissingFileError, NotATraceError, SeveralTracesError
from profkit.model.live_memory import LiveMemory
from profkit.model.snapshot import MemorySnapshot
from profkit.model.trace import Trace
from profkit.readers.kineto.read import read_kineto
from profkit.readers.live_memory import is_live, read_live
from profkit.readers.progress import OnProgress
from profkit.readers.snapshot.read import read_snapshot
from profkit.readers.snapshot.worker_process import PICKLE_MAGIC
from profkit.readers.stream import open_plain, place_of

_START_BYTES: Final = 256
_NAMES: Final = (
    ("*.pt.trace.json", "*.pt.trace.json.gz", "*.snapshot.pickle", "*.snapshot.pickle.gz"),
    ("*.json", "*.json.gz", "*.pickle", "*.pickle.gz"),
)
"""What files are called in a folder: as profilers name them, or else anything that may be one."""


def load(
    path: str | os.PathLike[str],
    *,
    limit_bytes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Trace | MemorySnapshot | LiveMemory:
    """Read a file, whatever wrote it.

    Args:
        path: A Kineto trace, an autograd profiler's array, a snapshot of the allocator's memory,
            or what ``profkit run`` wrote of a program's memory: a file, or a URL (with the extra
            ``remote``); packed by gzip, Zstandard (with the extra ``zstd``), zip or tar, or not.
            Of an archive of several, one is ``ranks.tar!rank0.json``.
        limit_bytes: How large it may be unpacked; by default 4 GiB, or 200 times the packed file.
        on_progress: Is told, while a trace or a snapshot is read, how many of the file's bytes have been
            read and how many it has (0 where that is not known).

    Raises:
        SeveralTracesError: It is a folder, or an archive of several; the error names them.
        LoadError: There is no such file, it cannot be read, or it is none of these. Each kind has
            its own class in :mod:`profkit.errors`.
    """
    place = place_of(path)
    if isinstance(place, Path) and place.is_dir():
        raise _folder(place)
    with open_plain(place) as stream:
        start = stream.read(_START_BYTES)
    if start.startswith(PICKLE_MAGIC):
        return read_snapshot(place, limit_bytes, on_progress)
    if is_live(start):
        return read_live(place, limit_bytes)
    return read_kineto(place, limit_bytes, on_progress)


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


def _folder(folder: Path) -> LoadError:
    for endings in _NAMES:
        found = sorted(path for end in endings for path in folder.rglob(end))
        if found:
            message = f"{folder} is a folder; {len(found)} of its files look like recordings."
            hint = f"Give one of them, such as {found[-1]}."
            return SeveralTracesError(message, hint, [str(path) for path in found])
    return MissingFileError(f"{folder} is a folder without traces.", "Give a trace file.")
