"""oversubscribed-cpu finds threads that share too few cores, where that took time."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from profkit.model.capture_info import CaptureInfo, CpuTime, HostThreads, LoaderWorkers
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "oversubscribed-cpu"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

RANKS = HostThreads(n_cores=64, n_threads=64, n_ranks=8)
CPU = CpuTime(
    window_ns=10_000_000, thread_ns=6_000_000, process_ns=40_000_000, delayed_ns=3_000_000
)


def program(threads: HostThreads | None = RANKS, cpu: CpuTime | None = CPU) -> TraceBuilder:
    """Two steps of 5 ms."""
    capture = CaptureInfo(version="0", name="train", steps="user", threads=threads, cpu=cpu)
    b = TraceBuilder(device_names=(), capture=capture)
    for _ in range(2):
        with b.step():
            b.compute("aten::mm", 5_000_000)
    return b


def test_it_states_threads_and_cores_and_costs_the_time_without_a_core(found: Found) -> None:
    (finding,) = found(program(), RULE)
    assert finding.message == (
        "8 ranks with 64 threads of operators each share 64 cores. The recorded thread had no core "
        "for up to 3.00 ms (30% of the recording) because of them."
    )
    assert (finding.cost.ns, finding.cost.per_step_ns) == (3_000_000, 1_500_000)
    assert finding.cost.basis == "upper-bound"
    assert finding.n == 512
    assert finding.fix == "Set `OMP_NUM_THREADS=8`, or call `torch.set_num_threads(8)`."


def test_ranks_of_one_thread_can_only_be_fewer(found: Found) -> None:
    (finding,) = found(program(HostThreads(2, n_threads=1, n_ranks=3)), RULE)
    assert finding.fix == "Start no more ranks on this machine than it has cores (2)."


@pytest.mark.parametrize(
    ("threads", "fix"),
    [
        (HostThreads(8, n_threads=8, n_workers=4), "torch.set_num_threads(4)"),
        (HostThreads(8, n_threads=1, n_workers=12), "fewer workers"),
    ],
)
def test_workers_of_a_loader_need_cores_too(found: Found, threads: HostThreads, fix: str) -> None:
    (finding,) = found(program(threads), RULE)
    assert "worker" in finding.message
    assert fix in finding.fix


@pytest.mark.parametrize(
    "threads",
    [HostThreads(64, n_threads=64), HostThreads(64, n_threads=4, n_ranks=8, n_workers=4)],
)
def test_threads_with_a_core_each_are_not_reported(found: Found, threads: HostThreads) -> None:
    assert found(program(threads), RULE) == ()


@pytest.mark.parametrize(
    ("process_ns", "children_ns", "delayed_ns"),
    [
        (10_000_000, None, 0),  # 4 ms of others on 8 cores: 0.5 ms, too little
        (24_000_000, None, 2_250_000),
        (10_000_000, 14_000_000, 2_250_000),
        (38_000_000, 14_000_000, 3_000_000),  # all of it
    ],
)
def test_time_without_a_core_because_of_other_programs_does_not_count(
    found: Found, process_ns: int, children_ns: int | None, delayed_ns: int
) -> None:
    cpu = replace(CPU, process_ns=process_ns, children_ns=children_ns)
    findings = found(program(HostThreads(8, n_threads=8, n_workers=4), cpu), RULE)
    assert sum(finding.cost.ns or 0 for finding in findings) == delayed_ns


@pytest.mark.parametrize(
    ("other_threads_ns", "children_ns", "delayed_ns"),
    [
        ((8_000_000,), 170_000, 0),  # workers at rest: one other thread alone fills no two cores
        ((8_000_000,), 2_500_000, 2_500_000),  # for as long as a worker had the second core
        ((4_000_000, 4_000_000), 170_000, 3_000_000),  # two other threads fill both
        (None, 170_000, 3_000_000),
    ],
)
def test_idle_workers_take_no_core(
    found: Found, other_threads_ns: tuple[int, ...] | None, children_ns: int, delayed_ns: int
) -> None:
    cpu = replace(
        CPU, process_ns=14_000_000, children_ns=children_ns, other_threads_ns=other_threads_ns
    )
    findings = found(program(HostThreads(2, n_threads=2, n_workers=2), cpu), RULE)
    assert sum(finding.cost.ns or 0 for finding in findings) == delayed_ns


@pytest.mark.parametrize(("delayed_ns", "n"), [(999_999, 0), (1_000_000, 1)])
def test_where_it_takes_no_time_it_is_not_reported(found: Found, delayed_ns: int, n: int) -> None:
    assert len(found(program(cpu=replace(CPU, delayed_ns=delayed_ns)), RULE)) == n


@pytest.mark.parametrize(
    "built",
    [program(threads=None), program(cpu=None), program(cpu=replace(CPU, delayed_ns=None))],
    ids=["threads", "processor time", "delay"],
)
def test_without_one_of_both_it_is_skipped(analyzed: Analyzed, built: TraceBuilder) -> None:
    (unchecked,) = analyzed(built, RULE).unchecked
    assert unchecked.rule == "CFG002"


@pytest.mark.parametrize(
    ("children_ns", "saved_ns"),
    [
        (13_000_000, 0),  # a single worker would take 13 ms
        (8_500_000, 1_500_000),  # 8.5 ms, and then the steps wait for it
        (6_000_000, 3_000_000),  # the steps take longer than a single worker
    ],
)
def test_fewer_workers_have_the_same_batches_to_prepare(
    found: Found, children_ns: int, saved_ns: int
) -> None:
    cpu = replace(CPU, process_ns=6_000_000, children_ns=children_ns, delayed_ns=3_000_000)
    findings = found(program(HostThreads(2, n_threads=1, n_workers=2), cpu), RULE)
    assert sum(finding.cost.ns or 0 for finding in findings) == saved_ns
    assert all("no more than 1 fit" in finding.fix for finding in findings)


@pytest.mark.parametrize(("busy_share", "n"), [(0.9, 0), (0.4, 1)])
def test_busy_workers_are_not_too_many(found: Found, busy_share: float, n: int) -> None:
    b = program(HostThreads(2, n_threads=1, n_workers=2))
    assert b.capture is not None
    workers = LoaderWorkers(2, 100, 1_000_000, round(busy_share * 1_000_000), [])
    b.capture = replace(b.capture, loader_workers=workers)
    assert len(found(b, RULE)) == n
