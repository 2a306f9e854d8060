"""launch-bound finds devices that wait for launches, without the recording's overhead."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureCost, CaptureInfo
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "launch-bound"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    *, host_ns: int = 20_000, device_ns: int = 5_000, n: int = 50, **options: object
) -> TraceBuilder:
    """Kernels of some length, each launched by an operator of some length."""
    b = TraceBuilder(**options)  # type: ignore[arg-type]
    for _ in range(3):
        with b.step():
            for _ in range(n):
                b.launch("aten::add", kernel="add", host_ns=host_ns, device_ns=device_ns)
    return b


def test_it_costs_the_idle_time_between_the_kernels(found: Found) -> None:
    # 150 kernels of 5 µs start 20 µs apart: 149 gaps of 15 µs lie between them.
    (finding,) = found(training(), RULE)
    # Without waiting for launches each starts 1 µs after the one before.
    assert finding.cost.ns == 149 * 14_000
    assert finding.cost.basis == "replay"
    assert finding.confidence == "high"
    assert finding.evidence["n_kernels_per_step"] == 50
    assert finding.evidence["median_kernel_ns"] == 5_000
    assert finding.locations[0].op == "aten::add"
    assert finding.message == (
        "The GPU is idle for 745 µs per step (74%) because the next kernel is not launched yet. It "
        "runs 50 kernels per step, half of them shorter than 5.00 µs."
    )
    assert sum(end - start for start, end in finding.spans) == 149 * 15_000


@pytest.mark.parametrize(
    ("update", "advised"), [("", False), ("aten::_fused_adamw_", False), ("aten::add_", True)]
)
def test_an_optimizer_is_to_be_fused_where_there_is_one_that_is_not(
    found: Found,
    update: str,
    advised: bool,  # noqa: FBT001
) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(50):
                b.launch("aten::mul", kernel="mul", host_ns=20_000, device_ns=5_000)
            if update:
                with b.annotation("Optimizer.step#AdamW.step"):
                    b.launch(update, kernel="update", host_ns=20_000, device_ns=5_000)
    (finding,) = found(b, RULE)
    assert ("optimizer" in finding.fix) == advised


def test_a_host_that_keeps_ahead_is_not_reported(found: Found) -> None:
    assert found(training(host_ns=5_000, device_ns=20_000), RULE) == ()


def test_one_graph_launch_for_all_kernels_is_the_fix(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.op("mylib::replay"):
            b.graph_launch([("add", 5_000)] * 50)
            b.advance(246_000)
    assert found(b, RULE) == ()


def test_long_pauses_have_another_reason(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(30):
                b.launch("aten::add", kernel="add", host_ns=5_000, device_ns=5_000)
            b.advance(5_000_000)
    assert found(b, RULE) == ()


@pytest.mark.parametrize("n", [3, 30])
def test_pauses_between_long_kernels_have_another_reason(found: Found, n: int) -> None:
    # The GPU is idle for 30%, in gaps of 300 µs; but no launch takes the host 1 ms.
    assert found(training(host_ns=1_000_000, device_ns=700_000, n=n), RULE) == ()


def test_pauses_among_fast_launches_have_another_reason(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(10):
                for _ in range(5):
                    b.launch("aten::add", kernel="add", host_ns=5_000, device_ns=60_000)
                b.advance(550_000)
    assert found(b, RULE) == ()


def test_pauses_in_which_gloo_runs_collectives_are_not_launch_gaps(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(30):
                b.launch("aten::add", kernel="add", host_ns=5_000, device_ns=5_000)
                with b.thread(3000), b.annotation("gloo:all_reduce"):
                    b.advance(80_000)
    assert found(b, RULE) == ()


def test_kernels_launched_outside_operators_have_no_line_to_name(found: Found) -> None:
    b = training()
    for _ in range(3):
        with b.step():
            for _ in range(50):
                ident = b.call("LaunchKernel", 20_000)
                b.kernel("raw", 5_000, correlation=ident)
    (finding,) = found(b, RULE)
    assert [location.op for location in finding.locations] == ["aten::add"]


@pytest.mark.parametrize(("n", "confidence"), [(5, "low"), (15, "low"), (30, "high")])
def test_the_share_of_the_step_decides_and_not_the_number_of_kernels(
    found: Found, n: int, confidence: str
) -> None:
    (finding,) = found(training(n=n), RULE)
    # Without the gaps the next kernel follows after the usual 1 µs.
    assert finding.cost.ns == (3 * n - 1) * (15_000 - 1_000)
    assert finding.confidence == confidence


@pytest.mark.parametrize("device_ns", [19_000, 20_000, 21_000, 80_000])
def test_the_share_of_the_step_decides_and_not_the_length_of_kernels(
    found: Found, device_ns: int
) -> None:
    (finding,) = found(training(host_ns=100_000, device_ns=device_ns), RULE)
    assert finding.cost.ns == (3 * 50 - 1) * (100_000 - device_ns - 1_000)


def test_short_waits_between_long_kernels_are_not_reported(found: Found) -> None:
    assert found(training(host_ns=100_000, device_ns=86_000), RULE) == ()


def test_without_kernels_nothing_is_launch_bound(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::copy_"):
            b.copy("DtoD (Device -> Device)", 8, 1_000, blocking=False)
            b.advance(90_000)
    assert found(b, RULE) == ()


def with_calls(n_calls: int) -> TraceBuilder:
    """Launches 20 µs apart, and Python calls in the 15 µs in which the GPU waits for each."""
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(50):
                b.launch("aten::add", kernel="add", host_ns=10_000, device_ns=5_000)
                b.advance(9_000)
                for _ in range(n_calls):
                    with b.frame("train.py", 1, "main"):
                        b.advance(1_000 // n_calls)
    return b


def test_idle_time_that_recording_the_calls_can_explain_is_not_claimed(found: Found) -> None:
    assert len(found(with_calls(1), RULE)) == 1
    assert found(with_calls(50), RULE) == ()


def test_from_a_recording_with_stacks_only_the_rest_is_claimed(found: Found) -> None:
    (finding,) = found(with_calls(10), RULE)
    assert finding.confidence == "low"
    assert finding.cost.basis == "estimate"
    # Of each gap of 15 µs ten calls explain 5; 149 gaps lie between the kernels of the recording.
    assert finding.evidence["overhead_ns"] == 149 * 10 * 500
    assert finding.cost.ns == 149 * 10_000
    assert "Of that, 248 µs per step is assumed to come from the recording." in finding.message


def test_stacks_that_each_operator_has_lengthen_a_step_by_an_assumed_ratio(found: Found) -> None:
    b = training(host_ns=20_000, device_ns=1_000)
    args = next(event.args for event in b.events if event.cat == "cpu_op")
    assert args is not None
    args["Call stack"] = "train.py(1): <module>"
    (finding,) = found(b, RULE)
    # A ratio of 1.2 explains 545.45 of each step's 1,000 µs; 19 of every 20 µs are idle, without
    # the first launch of the recording and the end of the last step.
    idle = [949_000, 950_000, 950_000]
    assert finding.cost.ns == pytest.approx(sum(idle) - 3 * 545_454, abs=40_000)


def test_an_overhead_that_was_measured_is_taken_off_exactly(found: Found) -> None:
    capture = CaptureInfo(version="1", name="step", cost=CaptureCost(overhead_ratio=0.25))
    plain, slowed = training(), training(capture=capture)
    (bare,), (finding,) = found(plain, RULE), found(slowed, RULE)
    assert bare.cost.ns is not None
    # A quarter longer means that a fifth of the 3,000 µs is the recording's.
    # What remains of the gaps is more than the 1 µs between kernels.
    assert finding.cost.ns == 149 * 15_000 - 3_000_000 // 5
    assert finding.confidence == "medium"


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "KER001"


@pytest.mark.parametrize(
    ("around", "fix"),
    [
        ("CompiledFunction", 'Add `mode="reduce-overhead"` to the call of `torch.compile`'),
        ("forward", 'Try `torch.compile(model, mode="reduce-overhead")`'),
    ],
)
def test_a_compiled_program_is_not_advised_to_compile(found: Found, around: str, fix: str) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.op(around):
            for _ in range(50):
                b.launch("aten::add", kernel="add", host_ns=20_000, device_ns=5_000)
    (finding,) = found(b, RULE)
    assert finding.fix.startswith(fix)


def test_a_program_with_cuda_graphs_is_not_advised_to_use_them(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(50):
                b.launch("aten::add", kernel="add", host_ns=20_000, device_ns=5_000)
            b.graph_launch([("mm", 5_000)])
    (finding,) = found(b, RULE)
    assert finding.fix.startswith("Capture the rest of the step in its CUDA graphs too")
