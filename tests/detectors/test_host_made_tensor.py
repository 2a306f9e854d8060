"""host-made-tensor finds constants that are created on the host and copied in every step."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "host-made-tensor"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(*, maker: str | None = "aten::zeros", stacks: bool = True) -> TraceBuilder:
    """200 µs of kernel, then 32 bytes made and copied, then 30 µs of Python."""
    b = TraceBuilder(stacks=stacks)
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step") if stacks else b.thread(b.tid):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            if maker:
                b.compute(maker, 2_000)
                b.to_device(32, 1_000)
            b.advance(30_000)
    return b


def test_it_costs_the_idle_time_that_the_wait_leaves(found: Found) -> None:
    # Kernel from 10 to 210 µs, copy to 211. The host waits from 12 to 211 and 4 µs more. The device
    # is idle for the first 10 µs and the last 34.
    (finding,) = found(training(), RULE)
    assert finding.evidence["blocked_ns"] == 4 * 203_000
    # The steps take 4 x 245 µs. Without the wait the device is never idle again: 10 + 4 x 201.
    assert finding.cost.ns == 980_000 - 814_000
    assert finding.cost.per_step_ns == 41_500
    assert finding.n == 4
    assert finding.evidence["made_by"] == "aten::zeros"
    assert finding.confidence == "high"
    assert finding.message == (
        "A tensor of 32 B is created on the host in train_step (train.py:10) in 2.00 µs per step "
        "and copied to the GPU once per step, which blocks the host for 203 µs per step (83%). The "
        "GPU works during 98% of it."
    )


@pytest.mark.parametrize(
    ("maker", "fix"),
    [
        ("aten::randn", "as in `torch.randn(…, device=x.device)`, or once before the loop."),
        ("aten::empty", ".tensor(values, pin_memory=True).to(device, non_blocking=True)`."),
        ("aten::ones", "as in `torch.ones(…, device=x.device)`, or once before the loop."),
    ],
)
def test_the_fix_names_the_function_that_made_it(found: Found, maker: str, fix: str) -> None:
    (finding,) = found(training(maker=maker), RULE)
    assert finding.fix.endswith(fix)


def test_a_tensor_made_on_the_device_is_the_fix(found: Found) -> None:
    assert found(training(maker=None), RULE) == ()


def test_what_a_loader_made_is_data(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            with b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                b.compute("aten::empty", 1_000)
            b.to_device(32, 1_000)
    assert found(b, RULE) == ()


def test_an_operator_that_makes_nothing_is_not_a_maker(found: Found) -> None:
    assert found(training(maker="aten::mul"), RULE) == ()


def test_a_tensor_made_some_operators_before_on_the_same_line_is_found(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.compute("aten::ones", 1_000)
            b.compute("aten::tril", 1_000)
            b.to_device(256, 1_000)
    assert len(found(b, RULE)) == 1


def test_without_lines_it_is_a_guess(found: Found) -> None:
    (finding,) = found(training(stacks=False), RULE)
    assert finding.confidence == "low"


def test_a_single_copy_is_set_up(found: Found) -> None:
    b = training(maker=None)
    with b.step(), b.frame("train.py", 10, "train_step"):
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
        b.compute("aten::zeros", 1_000)
        b.to_device(32, 1_000)
    assert found(b, RULE) == ()


def test_copies_outside_the_steps_do_not_count(found: Found) -> None:
    b = training(maker=None)
    for _ in range(4):
        b.compute("aten::zeros", 1_000)
        b.to_device(4_096, 900_000)
    assert found(b, RULE) == ()


def test_pinned_memory_is_not_pageable_even_where_the_host_waits(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.compute("aten::zeros", 1_000)
            with b.op("aten::copy_"):
                b.copy("HtoD (Pinned -> Device)", 4_096, 90_000, blocking=False)
                b.synchronize("StreamSynchronize")
    assert found(b, RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "DAT003"


def build_noise(
    *,
    work: bool = True,
    maker: str = "aten::randn",
    direct: bool = False,
    fill_ns: int = 3_000_000,
) -> TraceBuilder:
    """Three steps in which noise of 64 MiB is filled in 3 ms and copied in 1 ms."""
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.compute("aten::add", 100_000)
            with b.op(maker):
                b.compute("aten::normal_", fill_ns)
                if direct:
                    b.call("LaunchKernel", 4_000)
            if work:
                b.to_device(1 << 26, 1_000_000)
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            else:
                with b.op("aten::to"), b.op("aten::copy_"):
                    b.call("MemcpyAsync", 1_000_000)
                    b.call("StreamSynchronize", 4_000)

    return b


def test_a_large_tensor_that_an_operator_fills_costs_the_time_to_fill_it(found: Found) -> None:
    b = build_noise()
    (finding,) = found(b, RULE)
    assert finding.evidence["made_ns"] == 9_000_000
    # Each step waits 3 ms for the noise, and 1 ms for the copy, which the GPU still makes.
    assert finding.cost.ns == pytest.approx(9_000_000, rel=0.02)
    assert found(b, "pageable-copy-to-device") == ()


def test_without_recorded_device_work_it_costs_the_host_both(found: Found) -> None:
    (finding,) = found(build_noise(work=False), RULE)
    assert finding.cost.per_step_ns == 4_004_000
    assert finding.severity == "warning"
    assert finding.message == (
        "A tensor is created on the host in 3.00 ms per step and copied to the GPU once per step, "
        "which blocks the host for 1.00 ms per step (24%)."
    )


def test_large_tensors_of_given_values_are_data(found: Found) -> None:
    assert found(build_noise(maker="aten::empty"), RULE) == ()
    assert found(build_noise(maker="aten::empty", work=False), RULE) == ()


def test_an_operator_too_short_to_fill_a_large_tensor_has_made_another(found: Found) -> None:
    # torch 1.8 creates a tensor for each annotated region, on the line that copies a batch.
    assert found(build_noise(fill_ns=20_000), RULE) == ()
    assert found(build_noise(fill_ns=20_000, work=False), RULE) == ()


def test_a_tensor_that_a_kernel_fills_is_copied_from_the_gpu(found: Found) -> None:
    assert found(build_noise(direct=True, work=False), RULE) == ()
