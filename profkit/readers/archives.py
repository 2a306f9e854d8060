"""Decompresses files: gzip, Zstandard, zip and tar, also nested."""

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any, BinaryIO, Final, Protocol, cast

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
"""Layers of compression. A gzipped tar of gzipped files has 3."""
_MAX_LISTED: Final = 10_000
"""Members of a tar that is listed to find its trace: each takes about 30 µs, three times."""
_MAX_SEARCHED: Final = 100_000
"""Members of a tar that is searched for one by its name."""
_MAX_NAME_BYTES: Final = 1 << 20
"""A header that gives a member's name, or its other attributes, is not larger."""
_MAX_DIRECTORY_BYTES: Final = 8 << 20
"""The directory of a zip, which is read at once: more than 100,000 members."""
MIN_LIMIT_BYTES: Final = 4 << 30
MAX_COMPRESSION_RATIO: Final = 200
"""Traces compress 10 to 30 times. Only a decompression bomb has a ratio of 200."""
_BROKEN: Final[tuple[Any, ...]] = (EOFError, isal_zlib.error, tarfile.TarError, zipfile.BadZipFile)
BROKEN_ARCHIVE: Final[tuple[Any, ...]] = (
    *_BROKEN,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    OSError,
    ValueError,
    LookupError,
    ArithmeticError,
    RuntimeError,
)
"""What zipfile and tarfile raise for damaged archives, besides their own errors. Errors of reading
the file itself are :class:`~profkit.errors.LoadError` already."""


class Readable(Protocol):
    """A stream of bytes.

    Attributes:
        broken: Whether reading ended because compressed data is truncated or damaged.
    """

    broken: bool

    def read(self, n_bytes: int, /) -> bytes:
        """Read up to this many bytes; none at the end."""
        ...


class _Plain:
    """Bytes that are not compressed."""

    def __init__(self, raw: Any, head: bytes = b"") -> None:  # noqa: ANN401  (anything with read)
        self._raw = raw
        self._head = head
        self.broken = False

    def read(self, n_bytes: int) -> bytes:
        if self._head:
            chunk, self._head = self._head[:n_bytes], self._head[n_bytes:]
            return chunk
        chunk = self._raw.read(n_bytes)
        self.broken = getattr(self._raw, "broken", False)
        return bytes(chunk)


class _Salvaged:
    """A stream that ends where its data is damaged, unless that is at its very start."""

    def __init__(self, read: Callable[[int], bytes], errors: tuple[Any, ...]) -> None:
        self._read = read
        self._errors = errors
        self._n_read = 0
        self.broken = False

    def read(self, n_bytes: int) -> bytes:
        try:
            chunk = bytes(self._read(n_bytes))
        except self._errors as error:
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
        self._remaining_bytes = in_all
        self._at_once_bytes = at_once

    def read(self, n_bytes: int = -1) -> bytes:
        if n_bytes > self._at_once_bytes:
            raise _too_large(self._path, f"a directory of more than {format_bytes(n_bytes)}")
        chunk = bytes(self._raw.read(n_bytes))
        self._remaining_bytes -= len(chunk)
        if self._remaining_bytes < 0:
            raise _too_large(self._path, "members that are too large to search it")
        return chunk

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (an attribute of the file)
        return getattr(self._raw, name)


class _Gunzip:
    """A gzip stream of one or several members."""

    def __init__(self, raw: Readable) -> None:
        self._raw = raw
        self._inflate = isal_zlib.decompressobj(wbits=_GZIP_WBITS)

    def read(self, n_bytes: int) -> bytes:
        while True:
            if self._inflate.eof:
                block = self._begin_next_member()
                if not block:
                    return b""
            else:
                block = self._inflate.unconsumed_tail or self._raw.read(_BLOCK_BYTES)

            # No output is not the end: a block may be a header only.
            chunk = self._inflate.decompress(block, n_bytes)
            if chunk:
                return bytes(chunk)
            if not block and not self._inflate.eof:
                raise EOFError("the data is truncated")

    def _begin_next_member(self) -> bytes:
        """Begin the next member, if there is one; anything else that follows is padding."""
        head = self._inflate.unused_data.lstrip(b"\0")
        while not head and (block := self._raw.read(_BLOCK_BYTES)):
            head = block.lstrip(b"\0")
        if not head.startswith(_GZIP):
            return b""
        self._inflate = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
        return bytes(head)


