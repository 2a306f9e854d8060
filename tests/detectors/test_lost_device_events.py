"""lost-device-events finds launches without kernels, kernels without launches, and messages."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "lost-device-events"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def whole(n: int = 20) -> TraceBuilder:
    b = TraceBuilder()
    for _ in range(n):
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000)
    return b


def lonely_launches(b: TraceBuilder, n: int) -> None:
    for _ in range(n):
        with b.op("aten::mm"):
            b.call("LaunchKernel", 4_000)


def test_launches_without_a_kernel_are_counted(found: Found) -> None:
    b = whole()
    lonely_launches(b, 6)
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000)
    (finding,) = found(b, RULE)
    assert finding.severity == "warning"
    assert finding.n == 6
    assert finding.message.startswith("6 of 27 launches (22%) have no recorded kernel")


def test_a_whole_recording_is_not_reported(found: Found) -> None:
    assert found(whole(), RULE) == ()


def test_all_kernels_may_be_missing(found: Found) -> None:
    b = TraceBuilder()
    lonely_launches(b, 30)
    (finding,) = found(b, RULE)
    assert finding.message.startswith("30 of 30 launches (100%) have no recorded kernel")


def test_the_last_launches_may_run_after_the_end(found: Found) -> None:
    b = whole()
    lonely_launches(b, 8)
    assert found(b, RULE) == ()


def test_launches_into_a_captured_graph_run_nothing(found: Found) -> None:
    b = whole()
    b.call("StreamBeginCapture", 1_000)
    lonely_launches(b, 12)
    b.call("StreamEndCapture", 1_000)
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000)
    assert found(b, RULE) == ()


def test_kernels_whose_launch_is_lost_are_counted(found: Found) -> None:
    b = whole()
    for _ in range(7):
        b.kernel("orphan", 1_000)
    (finding,) = found(b, RULE)
    assert finding.n == 7
    assert "7 of 27 kernels, copies and fills (26%) have no recorded launch" in finding.message


@pytest.mark.parametrize("level", ["ERROR", "WARNING"])
def test_what_the_profiler_itself_complains_of_is_a_note(found: Found, level: str) -> None:
    b = whole()
    b.head = {level: ["buffers were dropped"], "INFO": ["all is well"]}
    (finding,) = found(b, RULE)
    assert finding.severity == "note"
    assert finding.message == "The profiler reported: “buffers were dropped”."
    assert finding.evidence["messages"] == ["buffers were dropped"]


def test_kernels_of_a_profiler_that_writes_no_launches_are_not_orphans(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(30):
        b.compute("aten::mm", 10_000)
        b.kernel("gemm", 1_000)
    assert found(b, RULE) == ()


def test_messages_about_nvidia_gpus_do_not_concern_another_device(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(30):
        with b.op("aten::mm"):
            b.kernel("gemm", 1_000, correlation=b.call("urEnqueueKernelLaunch", 4_000))
    b.events = [
        replace(event, cat="xpu_runtime") if event.cat == "cuda_runtime" else event
        for event in b.events
    ]
    b.head = {"ERROR": ["gpuGetDeviceCount failed with code 35"]}
    assert found(b, RULE) == ()

    b.head = {"ERROR": ["gpuGetDeviceCount failed with code 35", "buffers were dropped"]}
    (finding,) = found(b, RULE)
    assert finding.message == "The profiler reported: “buffers were dropped”."
    assert "nsys" not in finding.fix


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    assert analyzed(device_alone, RULE).unchecked[0].rule == "PRF004"
