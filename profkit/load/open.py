"""One door for every file: it looks what the file is, and hands it to the reader of that kind."""

import os
from pathlib import Path
from typing import Final

from profkit.errors import MissingFileError, NotATraceError
from profkit.load.kineto.read import read_kineto
from profkit.load.stream import open_plain, place_of
from profkit.model.trace import Trace

_PICKLE_MAGIC: Final = b"\x80"


def load(path: str | os.PathLike[str], *, limit_bytes: int | None = None) -> Trace:
    """Read a trace, whatever wrote it.

    Args:
        path: A Kineto trace or an autograd profiler's array: a file, or a URL (with the extra
            ``remote``); JSON, or packed by gzip, Zstandard (with the extra ``zstd``), zip or tar.
        limit_bytes: How large the JSON may be; by default 4 GiB, or 200 times the packed file.

    Raises:
        LoadError: There is no such file, it cannot be read, or it is no trace. Each kind has its
            own class in :mod:`profkit.errors`.
    """
    place = place_of(path)
    if isinstance(place, Path) and place.is_dir():
        raise _folder(place)
    with open_plain(place) as stream:
        first = stream.read(1)
    if first == _PICKLE_MAGIC:
        message = f"{place} is a pickle, and profkit does not open pickles."
        raise NotATraceError(message, "Give the trace that torch.profiler exported beside it.")
    return read_kineto(place, limit_bytes)


def _folder(folder: Path) -> MissingFileError:
    traces = sorted(path for end in ("*.json", "*.json.gz") for path in folder.rglob(end))
    if not traces:
        return MissingFileError(f"{folder} is a folder without traces.", "Give a trace file.")
    message = f"{folder} is a folder; {len(traces)} of its files look like traces."
    return MissingFileError(message, f"Give one of them, such as {traces[-1]}.")
