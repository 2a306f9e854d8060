"""How the ranks of a job end: one of them reports on all, and none waits for who cannot end.

What each does is decided in :mod:`profkit.capture.run.rank_actions`.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from profkit.capture.process import console, files, signals
from profkit.capture.run.job import RankOfJob, RankState
from profkit.capture.run.rank_actions import GOES_ON, RankAction, RankPhase, has_failed, next_action
from profkit.capture.run.rank_failure import Failure, failure_of_exception, find_causes
from profkit.dataclass import dataclass
from profkit.folders import working_folder
from profkit.names import short_path, visible
from profkit.units import format_count

MAX_WAIT_S: Final = 2.0
"""How long the first rank, which has ended well, waits for others on this machine before it leaves
the report to the last one: they may need its end to fail."""
MAX_WAIT_LONG_S: Final = 60.0
"""The same for ranks on other machines, whose end may be seen late; and for the callback of a
trainer, whose process goes on."""
MAX_WAIT_FAILED_S: Final = 1.0
"""The same when a rank has failed, for ranks on other machines."""
MAX_START_S: Final = 30.0
"""How long after this rank's start another one may start that has written nothing yet."""
_TELL_AFTER_S: Final = 2.0
_POLL_S: Final = 0.05
_POLL_PAUSE: Final = 10
"""A pause between two readings of the states takes at least this many times as long as one."""
_MAX_CAUSES: Final = 3
"""Ranks whose own errors are printed; the same error in all ranks has one cause."""
_MAX_RANKS: Final = 64
"""Recordings of more ranks take too long at the end of a program."""


def note_failure(rank: RankOfJob, error: BaseException | None) -> None:
    """Tell the other ranks why the program of this one has failed, if it has.

    torchrun sends SIGTERM to all ranks as soon as one has failed, so that little time is left.

    Args:
        error: The exception that the program raised, or None.
    """
    failure = failure_of_exception(error, time.time_ns())
    if failure is not None:
        rank.fail(failure)


def end_rank(
    rank: RankOfJob,
    recorded: Sequence[str],
    no_recording_reason: str = "",
    *,
    is_killed: bool = False,
    max_wait_s: float = MAX_WAIT_S,
) -> list[RankState]:
    """End this rank, whose files are written, and wait for others if it may have to report.

    Args:
        recorded: Its files.
        no_recording_reason: Why there are none, in one sentence, or empty.
        is_killed: Whether SIGTERM is about to end this process.
        max_wait_s: How long the first rank waits for others on this machine.

    Returns:
        What is known of each rank that has written anything, if this one reports; else nothing.
    """
    if is_killed:
        rank.fail(Failure(time.time_ns(), signal="SIGTERM"))
    rank.end(recorded, no_recording_reason)

    end = _wait_for_report(rank, max_wait_s) if rank.is_shared else _end_alone(rank)
    if end is None:
        return []

    # The last one to leave removes the folder: the others still read in it.
    rank.leave()
    if next_action(_phases(rank.read()), rank.rank, is_reported=True) is RankAction.REMOVE:
        rank.remove()

    seen = [state for state in end.states if state is not None]
    states = [_with_files(state, rank) if state.has_died else state for state in seen]
    _tell_causes(states)
    _tell_gaps(rank, states, end.limit_s)
    return states


def drop_rank(rank: RankOfJob, failure: Failure | None = None) -> None:
    """End this rank without a report, whatever the others do.

    Args:
        failure: Why its program has not run, or None.
    """
    if failure is not None:
        rank.fail(failure)
    rank.end(())
    rank.leave()
    action = next_action(_phases(rank.read()), rank.rank, is_late=True)
    if action in {RankAction.REPORT, RankAction.REMOVE}:
        rank.remove()


def files_of(states: Sequence[RankState]) -> list[tuple[str, ...]]:
    """Return the files of each rank that has recorded; of too many ranks none, as a line says."""
    recorded = [state.files for state in states if state.files]

    if len(recorded) > _MAX_RANKS:
        folder = Path(recorded[0][0]).parent
        n = format_count(len(recorded))
        console.note(f"{n} ranks have recorded; profkit analyze {folder} reports on all of them.")
        return []
    return recorded


@dataclass(frozen=True)
class _JobEnd:
    """What the rank that reports has read, in the order of the ranks, and how long it may wait."""

    states: tuple[RankState | None, ...]
    limit_s: float


def _end_alone(rank: RankOfJob) -> _JobEnd | None:
    """Return the end of a job whose ranks cannot write what they do."""
    return _JobEnd((rank.state,), 0.0) if rank.rank == 0 else None


