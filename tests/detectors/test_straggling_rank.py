"""COM004 straggling-rank."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.detectors.jobs import MS, JobBuilder

RULE = "straggling-rank"
FoundInJob = Callable[..., tuple[Finding, ...]]
US = 1_000


def program(
    slow: Sequence[Sequence[int]], *, n_steps: int = 4, transfer_ns: int = MS
) -> JobBuilder:
    """Steps in which ranks compute, average, and compute again.

    Args:
        slow: By step, in turn, the time that each rank computes first.
    """
    job = JobBuilder(len(slow[0]))
    for step in range(n_steps):
        with job.step():
            job.compute(slow[step % len(slow)])
            job.collective("all-reduce", transfer_ns)
            job.compute(2 * MS)
            job.collective("all-reduce", transfer_ns)
    return job


def on_host(late: int, how: str) -> JobBuilder:
    """Steps in which the host of one rank launches 4 ms later than the others."""
    job = JobBuilder(4)
    for _ in range(4):
        with job.step():
            b = job.ranks[late]
            with b.frame("train.py", 12, "log"):
                if how == "data":
                    b.load(4 * MS)
                elif how == "region":
                    with b.annotation("write log"):
                        b.advance(4 * MS)
                else:
                    b.launch("aten::sort", kernel="sort", host_ns=4 * MS, device_ns=10 * US)
            job.compute(3 * MS)
            job.collective("all-reduce", MS)
    return job


def test_a_rank_whose_device_computes_longer_costs_what_the_others_wait(
    found_in_job: FoundInJob,
) -> None:
    (finding,) = found_in_job(program([[5 * MS, 5 * MS, 8 * MS, 5 * MS]]), RULE)
    assert finding.ranks == (2,)
    assert (finding.cost.ns, finding.cost.per_step_ns) == (4 * 3 * MS, 3 * MS)
    assert finding.cost.basis == "replay"
    assert finding.evidence["why"] == "compute"
    assert finding.message.startswith(
        "Rank 2 is the last to start 4 of 8 collectives, since its device computes longer: the job "
        "waits for it for 3.00 ms per step ("
    )


@pytest.mark.parametrize(
    ("how", "why", "where"),
    [
        ("line", "since its host launches late", "in log (train.py:12)."),
        ("region", "since its host launches late", "in `write log`."),
        ("data", "since it waits for data", "in log (train.py:12)."),
    ],
)
def test_a_rank_whose_host_is_late_is_named_with_its_line(
    tmp_path: Path, how: str, why: str, where: str
) -> None:
    report = analyze(on_host(1, how).write(tmp_path / "job"), strict=True)
    (finding,) = (each for each in report.findings if each.rule == "COM004")
    assert finding.ranks == (1,)
    assert finding.cost.per_step_ns == pytest.approx(4 * MS, rel=0.002)
    assert why in finding.message
    assert finding.message.endswith(where)
    assert [each.line for each in finding.locations] == ([] if how == "region" else [12])


def test_it_is_silent_when_the_rank_is_as_fast_as_the_others(found_in_job: FoundInJob) -> None:
    assert found_in_job(program([[5 * MS] * 4]), RULE) == ()


@pytest.mark.parametrize(
    "slow",
    [
        [[8 * MS if rank == step else 5 * MS for rank in range(4)] for step in range(4)],
        [[8 * MS, 8 * MS, 5 * MS, 5 * MS]],
        [[5 * MS, 5 * MS, 5 * MS + 100 * US, 5 * MS]],
    ],
    ids=["ranks take turns", "half of the ranks", "by little"],
)
def test_it_is_silent_when_no_rank_is_the_cause(
    found_in_job: FoundInJob, slow: list[list[int]]
) -> None:
    assert found_in_job(program(slow), RULE) == ()


def test_it_is_silent_when_what_the_rank_does_is_hidden(found_in_job: FoundInJob) -> None:
    job = JobBuilder(3)
    for _ in range(4):
        with job.step():
            job.compute([4 * MS, 1 * MS, 1 * MS])
            # The others compute for longer than they would wait.
            job.collective("all-reduce", MS, awaited=False)
            job.compute([1 * MS, 6 * MS, 6 * MS])
    assert found_in_job(job, RULE) == ()


def test_a_threshold_can_be_changed(found_in_job: FoundInJob) -> None:
    job = program([[5 * MS, 5 * MS, 8 * MS, 5 * MS]])
    assert found_in_job(job, RULE, min_saving_share=0.9) == ()


def test_it_is_skipped_in_a_recording_of_one_rank(
    analyzed: Callable[..., Report], host_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.reason == "There are not several ranks."
