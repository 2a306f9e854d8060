r"""Where a trace goes and how it gets there.

``<folder>/<name>/<host>_<pid>[_rank<r>].<ns>.pt.trace.json.gz``: one folder a name, so that the
folder above is a logdir of TensorBoard and this one a folder of ranks.

Source: torch-tb-profiler takes the worker and the span from file names that match
``^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$`` (``consts.WORKER_PATTERN``). What was watched of a
program's memory lies beside its trace under another ending, which that passes over.
"""

import codecs
import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec
from isal import igzip_threaded

from profkit.errors import CaptureError
from profkit.model.capture_info import CaptureInfo
from profkit.model.live_memory import LiveMemory
from profkit.readers.live_memory import SUFFIX as MEMORY_SUFFIX
from profkit.readers.live_memory import encode

SUFFIX: Final = ".pt.trace.json.gz"
_CHUNK: Final = 1 << 20
_LONGEST_NAME: Final = 100
_ODD: Final = re.compile(r"[^\w.+-]+")
_EVENT: Final = b'"ph": "X"'


def safe_name(name: str) -> str:
    """A name as one part of a path: letters, digits, ``_``, ``.``, ``+`` and ``-`` only.

    Args:
        name: Any text; slashes and odd characters become ``_``.
    """
    plain = _ODD.sub("_", name).strip("._")
    return plain[:_LONGEST_NAME] or "trace"


def trace_folder(folder: str | None, name: str) -> Path:
    """The folder for the traces of one name.

    Args:
        folder: The folder asked for, or None for ``$PROFKIT_DIR``, else ``traces``.
        name: The capture's name.
    """
    return Path(folder or os.environ.get("PROFKIT_DIR") or "traces") / safe_name(name)


def trace_file(folder: Path, rank: int | None) -> Path:
    """A file name that no other capture has: by machine, process, rank and time.

    Args:
        rank: The rank in a distributed job, or None.
    """
    worker = f"{safe_name(socket.gethostname())}_{os.getpid()}"
    if rank is not None:
        worker += f"_rank{rank}"
    return folder / f"{worker}.{time.time_ns()}{SUFFIX}"


def memory_file(trace: str | Path) -> Path:
    """The file for what was watched of a program's memory, beside its trace.

    Args:
        trace: The trace's file, whether there is one or not.
    """
    path = Path(trace)
    return path.with_name(path.name.removesuffix(SUFFIX) + MEMORY_SUFFIX)


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """A temporary name in the target's folder, renamed to it at the end or removed on failure.

    Args:
        target: The file to be; its folder is made if it is not there.

    Raises:
        OSError: If the folder or the file cannot be made.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def count_events(exported: Path) -> int:
    """Complete events in a trace that torch exported as text.

    Args:
        exported: The file.

    Raises:
        CaptureError: If the text stops before its end, as it does on a full disk.
    """
    found, tail = 0, b""
    with exported.open("rb") as source:
        while chunk := source.read(_CHUNK):
            found += (tail + chunk).count(_EVENT)
            tail = (tail + chunk)[-len(_EVENT) + 1 :]
    if not tail.rstrip().endswith(b"}"):
        raise CaptureError(
            f"torch wrote an incomplete trace to {exported.parent}.",
            "Is the disk full? TMPDIR chooses another folder for it.",
        )
    return found


def write_trace(exported: Path, target: Path, info: CaptureInfo) -> None:
    """Compress an exported trace into place, with what profkit knows about it as its first key.

    Args:
        exported: The trace as JSON text, written by torch.
        target: The file to be, ending in ``.json.gz``.
        info: Stored under the key ``profkit``.

    Raises:
        OSError: If it cannot be written; nothing is left behind then.
        CaptureError: If ``exported`` is no JSON object.
    """
    with exported.open("rb") as source, atomic_path(target) as partial:
        first = source.read(_CHUNK)
        head, brace, rest = first.partition(b"{")
        if not brace or head.strip():
            raise CaptureError(f"torch exported something else than a trace to {exported}.")
        clean = _Utf8()
        with _gzip_writer(partial) as sink:
            sink.write(b'{"profkit": ' + msgspec.json.encode(info) + b",")
            sink.write(clean(rest))
            while chunk := source.read(_CHUNK):
                sink.write(clean(chunk))


def write_memory(live: LiveMemory, target: Path) -> None:
    """Compress what was watched of a program's memory into place.

    Args:
        target: The file to be.

    Raises:
        OSError: If it cannot be written; nothing is left behind then.
    """
    with atomic_path(target) as partial, _gzip_writer(partial) as sink:
        sink.write(encode(live))


class _Utf8:
    """Makes chunks of text valid UTF-8, which JSON must be.

    torch 2.13 now and then writes a Python function's name after its memory was used for
    something else.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, chunk: bytes) -> bytes:
        pending, _ = self._decoder.getstate()
        if chunk.isascii() and not pending:
            return chunk
        return self._decoder.decode(chunk).encode()


def _gzip_writer(path: Path) -> IO[bytes]:
    """A compressing file: one thread beside this one compresses, at isal's usual level."""
    writer: IO[bytes] = igzip_threaded.open(path, "wb", threads=1)
    return writer
