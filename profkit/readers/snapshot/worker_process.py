"""Starts the process that unpickles a snapshot.

It takes as long to start as importing everything that a report needs. A command that was given an
uncompressed pickle therefore starts it first, with the file as its stdin, and imports the rest
meanwhile. Nothing heavy is imported here.
"""

import atexit
import contextlib
import os
import stat
import subprocess
from pathlib import Path
from typing import IO, Final

from profkit.dataclass import dataclass
from profkit.readers import child_process

PICKLE_MAGIC: Final = b"\x80"
"""The first byte of every pickle that torch writes."""
_WORKER: Final = "from profkit.readers.snapshot.worker import main; main()"
_PIPE_BYTES: Final = 1 << 20
"""The largest that Linux allows any user; with the default size both sides block all the time."""


@dataclass(frozen=True)
class EarlyWorker:
    """A worker process that is already reading a file.

    Attributes:
        process: The process.
        n_bytes: Size of the file.
        identity: Device, inode, size and time of modification, which change with the file.
        file: A descriptor that shares its position with the process's stdin.
    """

    process: "subprocess.Popen[bytes]"
    n_bytes: int
    identity: tuple[int, ...]
    file: int

    def n_read(self) -> int:
        """Return the number of bytes that the process has read so far."""
        return os.lseek(self.file, 0, os.SEEK_CUR)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.file)


_early: dict[str, EarlyWorker] = {}


def start(stdin: int | IO[bytes] = subprocess.PIPE) -> "subprocess.Popen[bytes]":
    """Start a worker process that reads the pickle from ``stdin``, by default a pipe."""
    return child_process.start(_WORKER, stdin=stdin, pipe_bytes=_PIPE_BYTES)


def start_early(path: str) -> None:
    """Start reading a file if it is an uncompressed pickle; errors are left to the later read."""
    try:
        # Opening a pipe would block until there is a writer, and a device may have no end.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            return
        with Path(path).open("rb", buffering=0) as file:
            if file.read(len(PICKLE_MAGIC)) != PICKLE_MAGIC:
                return
            file.seek(0)

            status = os.fstat(file.fileno())
            if not _early:
                atexit.register(_stop_all)
            # The copied descriptor shares its position with the process after this one is closed.
            _early[_key(path)] = EarlyWorker(
                start(file), status.st_size, _identity(status), os.dup(file.fileno())
            )
    except (OSError, ValueError):
        return


def take_early(path: Path, limit_bytes: int) -> EarlyWorker | None:
    """Take the process that already reads a file; None if the file is too large or has changed."""
    early = _early.pop(_key(path), None)
    if early is None:
        return None
    with contextlib.suppress(OSError):
        if early.n_bytes <= limit_bytes and early.identity == _identity(path.stat()):
            return early
    _stop(early)
    return None


def _key(path: str | Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100  (Path.absolute does not remove "..")


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _stop(early: EarlyWorker) -> None:
    early.process.kill()
    early.process.communicate()
    early.close()


def _stop_all() -> None:
    """Stop the processes of a command that ended before it read its files."""
    for early in _early.values():
        _stop(early)
    _early.clear()
