"""Loads any recording: detects the kind of a file and calls the reader for it."""

import os
from pathlib import Path
from typing import Final

from profkit.arguments import CALLABLE, PATH, Arguments, optional, whole
from profkit.errors import SeveralTracesError
from profkit.model.flight_record import FlightRecord
from profkit.model.live_memory import LiveMemory
from profkit.model.snapshot import MemorySnapshot
from profkit.model.trace import Trace
from profkit.readers.flight_recorder import read_dump
from profkit.readers.kineto.cached import read_trace
from profkit.readers.live_memory import read_live
from profkit.readers.progress import OnProgress
from profkit.readers.recordings import detect_kind, list_folder
from profkit.readers.snapshot.read import read_pickle
from profkit.readers.stream import is_folder, place_of

_ARGUMENTS: Final = Arguments(
    "profkit.load", path=PATH, limit_bytes=optional(whole()), on_progress=optional(CALLABLE)
)


def load(
    path: str | os.PathLike[str],
    *,
    limit_bytes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Trace | MemorySnapshot | LiveMemory | FlightRecord:
    """Load a recording of any kind.

    The columns of large traces are kept in the user's cache, and mapped from there the next time.

    Args:
        path: A Kineto trace, an autograd profiler's array, a snapshot of the CUDA caching
            allocator, a memory record of ``profkit run``, or a dump of torch's FlightRecorder (a
            pickle, or JSON). A file, or a URL (with the extra ``remote``); uncompressed, or
            compressed by gzip or Zstandard (with the extra ``zstd``), or in a zip or tar archive.
            One member of an archive of several is ``ranks.tar!rank0.json``.
        limit_bytes: Maximum decompressed size; by default 4 GiB, or 200 times the file's size.
        on_progress: Called while a trace or a snapshot is read, with the number of bytes read and
            the file's size (0 if not known).

    Raises:
        SeveralTracesError: It is a folder, or an archive of several; the error lists them.
        LoadError: There is no such file, it cannot be read, or it is none of these. Each case has
            its own class in :mod:`profkit.errors`.
        UsageError: An argument is invalid.
    """
    _ARGUMENTS.check(path=path, limit_bytes=limit_bytes, on_progress=on_progress)
    place = place_of(path)
    if isinstance(place, Path) and is_folder(place):
        files = list_folder(str(place))
        message = f"{place} is a folder with {len(files)} possible recordings."
        raise SeveralTracesError(message, f"Give one of them, such as {files[-1]}.", files)

    kind = detect_kind(place)
    if kind == "snapshot":
        return read_pickle(place, limit_bytes, on_progress)
    if kind == "live":
        return read_live(place, limit_bytes)
    if kind == "flight":
        record = read_dump(place, limit_bytes)
        if record is not None:
            return record
    # Keys of a dump may also be those of a trace's head.
    return read_trace(place, limit_bytes, on_progress)
