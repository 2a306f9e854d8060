"""Decompresses files: gzip, Zstandard, zip and tar, also nested."""

import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Final, Protocol

from isal import isal_zlib

from profkit.errors import (
    DamagedFileError,
    MissingFileError,
    NotATraceError,
    SeveralTracesError,
    UnreadableFileError,
)

_BLOCK_BYTES: Final = 256 << 10
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZIP: Final = b"PK\x03\x04"
_TAR: Final = b"ustar"
_TAR_AT: Final = 257
_MAGIC_BYTES: Final = 512
_GZIP_WBITS: Final = 31
MEMBER: Final = "!"
"""Separates an archive's path from a member: ``ranks.tar!rank0.json``."""
_ENDINGS: Final = (".json", ".json.gz", ".json.zst", ".pickle", ".pickle.gz", ".pkl")
_MAX_DEPTH: Final = 4
"""A gzipped tar of gzipped files has depth 3."""
_BROKEN: Final[tuple[Any, ...]] = (EOFError, isal_zlib.error, tarfile.TarError, zipfile.BadZipFile)


class Readable(Protocol):
    """A stream of bytes.

    Attributes:
        broken: Whether reading ended because compressed data is truncated or damaged.
    """

    broken: bool

    def read(self, n_bytes: int, /) -> bytes:
        """Up to this many bytes; none at the end."""
        ...


class _Plain:
    """Bytes that are not compressed."""

    def __init__(self, raw: Any, first: bytes = b"") -> None:  # noqa: ANN401  (anything with read)
        self._raw = raw
        self._first = first
        self.broken = False

    def read(self, n_bytes: int) -> bytes:
        if self._first:
            chunk, self._first = self._first[:n_bytes], self._first[n_bytes:]
            return chunk
        chunk = self._raw.read(n_bytes)
        self.broken = getattr(self._raw, "broken", False)
        return bytes(chunk)


class _Gunzip:
    """A gzip stream of one or several members, read up to where it is damaged."""

    def __init__(self, raw: Readable) -> None:
        self._raw = raw
        self._inflate = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
        self._n_read = 0
        self.broken = False

    def read(self, n_bytes: int) -> bytes:
        try:
            chunk = self._inflated(n_bytes)
        except _BROKEN:
            if not self._n_read:
                raise
            self.broken = True
            return b""
        self._n_read += len(chunk)
        return chunk

    def _inflated(self, n_bytes: int) -> bytes:
        while True:
            if self._inflate.eof:
                block = self._next_member()
                if not block:
                    return b""
            else:
                block = self._inflate.unconsumed_tail or self._raw.read(_BLOCK_BYTES)
            chunk = self._inflate.decompress(block, n_bytes)
            if chunk:
                return bytes(chunk)
            if not block and not self._inflate.eof:
                raise EOFError("the data is truncated")

    def _next_member(self) -> bytes:
        """Begin the next member, if there is one; anything else that follows is padding."""
        first = self._inflate.unused_data.lstrip(b"\0")
        while not first and (block := self._raw.read(_BLOCK_BYTES)):
            first = block.lstrip(b"\0")
        if not first.startswith(_GZIP):
            return b""
        self._inflate = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
        return bytes(first)


class _Unzstd:
    """A Zstandard stream, read up to where it is damaged."""

    def __init__(self, raw: Readable) -> None:
        try:
            import zstandard  # noqa: PLC0415  (an extra, needed for such files only)
        except ImportError:
            raise UnreadableFileError(
                "The file is compressed by Zstandard, which needs a package that is not installed.",
                "pip install 'profkit[zstd]'",
            ) from None
        self._error = zstandard.ZstdError
        reader = zstandard.ZstdDecompressor().stream_reader
        self._reader = reader(raw, read_across_frames=True)  # type: ignore[arg-type]  # has read
        self.broken = False

    def read(self, n_bytes: int) -> bytes:
        try:
            return bytes(self._reader.read(n_bytes))
        except self._error:
            self.broken = True
            return b""


