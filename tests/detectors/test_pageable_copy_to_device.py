"""pageable-copy-to-device finds copies to a device from pageable memory."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "pageable-copy-to-device"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MIB = 1 << 20


def training(*, pinned: bool = False) -> TraceBuilder:
    """Build a copy of 400 µs, 200 µs of kernel, and 50 µs of Python a step."""
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 8, "main"):
            b.to_device(8 * MIB, 400_000, pinned=pinned)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.advance(250_000)
    return b


def test_it_costs_the_idle_time_of_the_steps_at_most(found: Found) -> None:
    # The call takes 4 µs until the copy begins at 4 and ends at 404; then 4 of synchronization and
    # 10 of launch, a kernel from 418 to 618, and the step ends at 668: idle for 4, 14 and 50 µs.
    (finding,) = found(training(), RULE)
    assert finding.evidence["blocked_ns"] == 3 * 408_000
    assert finding.evidence["bytes"] == 3 * 8 * MIB
    # Three steps of 668 µs. Without the wait the device works on its own: 3 x 600 µs, 4 before the
    # first copy, 1 before each kernel, and 1 before the other copies. A copy begins 4 µs after its
    # launch, 2 more than the median of copies and kernels: these stay too, or are hidden.
    assert finding.cost.ns == 2_004_000 - 1_813_000
    assert finding.cost.high_ns == 2_004_000 - 1_809_000
    assert finding.n == 3
    assert finding.message == (
        "The copy of 8.00 MiB from pageable memory to the GPU in main (train.py:8) runs once per "
        "step and blocks the host for 408 µs per step (61%). The GPU works during 98% of it."
    )
    assert "pin_memory=True" in finding.fix


def test_a_copy_from_pinned_memory_is_the_fix(found: Found) -> None:
    assert found(training(pinned=True), RULE) == ()


def test_a_few_numbers_are_to_be_made_on_the_gpu(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 8, "main"):
            for n_bytes in (4, 8):
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
                b.to_device(n_bytes, 1_000)
                b.advance(50_000)
    (finding,) = found(b, RULE)
    assert finding.message.startswith("The copy of 4 B to 8 B from pageable memory to the GPU")
    assert "`torch.full((), value, device=x.device)`" in finding.fix
    assert "pin_memory" not in finding.fix


def test_a_small_tensor_made_just_before_is_left_to_another_rule(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 8, "main"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.compute("aten::zeros", 1_000)
            b.to_device(32, 1_000)
    assert found(b, RULE) == ()


def test_a_large_tensor_of_given_values_made_just_before_is_data(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 8, "main"):
            b.compute("aten::empty", 1_000)
            b.to_device(8 * MIB, 400_000)
    assert len(found(b, RULE)) == 1


def test_copies_outside_the_steps_do_not_count(found: Found) -> None:
    b = training(pinned=True)
    for _ in range(4):
        b.to_device(4_096, 900_000)
    assert found(b, RULE) == ()


def test_a_copy_from_pinned_memory_without_non_blocking_is_found(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 8, "main"):
            with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
                b.copy("HtoD (Pinned -> Device)", 8 * MIB, 400_000, blocking=False)
                b.synchronize("StreamSynchronize")
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.advance(250_000)

    (finding,) = found(b, RULE)
    # Steps of 664 µs. Without the wait the device works on its own: 3 x 600 µs, 4 before the first
    # copy, 1 before each kernel, and 1 before the other copies.
    assert finding.cost.ns == 3 * 664_000 - 1_809_000
    assert finding.message.startswith("The copy of 8.00 MiB from pinned memory to the GPU in main")
    assert "non_blocking=True" in finding.fix
    assert "pin_memory" not in finding.fix


@pytest.mark.parametrize(
    ("frames", "fix"),
    [
        (["accelerate/data_loader.py"], "DataLoaderConfiguration(non_blocking=True)"),
        (["transformers/trainer.py", "accelerate/data_loader.py"], "accelerator_config="),
    ],
)
def test_accelerate_copies_so_by_an_option_of_its_own(
    found: Found, frames: list[str], fix: str
) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 8, "main"):
            with ExitStack() as stack:
                for file in (*frames, "accelerate/utils/operations.py"):
                    stack.enter_context(b.frame(file, 9, "send"))
                for op in ("aten::to", "aten::_to_copy", "aten::copy_"):
                    stack.enter_context(b.op(op))
                b.copy("HtoD (Pinned -> Device)", 8 * MIB, 400_000, blocking=False)
                b.synchronize("StreamSynchronize")
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.advance(250_000)

    (finding,) = found(b, RULE)
    assert "in `send()` of accelerate, called in main (train.py:8), runs once" in finding.message
    assert fix in finding.fix


def test_a_read_through_pinned_memory_is_not_a_copy_to_a_device(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.item()
    assert found(b, RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "DAT002"


@pytest.mark.parametrize(
    ("op", "fix"),
    [
        ("aten::index", "The index is on the CPU"),
        ("aten::index_put_", "The index is on the CPU"),
        ("aten::index_select", "The index is on the CPU"),
        ("aten::addcmul", "The operator copies an argument that is on the CPU"),
        ("aten::contiguous", "pin_memory=True"),
    ],
)
def test_the_fix_is_for_the_called_operator(found: Found, op: str, fix: str) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 8, "main"):
            with b.op(op):
                b.to_device(8 * MIB, 400_000)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.advance(250_000)
    (finding,) = found(b, RULE)
    assert fix in finding.fix
    assert ("pin_memory" in finding.fix) == (op == "aten::contiguous")


@pytest.mark.parametrize(
    "around",
    ["ProfilerStep#7", "forward", "autograd::engine::evaluate_function: ToCopyBackward0"],
)
def test_what_is_around_the_operator_does_not_change_the_fix(found: Found, around: str) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            with b.op(around):
                b.to_device(8 * MIB, 400_000)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.advance(250_000)
    (finding,) = found(b, RULE)
    assert "pin_memory=True" in finding.fix


def test_a_pipeline_of_transformers_has_no_loader_to_pin(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        frames = (("train.py", 8, "main"), ("transformers/pipelines/base.py", 9, "forward"))
        with b.step(), ExitStack() as stack:
            for frame in frames:
                stack.enter_context(b.frame(*frame))
            b.to_device(8 * MIB, 400_000)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.advance(250_000)
    (finding,) = found(b, RULE)
    assert "`batch_size`" in finding.fix
    assert "DataLoader" not in finding.fix
