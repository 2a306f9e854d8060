"""A file as a stream of plain bytes, whatever packs it."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from profkit.errors import MissingFileError, TooLargeError, UnreadableFileError
from profkit.readers.archives import MEMBER, Readable, unpacked
from profkit.readers.progress import OnProgress, ProgressReads
from profkit.readers.remote import is_url, open_url, url_n_bytes
from profkit.readers.stages import Stages, TimedReads
from profkit.units import format_bytes

CHUNK_BYTES: Final = 2 << 20
"""Chunks of 1 to 4 MiB are read fastest: they stay in the processor's cache."""

_LEAST_LIMIT_BYTES: Final = 4 << 30
_MOST_TIMES_PACKED: Final = 200
"""Traces shrink to a tenth or a thirtieth. What unpacks to two hundred times its size is no trace,
but made to fill memory or disks."""


Place = Path | str
"""A file on this machine, or a URL."""


def place_of(path: str | os.PathLike[str]) -> Place:
    """What a path or a URL names."""
    text = os.fspath(path)
    return text if is_url(text) else Path(text)


def split_member(place: Place) -> tuple[Place, str | None]:
    """An archive and what is meant of it; the place itself and None if it names no member.

    Args:
        place: Such as ``ranks.tar!rank0.json``.
    """
    text = str(place)
    archive, mark, member = text.partition(MEMBER)
    if not mark or (isinstance(place, Path) and (place.exists() or not Path(archive).is_file())):
        return place, None
    return place_of(archive), member


def default_limit_bytes(place: Place) -> int:
    """How large a file may become when it is unpacked, if nobody says otherwise."""
    place, _ = split_member(place)
    n_bytes = place.stat().st_size if isinstance(place, Path) else url_n_bytes(place)
    return max(_LEAST_LIMIT_BYTES, _MOST_TIMES_PACKED * n_bytes)


@contextmanager
def open_plain(
    place: Place, stages: Stages | None = None, on_progress: OnProgress | None = None
) -> Iterator[Readable]:
    """Open a file for reading plain bytes, unpacking it on the way.

    Args:
        place: A regular file, or a URL; of an archive also what is meant of it.
        stages: Is told how long reading the packed bytes takes.
        on_progress: Is told how far the file has been read.

    Raises:
        MissingFileError: There is no such file.
        UnreadableFileError: It is no regular file, or the system refuses to read it.
        DamagedFileError: What packs it is broken from the start.
        SeveralTracesError: It is an archive of several traces.
    """
    file, member = split_member(place)
    opened = _opened(file) if isinstance(file, Path) else open_url(file)
    with opened as raw:
        watched = raw if on_progress is None else cast("BinaryIO", ProgressReads(raw, on_progress))
        timed = watched if stages is None else cast("BinaryIO", TimedReads(watched, stages, "read"))
        with unpacked(timed, str(file), member) as plain:
            yield plain


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise UnreadableFileError(
                f"{path} is a link to a file that is not there.", "Give the file itself."
            ) from None
        raise MissingFileError(f"There is no file {path}.", _near(path)) from None
    except OSError as error:
        raise _refused(path, error) from error
    if not stat.S_ISREG(mode):
        # Opening a pipe would wait for a writer, and a device may have no end.
        raise UnreadableFileError(f"{path} is no regular file.", "Give a trace file.")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise _refused(path, error) from error
    with raw:
        yield raw


def _refused(path: Path, error: OSError) -> UnreadableFileError:
    said = os.strerror(error.errno) if error.errno else str(error)
    return UnreadableFileError(
        f"{path} cannot be read: {said}.", "Check the path and its permissions."
    )


def _near(path: Path) -> str:
    """A hint for a path that does not exist: what stands beside it."""
    if not path.parent.is_dir():
        return f"There is no folder {path.parent} either."
    traces = sorted(p.name for p in path.parent.glob("*.json*"))
    return f"Beside it is {traces[0]}." if len(traces) == 1 else ""


class Chunks:
    """The chunks of a stream, and whether it ended before its time.

    Attributes:
        n_bytes: Bytes read so far, after unpacking.
        truncated: The packed data ended in the middle.
    """

    def __init__(self, stream: Readable, limit_bytes: int, stages: Stages | None = None) -> None:
        self._stream = stream
        self._reads = stream if stages is None else TimedReads(stream, stages, "unpack")
        self._limit_bytes = limit_bytes
        self.n_bytes = 0
        self.truncated = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks of at most :data:`CHUNK_BYTES` until the end, or until the data breaks.

        Raises:
            TooLargeError: There is more of it than allowed.
        """
        while chunk := self._reads.read(CHUNK_BYTES):
            self.n_bytes += len(chunk)
            if self.n_bytes > self._limit_bytes:
                raise TooLargeError(
                    f"The file unpacks to more than {format_bytes(self._limit_bytes)}.",
                    "If it is a trace, allow more with --max-bytes.",
                )
            yield chunk
        self.truncated = self._stream.broken