def _wait_for_report(rank: RankOfJob, max_wait_s: float) -> _JobEnd | None:
    """Wait while this rank may have to report.

    Args:
        max_wait_s: As for :func:`end_rank`.

    Returns:
        The end of the job when this rank has claimed to report; None if it does not report.
    """
    began_s = time.monotonic()
    is_told = False

    while not rank.is_over:
        look_s = time.monotonic()
        if signals.is_pending() and rank.state.phase is RankPhase.ENDED:
            rank.leave()  # the job is ended from outside

        is_reported = rank.is_reported
        states = rank.read()
        phases = _phases(states)
        waited_s, limit_s = look_s - began_s, _limit_s(rank, phases, max_wait_s)
        is_late = waited_s >= limit_s

        action = next_action(phases, rank.rank, is_reported=is_reported, is_late=is_late)
        if action is RankAction.WAIT:
            is_told = is_told or _tell_wait(phases, waited_s, limit_s)
            time.sleep(max(_POLL_S, _POLL_PAUSE * (time.monotonic() - look_s)))
        elif action is RankAction.REPORT:
            if rank.claim_report():
                return _JobEnd(tuple(states), limit_s)
            if not rank.is_reported:
                return None  # the folder is gone, or cannot be written any more
        elif action is RankAction.LEAVE and rank.state.phase is RankPhase.ENDED:
            # Looks again: others may have left at the same time, because this one was there.
            rank.leave()
            _tell_who_reports(phases, is_late=is_late)
        else:
            if action is RankAction.REMOVE:
                rank.remove()
            return None
    return None


def _phases(states: Sequence[RankState | None]) -> list[RankPhase]:
    """Return the phase of each rank."""
    return [RankPhase.UNSEEN if state is None else state.phase for state in states]


def _find_going_on(phases: Sequence[RankPhase]) -> list[int]:
    """Find the ranks whose program has not ended, as far as is known."""
    return [number for number, phase in enumerate(phases) if phase in GOES_ON]


def _tell_wait(phases: Sequence[RankPhase], waited_s: float, limit_s: float) -> bool:
    """Say for which ranks this one waits, if it takes long; returns whether it was said."""
    if waited_s <= _TELL_AFTER_S:
        return False
    console.note(
        f"waiting for {_ranks(_find_going_on(phases))} to end, for at most {limit_s:.0f} s."
    )
    return True


def _tell_who_reports(phases: Sequence[RankPhase], *, is_late: bool) -> None:
    """Say that another rank reports than the first one, which has waited for its end."""
    if is_late and not has_failed(phases):
        ranks = _find_going_on(phases)
        who = _ranks(ranks) if len(ranks) == 1 else f"the last of {_ranks(ranks)} to end"
        console.note(f"{who} will report on the job.")


def _limit_s(rank: RankOfJob, phases: Sequence[RankPhase], max_wait_s: float) -> float:
    """Return how many seconds this rank may wait in all for what goes on in others."""
    if has_failed(phases):
        return MAX_WAIT_FAILED_S
    if RankPhase.RUNNING in phases:
        return max_wait_s
    if RankPhase.ELSEWHERE in phases:
        return MAX_WAIT_LONG_S

    # Nobody goes on: what is left are ranks that have not begun.
    runs_s = (rank.state.ended_ns - rank.state.began_ns) / 1e9
    return max(MAX_START_S - runs_s, 0.0)


def _tell_causes(states: Sequence[RankState]) -> None:
    """Say why the job has failed, if it has."""
    failures = {state.rank: state.failure for state in states if state.failure is not None}
    died = [state.rank for state in states if state.has_died and state.failure is None]
    failed_first, died_first = find_causes(failures, died)

    for number in failed_first[:_MAX_CAUSES]:
        failure = failures[number]
        place = short_path(failure.file, str(working_folder()))
        text = replace(failure, file=place).text
        console.note(visible(f"the job failed: rank {number} {text}."))
    if died_first:
        console.note(
            f"the job failed: {_ranks(died_first)} ended without a Python exception: killed, "
            "crashed in native code, or os._exit."
        )


def _tell_gaps(rank: RankOfJob, states: Sequence[RankState], limit_s: float) -> None:
    """Say what the report lacks.

    Args:
        states: Those of the ranks that were seen.
        limit_s: How long this rank has waited at most.
    """
    seen = [state.rank for state in states]
    unseen = [number for number in range(rank.world_size) if number not in seen]
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
    for reason in {state.no_recording_reason: None for state in empty}:
        ranks = _ranks([state.rank for state in empty if state.no_recording_reason == reason])
        console.note(f"{ranks}: {reason}")


def _with_files(state: RankState, rank: RankOfJob) -> RankState:
    """Return a state with what a rank that died has written before, by the names of the files.

    That it died is written beside them, so that each later report says so.
    """
    from profkit.capture.process import flight_recorder

    folder = rank.folder
    flight_recorder.write_death(folder, state.rank, rank.world_size, state.host, state.pid)
    name = f"{files.safe_name(state.host)}_{state.pid}_*rank{state.rank}.*.json.gz"
    with suppress(OSError):
        paths = sorted(folder.glob(name))
        # An earlier process of the same machine may have had this id.
        recent = (path for path in paths if path.stat().st_mtime_ns >= state.began_ns)
        return replace(state, files=tuple(map(str, recent)))
    return state


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks as words."""
    # Imported here, as most runs print nothing about ranks.
    from profkit.engine.wording import the_ranks

    return the_ranks(ranks)
