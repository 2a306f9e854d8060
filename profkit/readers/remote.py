"""Traces that are not on this machine: any URL that ``fsspec`` opens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from profkit.errors import LoadError, MissingFileError, UnreadableFileError

_BLOCK_BYTES = 4 << 20
_STREAMED = ("http://", "https://")
"""Servers that may not know ranges of bytes: a block size of 0 asks for one stream."""


def is_url(path: str) -> bool:
    """Whether a path names a protocol (``s3://…``, ``zip://a.json::b.zip``)."""
    return "://" in path


@contextmanager
def open_url(url: str) -> Iterator[BinaryIO]:
    """Open a URL for reading bytes, as a stream: no copy of the whole is made.

    Args:
        url: Whatever ``fsspec`` understands.

    Raises:
        MissingFileError: There is nothing at the URL.
        UnreadableFileError: It cannot be reached, or the package for its protocol is missing.
    """
    try:
        import fsspec  # noqa: PLC0415  (an extra, needed for URLs alone)
    except ImportError:
        raise UnreadableFileError(
            f"{url} is a URL, and reading URLs needs a package that is not installed.",
            "pip install 'profkit[remote]'",
        ) from None
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
        block_bytes = 0 if url.startswith(_STREAMED) else _BLOCK_BYTES
        opened = filesystem.open(path, "rb", block_size=block_bytes)
    except Exception as error:
        raise _refused(url, error) from error
    with opened as raw:
        yield cast("BinaryIO", _Guarded(raw, url))


def url_n_bytes(url: str) -> int:
    """The size of what is at a URL as it is told there; 0 where it is not told."""
    import fsspec  # noqa: PLC0415

    try:
        filesystem, path = fsspec.core.url_to_fs(url)
        return int(filesystem.size(path) or 0)
    except Exception as error:
        raise _refused(url, error) from error


class _Guarded:
    """A remote file whose failures are ours: every protocol has exceptions of its own."""

    def __init__(self, raw: Any, url: str) -> None:  # noqa: ANN401  (what fsspec opens)
        self._raw = raw
        self._url = url

    def read(self, n_bytes: int = -1) -> bytes:
        try:
            return bytes(self._raw.read(n_bytes))
        except Exception as error:
            raise _refused(self._url, error) from error

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return int(self._raw.seek(offset, whence))
        except Exception as error:
            raise _refused(self._url, error) from error

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (as the file has it)
        return getattr(self._raw, name)


def _behind(error: BaseException) -> BaseException:
    """The reason behind an error: fsspec says "not found" of servers that cannot be reached too."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, OSError):
        return _behind(cause)
    return error


def _refused(url: str, raised: Exception) -> LoadError:
    error = _behind(raised)
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f"There is nothing at {url}.", "Check the URL.")
    if isinstance(error, ImportError):
        return UnreadableFileError(
            f"{url} needs a package that is not installed: {error}.", "Install it with pip."
        )
    said = str(error) or type(error).__name__
    return UnreadableFileError(
        f"{url} cannot be read: {said.rstrip('.')}.", "Check the URL, the network, your rights."
    )
