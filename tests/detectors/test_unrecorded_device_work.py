"""unrecorded-device-work finds time in which a GPU worked on something that was not recorded."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "unrecorded-device-work"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def replayed_graph(lost_ns: int, n_steps: int = 3) -> TraceBuilder:
    """Steps that launch 100 µs of work, then work that is not recorded, and wait for both."""
    b = TraceBuilder()
    for _ in range(n_steps):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            end_ns = b.free_at_ns() + lost_ns
            b.call("DeviceSynchronize", end_ns - b.now_ns)
    return b


def test_a_wait_that_outlasts_all_recorded_work_proves_more_work(found: Found) -> None:
    (finding,) = found(replayed_graph(400_000), RULE)
    # 400 µs of each 510, less the usual return of a wait, at most 200 µs.
    assert 3 * 200_000 <= sum(end - start for start, end in finding.spans) <= 3 * 400_000
    assert finding.n == 3
    assert finding.severity == "warning"
    assert finding.cost.ns is None


def test_a_wait_that_returns_after_its_work_is_not_reported(found: Found) -> None:
    assert found(replayed_graph(0), RULE) == ()
    assert found(replayed_graph(15_000), RULE) == ()


def test_time_of_unrecorded_work_is_neither_idle_nor_saved(analyzed: Analyzed) -> None:
    report = analyzed(replayed_graph(2_000_000), "explicit-synchronize")
    (device,) = report.summary.devices
    assert device.unrecorded_ns > 0
    assert device.busy_ns + device.idle_ns + device.unrecorded_ns == device.span_ns
    assert sum(idle.ns for idle in device.idle_causes) == device.idle_ns
    (finding,) = report.findings
    # Of the 2 ms of each wait up to 200 µs may be the return of a wait, which a fix saves.
    assert (finding.cost.ns or 0) < 3 * 250_000


def test_launched_work_that_starts_late_on_an_idle_gpu_waited_for_something(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            with b.op("aten::add"):
                launch = b.call("LaunchKernel", 4_000)
            b.work("kernel", "add", 10_000, at_ns=b.free_at_ns() + 300_000, correlation=launch)
            b.advance(1_000_000)
    (finding,) = found(b, RULE)
    assert finding.n == 3


def test_kernels_that_start_late_when_they_first_run_were_loaded(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    for number in range(10):
        with b.op("aten::mm"):
            launch = b.call("LaunchKernel", 4_000)
        b.work("kernel", f"gemm_{number}", 10_000, at_ns=b.now_ns + 2_000_000, correlation=launch)
        b.call("DeviceSynchronize", b.free_at_ns() - b.now_ns)
    report = analyzed(b, RULE)
    assert report.health == ()
    (device,) = report.summary.devices
    assert device.unrecorded_ns == 0
    assert max(device.idle_causes, key=lambda cause: cause.ns).cause == "launch"