def _open_zstd(raw: Readable) -> _Salvaged:
    try:
        import zstandard  # noqa: PLC0415  (an extra, needed for such files only)
    except ImportError:
        raise UnreadableFileError(
            "The file is compressed by Zstandard, which needs a package that is not installed.",
            "pip install 'profkit[zstd]'",
        ) from None

    open_stream = zstandard.ZstdDecompressor().stream_reader
    stream = open_stream(raw, read_across_frames=True)  # type: ignore[arg-type]  # has read
    return _Salvaged(stream.read, (zstandard.ZstdError,))


@contextmanager
def open_unpacked(raw: BinaryIO, path: str, member: str | None = None) -> Iterator[Readable]:
    """Open the decompressed bytes of a file.

    Args:
        raw: The file.
        path: Its path or URL, for messages.
        member: The member of an archive; None for the only trace in it.

    Raises:
        DamagedFileError: The compressed data is broken from the start.
        MissingFileError: The file has no such member, or is not an archive.
        NotATraceError: The file is an archive without a trace.
        SeveralTracesError: The file is an archive of several traces.
        TooLargeError: The file is an archive of too many members.
        UnreadableFileError: Decompressing it needs a package that is not installed or a password,
            or is not supported.
    """
    with ExitStack() as stack:
        try:
            yield _decompress(raw, path, stack, member)
        except _BROKEN as error:
            message = f"{path} cannot be decompressed: {error}."
            raise DamagedFileError(message, "Copy the file again.") from error


def _decompress(raw: BinaryIO, path: str, stack: ExitStack, member: str | None = None) -> Readable:
    """Remove one layer of compression or archive after another.

    Args:
        raw: The file, at its beginning.
        stack: Closes what is opened on the way.
        member: The member of a tar; None if its members have not been listed yet. A tar is read as
            a stream, so listing the members and reading one of them takes two passes.
    """
    plain: Readable = _Plain(raw)
    for depth in range(_MAX_DEPTH + 1):
        head = read_head(plain, _MAGIC_BYTES)
        whole = _Plain(plain, head)
        decompressed = _open_compressed(head, whole)
        if decompressed is not None:
            plain = decompressed
        elif head.startswith(_ZIP) and depth == 0:
            # A zip's directory is at its end, so only one that is the file itself can be opened.
            plain = _open_in_zip(raw, path, stack, member)
            member = None
        elif head[_TAR_AT:].startswith(_TAR):
            if member is None:
                names = _list_tar(whole, path, n_bytes_of(raw))
                raw.seek(0)
                return _decompress(raw, path, stack, _select_trace(names, path))
            plain = _open_in_tar(whole, path, member, n_bytes_of(raw))
            member = None
        elif member is not None:
            raise _no_member(path, member)
        else:
            return whole

    message = f"{path} is compressed more than {_MAX_DEPTH} times."
    raise DamagedFileError(message, "Decompress it first.")


def iterate_members(raw: BinaryIO, path: str) -> Iterator[tuple[str, Readable]]:
    """Yield the name and the bytes of each file in an archive, in one pass over it.

    Args:
        raw: The archive, at its beginning. Nothing is yielded of another file.
        path: Its path or URL, for messages.

    Yields:
        A name, and a stream that has to be read before the next one.

    Raises:
        TooLargeError: It has too many members.
        Exception: Any of the errors that damaged archives raise.
    """
    plain: Readable = _Plain(raw)
    for depth in range(_MAX_DEPTH + 1):
        head = read_head(plain, _MAGIC_BYTES)
        whole = _Plain(plain, head)
        decompressed = _open_compressed(head, whole)
        if decompressed is not None:
            plain = decompressed
            continue

        if head.startswith(_ZIP) and depth == 0:
            with _open_zip(raw, path) as archive:
                for info in archive.infolist():
                    if not info.flag_bits & _ENCRYPTED:
                        yield info.filename, _Salvaged(archive.open(info).read, BROKEN_ARCHIVE)
        elif head[_TAR_AT:].startswith(_TAR):
            for tar, member in _iterate_tar(whole, path, n_bytes_of(raw), _MAX_SEARCHED):
                file = cast("IO[bytes]", tar.extractfile(member))  # a regular file is not None
                yield member.name, _Salvaged(file.read, BROKEN_ARCHIVE)
        return


def _open_compressed(head: bytes, whole: Readable) -> Readable | None:
    """Open what a stream decompresses to; None if it is not compressed."""
    if head.startswith(_GZIP):
        return _Salvaged(_Gunzip(whole).read, _BROKEN)
    if head.startswith(_ZSTD):
        return _open_zstd(whole)
    return None


