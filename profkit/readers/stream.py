"""Opens files as streams of decompressed bytes."""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, cast

from profkit.errors import LoadError, MissingFileError, TooLargeError, UnreadableFileError
from profkit.readers.archives import (
    MAX_COMPRESSION_RATIO,
    MEMBER,
    MIN_LIMIT_BYTES,
    Readable,
    open_unpacked,
)
from profkit.readers.progress import OnProgress, ProgressReads, Stages, TimedReads
from profkit.readers.remote import is_url, open_url, url_n_bytes
from profkit.units import format_bytes

CHUNK_BYTES: Final = 2 << 20
"""Chunks of 1 to 4 MiB are read fastest: they fit into the processor's cache."""

_COMPRESSION_RATIO: Final = 12
"""The typical ratio of gzip for traces."""
_PLAIN_STARTS: Final = (b"{", b"[", b" ", b"\n", b"\x80")
"""JSON and pickles begin like this."""

Place = Path | str
"""A local file, or a URL."""


Copies = Mapping[str, Path]
"""Files with the content of archives' members, by their paths, such as ``ranks.tar!rank0.json``."""


class _ProcessState:
    """What this process has set."""

    copies: Copies = MappingProxyType({})


_state: Final = _ProcessState()


def use_copies(copies: Copies) -> None:
    """Let this process read members of archives from copies, which may be compressed."""
    _state.copies = copies


def current_copies() -> Copies:
    """Return the copies that this process uses, for the use of others on this machine."""
    return _state.copies


def place_of(path: str | os.PathLike[str]) -> Place:
    """Return a path as :class:`~pathlib.Path`, a URL as text."""
    text = os.fspath(path)
    return text if is_url(text) else Path(text)


def split_member(place: Place) -> tuple[Place, str | None]:
    """Split ``ranks.tar!rank0.json`` into archive and member, which is None without a ``!``."""
    text = str(place)
    archive, separator, member = text.partition(MEMBER)
    if not separator:
        return place, None
    # A local file may have the separator in its own name.
    if isinstance(place, Path) and (_exists(place) or not is_file(Path(archive))):
        return place, None
    return place_of(archive), member


def default_limit_bytes(place: Place) -> int:
    """Return the default maximum decompressed size: 4 GiB, or 200 times the file's size."""
    place, _ = split_member(place)
    n_bytes = _status(place).st_size if isinstance(place, Path) else url_n_bytes(place)
    return max(MIN_LIMIT_BYTES, MAX_COMPRESSION_RATIO * n_bytes)


def text_bytes(place: Place) -> int:
    """Estimate the decompressed size of a local file.

    Returns:
        0 for files on other machines, members of archives, and files that cannot be read.
    """
    if not isinstance(place, Path) or not is_file(place):
        return 0

    # The first byte tells text from compressed data, of which the ratio is assumed.
    try:
        with place.open("rb") as raw:
            is_plain = raw.read(1) in _PLAIN_STARTS
        return place.stat().st_size * (1 if is_plain else _COMPRESSION_RATIO)
    except OSError:
        return 0  # reading it fails too, and says why


def is_folder(place: Place) -> bool:
    """Return whether a place is a folder; False if the system cannot tell."""
    return os.path.isdir(place)  # noqa: PTH112  (Path.is_dir raises, for example for long names)


def is_file(path: Path) -> bool:
    """Return whether a path is a regular file; False if the system cannot tell."""
    return os.path.isfile(path)  # noqa: PTH113


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110


@contextmanager
def open_plain(
    place: Place, stages: Stages | None = None, on_progress: OnProgress | None = None
) -> Iterator[Readable]:
    """Open a file for reading decompressed bytes.

    Args:
        place: A regular file or a URL, or a member of an archive.
        stages: Records how long reading the stored bytes takes.
        on_progress: Called after each read.

    Raises:
        MissingFileError: There is no such file.
        UnreadableFileError: It is not a regular file, or the system refuses to read it.
        DamagedFileError: Its compressed data is broken from the start.
        SeveralTracesError: It is an archive of several traces.
    """
    file, member = split_member(place)
    name = str(file)
    if member is not None and (copy := _state.copies.get(f"{file}{MEMBER}{member}")):
        file, member = copy, None

    with open_stored(file) as stored:
        raw = stored
        if on_progress is not None:
            raw = cast("BinaryIO", ProgressReads(raw, on_progress))
        if stages is not None:
            raw = cast("BinaryIO", TimedReads(raw, stages, "read"))

        with open_unpacked(raw, name, member) as plain:
            yield plain


