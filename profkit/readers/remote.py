"""Opens files on other machines: any URL that ``fsspec`` supports."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, cast

from profkit.errors import LoadError, MissingFileError, TooLargeError, UnreadableFileError
from profkit.units import format_bytes

_BLOCK_BYTES: Final = 4 << 20
STALLED_S: Final = 60
"""Time for which a server may send nothing."""
_MAX_UNANNOUNCED_BYTES: Final = 1 << 30
"""Limit for a server that announces no size, since it may never end."""
_STREAMED: Final = ("http://", "https://")
"""Servers that may not support range requests: a block size of 0 requests one stream."""


def is_url(path: str) -> bool:
    """Return whether a path names a protocol (``s3://…``, ``zip://a.json::b.zip``)."""
    return "://" in path


@contextmanager
def open_url(url: str) -> Iterator[BinaryIO]:
    """Open a URL for reading bytes as a stream, without downloading a copy first.

    Raises:
        MissingFileError: There is no file at the URL.
        TooLargeError: While it is read: the server announces no size, and does not end.
        UnreadableFileError: It cannot be reached, or the package for its protocol is missing.
    """
    fsspec = _import_fsspec(url)
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **_options(url))
        block_bytes = 0 if url.startswith(_STREAMED) else _BLOCK_BYTES
        opened = filesystem.open(path, "rb", block_size=block_bytes)
    except Exception as error:  # the package of each protocol raises its own
        raise _load_error(url, error) from error

    with opened as raw:
        yield cast("BinaryIO", _RemoteFile(raw, url))


def _import_fsspec(url: str) -> Any:  # noqa: ANN401  (a module)
    try:
        import fsspec  # noqa: PLC0415  (an extra, needed for URLs only)
    except ImportError:
        raise UnreadableFileError(
            f"{url} is a URL, and reading URLs needs a package that is not installed.",
            "pip install 'profkit[remote]'",
        ) from None
    return fsspec


def _options(url: str) -> dict[str, Any]:
    """Return options of the filesystem that limit the time without data, not the total time.

    By default aiohttp ends a download after five minutes, and waits as long for a server that
    stalls.
    """
    if not url.startswith(_STREAMED):
        return {}
    import aiohttp  # noqa: PLC0415  (fsspec needs it for these URLs)

    wait = aiohttp.ClientTimeout(total=None, sock_connect=STALLED_S, sock_read=STALLED_S)
    return {"client_kwargs": {"timeout": wait}}


def url_n_bytes(url: str) -> int:
    """Return the size of the file at a URL; 0 if the server does not report it."""
    with _filesystem_of(url) as (filesystem, path):
        return int(filesystem.size(path) or 0)


def list_urls(url: str) -> list[str] | None:
    """List the files in a folder and the folders in it, by name; None if it is not a folder.

    Raises:
        LoadError: It cannot be listed.
    """
    with _filesystem_of(url) as (filesystem, path):
        if not filesystem.isdir(path):
            return None

        # Paths of a filesystem have no protocol: what follows the folder is added to the URL.
        folder = path.rstrip("/")
        return sorted(url.rstrip("/") + file[len(folder) :] for file in filesystem.find(path))


def glob_urls(url: str) -> list[str]:
    """List the files that a URL with wildcards matches, by name.

    Raises:
        LoadError: They cannot be listed.
    """
    with _filesystem_of(url) as (filesystem, path):
        return sorted(map(filesystem.unstrip_protocol, filesystem.glob(path)))


@contextmanager
def _filesystem_of(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the filesystem of a URL and the path in it; errors within become profkit's."""
    try:
        yield _import_fsspec(url).core.url_to_fs(url, **_options(url))
    except LoadError:
        raise
    except Exception as error:
        raise _load_error(url, error) from error


class _RemoteFile:
    """A remote file that raises profkit's errors, since every protocol has other exceptions."""

    def __init__(self, raw: Any, url: str) -> None:  # noqa: ANN401  (opened by fsspec)
        self._raw = raw
        self._url = url
        self._is_endless = url.startswith(_STREAMED) and _announced_bytes(raw) is None
        self._n_read = 0

    def read(self, n_bytes: int = -1) -> bytes:
        try:
            chunk = bytes(self._raw.read(n_bytes))
        except Exception as error:
            raise _load_error(self._url, error) from error

        self._n_read += len(chunk)
        if self._is_endless and self._n_read > _MAX_UNANNOUNCED_BYTES:
            raise TooLargeError(
                f"{self._url} has sent {format_bytes(self._n_read)} without announcing a size, "
                "and has not ended.",
                "Download the file first.",
            )
        return chunk

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return int(self._raw.seek(offset, whence))
        except Exception as error:
            raise _load_error(self._url, error) from error

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (an attribute of the file)
        return getattr(self._raw, name)


def _announced_bytes(raw: Any) -> int | None:  # noqa: ANN401  (opened by fsspec)
    """Return the size that a web server announced for its response; None if it announced none."""
    # fsspec keeps the response of aiohttp in the attribute ``r``.
    size: int | None = getattr(getattr(raw, "r", None), "content_length", None)
    return size


def _cause_of(error: BaseException) -> BaseException:
    """Return the original error. fsspec raises FileNotFoundError for unreachable servers too."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, OSError):
        return _cause_of(cause)
    return error


def _load_error(url: str, raised: Exception) -> LoadError:
    error = _cause_of(raised)
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f"There is no file at {url}.", "Check the URL.")
    if isinstance(error, ImportError):
        return UnreadableFileError(
            f"{url} needs a package that is not installed: {error}.", "Install it with pip."
        )

    reason = str(error) or type(error).__name__
    return UnreadableFileError(
        f"{url} cannot be read: {reason.rstrip('.')}.",
        "Check the URL, the network and your permissions.",
    )
