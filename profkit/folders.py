"""Finds the working directory, which a program may have removed, and the folders of profkit."""

import errno
import os
import stat
from pathlib import Path
from typing import Final


def working_folder() -> Path:
    """Return the working directory; ``Path()``, which has no files, if it has been removed."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def traces_folder() -> str:
    """Return the folder for traces: ``$PROFKIT_DIR``, else ``traces``."""
    return os.environ.get("PROFKIT_DIR") or "traces"


def cache_folder(name: str) -> Path:
    """Return a folder of profkit's cache, which need not exist.

    It is in ``$PROFKIT_CACHE``, or else ``$XDG_CACHE_HOME/profkit``, or else ``~/.cache/profkit``.

    Source: "XDG Base Directory Specification": a path that is not absolute is ignored.

    Raises:
        RuntimeError: None of these folders is known.
    """
    cache = Path(os.environ.get("PROFKIT_CACHE", ""))
    if cache.is_absolute():
        return cache / name
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "profkit" / name


def make_own_folder(folder: Path) -> None:
    """Create a folder of the cache, unless it exists.

    Raises:
        OSError: It cannot be created; or it is a link or another user's, who would have profkit
            write, and remove old files, somewhere else.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link", str(folder))
    if not is_users(status):
        raise OSError(errno.EPERM, "it belongs to another user", str(folder))


def is_users(status: os.stat_result) -> bool:
    """Return whether a file or folder is this user's, where the system tells."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


class _ProcessState:
    """What this process has set."""

    max_bytes: int | None = None


_state: Final = _ProcessState()


def limit_cache(max_bytes: int | None) -> None:
    """Change the maximum size of the cache in bytes: None for the default, 0 for none."""
    _state.max_bytes = max_bytes


def cache_limit() -> int | None:
    """Return the maximum size of the cache in bytes, or None for the default.

    It is 0 if ``PROFKIT_CACHE`` is ``0``.
    """
    return 0 if os.environ.get("PROFKIT_CACHE") == "0" else _state.max_bytes
