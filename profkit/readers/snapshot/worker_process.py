"""The process that unpickles a snapshot.

It takes as long to start as all that is imported to make a report, so a command that was given a
plain pickle starts it first, at the very file, and imports the rest meanwhile. Nothing heavy is
imported here.
"""

import atexit
import contextlib
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

PICKLE_MAGIC: Final = b"\x80"
"""The first byte of every pickle that torch writes."""

_WORKER: Final = "profkit.readers.snapshot.worker"
_PIPE_BYTES: Final = 1 << 20
"""What Linux lets any user ask for; a pipe as small as it comes stops both sides all the time."""


@dataclass(frozen=True)
class Early:
    """A process that reads a file already.

    Attributes:
        process: The process.
        n_bytes: The file's size.
        identity: What tells the file from every other one, and from itself once it was changed.
        file: The file as the process has it: both are at one place.
    """

    process: "subprocess.Popen[bytes]"
    n_bytes: int
    identity: tuple[int, ...]
    file: int

    def n_read(self) -> int:
        """How many of the file's bytes the process has read so far."""
        return os.lseek(self.file, 0, os.SEEK_CUR)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.file)


_early: dict[str, Early] = {}


def start(stdin: int | IO[bytes] = subprocess.PIPE) -> "subprocess.Popen[bytes]":
    """Start the process.

    Args:
        stdin: Where it reads the pickle; by default what is written to it.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(  # noqa: S603  (our own module, by our own interpreter)
        [sys.executable, "-m", _WORKER],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        pipesize=_PIPE_BYTES,
    )


def start_early(path: str) -> None:
    """Begin to read a file if it is a plain pickle; whatever else it is, reading it will say.

    Args:
        path: Anything that a command was given.
    """
    try:
        # To open a pipe would wait for a writer, and a device may have no end.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            return
        with Path(path).open("rb", buffering=0) as file:
            if file.read(len(PICKLE_MAGIC)) != PICKLE_MAGIC:
                return
            file.seek(0)
            status = os.fstat(file.fileno())
            if not _early:
                atexit.register(_stop_all)
            _early[_key(path)] = Early(
                start(file), status.st_size, _identity(status), os.dup(file.fileno())
            )
    except (OSError, ValueError):
        return


def taken(path: Path, limit_bytes: int) -> Early | None:
    """The process that reads a file already; None if there is none, or the file has changed.

    Args:
        limit_bytes: How large it may be.
    """
    early = _early.pop(_key(path), None)
    if early is None:
        return None
    with contextlib.suppress(OSError):
        if early.n_bytes <= limit_bytes and early.identity == _identity(path.stat()):
            return early
    _stop(early)
    return None


def _key(path: str | Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100  (a Path keeps its dots, and has no abspath)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _stop(early: Early) -> None:
    early.process.kill()
    early.process.communicate()
    early.close()


def _stop_all() -> None:
    """Nobody came for them: the command ended before it read anything."""
    for early in _early.values():
        _stop(early)
    _early.clear()
