"""A large trace read by several processes.

Every process unpacks and cuts the whole file, which is cheap, and decodes every n-th batch, which
is not; so no text goes from one process to another, only columns come back. Processes are started
as programs, not forked: a fork of a program that uses torch may hang, and a spawn would run the
user's own script again.
"""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from profkit.readers.kineto.assemble import Share, adopt
from profkit.readers.kineto.batch import Vocabulary
from profkit.readers.kineto.decode import Reader
from profkit.readers.kineto.split import Text, cut
from profkit.readers.stages import Stages
from profkit.readers.stream import Chunks, Place

_WORTH_A_PROCESS_BYTES: Final = 100 << 20
"""Text below this is read before a second process has started (about 0.25 s)."""
_TEXT_PER_PACKED_BYTE: Final = 12
"""About how much traces shrink in gzip."""
_MOST_PROCESSES: Final = 8
"""Beyond it unpacking and cutting, which every process does, take as long as decoding."""


_WORKER: Final = "profkit.readers.kineto.worker"


@dataclass
class PartialRead:
    """What one process read.

    Attributes:
        share: Its batches.
        words: What the numbers in them mean.
        n_events: Entries of ``traceEvents`` in them.
        n_skipped: Those that are no events.
        clean: Every batch was as it should be. Otherwise where one ends is not known before it
            is read, and the batches of several processes do not fit together.
    """

    share: Share
    words: Vocabulary
    n_events: int
    n_skipped: int
    clean: bool


def processes_for(place: Place) -> int:
    """How many processes a file is worth; what is not on this machine is read by one."""
    if not isinstance(place, Path) or not place.is_file():
        return 1
    n_bytes = place.stat().st_size * (1 if _is_plain(place) else _TEXT_PER_PACKED_BYTE)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    worth = n_bytes // _WORTH_A_PROCESS_BYTES
    return max(1, min(processors, worth, _MOST_PROCESSES) if sys.executable else 1)


def _is_plain(path: Path) -> bool:
    """Whether a file begins as JSON does, and so is not packed."""
    with path.open("rb") as raw:
        return raw.read(1)[:1] in (b"{", b"[", b" ", b"\n")


def read_part(
    chunks: Chunks, text: Text, stages: Stages, number: int, n_processes: int
) -> PartialRead:
    """Read every n-th batch, beginning with the given one.

    Args:
        chunks: The whole text.
        text: Filled in on the way.
        stages: Is told how long cutting and decoding take.
        number: Which share, from 0.
        n_processes: Of how many.
    """
    reader = Reader(text, stages)
    share: Share = {}
    with stages.stage("cut"):
        for place, batch in enumerate(cut(chunks, text)):
            if place % n_processes == number:
                share[place] = reader.columns(batch)
                if n_processes > 1 and not reader.clean:
                    break
    return PartialRead(share, reader.words, reader.n_events, reader.n_skipped, reader.clean)


def start_others(place: Place, limit: int, n_processes: int) -> list["subprocess.Popen[bytes]"]:
    """Start the processes that read the other shares."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return [
        subprocess.Popen(  # noqa: S603  (our own module, by our own interpreter)
            [sys.executable, "-m", _WORKER, str(place), str(limit), str(number), str(n_processes)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        for number in range(1, n_processes)
    ]


def join_others(ours: PartialRead, others: list["subprocess.Popen[bytes]"]) -> bool:
    """Add what the other processes read to our own reading.

    Returns:
        Whether all is there. If not (a process died, or a batch was not clean), the file has to be
        read by one process.
    """
    whole = ours.clean or not others
    for process in others:
        with process:
            theirs = _received(process) if whole else None
            if theirs is None:
                process.kill()
                whole = False
                continue
        adopt(theirs.share, theirs.words, ours.words)
        ours.share.update(theirs.share)
        ours.n_events += theirs.n_events
        ours.n_skipped += theirs.n_skipped
    return whole


def _received(process: "subprocess.Popen[bytes]") -> PartialRead | None:
    if process.stdout is None:
        return None
    try:
        theirs = pickle.load(process.stdout)  # noqa: S301  (of a process that we started ourselves)
    except (EOFError, pickle.UnpicklingError):
        return None
    return theirs if isinstance(theirs, PartialRead) and theirs.clean else None
