"""A file as a stream of plain bytes, whatever packs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from isal import igzip, isal_zlib

from profkit.errors import DamagedFileError, MissingFileError, UnreadableFileError

CHUNK_BYTES: Final = 2 << 20
"""Chunks of 1 to 4 MiB are read fastest: they stay in the processor's cache."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ISAL_ERROR: Final[type[Exception]] = getattr(isal_zlib, "error")  # noqa: B009  (its stubs call the class an instance)
_BROKEN: Final = (EOFError, igzip.BadGzipFile, _ISAL_ERROR)


class Readable(Protocol):
    """What bytes can be read from."""

    def read(self, n_bytes: int, /) -> bytes:
        """Up to so many bytes; none at the end."""
        ...


@contextmanager
def open_plain(path: Path) -> Iterator[Readable]:
    """Open a file, unpacking gzip, for reading bytes.

    Args:
        path: An existing regular file.

    Raises:
        MissingFileError: There is no such file.
        UnreadableFileError: It is no regular file, or the system refuses to read it.
        DamagedFileError: What packs it is broken from the start.
    """
    if not path.exists():
        message = f"There is no file {path}."
        raise MissingFileError(message, _near(path))
    if not path.is_file():
        message = f"{path} is no regular file."
        raise UnreadableFileError(message, "Give a trace file.")
    try:
        with path.open("rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            if magic == _GZIP_MAGIC:
                with igzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                    yield unpacked
            else:
                yield raw
    except PermissionError as error:
        message = f"{path} may not be read by this user."
        raise UnreadableFileError(message, "Check the file's permissions.") from error
    except _BROKEN as error:
        message = f"{path} cannot be unpacked: {error}."
        raise DamagedFileError(message, "Copy the file again.") from error


def is_packed(path: Path) -> bool:
    """Whether a file is compressed, by how it begins."""
    with path.open("rb") as raw:
        return raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


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

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.n_bytes = 0
        self.truncated = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks of about :data:`CHUNK_BYTES` until the end, or until the data breaks."""
        while True:
            try:
                chunk = self._stream.read(CHUNK_BYTES)
            except _BROKEN:
                if not self.n_bytes:
                    raise
                self.truncated = True
                return
            if not chunk:
                return
            self.n_bytes += len(chunk)
            yield chunk
