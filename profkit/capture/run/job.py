"""The ranks of a job that ``profkit run`` records: how each has ended, and which files it has.

Each rank writes its state to a file of a hidden folder beside the recordings: no collective, and
no store of the program, which may be gone when a rank ends. What an earlier job has left there is
older than this process. Folders of jobs whose processes are all gone are removed by the next job.

Nothing heavy is imported here: a program without torch pays for it too.
"""

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from profkit.capture.process.launch import is_alive
from profkit.capture.run.rank_actions import RankPhase
from profkit.capture.run.rank_failure import Failure
from profkit.dataclass import dataclass

_FOLDERS: Final = ".ranks-"
_CLAIM: Final = "report"
_MAX_APART_NS: Final = 600_000_000_000
"""The ranks of a job begin within this time."""
_MAX_EMPTY_S: Final = 600.0
"""A folder without any state is of a job that begins, if it is not older."""


@dataclass(frozen=True)
class RankState:
    """What is written about a rank.

    Attributes:
        began_ns: Nanoseconds since 1970 when it began.
        ended_ns: The same when its program had ended and its files were written, or 0.
        files: Those files.
        no_recording_reason: Why there are none, in one sentence, or empty.
        leaves: Whether it has ended, and waits for nobody.
        failure: Why its program ended early; None before its end and after a good one. It is
            written before the files.
    """

    rank: int
    host: str
    pid: int
    began_ns: int
    ended_ns: int = 0
    files: tuple[str, ...] = ()
    no_recording_reason: str = ""
    leaves: bool = False
    failure: Failure | None = None

    @classmethod
    def parse(cls, text: str) -> "RankState":
        """Read a state from the text of its file.

        Raises:
            ValueError: If it is another text.
        """
        # Keys that this version does not know raise a TypeError: another version has written them.
        try:
            written: Mapping[str, Any] = json.loads(text)
            failure = written["failure"]
            return cls(
                **{
                    **written,
                    "files": tuple(map(str, written["files"])),
                    "failure": None if failure is None else Failure.parse(failure),
                }
            )
        except (TypeError, KeyError) as error:
            raise ValueError("This is not the state of a rank.") from error

    @property
    def has_died(self) -> bool:
        """Return whether its process is gone before its end, as far as this machine knows."""
        return self.phase is RankPhase.DIED

    @property
    def phase(self) -> RankPhase:
        """Return the phase as it is now, for which the process is looked up."""
        is_here = self.host == socket.gethostname()

        if not self.ended_ns:
            # Processes of another machine cannot be seen from here.
            if not is_here:
                return RankPhase.ELSEWHERE
            return RankPhase.RUNNING if is_alive(self.pid) else RankPhase.DIED

        if self.failure is not None:
            return RankPhase.FAILED
        is_gone = self.leaves or (is_here and not is_alive(self.pid))
        return RankPhase.LEFT if is_gone else RankPhase.ENDED


class RankOfJob:
    """This process, as one rank of a job of several.

    Args:
        folder: The folder of the recordings.
        job: What tells this job from others at the same time.

    Attributes:
        folder: That folder.
        rank: Its number.
        world_size: Number of ranks.
        state: What is written about this rank.
        is_shared: Whether the ranks can write what they do.
    """

    def __init__(self, folder: Path, job: str, rank: int, world_size: int) -> None:
        self.folder = folder
        self.rank = rank
        self.world_size = world_size
        self.state = RankState(rank, socket.gethostname(), os.getpid(), time.time_ns())
        self._folder = folder / f"{_FOLDERS}{job}"
        self.is_shared = self._begin()

    @property
    def is_over(self) -> bool:
        """Return whether a rank has removed what the ranks have written: nothing is left to do."""
        return self.is_shared and not self._folder.exists()

    @property
    def is_reported(self) -> bool:
        """Return whether a rank has claimed to report on the job."""
        return (self._folder / _CLAIM).exists()

    def fail(self, failure: Failure) -> None:
        """Tell the other ranks that the program has ended early, before its files are written."""
        if self.state.failure is None:
            earlier = (state.rank for state in self.read() if state is not None and _is_bad(state))
            self.state = replace(self.state, failure=replace(failure, after=tuple(earlier)))
            self._write()

    def end(self, files: Sequence[str], no_recording_reason: str = "") -> None:
        """Tell the other ranks that the program has ended here, and its files are written."""
        self.state = replace(
            self.state,
            ended_ns=time.time_ns(),
            no_recording_reason=no_recording_reason,
            files=tuple(files),
        )
        self._write()

    def leave(self) -> None:
        """Tell the other ranks, after the end, that this one waits for nobody."""
        self.state = replace(self.state, leaves=True)
        self._write()

    def read(self) -> list[RankState | None]:
        """Read what is written about each rank; None about one that has written nothing."""
        return [self._read(rank) for rank in range(self.world_size)]

    def claim_report(self) -> bool:
        """Claim to report on the job; returns whether no other rank has claimed it."""
        if not self.is_shared:
            return True
        # The file system decides between ranks that claim at once, as it makes the file only once.
        try:
            (self._folder / _CLAIM).touch(exist_ok=False)
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """Remove what the ranks have written, once nobody needs it any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self) -> bool:
        """Write the first state; returns whether that has succeeded."""
        remove_stale(self.folder)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            # Reports are claimed when a rank ends: this claim is from a job of the same name.
            (self._folder / _CLAIM).unlink(missing_ok=True)
        return self._write()

    def _write(self) -> bool:
        """Write the state of this rank, unless the folder is gone."""
        # Renamed at the end, as other ranks read it at any time.
        try:
            partial = self._folder / f".{self.rank}.{os.getpid()}"
            partial.write_text(json.dumps(asdict(self.state)))
            partial.replace(self._folder / str(self.rank))
        except OSError:
            return False
        return True

    def _read(self, rank: int) -> RankState | None:
        """Read what a rank has written, if it is of this job and not of an earlier one."""
        if rank == self.rank:
            return self.state
        try:
            state = RankState.parse((self._folder / str(rank)).read_text())
        except (OSError, ValueError):
            return None
        last_ns = state.ended_ns or state.began_ns + _MAX_APART_NS
        return state if state.rank == rank and last_ns >= self.state.began_ns else None


def remove_stale(recordings: Path) -> None:
    """Remove the folders of jobs whose ranks were killed before one of them could do it.

    Args:
        recordings: The folder of the recordings.
    """
    for folder in recordings.glob(f"{_FOLDERS}*"):
        with contextlib.suppress(OSError):
            if _is_stale(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_stale(folder: Path) -> bool:
    """Return whether no process goes on of those that have written to the folder of a job.

    Of ranks on other machines that is not known.
    """
    host = socket.gethostname()
    states = [*_read_states(folder)]
    if not states:
        return time.time() - folder.stat().st_mtime > _MAX_EMPTY_S
    return not any(state is None or state.host != host or is_alive(state.pid) for state in states)


def _read_states(folder: Path) -> Iterator[RankState | None]:
    """Read all states in the folder of a job; None is one that cannot be read."""
    for path in folder.iterdir():
        if path.name.isdigit():
            try:
                yield RankState.parse(path.read_text())
            except ValueError:
                yield None


def _is_bad(state: RankState) -> bool:
    """Return whether a rank has failed or died."""
    return state.failure is not None or state.has_died
