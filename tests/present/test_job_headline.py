"""The first sentence on a job says which ranks make the others wait, for how long and why."""

from dataclasses import replace
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Cost, Finding
from profkit.model.report import Report
from profkit.present.diagnosis import headline, headline_sentences
from tests.detectors.jobs import MS, JobBuilder
from tests.job_traces import write_job, write_ranks


def computing(*by_rank_ms: int) -> JobBuilder:
    """Build four steps in which each rank computes for so long before an all-reduce."""
    job = JobBuilder(len(by_rank_ms))
    for _ in range(4):
        with job.step():
            job.compute([ms * MS for ms in by_rank_ms])
            job.collective("all-reduce", MS)
    return job


def pipeline(last_ms: int, n_micro_batches: int) -> JobBuilder:
    """Build three steps of three stages, of which the last one computes for so long."""
    job = JobBuilder(3)
    for _ in range(3):
        with job.step():
            job.pipeline([2 * MS, 2 * MS, last_ms * MS], n_micro_batches)
    return job


FIRST = {
    "straggler": (
        "Rank 3 makes the 3 other ranks wait for 6.00 ms of each 13.0 ms step of the job (46%), "
        "because it computes longer."
    ),
    "uneven": (
        "Ranks 0, 1 have more work than the others, which costs 3.00 ms of each 10.0 ms step of "
        "the job (30%)."
    ),
    "stage": "Stage 2 (rank 2) has more work than the others, which costs ",
    "bubble": "Stages of the pipeline wait for each other for up to ",
}


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (computing(6, 6, 6, 12), "straggler"),
        (computing(9, 9, 3, 3), "uneven"),
        (pipeline(6, 8), "stage"),
        (pipeline(2, 3), "bubble"),
    ],
)
def test_the_first_sentence_says_what_the_ranks_wait_for(
    tmp_path: Path, job: JobBuilder, cause: str
) -> None:
    sentences = headline_sentences(analyze(job.write(tmp_path / "job"), strict=True))
    assert sentences[0].startswith(FIRST[cause])
    assert "step of the job (" in sentences[0]
    assert len(sentences) <= 3


def test_what_to_do_is_the_fix_of_that_finding(tmp_path: Path) -> None:
    report = analyze(pipeline(6, 8).write(tmp_path / "job"), strict=True)
    assert headline(report).endswith(
        "Move layers from stage 2 of the pipeline to the other stages."
    )
    assert "With equal ranks and links a step of the job would take " in headline(report)


def test_balanced_ranks_begin_with_what_limits_one_of_them(tmp_path: Path) -> None:
    report = analyze(computing(6, 6, 6, 6).write(tmp_path / "job"), strict=True)
    assert headline(report).startswith("The GPU is busy 100% of each 7.00 ms step of rank 0")


def test_of_two_ranks_the_other_one_is_named(tmp_path: Path) -> None:
    text = headline(analyze(write_job(tmp_path / "job")))
    assert text.startswith("Rank 1 makes rank 0 wait for 900 µs of each ")
    assert "because its host is late" not in text.split(". ")[1]


def test_ranks_that_were_not_recorded_are_told_second(tmp_path: Path) -> None:
    _, second, _ = headline_sentences(analyze(write_ranks(tmp_path / "job", 2)))
    assert second == "1 of 3 ranks was not recorded (2)."


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return analyze(write_job(tmp_path_factory.mktemp("job")))


def test_a_collective_in_which_ranks_are_blocked_comes_first(report: Report) -> None:
    blocked = Finding(
        rule="COM003",
        name="desynchronized-collectives",
        title="Ranks call different collectives",
        severity="error",
        confidence="high",
        message="Rank 0 waits for 97.0 s in all-reduce 3. Rank 1 called all-reduce 2 last.",
        fix="Let all ranks of the group reach the collective. No branch may depend on it.",
        n=1,
        cost=Cost(),
    )
    text = headline_sentences(replace(report, findings=(*report.findings, blocked)))
    assert text[0] == "Rank 0 waits for 97.0 s in all-reduce 3."
    assert text[-1] == "Let all ranks of the group reach the collective."


def test_a_rank_that_costs_little_is_not_what_limits_the_job(report: Report) -> None:
    (finding,) = [found for found in report.findings if found.name == "straggling-rank"]
    little = replace(finding, cost=replace(finding.cost, ns=400_000, per_step_ns=100_000))
    text = headline(replace(report, findings=(little,)))
    assert "of each 2.10 ms step of rank 0" in text.split(". ")[0]
    assert "Rank 1 is the last in 4 of 4 collectives, 900 µs after the others" in text
