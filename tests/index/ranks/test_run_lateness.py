"""How late ranks are over a whole run."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from profkit.index.ranks.run_lateness import RunLateness, find_run_lateness
from profkit.model.events import Float64s
from profkit.model.flight_record import FlightRecord, RankSteps, RecordedCall
from tests.flight import NS

MS = 1_000_000
N_STEPS = 64
DISTURBANCE = np.random.default_rng(0)
Delays = Callable[[int, int], float]
"""Milliseconds that a rank takes longer in a step, by rank and step."""


def by_rank(*delays: float) -> Delays:
    """Return the delays of ranks that are late by as much in each step; others are not late."""
    return lambda rank, _step: delays[rank] if rank < len(delays) else 0.0


def run(
    delays: Delays,
    n_ranks: int = 2,
    *,
    n_steps: int = N_STEPS,
    noise: float = 0.3,
    n_buckets: int = 1,
    n_halves: int = 1,
    without_core: Delays = lambda _rank, _step: 0.0,
    backend: str = "gloo",
) -> list[FlightRecord]:
    """Return the dumps of ranks that compute for 20 ms per step.

    Args:
        noise: Mean milliseconds by which a rank is disturbed in each part of a step.
        n_buckets: Collectives at the end of a part, of which the last one is waited for.
        n_halves: Parts of a step, each of which ends with collectives.
        without_core: Milliseconds of the delays in which the rank had no core.
    """
    now_ns, seq = NS, 0
    calls: list[list[RecordedCall]] = [[] for _ in range(n_ranks)]
    ends: list[int] = []
    for step in range(n_steps):
        for _ in range(n_halves):
            seq += n_buckets
            arrivals = []
            for rank in range(n_ranks):
                ms = 20 / n_halves + delays(rank, step) / n_halves
                arrivals.append(now_ns + round(MS * (ms + DISTURBANCE.exponential(noise))))
                calls[rank] += [
                    RecordedCall(
                        f"{backend}:all_reduce",
                        "0",
                        seq=seq - n_buckets + bucket,
                        created_ns=arrivals[-1] + bucket * MS,
                    )
                    for bucket in range(n_buckets)
                ]
            now_ns = max(arrivals) + (n_buckets + 1) * MS
        now_ns += MS
        ends.append(now_ns)

    records = []
    for rank in range(n_ranks):
        delayed_ns = tuple(round(MS * without_core(rank, step)) for step in range(n_steps))
        cpu_ns = tuple(
            round(MS * (20 + delays(rank, step))) - delayed_ns[step] for step in range(n_steps)
        )
        steps = RankSteps(0, tuple(ends), (0,) * n_steps, delayed_ns, cpu_ns)
        records.append(FlightRecord("", rank, is_end=True, calls=tuple(calls[rank]), steps=steps))
    return records


def lateness(delays: Delays, n_ranks: int = 2, **given: object) -> RunLateness:
    found = find_run_lateness(run(delays, n_ranks, **given), [0] * n_ranks)  # type: ignore[arg-type]
    assert found is not None
    return found


def late_ranks(found: RunLateness) -> list[int]:
    return [rank for rank in range(len(found.late_ns)) if found.is_always_late(rank, 0.03)]


@pytest.mark.parametrize("noise", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_no_rank_of_a_balanced_job_is_late(n_ranks: int, noise: float) -> None:
    found = lateness(by_rank(), n_ranks, noise=noise)
    assert late_ranks(found) == []
    assert found.find_turns(0.05) == []
    assert found.uneven_ns == 0.0


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_a_rank_that_takes_five_percent_longer_is_found(n_ranks: int) -> None:
    found = lateness(by_rank(0, 1.0), n_ranks)
    assert late_ranks(found) == [1]
    assert found.usual_lateness_ns(1) == pytest.approx(MS, rel=0.35)


def test_processor_time_tells_what_other_programs_hide() -> None:
    # Without it, 1.2 ms are lost among disturbances of 6 ms.
    found = lateness(by_rank(0, 1.2), noise=6.0)
    by_time = replace(found, cpu_ns=np.zeros_like(found.cpu_ns))
    assert not by_time.is_always_late(1, 0.03)
    assert found.is_always_late(1, 0.03) == (found.usual_lateness_ns(1) >= 0.6 * MS)


def test_buckets_of_one_backward_pass_are_late_once() -> None:
    found = lateness(by_rank(0, 8.0), n_buckets=3)
    assert found.usual_lateness_ns(1) == pytest.approx(8 * MS, rel=0.1)


def test_delays_before_collectives_that_wait_add_up() -> None:
    found = lateness(by_rank(0, 8.0), n_halves=2)
    assert found.usual_lateness_ns(1) == pytest.approx(8 * MS, rel=0.1)


def test_time_without_a_core_is_no_delay_of_the_rank() -> None:
    delay = by_rank(0, 10.0)
    found = lateness(delay, without_core=delay)
    assert late_ranks(found) == []
    assert found.usual_lateness_ns(1) == pytest.approx(0, abs=MS)


def test_ranks_that_are_late_in_turn_have_their_steps() -> None:
    found = lateness(lambda rank, step: 6.0 * (step // 16 % 2 == rank))
    assert late_ranks(found) == []
    turns = [(part.rank, part.first, part.last) for part in found.find_turns(0.05)]
    assert turns == [(0, 2, 16), (1, 17, 32), (0, 33, 48), (1, 49, 64)]


def test_turns_are_found_among_thousands_of_steps() -> None:
    found = lateness(lambda rank, step: 6.0 * (step // 1000 % 2 == rank), n_steps=2000)
    assert [part.rank for part in found.find_turns(0.05)] == [0, 1]


def test_batches_of_different_sizes_are_uneven_work() -> None:
    sizes: Float64s = np.random.default_rng(1).uniform(0, 12, (2, N_STEPS))
    found = lateness(lambda rank, step: float(sizes[rank, step]))
    assert late_ranks(found) == []
    assert found.find_turns(0.05) == []
    assert found.uneven_ns == pytest.approx(np.median(np.abs(np.diff(sizes, axis=0))) * MS, rel=0.4)


def test_the_rank_that_a_second_group_waits_for_is_not_blamed() -> None:
    # Rank 0 waits for rank 1 in their group, and rank 2 for rank 0 in another one.
    first = run(by_rank(0, 5.0), noise=0.01)
    waiting = run(by_rank(5.0), noise=0.01)
    both = [
        first[0].calls + tuple(replace(call, group="1") for call in waiting[0].calls),
        first[1].calls,
        tuple(replace(call, group="1") for call in waiting[1].calls),
    ]
    records = [
        FlightRecord("", rank, is_end=True, calls=calls, steps=first[0].steps)
        for rank, calls in enumerate(both)
    ]
    found = find_run_lateness(records, [0, 0, 0])
    assert found is not None
    assert late_ranks(found) == [1]
    assert found.usual_lateness_ns(1) == pytest.approx(5 * MS, rel=0.1)


def run_pairs(own_ms: Delays, transfer_ms: Callable[[int, int], float]) -> list[FlightRecord]:
    """Return the dumps of three ranks, of which each pair exchanges something in a step.

    Args:
        own_ms: What a rank takes before its first collective of a step.
        transfer_ms: What the transfer of a pair takes.
    """
    pairs = ((0, 1), (0, 2), (1, 2))
    now_ns = [NS] * 3
    ends: list[list[int]] = [[], [], []]
    calls: list[list[RecordedCall]] = [[], [], []]
    for step in range(N_STEPS):
        now_ns = [ns + round(MS * (5 + own_ms(rank, step))) for rank, ns in enumerate(now_ns)]
        for pair in pairs:
            for rank in pair:
                group = f"{pair[0]}{pair[1]}"
                calls[rank].append(
                    RecordedCall("gloo:all_reduce", group, seq=step, created_ns=now_ns[rank])
                )
            ready_ns = max(now_ns[rank] for rank in pair) + round(MS * transfer_ms(*pair))
            for rank in pair:
                now_ns[rank] = ready_ns
        for rank in range(3):
            ends[rank].append(now_ns[rank])

    zeros = (0,) * N_STEPS
    return [
        FlightRecord(
            "",
            rank,
            is_end=True,
            calls=tuple(calls[rank]),
            steps=RankSteps(0, tuple(ends[rank]), zeros, zeros, zeros),
        )
        for rank in range(3)
    ]


def test_a_slow_transfer_makes_no_rank_of_its_group_late() -> None:
    records = run_pairs(by_rank(), lambda a, b: 70 if (a, b) == (0, 1) else 8)
    found = find_run_lateness(records, [0, 0, 0])
    assert found is None or late_ranks(found) == []


def test_the_rank_that_computes_longer_is_late_whatever_its_groups_transfer() -> None:
    records = run_pairs(by_rank(0, 30.0), lambda _a, _b: 8)
    found = find_run_lateness(records, [0, 0, 0])
    assert found is not None
    assert late_ranks(found) == [1]


@pytest.mark.parametrize("given", [{"n_steps": 6}, {"backend": "nccl"}])
def test_nothing_is_known_of_short_runs_and_of_devices(given: dict[str, object]) -> None:
    records = run(by_rank(0, 5.0), **given)  # type: ignore[arg-type]
    assert find_run_lateness(records, [0, 0]) is None


def test_nothing_is_known_if_a_rank_has_no_steps() -> None:
    records = run(by_rank(0, 5.0))
    assert find_run_lateness([records[0], replace(records[1], steps=None)], [0, 0]) is None
