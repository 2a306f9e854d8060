"""Who waits, reports and removes at the end of a job: all states, and all orders of events."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest

from profkit.capture.run.rank_actions import RankAction, RankPhase, next_action

U, R, E, D = RankPhase.UNSEEN, RankPhase.RUNNING, RankPhase.ELSEWHERE, RankPhase.DIED
ENDED, LEFT, FAILED = RankPhase.ENDED, RankPhase.LEFT, RankPhase.FAILED
WAIT, LEAVE, REPORT, REMOVE = (
    RankAction.WAIT,
    RankAction.LEAVE,
    RankAction.REPORT,
    RankAction.REMOVE,
)
SIZES = pytest.mark.parametrize("n", [2, 3])


def situations(n: int) -> Iterator[tuple[tuple[RankPhase, ...], int]]:
    for states in product(RankPhase, repeat=n):
        for rank, state in enumerate(states):
            if state in {ENDED, LEFT, FAILED}:
                yield states, rank


@SIZES
def test_a_rank_that_is_late_never_waits(n: int) -> None:
    for states, rank in situations(n):
        for is_reported in (False, True):
            action = next_action(states, rank, is_reported=is_reported, is_late=True)
            assert action is not WAIT, (states, rank)


@SIZES
def test_nobody_waits_for_a_process_of_this_machine_in_a_job_that_has_failed(n: int) -> None:
    for states, rank in situations(n):
        if {FAILED, D} & {*states} and E not in states:
            assert next_action(states, rank) is not WAIT, (states, rank)


@SIZES
def test_a_rank_that_has_failed_ends_at_once_while_others_go_on(n: int) -> None:
    for states, rank in situations(n):
        other_states = states[:rank] + states[rank + 1 :]
        if states[rank] is FAILED and {R, ENDED} & {*other_states}:
            assert next_action(states, rank) is LEAVE, (states, rank)


@SIZES
def test_the_folder_is_removed_only_when_no_process_needs_it(n: int) -> None:
    for states, rank in situations(n):
        other_states = states[:rank] + states[rank + 1 :]
        for is_reported, is_late in product((False, True), repeat=2):
            action = next_action(states, rank, is_reported=is_reported, is_late=is_late)
            if action is REMOVE:
                assert not {R, ENDED, E} & {*other_states}, (states, rank)


@SIZES
def test_a_job_that_is_reported_is_not_reported_again(n: int) -> None:
    for states, rank in situations(n):
        assert next_action(states, rank, is_reported=True) in {LEAVE, REMOVE}, (states, rank)


@SIZES
def test_ranks_that_have_all_ended_leave_one_that_reports(n: int) -> None:
    """Of those that are left the lowest one, or whoever claims the report first."""
    for states in product((ENDED, LEFT, FAILED, D), repeat=n):
        actions = {
            rank: next_action(states, rank)
            for rank, state in enumerate(states)
            if state in {ENDED, LEFT, FAILED}
        }
        if actions:
            assert REPORT in actions.values(), states
        if ENDED in states:
            assert [*actions.values()].count(REPORT) == 1, states


@pytest.mark.parametrize(
    ("states", "rank", "action"),
    [
        ([ENDED, R], 0, WAIT),
        ([R, ENDED], 1, LEAVE),  # rank 0 may need its end to fail
        ([D, ENDED], 1, REPORT),
        ([ENDED, ENDED], 1, LEAVE),
        ([ENDED, LEFT], 0, REPORT),
        ([R, ENDED, R], 1, LEAVE),  # rank 2 is the last one
        ([ENDED, FAILED, R], 0, LEAVE),
        ([ENDED, FAILED], 0, REPORT),
        ([R, FAILED], 1, LEAVE),
        ([D, FAILED], 1, REPORT),
        ([E, FAILED], 1, WAIT),
        ([U, FAILED], 1, REMOVE),  # rank 0 reports on another machine
        ([FAILED, U], 0, REPORT),
        ([U, ENDED], 1, LEAVE),
        ([ENDED, E], 0, WAIT),
        ([E, LEFT], 1, LEAVE),
    ],
)
def test_what_a_rank_does(states: list[RankPhase], rank: int, action: RankAction) -> None:
    assert next_action(states, rank) is action


@pytest.mark.parametrize(
    ("states", "action"),
    [([ENDED, R], LEAVE), ([ENDED, R, E], LEAVE), ([ENDED, E], REPORT), ([ENDED, U], REPORT)],
)
def test_rank_0_leaves_the_report_to_the_last_rank_of_its_machine_when_it_is_late(
    states: list[RankPhase], action: RankAction
) -> None:
    assert next_action(states, 0) is WAIT
    assert next_action(states, 0, is_late=True) is action


@SIZES
def test_only_the_first_rank_waits_in_a_job_that_ends_well(n: int) -> None:
    for states, rank in situations(n):
        if next_action(states, rank) is WAIT and not {FAILED, D} & {*states}:
            assert {*states[:rank]} <= {LEFT}, (states, rank)


def test_a_rank_whose_program_runs_has_nothing_to_do_yet() -> None:
    with pytest.raises(ValueError, match="does not end"):
        next_action([R, ENDED], 0)


@dataclass(frozen=True)
class Rank:
    """A rank of a job that is played through.

    Attributes:
        view: What it has read and not yet acted on: the states and whether a report is claimed.
    """

    state: RankPhase = R
    is_gone: bool = False
    view: tuple[tuple[RankPhase, ...], bool] | None = None


@dataclass(frozen=True)
class Job:
    ranks: tuple[Rank, ...]
    n_reports: int = 0
    is_removed: bool = False
    was_death_last: bool = False

    def with_rank(self, number: int, **changes: object) -> "Job":
        changed = replace(self.ranks[number], **changes)  # type: ignore[arg-type]
        return replace(self, ranks=(*self.ranks[:number], changed, *self.ranks[number + 1 :]))


def find_next_states(job: Job) -> Iterator[Job]:
    """Whatever may happen next: reading and acting are two events, as of real processes."""
    states = tuple(rank.state for rank in job.ranks)

    for number, rank in enumerate(job.ranks):
        if rank.state is R:
            for end in (ENDED, FAILED):
                yield replace(job.with_rank(number, state=end), was_death_last=False)
            died = job.with_rank(number, state=D, is_gone=True)
            yield replace(died, was_death_last=True)
        elif rank.is_gone:
            continue
        elif job.is_removed:
            yield job.with_rank(number, is_gone=True)
        elif rank.view is None:
            yield job.with_rank(number, view=(states, job.n_reports > 0))
        else:
            yield act(job, number, is_late=False)
            yield act(job, number, is_late=True)


def act(job: Job, number: int, *, is_late: bool) -> Job:
    """Return a job after a rank has acted on what it has read, as ``job_end.end_rank`` does."""
    rank = job.ranks[number]
    assert rank.view is not None
    states, is_reported = rank.view
    action = next_action(states, number, is_reported=is_reported, is_late=is_late)
    looks_again = job.with_rank(number, view=None)
    left = FAILED if rank.state is FAILED else LEFT

    if action is REPORT:
        # A claim succeeds once. Who has claimed leaves, and removes the folder if it may.
        if job.n_reports:
            return looks_again
        return replace(job.with_rank(number, state=left, view=None), n_reports=1)

    if action is REMOVE:
        return replace(job.with_rank(number, is_gone=True), is_removed=True)
    if action is LEAVE and rank.state is ENDED:
        return job.with_rank(number, state=LEFT, view=None)
    return job.with_rank(number, is_gone=True) if action is LEAVE else looks_again


@SIZES
def test_in_every_order_of_events_one_rank_reports_and_the_folder_is_removed(n: int) -> None:
    """Unless the last event is the death of a rank that would have reported."""
    start = Job((Rank(),) * n)
    came_from: dict[Job, set[Job]] = {start: set()}
    to_do, ends = [start], []
    while to_do:
        job = to_do.pop()
        if all(rank.is_gone for rank in job.ranks):
            ends.append(job)
        for successor in {*find_next_states(job)} - {job}:
            if successor not in came_from:
                to_do.append(successor)
            came_from.setdefault(successor, set()).add(job)

    for job in ends:
        assert job.n_reports == 1 or (job.was_death_last and not job.n_reports), job
        assert job.is_removed or job.was_death_last, job

    # Nobody waits for ever: each situation leads to an end.
    can_end, to_do = {*ends}, [*ends]
    while to_do:
        earlier = came_from[to_do.pop()] - can_end
        can_end |= earlier
        to_do += earlier
    assert can_end == {*came_from}