@contextmanager
def unpacked(raw: BinaryIO, path: str, member: str | None = None) -> Iterator[Readable]:
    """The decompressed bytes of a file.

    Args:
        raw: The file.
        path: Its path or URL, for messages.
        member: The member of an archive; None for the only trace in it.

    Raises:
        DamagedFileError: Its compressed data is broken from the start.
        MissingFileError: It has no such member, or is not an archive.
        NotATraceError: It is an archive without a trace.
        SeveralTracesError: It is an archive of several traces.
        UnreadableFileError: Decompressing it needs a package that is not installed.
    """
    with ExitStack() as stack:
        try:
            yield _decompressed(raw, path, stack, member)
        except _BROKEN as error:
            message = f"{path} cannot be decompressed: {error}."
            raise DamagedFileError(message, "Copy the file again.") from error


def _decompressed(
    raw: BinaryIO, path: str, stack: ExitStack, member: str | None = None
) -> Readable:
    """Remove one layer of compression or archive after another.

    Args:
        raw: The file, at its beginning.
        stack: Closes what is opened on the way.
        member: The member of a tar; None if its members have not been listed yet. A tar is read as
            a stream, so listing the members and reading one of them takes two passes.
    """
    plain: Readable = _Plain(raw)
    for depth in range(_MAX_DEPTH):
        first = _first_bytes(plain)
        whole = _Plain(plain, first)
        if first.startswith(_GZIP):
            plain = _Gunzip(whole)
        elif first.startswith(_ZSTD):
            plain = _Unzstd(whole)
        elif first.startswith(_ZIP) and depth == 0:
            archive = stack.enter_context(zipfile.ZipFile(raw))
            names = [info.filename for info in archive.infolist()]
            name = _only_trace(names, path) if member is None else member
            if name not in names:
                raise _no_member(path, name)
            plain = _Plain(stack.enter_context(archive.open(name)))
            member = None
        elif first[_TAR_AT:].startswith(_TAR):
            if member is None:
                names = _members(whole)
                raw.seek(0)
                return _decompressed(raw, path, stack, _only_trace(names, path))
            plain = _Plain(_extracted(whole, path, member))
            member = None
        elif member is not None:
            raise _no_member(path, member)
        else:
            return whole
    message = f"{path} is compressed more than {_MAX_DEPTH} times."
    raise DamagedFileError(message, "Decompress it first.")


def _first_bytes(plain: Readable) -> bytes:
    first = b""
    while len(first) < _MAGIC_BYTES and (block := plain.read(_MAGIC_BYTES - len(first))):
        first += block
    return first


def _members(tar: _Plain) -> list[str]:
    with tarfile.open(fileobj=tar, mode="r|") as archive:  # type: ignore[call-overload]
        return [info.name for info in archive if info.isreg()]


def _extracted(tar: _Plain, path: str, member: str) -> Any:  # noqa: ANN401  (a file of tarfile)
    archive = tarfile.open(fileobj=tar, mode="r|")  # type: ignore[call-overload]  # noqa: SIM115
    for info in archive:
        if info.name == member:
            return archive.extractfile(info)
    raise _no_member(path, member)


def _no_member(path: str, member: str) -> MissingFileError:
    return MissingFileError(f"There is no {member} in {path}.")


def _only_trace(names: list[str], path: str) -> str:
    """The only member that is a trace."""
    traces = [name for name in names if name.endswith(_ENDINGS)]
    if len(traces) == 1:
        return traces[0]
    if not traces:
        raise NotATraceError(
            f"{path} is an archive without a trace.",
            "The name of a trace ends in .json, that of a snapshot in .pickle.",
        )
    members = [f"{path}{MEMBER}{name}" for name in sorted(traces)]
    message = f"{path} is an archive of {len(traces)} traces."
    raise SeveralTracesError(message, f"Give one of them, such as '{members[0]}'.", members)
