"""Collectives on which the ranks of a group disagree."""

from dataclasses import replace

import pytest

from profkit.index.ranks.disagreements import CollectiveCall, Disagreement, find_disagreements
from profkit.index.ranks.matching import match_collectives
from profkit.model.events import MISSING
from profkit.model.process_group import ProcessGroup
from tests.index.ranks.jobs import Call, Clock, collective, ranks_of

MS = 1_000_000
REDUCED = CollectiveCall("all-reduce", "Float", 1000)
SPARE = ProcessGroup("9", (0, 2), 2, "spare")


def job(n: int = 10, *, numbered: bool = True) -> list[Call]:
    """All-reduces of four ranks, two per step."""
    return [
        replace(call, seq=number if numbered else call.seq, launched_ns=call.start_ns)
        for number in range(n)
        for call in collective(number, [number * MS] * 4, MS // 2, step=number // 2)
    ]


def found(calls: list[Call], clocks: tuple[Clock, ...] = ()) -> list[Disagreement]:
    return find_disagreements(match_collectives(ranks_of(calls, clocks)))


def changed(calls: list[Call], collectives: set[int], rank: int, **given: object) -> list[Call]:
    return [
        replace(call, **given)  # type: ignore[arg-type]
        if call.rank == rank and call.collective in collectives
        else call
        for call in calls
    ]


@pytest.mark.parametrize(
    ("given", "other"),
    [
        ({"kind": "all-gather"}, CollectiveCall("all-gather", "Float", 1000)),
        ({"element_type": "Half"}, CollectiveCall("all-reduce", "Half", 1000)),
        ({"n_elements": 7}, CollectiveCall("all-reduce", "Float", 7)),
    ],
)
def test_a_rank_that_calls_another_kind_type_or_size_is_found(
    given: dict[str, object], other: CollectiveCall
) -> None:
    (disagreement,) = found(changed(job(), {6, 7}, 3, **given))
    assert (disagreement.number, disagreement.step, disagreement.n) == (6, None, 2)
    assert disagreement.calls == ((REDUCED, (0, 1, 2)), (other, (3,)))
    assert disagreement.ranks == (0, 1, 2, 3)


def test_ranks_that_agree_are_silent_on_other_clocks_and_in_other_windows() -> None:
    clocks = (Clock(), Clock(5 * MS), Clock(-3 * MS), Clock(0, 1e-5))
    begun_late = [call for call in job() if call.rank != 1 or call.collective > 2]
    ended_early = [call for call in begun_late if call.rank != 2 or call.collective < 8]
    assert found(ended_early, clocks) == []


def test_without_numbers_a_step_with_fewer_calls_is_found() -> None:
    calls = job(numbered=False)
    lacking = [call for call in calls if (call.collective, call.rank) != (5, 2)]
    (disagreement,) = found(lacking)
    assert (disagreement.number, disagreement.step, disagreement.n) == (None, 2, 1)
    assert disagreement.calls == ((REDUCED, (0, 1, 3)), (CollectiveCall(), (2,)))


def test_without_numbers_and_without_the_calls_of_the_host_nothing_is_known() -> None:
    calls = [replace(call, launched_ns=MISSING) for call in job(numbered=False)]
    assert found([call for call in calls if (call.collective, call.rank) != (5, 2)]) == []


def test_numbers_that_are_wrong_from_the_beginning_are_not_a_disagreement() -> None:
    shifted = changed(job(), set(range(10)), 3, kind="all-gather")
    assert found(shifted) == []


def test_sizes_of_all_to_alls_may_differ() -> None:
    calls = [replace(call, kind="all-to-all", n_elements=call.rank) for call in job()]
    assert found(calls) == []


def test_other_groups_and_sends_are_not_compared() -> None:
    calls = job()
    calls += [Call(99, rank, 20 * MS, 21 * MS, group=SPARE, seq=3) for rank in (0, 2)]
    calls += [Call(98, 1, 22 * MS, 23 * MS, kind="send", target=3, seq=0)]
    calls += [Call(98, 3, 22 * MS, 23 * MS, kind="receive", source=1, seq=5)]
    assert found(calls) == []


def test_calls_of_one_coalescing_region_have_one_number() -> None:
    calls = [replace(call, seq=call.collective // 2) for call in job()]
    assert found(calls) == []
    (disagreement,) = found(changed(calls, {7}, 0, n_elements=3))
    assert (disagreement.number, disagreement.n) == (3, 1)
