r"""Names of trace files, and writing them.

``<folder>/<name>/<host>_<pid>[_<job>][_restart<n>][_rank<r>].<ns>.pt.trace.json.gz``: one folder
per name, so that the folder above is a TensorBoard logdir and this one a folder of ranks. The job's
id and how often its ranks were restarted are there if torchrun has started the program.

Source: torch-tb-profiler takes the worker and the span from file names that match
``^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$`` (``consts.WORKER_PATTERN``). A program's monitored
memory is written beside its trace with another suffix, which that pattern does not match.
"""

import codecs
import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from isal import igzip, igzip_threaded

from profkit.capture.process import console, environment
from profkit.errors import CaptureError
from profkit.folders import traces_folder
from profkit.json_text import encode
from profkit.model.capture_info import CaptureInfo
from profkit.model.live_memory import LiveMemory
from profkit.patterns import regex
from profkit.readers.live_memory import SUFFIX as MEMORY_SUFFIX
from profkit.readers.live_memory import encode_live

SUFFIX: Final = ".pt.trace.json.gz"
_CHUNK: Final = 1 << 20
_MAX_NAME_LENGTH: Final = 100
_UNSAFE: Final = regex(r"[^\w.+-]+")
_EVENT: Final = b'"ph": "X"'


def safe_name(name: str) -> str:
    """Return a name as one part of a path: letters, digits, ``_``, ``.``, ``+`` and ``-`` only."""
    safe = _UNSAFE.sub("_", name).strip("._")
    return safe[:_MAX_NAME_LENGTH] or "trace"


def trace_folder(folder: str | None, name: str) -> Path:
    """Return the folder for the traces of one name.

    Args:
        folder: The folder given by the user, or None for ``$PROFKIT_DIR``, else ``traces``.
    """
    return Path(folder or traces_folder()) / safe_name(name)


def trace_file(folder: Path) -> Path:
    """Return a file name that no other capture has: by machine, process, job, rank and time."""
    worker = f"{safe_name(socket.gethostname())}_{os.getpid()}"
    launch = torchrun_job()
    if launch is not None:
        job_id, n_restarts = launch
        worker += f"_{safe_name(job_id)}" if job_id else ""
        worker += f"_restart{n_restarts}"
    rank, _ = environment.ranks()
    if rank is not None:
        worker += f"_rank{rank}"
    return folder / f"{worker}.{time.time_ns()}{SUFFIX}"


def torchrun_job() -> tuple[str, int] | None:
    """Return the job's id, empty without one, and the number of restarts; None without torchrun.

    Source: ``torch.distributed.run``, "Environment Variables"; ``none`` is the default id.
    """
    job_id = os.environ.get("TORCHELASTIC_RUN_ID")
    n_restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if job_id is None or not (n_restarts.isascii() and n_restarts.isdigit()):
        return None
    return ("" if job_id == "none" else job_id), int(n_restarts)


def job_name() -> str:
    """Return what tells the job of this process from others at the same time, as part of a path.

    Source: torchrun sets ``MASTER_PORT`` (``torch.distributed.run``, "Environment Variables").
    """
    job_id, n_restarts = torchrun_job() or ("", 0)
    return safe_name(f"{job_id}-{os.environ.get('MASTER_PORT', '')}-{n_restarts}")


def beside(trace: str | Path, suffix: str) -> Path:
    """Return the file of another kind that belongs to a trace, which need not exist."""
    path = Path(trace)
    return path.with_name(path.name.removesuffix(SUFFIX) + suffix)


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to the target at the end, or removed on failure.

    Args:
        target: The file; its folder is created if needed.

    Raises:
        OSError: If the folder or the file cannot be created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, as a file can be renamed at once only within its file system.
    partial = target.with_name(f".{target.name}.part")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def count_events(exported: Path) -> int:
    """Return the number of complete events in a trace that torch exported as text.

    Raises:
        CaptureError: If the text is truncated, as it is on a full disk.
    """
    n_events, tail = 0, b""
    with exported.open("rb") as source:
        while chunk := source.read(_CHUNK):
            n_events += (tail + chunk).count(_EVENT)
            # One byte less than the text, so that an event between two chunks counts once.
            tail = (tail + chunk)[-len(_EVENT) + 1 :]

    if not tail.rstrip().endswith(b"}"):
        raise CaptureError(
            f"torch wrote an incomplete trace to {exported.parent}.",
            "Is the disk full? Set TMPDIR to another folder.",
        )
    return n_events


def write_trace(exported: Path, target: Path, info: CaptureInfo) -> None:
    """Compress a trace that torch exported, and add profkit's own data as its first key.

    Args:
        exported: The trace as JSON text, written by torch.
        target: The file to write, ending in ``.json.gz``.
        info: Stored under the key ``profkit``.

    Raises:
        OSError: If it cannot be written; no partial file remains.
        CaptureError: If ``exported`` is not a JSON object.
    """
    with exported.open("rb") as source, atomic_path(target) as partial:
        # Not parsed: the text takes hundreds of megabytes, and profkit's data goes in front of it.
        head, brace, first_chunk = source.read(_CHUNK).partition(b"{")
        if not brace or head.strip():
            raise CaptureError(f"torch did not export a trace to {exported}.")

        repair = _Utf8Repair()
        with _no_numbers_taken():
            n_threads = int(_can_start_threads())
            opened = igzip_threaded.open(partial, "wb", threads=n_threads)

        with opened as sink:
            sink.write(b'{"profkit": ' + encode(info) + b",")
            sink.write(repair(first_chunk))
            while chunk := source.read(_CHUNK):
                sink.write(repair(chunk))


@contextlib.contextmanager
def _no_numbers_taken() -> Iterator[None]:
    """Have threads made in this block take no number from those that the program makes later.

    Their names, such as ``Thread-1``, are in the lines of many logs.

    Source: ``threading._newname``, the same in Python 3.11 to 3.14.
    """
    counter = getattr(threading, "_counter", None)
    if counter is None:
        yield
        return
    threading._counter = itertools.count(1).__next__  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        yield
    finally:
        threading._counter = counter  # type: ignore[attr-defined]  # noqa: SLF001


def _can_start_threads() -> bool:
    """Return whether Python still starts threads: since 3.12 not while it exits.

    Source: https://github.com/python/cpython/issues/104690.
    """
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return False
    return True


def write_memory(live: LiveMemory, trace: str | Path, what: str) -> str | None:
    """Compress a program's monitored memory into a file beside its trace.

    Returns:
        The file; None after a warning that ``what`` could not be written.
    """
    target = beside(trace, MEMORY_SUFFIX)
    try:
        with atomic_path(target) as partial:
            partial.write_bytes(igzip.compress(encode_live(live)))
    except OSError as error:
        console.warn(f"{what} could not be written.", error)
        return None
    return str(target)


class _Utf8Repair:
    """Makes chunks of text valid UTF-8, as JSON requires.

    torch 2.13 sometimes writes a Python function's name after its memory was reused.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, chunk: bytes) -> bytes:
        pending, _ = self._decoder.getstate()
        # Nearly all chunks are ASCII, and need not be decoded.
        if chunk.isascii() and not pending:
            return chunk
        return self._decoder.decode(chunk).encode()
