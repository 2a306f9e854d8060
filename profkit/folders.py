"""The working directory, which a program may have removed; where the cache is, and its limit."""

import os
from pathlib import Path


def working_folder() -> Path:
    """The working directory; ``Path()`` if it has been removed, in which nothing is found."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def cache_folder(name: str) -> Path:
    """A folder of profkit's cache, which need not exist.

    It is in ``$PROFKIT_CACHE``, or else ``$XDG_CACHE_HOME/profkit``, or else ``~/.cache/profkit``.

    Source: "XDG Base Directory Specification": a path that is not absolute is ignored.

    Raises:
        RuntimeError: None of them is known.
    """
    own = Path(os.environ.get("PROFKIT_CACHE", ""))
    if own.is_absolute():
        return own / name
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "profkit" / name


_max_bytes: int | None = None


def limit_cache(max_bytes: int | None) -> None:
    """Change the maximum size of the cache in bytes: None for the default, 0 for none."""
    global _max_bytes  # noqa: PLW0603  (of this process)
    _max_bytes = max_bytes


def cache_limit() -> int | None:
    """The maximum size of the cache in bytes, as above; 0 also if ``PROFKIT_CACHE`` is ``0``."""
    return 0 if os.environ.get("PROFKIT_CACHE") == "0" else _max_bytes
