"""The place where a rank takes longer than the others."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.engine.families.collectives.extra_time import find_extra_time, list_place_times
from profkit.engine.job_context import PlaceTime
from profkit.model.location import Location
from profkit.model.work_summary import FunctionSummary, SampledSummary

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


def test_the_time_of_the_other_ranks_is_taken_off() -> None:
    job = job_of((place(7, 3 * MS),), (place(7, 10 * MS),))
    assert find_extra_time(job, 1, MS) == place(7, 7 * MS)
    assert find_extra_time(job, 1, 8 * MS) is None


def test_what_another_rank_does_not_list_may_not_be_done_alone() -> None:
    found_by_rule = replace(place(137, 20 * MS), may_be_unlisted=True)
    job = job_of((), (found_by_rule, place(68, 10 * MS)))
    assert find_extra_time(job, 1, MS) == place(68, 10 * MS)
    assert find_extra_time(job_of((), (found_by_rule,)), 1, MS) == found_by_rule


def test_more_operators_tell_more_than_a_time_that_others_may_disturb() -> None:
    usual = (replace(place(45, 12 * MS), n_ops=600), replace(place(9, 4 * MS), n_ops=90))
    late = (replace(place(45, 14 * MS), n_ops=645), replace(place(9, 12 * MS), n_ops=90))
    for computes in (True, None):
        found = find_extra_time(job_of(usual, late), 1, MS, computes=computes)
        assert found == replace(late[0], ns=2 * MS)


def test_a_rank_that_does_not_compute_longer_is_in_no_operator_longer() -> None:
    usual = (replace(place(45, 12 * MS), n_ops=600), place(72, MS))
    late = (replace(place(45, 40 * MS), n_ops=600), place(72, 10 * MS))
    found = find_extra_time(job_of(usual, late), 1, 5 * MS, computes=False)
    assert found == place(72, 9 * MS)
    assert find_extra_time(job_of(usual[:1], late[:1]), 1, MS, computes=False) is None


def test_waits_for_data_may_be_around_operators() -> None:
    loader = replace(place(40, 14 * MS), n_ops=6_000, is_data=True, may_be_unlisted=True)
    assert find_extra_time(job_of((), (loader,)), 1, MS, computes=False) == loader
    found = find_extra_time(job_of((), (loader, place(72, 9 * MS))), 1, MS, computes=False)
    assert found == place(72, 9 * MS)


@pytest.mark.parametrize(("error_ns", "is_found"), [(MS, False), (3 * MS, True)])
def test_few_samples_may_stand_for_more_where_a_rank_is_alone(
    error_ns: int,
    is_found: bool,  # noqa: FBT001  (a case)
) -> None:
    sampled = replace(place(68, 3 * MS), error_ns=error_ns)
    found = find_extra_time(job_of((), (sampled,)), 1, 8 * MS)
    assert found == (sampled if is_found else None)
    # Where others spend time as well, samples do not tell who spends more.
    assert find_extra_time(job_of((place(68, 2 * MS),), (sampled,)), 1, 8 * MS) is None


def test_a_place_of_several_ranks_is_not_of_one_alone() -> None:
    # Of four stages the two in the middle run the same line.
    ranks = ((place(164, 30 * MS),), (place(168, 50 * MS), place(45, 20 * MS)))
    later_ranks = ((place(168, 30 * MS),), (place(166, 30 * MS),))
    assert find_extra_time(job_of(*ranks, *later_ranks), 1, 10 * MS) == place(45, 20 * MS)


def test_a_place_that_samples_list_as_well_as_a_rule_is_known_of_all_ranks() -> None:
    report = build_report(sampled_line=49, found_line=49)
    (at_line,) = [entry for entry in list_place_times(report) if entry.location is not None]
    assert (at_line.ns, at_line.may_be_unlisted) == (70 * MS, False)
    (at_line,) = list_place_times(build_report(sampled_line=None, found_line=49))
    assert (at_line.ns, at_line.may_be_unlisted) == (70 * MS, True)


def build_report(sampled_line: int | None, found_line: int) -> Any:  # noqa: ANN401  (what is read)
    """Build what is read of a report with one sampled function, if any, and one finding."""
    function = FunctionSummary(
        location=Location(file="train.py", line=sampled_line, function=None),
        n_samples=4,
        time_ns=60 * MS,
        share=0.5,
        library="",
    )
    functions = () if sampled_line is None else (function,)
    finding = SimpleNamespace(
        locations=(Location(file="train.py", line=found_line, function=None),),
        cost=SimpleNamespace(ns=70 * MS),
        rule="PYT001",
        name="host-function",
    )
    summary = SimpleNamespace(
        steps=(None,),
        regions=(),
        lines=(),
        critical_path=None,
        sampled=SampledSummary(20 * MS, 40, functions, n_steps=1),
    )
    return SimpleNamespace(summary=summary, findings=(finding,))
