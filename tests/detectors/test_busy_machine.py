"""busy-machine finds recordings during which other programs took the processor."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from profkit.model.capture_info import CaptureInfo, CpuTime, HostThreads
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.diagnosis import headline_sentences
from profkit.testing import TraceBuilder

RULE = "busy-machine"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

THREADS = HostThreads(n_cores=2, n_threads=2)
CPU = CpuTime(window_ns=10_000_000, thread_ns=2_000_000, process_ns=3_000_000, delayed_ns=7_000_000)


def program(threads: HostThreads | None = THREADS, cpu: CpuTime | None = CPU) -> TraceBuilder:
    """Two steps of 5 ms."""
    capture = CaptureInfo(version="0", name="train", steps="user", threads=threads, cpu=cpu)
    b = TraceBuilder(device_names=(), capture=capture)
    for _ in range(2):
        with b.step():
            b.compute("aten::mm", 5_000_000)
    return b


def test_it_states_the_time_beyond_what_the_program_can_have_caused(found: Found) -> None:
    (finding,) = found(program(), RULE)
    # 7 ms without a core; the second thread of operators kept both cores for at most 0.5 ms.
    assert finding.evidence["delayed_ns"] == 6_500_000
    assert finding.message == (
        "Other programs took the CPU for 65% of the recording: its thread was ready to run for at "
        "least 6.50 ms and had no core."
    )
    assert finding.severity == "warning"
    assert finding.cost.ns is None


def test_the_headline_says_it(analyzed: Analyzed) -> None:
    sentences = headline_sentences(analyzed(program(), RULE))
    assert (
        "Other programs took the CPU for 65% of the recording: times and shares are inflated."
        in sentences
    )
    assert not any("less reliable" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("delayed_ns", "severity"),
    [(1_499_999, None), (1_500_000, "note"), (2_999_999, "note"), (3_000_000, "warning")],
)
def test_a_little_is_silent_or_a_note(found: Found, delayed_ns: int, severity: str | None) -> None:
    findings = found(program(cpu=replace(CPU, delayed_ns=delayed_ns)), RULE)
    assert [finding.severity for finding in findings] == ([severity] if severity else [])


def test_a_note_is_not_in_the_headline(analyzed: Analyzed) -> None:
    report = analyzed(program(cpu=replace(CPU, delayed_ns=2_000_000)), RULE)
    assert not any("Other programs" in sentence for sentence in headline_sentences(report))


def test_a_single_other_thread_leaves_a_core(found: Found) -> None:
    cpu = replace(CPU, process_ns=11_000_000, other_threads_ns=(9_000_000,))
    (finding,) = found(program(cpu=cpu), RULE)
    assert finding.evidence["delayed_ns"] == 7_000_000


@pytest.mark.parametrize(
    ("threads", "cpu"),
    [
        # Other threads of the program used both cores all the time.
        (THREADS, replace(CPU, process_ns=20_000_000)),
        # So did workers of a loader.
        (THREADS, replace(CPU, children_ns=18_000_000)),
        # Or the other ranks of a job, which are as busy as this one.
        (replace(THREADS, n_ranks=8), CPU),
    ],
    ids=["threads", "workers", "ranks"],
)
def test_delays_by_the_program_itself_are_not_reported(
    found: Found, threads: HostThreads, cpu: CpuTime
) -> None:
    assert found(program(threads, cpu), RULE) == ()


@pytest.mark.parametrize(
    "built",
    [program(threads=None), program(cpu=None), program(cpu=replace(CPU, delayed_ns=None))],
    ids=["threads", "processor time", "delay"],
)
def test_without_one_of_both_it_is_skipped(analyzed: Analyzed, built: TraceBuilder) -> None:
    (unchecked,) = analyzed(built, RULE).unchecked
    assert unchecked.rule == "PRF014"
