"""Decompresses files: gzip, Zstandard, zip and tar, also nested."""

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Final, Protocol, cast

from isal import isal_zlib

from profkit.errors import (
    DamagedFileError,
    MissingFileError,
    NotATraceError,
    SeveralTracesError,
    TooLargeError,
    UnreadableFileError,
)
from profkit.readers.progress import n_bytes_of
from profkit.units import format_bytes, format_count

_BLOCK_BYTES: Final = 256 << 10
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZIP: Final = b"PK\x03\x04"
_TAR: Final = b"ustar"
_TAR_AT: Final = 257
_MAGIC_BYTES: Final = 512
_ENCRYPTED: Final = 1
"""The flag of a zip's member that needs a password."""
_GZIP_WBITS: Final = 31
MEMBER: Final = "!"
"""Separates an archive's path from a member: ``ranks.tar!rank0.json``."""
_ENDINGS: Final = (".json", ".json.gz", ".json.zst", ".pickle", ".pickle.gz", ".pkl")
_MAX_DEPTH: Final = 4
"""A gzipped tar of gzipped files has depth 3."""
_MAX_LISTED: Final = 10_000
"""Members of an archive that is listed to find its traces: each takes about 30 µs, three times."""
_MAX_SEARCHED: Final = 100_000
"""Members that are passed to find one by its name."""
_MAX_NAME_BYTES: Final = 1 << 20
"""A header that gives a member's name, or its other attributes, is not larger."""
_MAX_DIRECTORY_BYTES: Final = 8 << 20
"""The directory of a zip, which is read at once: more than 100,000 members."""
MIN_LIMIT_BYTES: Final = 4 << 30
MAX_COMPRESSION_RATIO: Final = 200
"""Traces compress 10 to 30 times. A ratio of 200 is that of a decompression bomb."""
_BROKEN: Final[tuple[Any, ...]] = (EOFError, isal_zlib.error, tarfile.TarError, zipfile.BadZipFile)
_BROKEN_ARCHIVE: Final[tuple[Any, ...]] = (
    *_BROKEN, zlib.error, lzma.LZMAError, struct.error, OSError, ValueError, LookupError,
    ArithmeticError, RuntimeError,
)  # fmt: skip
"""What zipfile and tarfile raise for damaged archives, besides their own errors. What fails while
the file itself is read is a :class:`~profkit.errors.LoadError` already."""


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


class _Member:
    """A member of an archive, read up to where it is damaged."""

    def __init__(self, raw: Any) -> None:  # noqa: ANN401  (a file of zipfile or tarfile)
        self._raw = raw
        self._n_read = 0
        self.broken = False

    def read(self, n_bytes: int) -> bytes:
        try:
            chunk = bytes(self._raw.read(n_bytes))
        except _BROKEN_ARCHIVE as error:
            if not self._n_read:
                raise EOFError(str(error) or type(error).__name__) from error
            self.broken = True
            return b""
        self._n_read += len(chunk)
        return chunk


class _Limited:
    """A stream that is refused when it has more bytes than a limit, in all or in one read."""

    def __init__(self, raw: Any, path: str, *, in_all: float, at_once: float) -> None:  # noqa: ANN401
        self._raw = raw
        self._path = path
        self._left_bytes = in_all
        self._at_once_bytes = at_once

    def read(self, n_bytes: int = -1) -> bytes:
        if n_bytes > self._at_once_bytes:
            raise _too_many(self._path, f"a directory of more than {format_bytes(n_bytes)}")
        chunk = bytes(self._raw.read(n_bytes))
        self._left_bytes -= len(chunk)
        if self._left_bytes < 0:
            raise _too_many(self._path, "members that are too large to search it")
        return chunk

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (an attribute of the file)
        return getattr(self._raw, name)


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
        self._n_read = 0
        reader = zstandard.ZstdDecompressor().stream_reader
        self._reader = reader(raw, read_across_frames=True)  # type: ignore[arg-type]  # has read
        self.broken = False

    def read(self, n_bytes: int) -> bytes:
        try:
            chunk = bytes(self._reader.read(n_bytes))
        except self._error as error:
            if not self._n_read:
                raise EOFError(str(error)) from error
            self.broken = True
            return b""
        self._n_read += len(chunk)
        return chunk


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
        TooLargeError: It is an archive of too many members.
        UnreadableFileError: Decompressing it needs a package that is not installed or a password,
            or is not supported.
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
    for depth in range(_MAX_DEPTH + 1):
        first = _first_bytes(plain)
        whole = _Plain(plain, first)
        if first.startswith(_GZIP):
            plain = _Gunzip(whole)
        elif first.startswith(_ZSTD):
            plain = _Unzstd(whole)
        elif first.startswith(_ZIP) and depth == 0:
            plain = _unzipped(raw, path, stack, member)
            member = None
        elif first[_TAR_AT:].startswith(_TAR):
            if member is None:
                names = _names_in_tar(whole, path, n_bytes_of(raw))
                raw.seek(0)
                return _decompressed(raw, path, stack, _only_trace(names, path))
            plain = _untarred(whole, path, member, n_bytes_of(raw))
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


