"""The ranks of a job that ``profkit run`` records, and which files they have written.

Each rank writes what it does to a file of a hidden folder beside the recordings: no collective, and
no store of the program, which may be gone when a rank ends. What an earlier job has left there is
older than this process.

Nothing heavy is imported here: a program without torch pays for it too.
"""

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from profkit.capture.process.launch import is_alive
from profkit.dataclass import dataclass

_POLL_S: Final = 0.1
_MAX_APART_NS: Final = 600_000_000_000
"""The ranks of a job begin within this time."""


@dataclass(frozen=True)
class RankState:
    """What a rank does.

    Attributes:
        began_ns: Nanoseconds since 1970 when it began.
        ended_ns: The same when its program had ended and its files were written, or 0.
        files: Those files.
        why_not: Why there are none, in one sentence, or empty.
        leaves: Whether it has ended, and does not report whatever happens to the others.
    """

    rank: int
    host: str
    pid: int
    began_ns: int
    ended_ns: int = 0
    files: tuple[str, ...] = ()
    why_not: str = ""
    leaves: bool = False

    @property
    def is_over(self) -> bool:
        """Whether its program has ended, or its process is gone."""
        return bool(self.ended_ns) or self.has_died

    @property
    def has_died(self) -> bool:
        """Whether its process is gone, as far as this machine knows."""
        return not self.ended_ns and self.host == socket.gethostname() and not is_alive(self.pid)


class RankOfJob:
    """This process, as one rank of a job of several.

    Args:
        folder: The folder of the recordings.
        job: What tells this job from others at the same time.

    Attributes:
        folder: That folder.
        rank: Its number.
        world_size: Number of ranks.
    """

    def __init__(self, folder: Path, job: str, rank: int, world_size: int) -> None:
        self.folder = folder
        self.rank = rank
        self.world_size = world_size
        self._folder = folder / f".ranks-{job}"
        self._own = RankState(rank, socket.gethostname(), os.getpid(), time.time_ns())
        self._write()

    def end(self, files: Sequence[str], why_not: str = "") -> None:
        """Tell the other ranks that the program has ended here, and its files are written."""
        self._own = replace(self._own, ended_ns=time.time_ns(), why_not=why_not, files=tuple(files))
        self._write()

    def reports(self) -> bool:
        """Whether this rank prints the report of the job: rank 0, or the first one that is left."""
        lower = [self._read(rank) for rank in range(self.rank)]
        return all(state is not None and (state.has_died or state.leaves) for state in lower)

    def is_last(self) -> bool:
        """Whether, besides this rank, at most the one goes on that would report."""
        states = [self._read(rank) for rank in range(self.world_size)]
        running = [i for i, state in enumerate(states) if state is None or not state.is_over]
        living = (i for i, state in enumerate(states) if state is None or not state.has_died)
        return {*running} <= {next(living)}

    def leave(self) -> None:
        """Tell the other ranks, after the end, that this one does not report."""
        self._own = replace(self._own, leaves=True)
        self._replace()  # the folder is gone if the report is already printed

    def wait(self, until: Callable[[float, list[int]], bool]) -> list[RankState]:
        """Wait for the other ranks to end.

        Args:
            until: Called again and again with the seconds so far and the ranks that still run or
                have not been seen; ends the wait by returning True.

        Returns:
            All ranks that were seen.
        """
        began_s = time.monotonic()
        known: dict[int, RankState] = {}
        while True:
            pending = []
            for rank in range(self.world_size):
                state = known.get(rank)
                if state is None or not state.ended_ns:
                    state = self._read(rank)
                    if state is not None:
                        known[rank] = state
                if state is None or not state.is_over:
                    pending.append(rank)
            if not pending or until(time.monotonic() - began_s, pending):
                return list(known.values())
            time.sleep(_POLL_S)

    @property
    def is_removed(self) -> bool:
        """Whether the rank that reports has removed what the ranks have written."""
        return not self._folder.exists()

    def remove(self) -> None:
        """Remove what the ranks have written, once nobody needs it any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._replace()

    def _replace(self) -> None:
        with contextlib.suppress(OSError):
            partial = self._folder / f".{self.rank}.{os.getpid()}"
            partial.write_text(json.dumps(asdict(self._own)))
            partial.replace(self._folder / str(self.rank))

    def _read(self, rank: int) -> RankState | None:
        """What a rank has written, if it is of this job and not of an earlier one."""
        if rank == self.rank:
            return self._own
        try:
            written = json.loads((self._folder / str(rank)).read_text())
            state = RankState(**written | {"files": tuple(map(str, written["files"]))})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        last_ns = state.ended_ns or state.began_ns + _MAX_APART_NS
        return state if state.rank == rank and last_ns >= self._own.began_ns else None
