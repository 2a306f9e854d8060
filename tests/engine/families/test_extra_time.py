"""The place where a rank takes longer than the others."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.engine.families.collectives.extra_time import find_extra_time
from profkit.engine.job_context import PlaceTime
from profkit.model.location import Location

MS = 1_000_000


def place(line: int, ns: int, where: str = "") -> PlaceTime:
    location = Location(file="train.py", line=line, function=None)
    return PlaceTime(where or f" at train.py:{line}", ns, location)


def job_of(*ranks: tuple[PlaceTime, ...]) -> Any:  # noqa: ANN401  (what is asked of a job)
    return SimpleNamespace(ranks=[SimpleNamespace(places=places) for places in ranks])


def test_samples_that_know_the_function_are_of_the_same_line() -> None:
    sampled = place(45, 30 * MS, " in multiply (train.py:45)")
    late = (sampled, place(68, 15 * MS))
    found = find_extra_time(job_of((place(45, 29 * MS),), late), 1, 7 * MS)
    assert found == place(68, 15 * MS)


@pytest.mark.parametrize(("other_ns", "found_ns"), [(0, 10 * MS), (3 * MS, None)])
def test_a_place_of_all_ranks_does_not_tell_what_one_does_alone(
    other_ns: int, found_ns: int | None
) -> None:
    job = job_of((place(7, other_ns),), (place(7, 10 * MS),))
    alone = find_extra_time(job, 1, MS, alone=True)
    assert (alone and alone.ns) == found_ns
    either = find_extra_time(job, 1, MS)
    assert either == replace(place(7, 10 * MS), ns=10 * MS - other_ns)


def test_what_another_rank_does_not_list_may_not_be_done_alone() -> None:
    found_by_rule = replace(place(137, 20 * MS), may_be_unlisted=True)
    job = job_of((), (found_by_rule, place(68, 10 * MS)))
    assert find_extra_time(job, 1, MS) == place(68, 10 * MS)
    assert find_extra_time(job_of((), (found_by_rule,)), 1, MS, alone=True) is None
    assert find_extra_time(job_of((), (found_by_rule,)), 1, MS) == found_by_rule
