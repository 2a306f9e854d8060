"""Collectives of several ranks: which belong together, by which clock, and who waits for whom."""

import gc
import itertools
import random
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.ranks.delays import find_delays
from profkit.index.ranks.job_calls import JobCalls, RankCalls
from profkit.index.ranks.matching import (
    Matches,
    Unmatched,
    match_collectives,
)
from profkit.model.events import MISSING
from profkit.model.process_group import ProcessGroup
from profkit.packed import Packed
from tests.index.ranks.jobs import WORLD, Call, Clock, collective, ranks_of

MS = 1_000_000


def matched(found: Matches) -> list[dict[int, int]]:
    """Of each match the index of the call of each rank."""
    calls, bounds = found.calls, [*found.first.tolist(), len(found.members)]
    return [
        {
            calls.ranks[calls.member[row]].rank: number_of(found, row)
            for row in found.members[first:last].tolist()
        }
        for first, last in itertools.pairwise(bounds)
    ]


def number_of(found: Matches, row: int) -> int:
    """Return the index of a call among those of its rank."""
    return int(row - found.calls.first[found.calls.member[row]])


def reasons(found: Matches) -> Counter[Unmatched]:
    return Counter(Unmatched(reason) for reason in found.unmatched[found.unmatched != 0].tolist())