def _unzipped(raw: BinaryIO, path: str, stack: ExitStack, member: str | None) -> _Member:
    """A member of a zip, by default its only trace."""
    limited = _Limited(raw, path, in_all=float("inf"), at_once=_MAX_DIRECTORY_BYTES)
    try:
        archive = stack.enter_context(zipfile.ZipFile(cast("BinaryIO", limited)))
        infos = {info.filename: info for info in archive.infolist()}
        name = _only_trace(list(infos), path) if member is None else member
        if name not in infos:
            raise _no_member(path, name)
        if infos[name].flag_bits & _ENCRYPTED:
            raise UnreadableFileError(
                f"{path} is encrypted.", "Extract it first, with its password."
            )
        return _Member(stack.enter_context(archive.open(infos[name])))
    except NotImplementedError as error:
        message = f"{path} is compressed in a way that Python cannot read: {error}."
        raise UnreadableFileError(message, "Extract it first, or compress it as usual.") from error
    except _BROKEN_ARCHIVE as error:
        raise zipfile.BadZipFile(str(error) or type(error).__name__) from error


class _Header(tarfile.TarInfo):
    """A member's header, whose name is not read if it would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if not header.isreg() and header.size > _MAX_NAME_BYTES:
            raise tarfile.ReadError("a member's header is too large")
        return header


def _tar_members(
    tar: _Plain, path: str, n_bytes: int, most: int
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members of a tar, as far as they are regular files, with the tar.

    Args:
        tar: Its bytes.
        n_bytes: The size of the file that it is in.
        most: The number of members, of any kind, up to which it is read.
    """
    in_all = max(MIN_LIMIT_BYTES, MAX_COMPRESSION_RATIO * n_bytes)
    limited = _Limited(tar, path, in_all=in_all, at_once=float("inf"))
    try:
        archive = tarfile.open(  # noqa: SIM115  (the stream is closed by its owner)
            fileobj=limited,
            mode="r|",
            tarinfo=_Header,
        )
        for n, info in enumerate(archive):
            if n == most:
                raise _too_many(path, f"more than {format_count(most)} members")
            if info.isreg():
                yield archive, info
    except _BROKEN_ARCHIVE as error:
        raise tarfile.ReadError(str(error) or type(error).__name__) from error


def _names_in_tar(tar: _Plain, path: str, n_bytes: int) -> list[str]:
    return [info.name for _, info in _tar_members(tar, path, n_bytes, _MAX_LISTED)]


def _untarred(tar: _Plain, path: str, member: str, n_bytes: int) -> _Member:
    for archive, info in _tar_members(tar, path, n_bytes, _MAX_SEARCHED):
        if info.name == member:
            return _Member(archive.extractfile(info))
    raise _no_member(path, member)


def _too_many(path: str, what: str) -> TooLargeError:
    return TooLargeError(f"{path} is an archive with {what}.", "Extract the trace, and give that.")


def _no_member(path: str, member: str) -> MissingFileError:
    return MissingFileError(f"There is no {member} in {path}.")


def _only_trace(names: list[str], path: str) -> str:
    """The only member that is a trace."""
    traces = [name for name in names if name.endswith(_ENDINGS)]
    if len(traces) == 1:
        return traces[0]
    if not traces:
        raise NotATraceError(
            f"{path} is an archive without a trace, by the names of its files.",
            "The name of a trace ends in .json, that of a snapshot in .pickle. Extract archives "
            "that are in it.",
        )
    members = [f"{path}{MEMBER}{name}" for name in sorted(traces)]
    message = f"{path} is an archive of {len(traces)} traces."
    raise SeveralTracesError(message, f"Give one of them, such as '{members[0]}'.", members)
