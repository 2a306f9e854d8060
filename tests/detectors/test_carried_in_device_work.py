"""carried-in-device-work finds what was launched before the recording began."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "carried-in-device-work"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def recorded(*carried_ns: int, stream: int = 7) -> TraceBuilder:
    b = TraceBuilder()
    for length_ns in carried_ns:
        b.kernel("earlier", length_ns, stream=stream)
    for _ in range(10):
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=30_000)
    return b


def test_work_before_the_first_launched_work_of_its_stream_was_carried_in(found: Found) -> None:
    (finding,) = found(recorded(40_000, 60_000), RULE)
    assert finding.n == 2
    assert finding.evidence["busy_ns"] == 100_000
    assert finding.message.startswith(
        "2 of 12 kernels, copies and fills were launched before recording began. They take 100 "
        "µs, 25%"
    )


def test_a_stream_without_any_launch_was_carried_in_as_far_as_it_began_before(
    found: Found,
) -> None:
    (finding,) = found(recorded(4_000, 60_000, stream=13), RULE)
    assert finding.n == 2


def test_a_recording_that_began_with_an_idle_device_is_not_reported(found: Found) -> None:
    assert found(recorded(), RULE) == ()


def test_a_moment_of_earlier_work_moves_no_figure(found: Found) -> None:
    assert found(recorded(1_000), RULE) == ()


def test_work_without_a_launch_further_on_was_not_carried_in(found: Found) -> None:
    b = recorded()
    b.kernel("lost", 100_000)
    assert found(b, RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    assert analyzed(host_alone, RULE).unchecked[0].rule == "PRF002"
