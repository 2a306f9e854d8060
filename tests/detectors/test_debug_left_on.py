"""debug-left-on finds anomaly detection, gradcheck, launches that wait, and settings."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import DEBUG_SETTINGS, CaptureInfo
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "debug-left-on"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

NODE = "autograd::engine::evaluate_function: MmBackward0"


def check(b: TraceBuilder, *, on_device: bool) -> None:
    """Add what autograd runs for each gradient, as torch 2.13 records it."""
    if on_device:
        b.launch("aten::isnan", kernel="isnan", host_ns=10_000, device_ns=5_000)
        b.launch("aten::_is_any_true", kernel="any", host_ns=10_000, device_ns=5_000)
        b.item()
    else:
        b.compute("aten::isnan", 20_000)
        with b.op("aten::_is_any_true"):
            b.compute("aten::any", 10_000)
        b.compute("aten::item", 10_000)


def training(*, anomaly: bool, on_device: bool) -> TraceBuilder:
    """Three steps with two nodes of 100 µs each."""
    b = TraceBuilder(stacks=True, device_names=("NVIDIA H200",) if on_device else ())
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train"):
            for _ in range(2):
                with b.op(NODE):
                    if on_device:
                        b.launch("MmBackward0", kernel="gemm", host_ns=10_000, device_ns=100_000)
                    else:
                        b.compute("MmBackward0", 100_000)
                    if anomaly:
                        check(b, on_device=on_device)
    return b


def test_the_tests_of_anomaly_detection_cost_their_time(found: Found) -> None:
    (finding,) = found(training(anomaly=True, on_device=False), RULE)
    assert finding.cost.per_step_ns == 80_000
    assert finding.cost.basis == "estimate"
    assert finding.n == 6
    assert finding.message == (
        "Anomaly detection tests twice per step whether a gradient is not a number: 80.0 µs per "
        "step on the host (29%). The stack trace that it takes of each operator in the forward "
        "pass is not included."
    )
    assert "set_detect_anomaly" in finding.fix


def test_on_a_gpu_its_waits_are_one_finding_with_the_tests(found: Found) -> None:
    b = training(anomaly=True, on_device=True)
    (finding,) = found(b, RULE)
    # The fixed program has 6 kernels of 100 µs one after the other, the first after 10 µs.
    fixed_ns = 10_000 + 6 * 100_000 + 5 * 1_000
    faulty_ns = b.now_ns
    assert finding.cost.ns == pytest.approx(faulty_ns - fixed_ns, rel=0.05)
    assert found(b, "item-sync") == ()


@pytest.mark.parametrize("on_device", [True, False])
def test_training_without_it_has_none(found: Found, *, on_device: bool) -> None:
    assert found(training(anomaly=False, on_device=on_device), RULE) == ()


def test_a_program_that_tests_its_gradients_itself_has_none(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step(), b.op(NODE):
            b.compute("aten::isnan", 20_000)
            b.compute("aten::any", 20_000)
            b.compute("aten::item", 20_000)
    with b.step():
        check(b, on_device=False)
    assert found(b, RULE) == ()


def test_gradcheck_is_for_tests(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    with b.step(), b.frame("train.py", 10, "train"):
        b.compute("aten::mm", 1_000_000)
        with b.frame("torch/autograd/gradcheck.py", 1999, "gradcheck"):
            b.compute("aten::mm", 3_000_000)
    (finding,) = found(b, RULE)
    assert finding.cost.ns == 3_000_000
    assert finding.message == (
        "`gradcheck` in train (train.py:10) runs once per step: 3.00 ms per step (75%)."
    )


def launches(
    *, waits: bool, settings: dict[str, str] | None = None, n_ranks: int = 2
) -> TraceBuilder:
    """Two steps with 20 kernels of 100 µs each."""
    capture = CaptureInfo("0", "train", "user", world_size=n_ranks, settings=settings or {})
    b = TraceBuilder(capture=None if settings is None else capture)
    for _ in range(2):
        with b.step():
            for _ in range(20):
                with b.op("aten::mm", self_ns=5_000):
                    start = b.now_ns
                    ident = b.call("LaunchKernel", 110_000 if waits else 4_000)
                    b.kernel(
                        "gemm", 100_000, correlation=ident, at_ns=start + 5_000 if waits else None
                    )
    return b


def test_launches_that_wait_cost_what_they_take_beyond_a_launch(found: Found) -> None:
    (finding,) = found(launches(waits=True), RULE)
    # Each step takes 20 x 115 µs, of which the GPU works for 20 x 100 µs; launches of 5 µs leave
    # the kernels to follow each other.
    assert 0.5 * 20 * 15_000 < (finding.cost.per_step_ns or 0) <= 20 * 15_000
    assert finding.cost.basis == "estimate"
    assert "`CUDA_LAUNCH_BLOCKING=1`" in finding.message
    assert finding.fix == "Run without `CUDA_LAUNCH_BLOCKING`."


def test_launches_that_return_at_once_have_none(found: Found) -> None:
    assert found(launches(waits=False), RULE) == ()


def test_a_few_kernels_tell_nothing(found: Found) -> None:
    assert found(launches(waits=True), RULE, min_kernels_count=100) == ()


def test_one_cause_has_one_finding(found: Found) -> None:
    settings = {"CUDA_LAUNCH_BLOCKING": "1"}
    assert len(found(launches(waits=True, settings=settings), RULE)) == 1
    assert len(found(launches(waits=False, settings=settings), RULE)) == 1


@pytest.mark.parametrize("name", DEBUG_SETTINGS)
def test_each_setting_has_a_finding_with_its_effect(found: Found, name: str) -> None:
    value = DEBUG_SETTINGS[name][0]
    (finding,) = found(launches(waits=False, settings={name: value}), RULE)
    assert finding.message.startswith(f"The program ran with `{name}={value}`: ")
    assert finding.cost.ns is None
    assert finding.fix == f"Run without `{name}`."


@pytest.mark.parametrize("settings", [{"TORCH_DISTRIBUTED_DEBUG": "INFO"}, {"HOME": "1"}])
def test_other_settings_are_silent(found: Found, settings: dict[str, str]) -> None:
    assert found(launches(waits=False, settings=settings), RULE) == ()


@pytest.mark.parametrize("name", ["TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_BLOCKING_WAIT"])
def test_a_setting_for_ranks_does_nothing_in_one_process(found: Found, name: str) -> None:
    settings = {name: DEBUG_SETTINGS[name][0]}
    assert found(launches(waits=False, settings=settings, n_ranks=1), RULE) == ()


def test_a_setting_for_gpus_does_nothing_on_a_cpu(found: Found) -> None:
    capture = CaptureInfo("0", "train", "user", settings={"CUDA_LAUNCH_BLOCKING": "1"})
    b = TraceBuilder(device_names=(), capture=capture)
    with b.step():
        b.compute("aten::mm", 1_000)
    assert found(b, RULE) == ()


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "CFG003"
