"""How the ranks of a job end: one of them waits for the others, to report on all."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from profkit.capture.process import console, files, signals
from profkit.capture.run.job import RankOfJob, RankState
from profkit.units import format_count

MAX_WAIT_S: Final = 60.0
"""How long the rank that reports waits after its own end; others may save a checkpoint then, or
validate."""
MAX_WAIT_KILLED_S: Final = 10.0
"""The same when it is about to be killed: torchrun allows 30 s."""
_TELL_AFTER_S: Final = 2.0
_MAX_RANKS: Final = 64
"""Recordings of more ranks take too long at the end of a program."""


def reports(rank: RankOfJob, *, is_killed: bool = False) -> bool:
    """Whether this rank, which has ended, reports on the job: the first one, or one after its end.

    Args:
        is_killed: Whether this process is about to end by a signal.
    """
    return rank.reports() or takes_over(rank, is_killed=is_killed)


def takes_over(rank: RankOfJob, *, is_killed: bool) -> bool:
    """Whether this rank, which ends while another one is to report, has to do it instead.

    The last rank to end waits for that one: if it dies then, nobody else is left.

    Args:
        is_killed: Whether this process is about to end by a signal.
    """
    if not rank.is_last():
        rank.leave()
        return False
    # That one may end and remove everything between two looks.
    rank.wait(lambda seconds, _: rank.is_removed or seconds > _limit_s(is_killed=is_killed))
    return rank.reports()


def _limit_s(*, is_killed: bool) -> float:
    """How long to wait for other ranks."""
    return MAX_WAIT_KILLED_S if is_killed or signals.is_pending() else MAX_WAIT_S


def wait_for_ranks(rank: RankOfJob, *, is_killed: bool) -> list[RankState]:
    """Wait until the other ranks have ended too, and say which ones are missing.

    Args:
        is_killed: Whether this process is about to end by a signal.
    """
    limit_s = _limit_s(is_killed=is_killed)
    told = False

    def until(seconds: float, pending: list[int]) -> bool:
        nonlocal told
        if seconds > _TELL_AFTER_S and not told:
            told = True
            console.note(f"waiting for {_ranks(pending)} to end, for at most {limit_s:.0f} s.")
        return seconds > _limit_s(is_killed=is_killed)

    states = rank.wait(until)
    seen = {state.rank: state for state in states}
    unseen = [each for each in range(rank.world_size) if each not in seen]
    states = [_with_files(state, rank.folder) if state.has_died else state for state in states]
    died = [state.rank for state in states if state.has_died]
    running = [state.rank for state in states if not state.ended_ns and state.rank not in died]
    empty = [state for state in states if state.ended_ns and not state.files]
    if unseen:
        console.note(
            f"{_ranks(unseen)} did not write to {rank.folder}: on another machine, or not begun."
        )
    if died:
        console.note(f"{_ranks(died)} died; what was recorded until then is in the report.")
    if running:
        console.note(f"{_ranks(running)} did not end within {limit_s:.0f} s.")
    for why in {state.why_not for state in empty}:
        console.note(f"{_ranks([each.rank for each in empty if each.why_not == why])}: {why}")
    if not running:
        rank.remove()
    return states


def files_of(states: Sequence[RankState]) -> list[tuple[str, ...]]:
    """The files of each rank that has recorded; of too many ranks none, which a line says."""
    recorded = [state.files for state in states if state.files]
    if len(recorded) > _MAX_RANKS:
        folder = Path(recorded[0][0]).parent
        n = format_count(len(recorded))
        console.note(f"{n} ranks have recorded; profkit analyze {folder} reports on all of them.")
        return []
    return recorded


def _with_files(state: RankState, folder: Path) -> RankState:
    """What a rank that died has written before, by the names of the files."""
    name = f"{files.safe_name(state.host)}_{state.pid}_*rank{state.rank}.*.json.gz"
    with suppress(OSError):
        found = sorted(folder.glob(name))
        own = (path for path in found if path.stat().st_mtime_ns >= state.began_ns)
        return replace(state, files=tuple(map(str, own)))
    return state


def _ranks(ranks: Sequence[int]) -> str:
    from profkit.engine.wording import the_ranks

    return the_ranks(ranks)
