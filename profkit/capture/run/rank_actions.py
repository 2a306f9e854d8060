"""Who waits, who reports and who removes the folder when the ranks of a job end.

A pure function of the phases of all ranks. Each rank writes its own state first and reads those of
the others afterwards, so that of two that end at once at least one sees the other; of several that
would report, the one that claims the report first does it (:mod:`profkit.capture.run.job`).

Whoever ends while others go on leaves, and the last one reports. A rank that waited would hold its
connections open, so that others which need it in a collective would hang and not fail. Only the
first rank waits in a job that ends well, for a short time, since people expect its report.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final


class RankPhase(Enum):
    """What is known of a rank."""

    UNSEEN = "has written nothing: on another machine with another folder, or not begun"
    RUNNING = "its program runs on this machine"
    ELSEWHERE = "its program runs on another machine, where its death would not be seen"
    ENDED = "its program has ended well, and its process waits for other ranks"
    LEFT = "its program has ended well, and it waits for nobody"
    FAILED = "its program has ended by an error or a signal, and it waits for nobody"
    DIED = "its process is gone, and had not said how its program ended"


class RankAction(Enum):
    """What a rank does next whose program has ended and whose files are written."""

    WAIT = "look again a moment later"
    LEAVE = "end: another rank reports"
    REPORT = "report on the job, if no other rank has claimed to do it"
    REMOVE = "end, and remove the folder of the job, since nobody needs it any more"


GOES_ON: Final = frozenset({RankPhase.UNSEEN, RankPhase.RUNNING, RankPhase.ELSEWHERE})
"""The phases of ranks whose program has not ended, as far as is known."""
_HAS_FAILED: Final = frozenset({RankPhase.FAILED, RankPhase.DIED})
_IS_GONE: Final = frozenset({RankPhase.FAILED, RankPhase.DIED, RankPhase.LEFT})
_MAY_ACT: Final = frozenset({RankPhase.ENDED, RankPhase.LEFT, RankPhase.FAILED})


def has_failed(phases: Sequence[RankPhase]) -> bool:
    """Return whether a rank of the job is known to have failed or died."""
    return not _HAS_FAILED.isdisjoint(phases)


def next_action(
    phases: Sequence[RankPhase], rank: int, *, is_reported: bool = False, is_late: bool = False
) -> RankAction:
    """Return what a rank does next after its program has ended.

    Args:
        phases: The phase of each rank.
        rank: The number of this rank, which has ended, left or failed.
        is_reported: Whether a rank has claimed to report.
        is_late: Whether this rank has waited as long as it may: it waits no more.

    Raises:
        ValueError: If the program of this rank has not ended.
    """
    if phases[rank] not in _MAY_ACT:
        raise ValueError(f"Rank {rank} does not end: {phases[rank]}.")
    if phases[rank] is RankPhase.ENDED and not is_reported:
        if has_failed(phases):
            return _choose_after_failure(phases, rank, is_late=is_late)
        return _choose_after_good_end(phases, rank, is_late=is_late)
    return _choose_when_leaving(phases, rank, is_reported=is_reported, is_late=is_late)


def _choose_after_good_end(phases: Sequence[RankPhase], rank: int, *, is_late: bool) -> RankAction:
    """Return what a rank does that has ended well in a job without failures."""
    first = next(number for number, phase in enumerate(phases) if phase not in _IS_GONE)
    going_on = GOES_ON.intersection(phases)

    if first != rank:
        return RankAction.LEAVE
    if not going_on:
        return RankAction.REPORT
    if not is_late:
        return RankAction.WAIT
    # The last one on this machine will report; what others do on other machines is not known.
    return RankAction.LEAVE if RankPhase.RUNNING in going_on else RankAction.REPORT


def _choose_after_failure(phases: Sequence[RankPhase], rank: int, *, is_late: bool) -> RankAction:
    """Return what a rank does that has ended well in a job in which another one has failed."""
    lower, peers = phases[:rank], [*phases[:rank], *phases[rank + 1 :]]

    if RankPhase.RUNNING in peers:
        return RankAction.LEAVE
    if RankPhase.ELSEWHERE in peers and not is_late:
        return RankAction.WAIT
    return RankAction.LEAVE if {RankPhase.ENDED, RankPhase.UNSEEN} & {*lower} else RankAction.REPORT


def _choose_when_leaving(
    phases: Sequence[RankPhase], rank: int, *, is_reported: bool, is_late: bool
) -> RankAction:
    """Return what a rank does that waits for nobody, and reports only if it is the last one."""
    lower, peers = phases[:rank], [*phases[:rank], *phases[rank + 1 :]]

    if RankPhase.RUNNING in peers or RankPhase.ENDED in peers:
        return RankAction.LEAVE
    if RankPhase.ELSEWHERE in peers:
        if is_reported or not has_failed(phases):
            return RankAction.LEAVE
        # A rank that was killed on another machine will never say so.
        return RankAction.REPORT if is_late else RankAction.WAIT

    # A lower rank that was never seen here writes to the folder of another machine, and reports
    # there on the job: nobody reports on what is in this folder.
    if is_reported or RankPhase.UNSEEN in lower:
        return RankAction.REMOVE
    return RankAction.REPORT