def read_head(plain: Readable, n_bytes: int) -> bytes:
    """Read the first bytes of a stream, fewer only at its end."""
    head = b""
    while len(head) < n_bytes and (block := plain.read(n_bytes - len(head))):
        head += block
    return head


def _open_in_zip(raw: BinaryIO, path: str, stack: ExitStack, member: str | None) -> _Salvaged:
    """Open a member of a zip, by default its only trace."""
    try:
        archive = stack.enter_context(_open_zip(raw, path))
        infos = {info.filename: info for info in archive.infolist()}

        name = _select_trace(list(infos), path) if member is None else member
        if name not in infos:
            raise _no_member(path, name)
        if infos[name].flag_bits & _ENCRYPTED:
            raise UnreadableFileError(
                f"{path} is encrypted.", "Extract it first, with its password."
            )

        file = stack.enter_context(archive.open(infos[name]))
        return _Salvaged(file.read, BROKEN_ARCHIVE)
    except NotImplementedError as error:
        message = f"{path} is compressed in a way that Python cannot read: {error}."
        raise UnreadableFileError(message, "Extract it first, or compress it as usual.") from error
    except BROKEN_ARCHIVE as error:
        raise zipfile.BadZipFile(str(error) or type(error).__name__) from error


def _open_zip(raw: BinaryIO, path: str) -> zipfile.ZipFile:
    """Open a zip, unless its directory would fill the memory."""
    limited = _Limited(raw, path, in_all=float("inf"), at_once=_MAX_DIRECTORY_BYTES)
    return zipfile.ZipFile(cast("BinaryIO", limited))


class _Header(tarfile.TarInfo):
    """A member's header, whose name is not read if it would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        # tarfile reads the content of such a header at once.
        if not header.isreg() and header.size > _MAX_NAME_BYTES:
            raise tarfile.ReadError("a member's header is too large")
        return header


def _iterate_tar(
    tar: _Plain, path: str, n_bytes: int, max_members: int
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the regular files of a tar, each with the tar.

    Args:
        tar: Its bytes.
        n_bytes: The size of the file that it is in.
        max_members: The number of members, of any kind, up to which it is read.
    """
    in_all = max(MIN_LIMIT_BYTES, MAX_COMPRESSION_RATIO * n_bytes)
    limited = _Limited(tar, path, in_all=in_all, at_once=float("inf"))

    try:
        archive = tarfile.open(  # noqa: SIM115  (the stream is closed by its owner)
            fileobj=limited,
            mode="r|",
            tarinfo=_Header,
        )
        for n_members, info in enumerate(archive):
            if n_members == max_members:
                raise _too_large(path, f"more than {format_count(max_members)} members")
            if info.isreg():
                yield archive, info
    except BROKEN_ARCHIVE as error:
        raise tarfile.ReadError(str(error) or type(error).__name__) from error


def _list_tar(tar: _Plain, path: str, n_bytes: int) -> list[str]:
    return [info.name for _, info in _iterate_tar(tar, path, n_bytes, _MAX_LISTED)]


def _open_in_tar(tar: _Plain, path: str, member: str, n_bytes: int) -> _Salvaged:
    for archive, info in _iterate_tar(tar, path, n_bytes, _MAX_SEARCHED):
        if info.name == member:
            file = cast("IO[bytes]", archive.extractfile(info))  # None only for other than files
            return _Salvaged(file.read, BROKEN_ARCHIVE)
    raise _no_member(path, member)


def _too_large(path: str, contents: str) -> TooLargeError:
    message = f"{path} is an archive with {contents}."
    return TooLargeError(message, "Extract the trace, and give that.")


def _no_member(path: str, member: str) -> MissingFileError:
    return MissingFileError(f"There is no {member} in {path}.")


def _select_trace(names: list[str], path: str) -> str:
    """Return the only member that is a trace."""
    traces = [name for name in names if name.endswith(_ENDINGS)]
    if len(traces) == 1:
        return traces[0]

    if not traces:
        raise NotATraceError(
            f"{path} is an archive without a trace, by the names of its files.",
            "Traces end in .json, snapshots in .pickle. Extract archives that are in it.",
        )
    members = [f"{path}{MEMBER}{name}" for name in sorted(traces)]
    message = f"{path} is an archive of {len(traces)} traces."
    raise SeveralTracesError(message, f"Give one of them, such as '{members[0]}'.", members)
