"""COM001 exposed-communication over the ranks of a job."""

from pathlib import Path

from profkit.api import analyze
from profkit.present.labels import cost_text
from tests.detectors.jobs import MS, JobBuilder


def test_the_time_of_a_collective_is_split_into_waiting_and_transfer(tmp_path: Path) -> None:
    job = JobBuilder(2)
    for _ in range(3):
        with job.step():
            job.compute([7 * MS, 4 * MS])
            job.collective("all-reduce", 2 * MS)
            job.compute(MS)
    report = analyze(job.write(tmp_path / "job"), select=["COM001"], strict=True)

    (finding,) = report.findings
    assert (finding.evidence["wait_ns"], finding.evidence["transfer_ns"]) == (9 * MS, 6 * MS)
    assert finding.message.endswith("3.00 ms of that is waiting for other ranks, 2.00 ms transfer.")
    # Overlap hides transfer at most; the step of the job is 7 + 2 + 1 ms.
    assert (finding.cost.ns, finding.cost.per_step_ns) == (3 * 2 * MS, 2 * MS)
    assert cost_text(report, finding) == "up to 2.00 ms per step (20%)"

    of_one = analyze(tmp_path / "job" / "rank1.pt.trace.json.gz", select=["COM001"])
    assert "cannot tell it from the transfer" in of_one.findings[0].message


def test_the_time_of_calls_that_are_not_matched_may_be_transfer(tmp_path: Path) -> None:
    job = JobBuilder(2)
    for _ in range(3):
        with job.step():
            job.compute([7 * MS, 4 * MS])
            job.collective("all-reduce", 2 * MS)
            job.compute(MS)
    events = job.ranks[0].events
    events.remove(next(event for event in reversed(events) if event.name.startswith("nccl")))
    report = analyze(job.write(tmp_path / "job"), select=["COM001"], strict=True)

    (finding,) = report.findings
    # Rank 1 waits 3 ms in each collective; the last one takes 5 ms, of which nothing is known.
    assert (finding.evidence["wait_ns"], finding.evidence["transfer_ns"]) == (6 * MS, 4 * MS)
    assert finding.message.endswith(
        "2.00 ms of that is waiting for other ranks, 1.33 ms transfer, and 1.67 ms of unmatched "
        "calls."
    )
    assert finding.cost.ns == (4 + 5) * MS


def test_the_time_of_steps_that_other_ranks_have_not_recorded_is_not_parted(
    tmp_path: Path,
) -> None:
    job = JobBuilder(2)
    for _ in range(3):
        with job.step():
            job.compute([7 * MS, 4 * MS])
            job.collective("all-reduce", 2 * MS)
            job.compute(MS)
    # Rank 1 goes on, and waits for a rank that writes its recording.
    alone = job.ranks[1]
    with alone.step():
        alone.launch(
            "c10d::allreduce_",
            kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)",
            host_ns=5_000,
            device_ns=900 * MS,
            stream=20,
        )
        alone.synchronize()
    report = analyze(job.write(tmp_path / "job"), select=["COM001"], strict=True)

    (finding,) = report.findings
    assert finding.message.endswith(
        "In the steps that all ranks recorded, 3.00 ms of that is waiting for other ranks, 2.00 ms "
        "transfer."
    )
    assert finding.cost.per_step_ns == 2 * MS
    assert [rank.collective_wait_ns for rank in report.ranks] == [0, 3 * MS]


def test_ranks_without_stacks_have_the_line_of_the_others(tmp_path: Path) -> None:
    job = JobBuilder(3)
    for _ in range(3):
        with job.step(), job.ranks[0].frame("train.py", 12, "train"):
            job.compute(4 * MS)
            job.collective("all-reduce", 2 * MS)
            job.compute(MS)
    report = analyze(job.write(tmp_path / "job"), select=["COM001"], strict=True)
    (finding,) = report.findings
    assert finding.ranks == (0, 1, 2)
    assert (finding.locations[0].file, finding.locations[0].line) == ("train.py", 12)


def test_two_lines_leave_it_open_which_one_a_rank_without_stacks_has(tmp_path: Path) -> None:
    job = JobBuilder(3)
    for _ in range(3):
        with (
            job.step(),
            job.ranks[0].frame("train.py", 12, "train"),
            job.ranks[1].frame("train.py", 15, "train"),
        ):
            job.compute(4 * MS)
            job.collective("all-reduce", 2 * MS)
            job.compute(MS)
    report = analyze(job.write(tmp_path / "job"), select=["COM001"], strict=True)
    assert sorted(finding.ranks for finding in report.findings) == [(0,), (1,), (2,)]
