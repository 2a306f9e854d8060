"""COM003 desynchronized-collectives."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.cli.main import main
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.detectors.jobs import MS, JobBuilder

RULE = "desynchronized-collectives"
FoundInJob = Callable[..., tuple[Finding, ...]]


def program(changed: dict[str, object] | None = None, *, numbered: bool = True) -> JobBuilder:
    """Four steps with two all-reduces, of which rank 2 calls another one in the third step."""
    job = JobBuilder(3, numbered=numbered)
    for step in range(4):
        with job.step():
            for _ in range(2):
                job.compute(3 * MS)
                change = {2: changed} if changed and step == 2 else None
                job.collective("all-reduce", MS, changed=change)
    return job


def test_it_names_the_collective_the_ranks_and_what_they_call(found_in_job: FoundInJob) -> None:
    (finding,) = found_in_job(program({"In msg nelems": 77}), RULE)
    assert finding.message == (
        "Ranks of the group `group 0` (ranks 0 to 2) disagree on collective 4: ranks 0, 1: "
        "all-reduce of 1,048,576 Float; rank 2: all-reduce of 77 Float. They disagree on 2 "
        "collectives."
    )
    assert (finding.severity, finding.confidence, finding.n) == ("error", "high", 2)
    assert finding.ranks == (0, 1, 2)


def test_without_numbers_it_names_the_step(found_in_job: FoundInJob) -> None:
    job = program(numbered=False)
    kernels = [event for event in job.ranks[1].events if event.name.startswith("nccl")]
    job.ranks[1].events.remove(kernels[3])
    (finding,) = found_in_job(job, RULE)
    assert "disagree on step 1: ranks 0, 2: all-reduce of 1,048,576 Float; rank 1: no further" in (
        finding.message
    )
    assert finding.confidence == "medium"


def test_it_is_silent_where_ranks_agree(found_in_job: FoundInJob) -> None:
    assert found_in_job(program(), RULE) == ()
    assert found_in_job(program(numbered=False), RULE) == ()


def test_it_is_silent_where_windows_begin_and_end_at_other_collectives(
    found_in_job: FoundInJob,
) -> None:
    job = program()
    kernels = [event for event in job.ranks[1].events if event.name.startswith("nccl")]
    for kernel in (kernels[0], kernels[-1]):
        job.ranks[1].events.remove(kernel)
    assert found_in_job(job, RULE) == ()


def test_it_is_skipped_in_a_recording_of_one_rank(
    analyzed: Callable[..., Report], host_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert (unchecked.rule, unchecked.reason) == ("COM003", "There are not several ranks.")


def test_rules_over_ranks_are_selected_and_ignored_like_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = program({"dtype": "Half"}).write(tmp_path / "job")
    for findings, expected in (
        (analyze(folder, select=["COM003"], strict=True).findings, 1),
        (analyze(folder, ignore=[RULE], strict=True).findings, 0),
    ):
        assert sum(finding.rule == "COM003" for finding in findings) == expected
    assert main(["analyze", str(folder), "--ignore", RULE]) == 0
    assert "COM003" not in capsys.readouterr().out
    assert main(["analyze", str(folder), "--select", RULE, "--fail-on", "error"]) == 1
    assert "COM003" in capsys.readouterr().out


def test_a_rule_over_ranks_that_crashes_is_a_skipped_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("profkit.engine.job_context.find_disagreements", crash)
    report = analyze(program().write(tmp_path / "job"), select=[RULE])
    assert [check.rule for check in report.unchecked] == ["COM003"]
    assert "ZeroDivisionError" in report.unchecked[0].reason