def job(n: int = 12, n_ranks: int = 4, every_ms: int = 10, **given: object) -> list[Call]:
    """Collectives every few milliseconds, at random a millisecond apart on the ranks."""
    rng = random.Random(7)  # noqa: S311
    calls = []
    for number in range(n):
        starts = [number * every_ms * MS + rng.randrange(MS) for _ in range(n_ranks)]
        own_arguments = {"seq": number, "step": number // 3, **given}
        calls += collective(number, starts, MS, **own_arguments)
    return calls


def is_complete(found: Matches, calls: list[Call]) -> bool:
    n = len({call.collective for call in calls})
    return [set(collective.values()) for collective in matched(found)] == [
        {number} for number in range(n)
    ]


@pytest.mark.parametrize("offset_ms", [0, 3, -700])
@pytest.mark.parametrize("drift", [0.0, 2e-5])
def test_clocks_of_hosts_are_corrected_exactly(offset_ms: int, drift: float) -> None:
    calls = job(200, every_ms=20)
    clocks = [Clock(), Clock(), *[Clock(offset_ms * MS, drift)] * 2]
    matches = match_collectives(ranks_of(calls, clocks, ["a", "a", "b", "b"]))
    assert is_complete(matches, calls)
    assert matches.matched_share == 1
    assert matches.clocks.error_ns.max() <= 2  # nanoseconds are rounded
    true = {(call.rank, call.collective): call for call in calls}
    for row, start in enumerate(matches.start_ns.tolist()):
        call = true[matches.calls.ranks[matches.calls.member[row]].rank, number_of(matches, row)]
        # The common clock is that of the first host.
        assert abs(start - Clock().shows(call.start_ns)) <= 3


def test_waits_transfers_and_delays_agree_with_a_slow_second_computation() -> None:
    calls = job()
    matches = match_collectives(ranks_of(calls))
    delays = find_delays(matches)
    place = 0

    for number in range(12):
        same_collective = sorted(
            (c for c in calls if c.collective == number), key=lambda call: call.rank
        )
        latest = max(call.start_ns for call in same_collective)
        for call in same_collective:
            assert delays.wait_ns[place] == min(latest, call.end_ns) - call.start_ns
            place += 1
        assert delays.transfer_ns[number] == same_collective[0].end_ns - latest
        other_starts = sorted(call.start_ns for call in same_collective)[:-1]
        assert delays.delay_ns[number] == latest - other_starts[1]
        last = matches.calls.ranks[matches.calls.member[delays.last[number]]].rank
        assert same_collective[last].start_ns == latest
        assert delays.bus_bytes[number] == pytest.approx(2 * 3 / 4 * 1000 * 4)


@pytest.mark.parametrize(
    ("launched", "idle", "data", "why"),
    [
        (19.5, 19.0, 0, "host"),
        (19.5, 19.0, 18, "data"),
        (1, 0.1, 0, "compute"),
        (1, 18, 0, "unknown"),
    ],
)
def test_why_a_rank_is_late(launched: float, idle: float, data: float, why: str) -> None:
    calls = collective(0, [0, 0, 0, 20 * MS], MS, seq=0)
    calls[3] = replace(
        calls[3],
        launched_ns=round(launched * MS),
        idle_ns=round(idle * MS),
        data_wait_ns=round(data * MS),
    )
    delays = find_delays(match_collectives(ranks_of(calls, hosts=["a"] * 4)))
    assert delays.why == (why,)
    assert delays.delay_ns.tolist() == [20 * MS]
    assert delays.is_certain.all()


def test_a_lost_event_and_a_missing_rank_match_nothing_else() -> None:
    calls = job()
    lost = next(call for call in calls if call.collective == 5 and call.rank == 2)
    matches = match_collectives(ranks_of([call for call in calls if call is not lost]))
    assert len(matches.first) == 11
    assert reasons(matches) == {Unmatched.NO_COUNTERPART: 3}
    matches = match_collectives(ranks_of([call for call in calls if call.rank in (1, 3)]))
    assert len(matches.first) == 12
    only = match_collectives(ranks_of([call for call in calls if call.rank == 1]))
    assert only.matched_share is None


def test_of_a_group_with_one_recorded_rank_nothing_is_matched() -> None:
    far = ProcessGroup("far", (0, 9), 2)
    calls = [*job(), *collective(99, [0], MS, seq=0, group=far)]
    matches = match_collectives(ranks_of(calls))
    assert len(matches.first) == 12
    assert reasons(matches) == {Unmatched.NOT_RECORDED: 1}


def test_the_same_number_in_other_groups_and_of_other_sizes_is_another_collective() -> None:
    even, odd = ProcessGroup("tp", (0, 2), 2), ProcessGroup("tp", (1, 3), 2)
    calls = [replace(call, group=even if call.rank % 2 == 0 else odd) for call in job()]
    # Each pair ends on its own.
    calls = [replace(call, end_ns=call.end_ns + (call.rank % 2) * MS // 2) for call in calls]
    matches = match_collectives(ranks_of(calls))
    assert (
        sorted(sorted(collective) for collective in matched(matches))
        == [[0, 2]] * 12 + [[1, 3]] * 12
    )
    changed = [replace(c, n_elements=7) if c.rank == 3 and c.collective == 4 else c for c in job()]
    assert reasons(match_collectives(ranks_of(changed))) == {Unmatched.DIFFERENT: 4}


def test_what_does_not_end_together_is_not_matched() -> None:
    calls = [
        replace(c, start_ns=c.start_ns + 50 * MS, end_ns=c.end_ns + 50 * MS)
        if c.collective == 6 and c.rank == 0
        else c
        for c in job()
    ]
    matches = match_collectives(ranks_of(calls, hosts=["a"] * 4))
    assert reasons(matches) == {Unmatched.ENDS_APART: 4}
    assert len(matches.first) == 11


def test_a_thread_of_the_host_may_see_the_end_of_its_call_late() -> None:
    """A thread that has to wait for a core sees the end of its call late."""
    calls = [
        replace(c, end_ns=c.end_ns + 50 * MS) if c.collective == 6 and c.rank == 0 else c
        for c in job()
    ]
    ranks = ranks_of(calls, hosts=["a"] * 4)
    assert reasons(match_collectives(ranks)) == {Unmatched.ENDS_APART: 4}, "on GPUs"
    on_host = [
        replace(rank, calls=replace(rank.calls, on_device=np.zeros(len(rank.calls), np.bool_)))
        for rank in ranks
    ]
    assert match_collectives(on_host).matched_share == 1


def test_coalesced_operations_share_a_number_and_an_id() -> None:
    calls = job()
    for call in job():
        start, number = call.end_ns + 1000, call.collective + 100
        again = replace(call, collective=number, start_ns=start, end_ns=start + 5000)
        calls += [again, replace(again, comms_id=f"{call.seq}")]
    matches = match_collectives(ranks_of(calls))
    assert len(matches.first) == 36
    assert all(len(set(collective.values())) == 1 for collective in matched(matches))


def test_a_number_that_is_always_the_same_identifies_nothing() -> None:
    calls = job(seq=1)
    matches = match_collectives(ranks_of(calls))
    assert is_complete(matches, calls)


def test_without_numbers_the_order_within_a_step_counts() -> None:
    calls = [replace(call, seq=-(1 << 63)) for call in job()]
    # The first step of rank 1 was cut off: its indices are shifted.
    cut = [call for call in calls if call.rank != 1 or call.collective > 1]
    matches = match_collectives(ranks_of(cut))
    assert len(matches.first) == 10
    ends = [
        {int(matches.end_ns[row]) for row in matches.members[first : first + 4].tolist()}
        for first in matches.first.tolist()
    ]
    assert all(len(end) == 1 for end in ends)


def test_in_recordings_without_groups_the_ends_tell_what_belongs_together() -> None:
    unknown = ProcessGroup("", None, None)
    calls = [replace(call, seq=-(1 << 63), group=unknown, step=0) for call in job(n_ranks=2)]
    rng = random.Random(3)  # noqa: S311
    for rank in (0, 1):  # of other groups, whose ranks are not recorded
        for number in range(20):
            start = rng.randrange(120 * MS)
            calls.append(Call(100 + number, rank, start, start + MS, group=unknown, step=0))
    matches = match_collectives(ranks_of(calls, hosts=["a", "a"]))
    ends = {call.end_ns for call in calls if call.collective < 100}

    mine = {
        matches.calls.column("end_ns")[row]
        for row in matches.members
        if matches.calls.member[row] == 0
    }
    assert {Clock().shows(end) for end in ends} <= mine
    assert len(mine) <= len(ends) + 2


def test_the_calls_of_one_rank_at_a_time_are_in_memory() -> None:
    calls = [call for number in range(5) for call in collective(number, [number] * 4, MS)]
    alive: list[weakref.ref[RankCalls]] = []

    def one_by_one() -> Iterator[RankCalls]:
        waiting = [Packed(rank) for rank in ranks_of(calls)]
        for packed in waiting:
            gc.collect()
            # The one before is still that of the loop that asks for the next.
            assert sum(reference() is not None for reference in alive) <= 1
            rank = packed.value
            alive.append(weakref.ref(rank))
            yield rank
            del rank

    matches = match_collectives(one_by_one())
    assert [len(collective) for collective in matched(matches)] == [4] * 5
    assert matched(matches) == matched(match_collectives(ranks_of(calls)))


def test_columns_come_back_as_they_were() -> None:
    ranks = ranks_of(job())
    calls = JobCalls.of(ranks)
    for name in ("start_ns", "end_ns", "seq", "n_in", "step", "on_device"):
        assert calls.column(name).tolist() == [
            value for rank in ranks for value in getattr(rank.calls, name).tolist()
        ]
    types = [calls.element_types[number] for number in calls.element_type.tolist()]
    assert types == [name for rank in ranks for name in rank.calls.element_type]


def test_sends_and_receives_whose_other_rank_is_unknown_are_not_matched() -> None:
    calls = [
        *job(3, seq=MISSING, kind="receive"),
        *job(3, seq=MISSING, kind="send", every_ms=7),
    ]
    matches = match_collectives(ranks_of(calls, hosts=["a"] * 4))
    assert matches.matched_share == 0
    assert reasons(matches) == {Unmatched.UNKNOWN_PEER: 24}


def test_sends_and_receives_are_matched_by_pair_and_order() -> None:
    group = ProcessGroup("pp", (0, 1, 2), 3)
    calls = []
    for number in range(6):
        start = number * 10 * MS
        for source, target in ((0, 1), (1, 2), (2, 1)):
            at = start + source * MS
            sent = Call(
                number,
                source,
                at,
                at + MS,
                "send",
                group,
                target=target,
                step=0,
                seq=number + 7 * source,
            )
            calls += [
                sent,
                replace(
                    sent,
                    rank=target,
                    kind="receive",
                    source=source,
                    target=-(1 << 63),
                    start_ns=at - 1000,
                    seq=number + 50,
                ),
            ]

    matches = match_collectives(ranks_of(calls))
    assert matches.matched_share == 1
    assert Counter(tuple(collective) for collective in matched(matches)) == {(0, 1): 6, (1, 2): 12}


def test_a_job_without_collectives_is_one_too() -> None:
    matches = match_collectives(ranks_of([]))
    assert matches.matched_share is None
    assert not len(find_delays(matches).transfer_ns)


@given(
    seed=st.integers(0, 10_000),
    n_ranks=st.integers(2, 5),
    offsets_us=st.lists(st.integers(-40_000, 40_000), min_size=5, max_size=5),
    n_lost=st.integers(0, 6),
)
def test_random_jobs_match_as_they_were_made(
    seed: int, n_ranks: int, offsets_us: list[int], n_lost: int
) -> None:
    rng = random.Random(seed)  # noqa: S311
    group = replace(WORLD, ranks=tuple(range(n_ranks)), size=n_ranks)
    calls, now = [], 0
    for number in range(30):
        starts = [now + rng.randrange(3 * MS) for _ in range(n_ranks)]
        calls += collective(number, starts, rng.randrange(1000, MS), seq=number, group=group)
        now = calls[-1].end_ns + rng.randrange(MS)
    lost = {id(call) for call in rng.sample(calls, n_lost)}
    kept = [call for call in calls if id(call) not in lost]
    clocks = [Clock(offset * 1000) for offset in offsets_us]
    matches = match_collectives(ranks_of(kept, clocks))
    whole = [n for n in range(30) if sum(c.collective == n for c in kept) == n_ranks]
    numbers = {
        rank: [c.collective for c in sorted(kept, key=lambda c: c.start_ns) if c.rank == rank]
        for rank in range(n_ranks)
    }

    mine = [
        {numbers[rank][at] for rank, at in collective.items()} for collective in matched(matches)
    ]
    assert sorted(mine, key=min) == [{number} for number in whole]

    relative = matches.clocks.offset_ns - np.array([c.offset_ns for c in clocks[:n_ranks]])
    assert len(set(relative.tolist())) == 1