def read_whole(place: Place, limit_bytes: int | None = None) -> bytes:
    """Read and decompress a whole file.

    Args:
        place: As for :func:`open_plain`, which also says what is raised.
        limit_bytes: Maximum decompressed size.

    Raises:
        TooLargeError: It is larger.
    """
    with open_plain(place) as stream:
        limit = default_limit_bytes(place) if limit_bytes is None else limit_bytes
        return b"".join(Chunks(stream, limit))


def open_stored(place: Place) -> AbstractContextManager[BinaryIO]:
    """Open a file or a URL for reading its bytes as they are."""
    return _open_local(place) if isinstance(place, Path) else open_url(place)


@contextmanager
def _open_local(path: Path) -> Iterator[BinaryIO]:
    if not stat.S_ISREG(_status(path).st_mode):
        # Opening a pipe would block until there is a writer, and a device may have no end.
        raise UnreadableFileError(f"{path} is not a regular file.", "Give a trace file.")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise _load_error(path, error) from error
    with raw:
        yield cast("BinaryIO", _LocalFile(raw, path))


class _LocalFile:
    """A file that raises profkit's errors: a read may fail midway, on a network or broken disk."""

    def __init__(self, raw: BinaryIO, path: Path) -> None:
        self._raw = raw
        self._path = path

    def read(self, n_bytes: int = -1) -> bytes:
        try:
            return self._raw.read(n_bytes)
        except OSError as error:
            raise _load_error(self._path, error) from error

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self._raw.seek(offset, whence)
        except OSError as error:
            raise _load_error(self._path, error) from error

    def tell(self) -> int:
        try:
            return self._raw.tell()
        except OSError as error:
            raise _load_error(self._path, error) from error

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (an attribute of the file)
        return getattr(self._raw, name)


def _status(path: Path) -> os.stat_result:
    """Return the status of a file.

    Raises:
        MissingFileError: There is no such file.
        UnreadableFileError: The system refuses to tell.
    """
    try:
        return path.stat()
    except (OSError, ValueError) as error:
        raise _load_error(path, error) from error


def _load_error(path: Path, error: OSError | ValueError) -> LoadError:
    """Return the error for a path that the system refuses, or that has a null character."""
    if isinstance(error, FileNotFoundError):
        if os.path.islink(path):  # noqa: PTH114
            message = f"{path} is a link to a file that does not exist."
            return UnreadableFileError(message, "Give the file itself.")
        return MissingFileError(f"There is no file {path}.", _hint_for_missing(path))

    errno = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(errno) if errno else str(error)
    return UnreadableFileError(
        f"{path} cannot be read: {reason}.", "Check the path and its permissions."
    )


def _hint_for_missing(path: Path) -> str:
    if not is_folder(path.parent):
        return f"There is no folder {path.parent} either."
    try:
        names = sorted(file.name for file in path.parent.glob("*.json*"))
    except OSError:
        return ""
    matches = names if len(names) == 1 else get_close_matches(path.name, names, n=1)
    return f"Did you mean {matches[0]}?" if matches else ""


class Chunks:
    """Iterates over the chunks of a stream.

    Attributes:
        n_bytes: Decompressed bytes read so far.
        truncated: Whether the compressed data ended early.
    """

    def __init__(self, stream: Readable, limit_bytes: int, stages: Stages | None = None) -> None:
        self._stream = stream
        self._reads = stream if stages is None else TimedReads(stream, stages, "decompress")
        self._limit_bytes = limit_bytes
        self.n_bytes = 0
        self.truncated = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks of at most :data:`CHUNK_BYTES` until the end, or until the data is broken.

        Raises:
            TooLargeError: The stream is larger than the limit.
        """
        while chunk := self._reads.read(CHUNK_BYTES):
            self.n_bytes += len(chunk)
            if self.n_bytes > self._limit_bytes:
                raise TooLargeError(
                    f"The file decompresses to more than {format_bytes(self._limit_bytes)}.",
                    "If it is a trace, raise the limit with --max-bytes.",
                )
            yield chunk
        self.truncated = self._stream.broken
