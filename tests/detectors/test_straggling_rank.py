"""COM004 straggling-rank."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from profkit import load
from profkit.api import analyze
from profkit.model.capture_info import CaptureInfo, CpuTime
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.model.trace import Trace
from profkit.present.diagnosis import headline
from profkit.testing import TraceBuilder
from tests.detectors.jobs import MS, JobBuilder
from tests.flight import Entry, build_entry, dump, own, written

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


def build_late_host(late: int, how: str) -> JobBuilder:
    """Steps in which the host of one rank launches 4 ms later than the others."""
    job = JobBuilder(4)
    for _ in range(4):
        with job.step():
            b = job.ranks[late]
            if how == "region":
                with b.annotation("write log"):
                    b.advance(4 * MS)
            else:
                with b.frame("train.py", 12, "log"):
                    if how == "data":
                        b.load(4 * MS)
                    else:
                        b.launch("aten::sort", kernel="sort", host_ns=4 * MS, device_ns=10 * US)
            job.compute(3 * MS)
            job.collective("all-reduce", MS)

    return job


def of_gloo(late_end_ns: int) -> list[TraceBuilder]:
    """Steps on CPUs in which rank 1 loads data for 30 ms before it computes.

    Args:
        late_end_ns: How long the threads of gloo go on after the others have continued.
    """
    lines = []
    for rank in range(3):
        b = TraceBuilder(
            stacks=True,
            device_names=(),
            head={
                "distributedInfo": {"rank": rank, "world_size": 3, "backend": "gloo"},
                "baseTimeNanoseconds": 1_735_689_600_000_000_000,
                "host_name": "node",
            },
        )
        for step in range(4):
            with b.step(), b.frame("train.py", 20, "train_step"):
                if rank == 1:
                    with b.frame("train.py", 12, "load_data"):
                        b.advance(30 * MS)
                b.compute("aten::mm", 2 * MS)
                with b.op("c10d::allreduce_", self_ns=10 * US):
                    pass
                start = b.now_ns
                end = (step + 1) * 40 * MS
                with b.thread(3000), b.annotation("gloo:all_reduce"):
                    b.advance(end - start + late_end_ns)
                b.now_ns = end
                b.compute("aten::add_", 1 * MS)
            b.now_ns = end + 2 * MS
        lines.append(b)

    return lines


@pytest.mark.parametrize("late_end_ns", [0, MS // 2])
def test_a_late_host_without_device_costs_its_python_time_and_is_named_with_its_line(
    tmp_path: Path, late_end_ns: int
) -> None:
    for rank, b in enumerate(of_gloo(late_end_ns)):
        b.write(tmp_path / f"rank{rank}.pt.trace.json")
    report = analyze(tmp_path, strict=True)
    (finding,) = (finding for finding in report.findings if finding.rule == "COM004")
    assert finding.ranks == (1,)
    assert finding.cost.per_step_ns == pytest.approx(30 * MS, rel=0.02)
    assert finding.message.endswith(
        "It spends 30.0 ms per step more than the others in load_data (train.py:12)."
    )
    assert [location.line for location in finding.locations] == [12]


def test_a_rank_whose_device_computes_longer_costs_what_the_others_wait(
    found_in_job: FoundInJob,
) -> None:
    (finding,) = found_in_job(program([[5 * MS, 5 * MS, 8 * MS, 5 * MS]]), RULE)
    assert finding.ranks == (2,)
    assert (finding.cost.ns, finding.cost.per_step_ns) == (4 * 3 * MS, 3 * MS)
    assert finding.cost.basis == "replay"
    assert finding.evidence["why"] == "compute"
    assert "`nvidia-smi" in finding.fix
    assert finding.message.startswith(
        "Rank 2 is the last to start 4 of 8 collectives, since it computes longer: the job "
        "waits for it for 3.00 ms per step ("
    )


@pytest.mark.parametrize(
    ("how", "why", "where"),
    [
        ("line", "since its host is late", "in log (train.py:12)."),
        ("region", "since its host is late", "in `write log`."),
        ("data", "since it waits for data", "in log (train.py:12)."),
    ],
)
def test_a_rank_whose_host_is_late_is_named_with_its_line(
    tmp_path: Path, how: str, why: str, where: str
) -> None:
    report = analyze(build_late_host(1, how).write(tmp_path / "job"), strict=True)
    (finding,) = (finding for finding in report.findings if finding.rule == "COM004")
    assert finding.ranks == (1,)
    assert finding.cost.per_step_ns == pytest.approx(4 * MS, rel=0.002)
    assert why in finding.message
    assert finding.message.endswith(where)
    assert [location.line for location in finding.locations] == ([] if how == "region" else [12])


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


def build_job_on_cpus(
    folder: Path, extra_ns: Sequence[int], delayed_ns: Sequence[int] = (0, 0), how: str = "sleep"
) -> Path:
    """Write steps of two ranks on CPUs, of which rank 1 takes longer before two all-reduces.

    Args:
        extra_ns: How much longer, by step.
        delayed_ns: The time for which each rank had no core, in all steps together.
        how: What it does longer.
    """
    step_ns = 20 * MS + max(extra_ns)
    for rank in range(2):
        cpu = CpuTime(len(extra_ns) * step_ns, 0, 0, delayed_ns=delayed_ns[rank])
        b = TraceBuilder(
            stacks=True,
            device_names=(),
            capture=CaptureInfo(version="0", name="train", steps="user", cpu=cpu),
            head={
                "distributedInfo": {"rank": rank, "world_size": 2, "backend": "gloo"},
                "baseTimeNanoseconds": 1_735_689_600_000_000_000,
                "host_name": "node",
            },
        )
        for step, longer_ns in enumerate(extra_ns):
            with b.step(), b.frame("train.py", 20, "train_step"):
                with b.frame("train.py", 12, "extra"):
                    if rank == 1 and how == "sleep":
                        b.advance(longer_ns)
                    elif rank == 1:
                        # A product calls other operators, and computes after them.
                        with b.op("aten::mm", self_ns=longer_ns), b.op("aten::resolve_conj"):
                            pass
                b.compute("aten::add", 4 * MS)
                ends = [step * step_ns + longer_ns + 10 * MS + bucket * MS for bucket in range(2)]
                for bucket, end in enumerate(ends):
                    with b.op("c10d::allreduce_", self_ns=10 * US):
                        pass
                    start = b.now_ns
                    with b.thread(3000 + bucket), b.annotation("gloo:all_reduce"):
                        b.advance(end - start)
                b.now_ns = ends[-1]
                b.compute("aten::add_", 1 * MS)
                b.now_ns = (step + 1) * step_ns - 2 * US
        b.write(folder / f"rank{rank}.pt.trace.json")
    return folder


def find_straggler(folder: Path) -> Finding | None:
    report = analyze(folder, strict=True)
    return next((finding for finding in report.findings if finding.rule == "COM004"), None)


@pytest.mark.parametrize(("how", "why"), [("sleep", "host"), ("multiply", "compute")])
def test_two_buckets_of_one_backward_pass_are_late_for_one_cause(
    tmp_path: Path, how: str, why: str
) -> None:
    finding = find_straggler(build_job_on_cpus(tmp_path, [30 * MS] * 4, how=how))
    assert finding is not None
    assert finding.evidence["why"] == why
    assert finding.cost.per_step_ns == pytest.approx(30 * MS, rel=0.02)
    assert "in extra (train.py:12)." in finding.message
    assert "GPU" not in finding.fix


@pytest.mark.parametrize(
    ("delayed_ms", "cost_ms"), [((0, 0), 30), ((40, 40), 30), ((0, 40), 20), ((0, 118), None)]
)
def test_time_in_which_others_had_its_core_is_not_its_fault(
    tmp_path: Path, delayed_ms: tuple[int, int], cost_ms: int | None
) -> None:
    delayed_ns = [ms * MS for ms in delayed_ms]
    finding = find_straggler(build_job_on_cpus(tmp_path, [30 * MS] * 4, delayed_ns))
    if cost_ms is None:
        assert finding is None
    else:
        assert finding is not None
        assert finding.cost.per_step_ns == pytest.approx(cost_ms * MS, rel=0.03)


@pytest.mark.parametrize(
    ("extra_ms", "is_found"),
    [((30, 30, 30), True), ((30, 20, 40), True), ((60, 1, 1), False), ((30, 30, 0), False)],
)
def test_a_rank_that_is_slow_in_some_of_a_few_steps_may_be_so_by_chance(
    tmp_path: Path, extra_ms: tuple[int, ...], *, is_found: bool
) -> None:
    folder = build_job_on_cpus(tmp_path, [ms * MS for ms in extra_ms])
    assert (find_straggler(folder) is not None) == is_found


def test_ranks_may_have_recorded_different_numbers_of_steps_of_one_name(tmp_path: Path) -> None:
    job = JobBuilder(2)
    for n_steps in (4, 1):
        for _ in range(n_steps):
            # The last step is of rank 1 alone.
            ranks = job.ranks if n_steps > 1 else job.ranks[1:]
            with ExitStack() as steps:
                for b in ranks:
                    steps.enter_context(b.annotation("ProfilerStep#1"))
                    device_ns = 8 * MS if b is job.ranks[1] else 5 * MS
                    b.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=device_ns)
                if n_steps > 1:
                    job.collective("all-reduce", MS)
                for b in ranks:
                    b.synchronize()
    report = analyze(job.write(tmp_path), strict=True)
    assert [len(rank.steps_ns) for rank in report.ranks] == [4, 5]
    assert "COM004" in {finding.rule for finding in report.findings}


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


def write_run(folder: Path, job: JobBuilder, late_ns: Callable[[int, int], int]) -> Path:
    """Write a job and the dumps at its end, with 40 steps of 20 ms on gloo.

    Args:
        late_ns: How much longer a rank takes, by rank and step.
    """
    job.write(folder)
    n_ranks = len(job.ranks)
    entries: list[list[Entry]] = [[] for _ in range(n_ranks)]
    trace = load(folder / "rank0.pt.trace.json.gz")
    assert isinstance(trace, Trace)
    now_ns, ends = trace.base_ns - 400 * MS, []
    for step in range(40):
        called = [now_ns + 20 * MS + late_ns(rank, step) for rank in range(n_ranks)]
        for rank in range(n_ranks):
            entry = build_entry(step + 1, time_created_ns=called[rank])
            entries[rank].append({**entry, "profiling_name": "gloo:all_reduce"})
        now_ns = max(called) + 2 * MS
        ends.append(now_ns)

    no_ns = [0] * len(ends)
    steps = {"first": [0], "ends_ns": ends, "own_ns": no_ns, "delayed_ns": no_ns, "cpu_ns": no_ns}
    dumps = [
        own(dump(entries[rank], str(list(range(n_ranks)))), rank, n_ranks, steps=steps)
        for rank in range(n_ranks)
    ]
    return written(folder, *dumps)


def test_all_steps_of_the_run_count_before_the_recorded_ones(tmp_path: Path) -> None:
    job = program([[3 * MS, 3 * MS, 9 * MS]])
    folder = write_run(tmp_path / "chance", job, lambda _rank, _step: 0)
    assert analyze(folder, select=[RULE]).findings == ()

    folder = write_run(tmp_path / "late", job, lambda rank, _step: 4 * MS * (rank == 1))
    (finding,) = analyze(folder, select=[RULE]).findings
    assert finding.message.startswith("Rank 1 is the last in 39 of 39 steps of the run")
    assert (finding.ranks, finding.cost.per_step_ns) == ((1,), 4 * MS)


def test_ranks_that_take_turns_are_named_with_their_steps(tmp_path: Path) -> None:
    job = program([[3 * MS, 3 * MS]])
    folder = write_run(tmp_path / "job", job, lambda rank, step: 6 * MS * (step // 20 == rank))
    report = analyze(folder, select=[RULE])
    (finding,) = report.findings
    turns = "rank 0 in steps 2 to 20, rank 1 in steps 21 to 40"
    assert f"Ranks 0, 1 make the others wait in turn ({turns})" in finding.message
    assert turns in headline(report)


@pytest.mark.parametrize(("delayed_ms", "ideal_ms"), [(0, 35), (40, 45), (118, 50)])
def test_equal_ranks_would_wait_for_a_core_too(
    tmp_path: Path, delayed_ms: int, ideal_ms: int
) -> None:
    folder = build_job_on_cpus(tmp_path, [30 * MS] * 4, (delayed_ms * MS, delayed_ms * MS))
    collectives = analyze(folder, strict=True).collectives
    assert collectives is not None
    assert collectives.slowdown is not None
    assert collectives.slowdown.ideal_ns == pytest.approx(ideal_ms * MS, rel=0.03)
