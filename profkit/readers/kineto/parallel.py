"""Reads a large trace in several processes.

Every process decompresses and splits the whole file, which takes little time, and decodes every
n-th batch, which takes most of it. Only columns are sent between processes, never text.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Final

from profkit.dataclass import dataclass
from profkit.readers import child_process
from profkit.readers.kineto.assemble import Batches, renumber
from profkit.readers.kineto.batch import InternTables
from profkit.readers.kineto.decode import BatchReader
from profkit.readers.kineto.split import TraceText, split_batches
from profkit.readers.progress import Stages
from profkit.readers.stream import Chunks, Place, open_plain, text_bytes

_BYTES_PER_PROCESS: Final = 100 << 20
"""Less text than this is read before a second process has started (about 0.25 s)."""
_MAX_PROCESSES: Final = 8
"""With more, decompressing and splitting, which every process does, take as long as decoding."""
_WORKER: Final = "from profkit.readers.kineto.parallel import run_worker; run_worker()"


@dataclass
class PartialRead:
    """The batches that one process read.

    Attributes:
        batches: The batches, by their position in the file.
        interned: The tables that their numbers refer to.
        clean: Whether every batch could be decoded without salvaging. If not, batch boundaries
            depend on the batches before, and the batches of several processes do not match.
    """

    batches: Batches
    interned: InternTables
    clean: bool


class _ProcessState:
    """What this process has set."""

    max_processes: int | None = None


_state: Final = _ProcessState()


def limit_processes(max_processes: int | None) -> None:
    """Limit the number of processes per file, since others use the cores; None for no limit."""
    _state.max_processes = max_processes


def processes_for(place: Place) -> int:
    """Return the number of processes to read a file with; 1 for files on other machines."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    n_cores = n_cores if _state.max_processes is None else min(n_cores, _state.max_processes)
    n_useful = text_bytes(place) // _BYTES_PER_PROCESS
    # Where Python is embedded in another program, there is no interpreter to start.
    return max(1, min(n_cores, n_useful, _MAX_PROCESSES) if sys.executable else 1)


def read_part(
    chunks: Chunks, text: TraceText, stages: Stages, number: int, n_processes: int
) -> PartialRead:
    """Read every n-th batch, starting with the batch whose position is the process's number.

    Args:
        chunks: The whole text.
        text: Filled in while reading.
        stages: Records how long splitting and decoding take.
        number: The number of this process, from 0.
        n_processes: The number of processes.
    """
    reader = BatchReader(text, stages)
    batches: Batches = {}
    with stages.stage("split"):
        for position, batch in enumerate(split_batches(chunks, text)):
            if position % n_processes == number:
                batches[position] = reader.columns(batch)
                # The file will be read again by one process, so the others' parts are not needed.
                if n_processes > 1 and not reader.clean:
                    break
    return PartialRead(batches, reader.interned, reader.clean)


def run_worker() -> None:
    """Read one part in a worker process and write its :class:`PartialRead` to stdout."""
    path, limit, number, n_processes = sys.argv[1:]
    with open_plain(Path(path)) as stream:
        chunks = Chunks(stream, int(limit))
        part = read_part(chunks, TraceText(), Stages(), int(number), int(n_processes))
    # Such a part is not used, so its columns need not be sent.
    if not part.clean:
        part.batches.clear()
    pickle.dump(part, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


def start_workers(place: Place, limit: int, n_processes: int) -> list["subprocess.Popen[bytes]"]:
    """Start the worker processes: all parts but the first."""
    return [
        child_process.start(_WORKER, str(place), str(limit), str(number), str(n_processes))
        for number in range(1, n_processes)
    ]


def join_workers(ours: PartialRead, workers: list["subprocess.Popen[bytes]"]) -> bool:
    """Add the parts that worker processes read to our own.

    Returns:
        Whether the result is complete. If not (a process died, or a batch had to be salvaged), the
        file has to be read by a single process.
    """
    complete = ours.clean or not workers
    for process in workers:
        # Closing waits for the process, so that one that is not needed any more is killed first.
        with process:
            theirs = _receive(process) if complete else None
            if theirs is None:
                process.kill()
                complete = False
                continue
        renumber(theirs.batches, theirs.interned, ours.interned)
        ours.batches.update(theirs.batches)
    return complete


def _receive(process: "subprocess.Popen[bytes]") -> PartialRead | None:
    if process.stdout is None:
        return None
    try:
        theirs = pickle.load(process.stdout)  # noqa: S301  (from a process that we started)
    except (EOFError, pickle.UnpicklingError):
        return None
    return theirs if isinstance(theirs, PartialRead) and theirs.clean else None
