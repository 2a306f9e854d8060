"""COM006 pipeline-bubble."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.detectors.jobs import MS, JobBuilder

RULE = "pipeline-bubble"
FoundInJob = Callable[..., tuple[Finding, ...]]
N_STAGES = 3


def program(n_micro_batches: int, *, last_ms: int = 2) -> JobBuilder:
    """Steps of a pipeline of which the last stage computes for so long."""
    job = JobBuilder(N_STAGES)
    for _ in range(3):
        with job.step():
            job.pipeline([2 * MS, 2 * MS, last_ms * MS], n_micro_batches)
    return job


def test_few_micro_batches_let_the_stages_wait(found_in_job: FoundInJob) -> None:
    (finding,) = found_in_job(program(3), RULE)
    assert finding.evidence["n_stages"] == N_STAGES
    assert finding.evidence["n_micro_batches"] == 3
    assert finding.evidence["expected_share"] == 2 / 5
    assert finding.cost.basis == "upper-bound"
    # Each stage waits twice for two stages that compute 2 ms, the first and the last one at once.
    assert finding.cost.per_step_ns == pytest.approx(2 * 2 * 2 * MS, rel=0.1)
    assert "with 3 stages and 3 micro-batches per step, equal ones would for 40%." in (
        finding.message
    )
    assert "into 12 micro-batches or more" in finding.fix


def test_one_pipeline_is_one_finding(tmp_path: Path) -> None:
    job = program(3).write(tmp_path)
    assert {finding.rule for finding in analyze(job, select=["COM001"]).findings} == {"COM001"}
    assert {finding.rule for finding in analyze(job, select=["COM001", "COM006"]).findings} == {
        "COM006"
    }


def test_it_is_silent_with_many_micro_batches(found_in_job: FoundInJob) -> None:
    assert found_in_job(program(16), RULE) == ()


def test_it_is_silent_where_stages_wait_for_a_longer_one(found_in_job: FoundInJob) -> None:
    assert found_in_job(program(16, last_ms=8), RULE) == ()


@pytest.mark.parametrize(("last_ms", "rules"), [(3, ["COM006", "COM005"]), (12, ["COM005"])])
def test_a_slow_stage_stands_for_the_waits_where_it_costs_more(
    tmp_path: Path, last_ms: int, rules: list[str]
) -> None:
    job = program(3, last_ms=last_ms).write(tmp_path)
    findings = analyze(job, select=["COM005", "COM006"]).findings
    assert [finding.rule for finding in findings] == rules


def test_it_is_silent_without_a_pipeline(found_in_job: FoundInJob) -> None:
    job = JobBuilder(3)
    for _ in range(3):
        with job.step():
            job.compute([9 * MS, MS, MS])
            job.collective("all-reduce", MS)
    assert found_in_job(job, RULE) == ()


def test_it_is_skipped_in_a_recording_of_one_rank(
    analyzed: Callable[..., Report], host_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.reason == "There are not several ranks."
