"""COM005 uneven-ranks."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from profkit import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.detectors.jobs import MS, JobBuilder

RULE = "uneven-ranks"
FoundInJob = Callable[..., tuple[Finding, ...]]


def program(by_step: Sequence[Sequence[int]]) -> JobBuilder:
    """Four steps in which four ranks compute so many milliseconds, by step in turn."""
    job = JobBuilder(4)
    for step in range(4):
        with job.step():
            job.compute([ms * MS for ms in by_step[step % len(by_step)]])
            job.collective("all-reduce", MS)
    return job


def pipeline(last_ms: int) -> JobBuilder:
    """Three stages, of which the last one computes for so long."""
    job = JobBuilder(3)
    for _ in range(3):
        with job.step():
            job.pipeline([2 * MS, 2 * MS, last_ms * MS], 8)
    return job


def test_ranks_with_more_work_are_named_with_what_the_job_would_take_less(
    found_in_job: FoundInJob,
) -> None:
    (finding,) = found_in_job(program([[9, 9, 3, 3]]), RULE)
    assert finding.ranks == (0, 1)
    # All ranks would take the mean of 6 ms.
    assert (finding.cost.ns, finding.cost.per_step_ns) == (4 * 3 * MS, 3 * MS)
    assert finding.cost.basis == "replay"
    assert finding.message.startswith("Ranks 0, 1 work for 9.0")
    assert "times the mean of all ranks: that costs 3.00 ms per step (" in finding.message


def test_work_that_differs_from_step_to_step_has_no_rank_to_name(found_in_job: FoundInJob) -> None:
    turns = [[9 if rank == step else 3 for rank in range(4)] for step in range(4)]
    (finding,) = found_in_job(program(turns), RULE)
    assert finding.ranks == ()
    assert finding.cost.per_step_ns == round(4.5 * MS)
    assert "each of them sometimes" in finding.message
    assert "sort samples by length" in finding.fix


def test_a_stage_of_a_pipeline_is_named(found_in_job: FoundInJob) -> None:
    (finding,) = found_in_job(pipeline(6), RULE)
    assert finding.ranks == (2,)
    assert finding.message.startswith("Stage 2 (rank 2) works for ")
    assert finding.fix == "Move layers from stage 2 of the pipeline to the other stages."


def test_the_waits_for_a_stage_and_what_equal_ones_save_are_told(found_in_job: FoundInJob) -> None:
    (finding,) = found_in_job(pipeline(6), RULE)
    # Each stage has 16 parts per step, of 2, 2 and 6 ms: the mean is 53.3 ms, of the last 96 ms.
    assert finding.evidence["stage"] == 2
    assert finding.evidence["longest_own_ns"] == pytest.approx(3 * 96 * MS, rel=0.02)
    assert finding.evidence["mean_own_ns"] == pytest.approx(3 * 53.3 * MS, rel=0.02)
    assert "1.8 times the mean of all stages" in finding.message
    assert finding.cost.ns is not None
    assert finding.cost.ns <= 3 * 43 * MS


def test_processor_time_of_the_run_tells_the_stage_with_more_work(tmp_path: Path) -> None:
    folder = pipeline(6).write_with_steps(tmp_path / "job", [20 * MS, 20 * MS, 60 * MS])
    report = analyze(folder)
    (finding,) = [finding for finding in report.findings if finding.rule.startswith("COM")]
    assert (finding.name, finding.ranks) == (RULE, (2,))
    assert finding.message.startswith("Stage 2 (rank 2) works for 60.0 ms per step, 1.8 times")


def test_a_stage_that_is_late_without_more_work_is_no_uneven_one(tmp_path: Path) -> None:
    folder = pipeline(6).write_with_steps(tmp_path / "job", [20 * MS] * 3)
    (finding,) = analyze(folder, select=[RULE, "straggling-rank"]).findings
    assert (finding.name, finding.ranks) == ("straggling-rank", (2,))
    assert "longer than the other stages, since its host is late" in finding.message


@pytest.mark.parametrize(
    "by_step",
    [[[6, 6, 6, 6]], [[6, 6, 6, 12]], [[10, 10, 9, 10]], [[3, 3, 3, 3], [9, 9, 9, 9]]],
    ids=["equal", "one straggler", "by little", "other steps are longer on all"],
)
def test_it_is_silent_where_no_ranks_are_uneven(
    found_in_job: FoundInJob, by_step: list[list[int]]
) -> None:
    assert found_in_job(program(by_step), RULE) == ()


def test_it_is_silent_with_equal_stages(found_in_job: FoundInJob) -> None:
    assert found_in_job(pipeline(2), RULE) == ()


def test_it_is_skipped_in_a_recording_of_one_rank(
    analyzed: Callable[..., Report], host_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.reason == "There are not several ranks."
