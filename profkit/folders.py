"""The working directory, which a program may have removed."""

from pathlib import Path


def working_folder() -> Path:
    """The working directory; ``Path()`` if it has been removed, in which nothing is found."""
    try:
        return Path.cwd()
    except OSError:
        return Path()
