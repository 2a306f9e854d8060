"""small-copies finds many small copies that the host does not wait for, and what one would save."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "small-copies"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    n_copies: int = 60, *, n_bytes: int = 2048, pinned: bool = True, n_steps: int = 3
) -> TraceBuilder:
    """Steps of some copies of 1 µs at line 8, each of which the host launches in 4 µs."""
    b = TraceBuilder(stacks=True)
    for _ in range(n_steps):
        with b.step(), b.frame("train.py", 8, "to_gpu"):
            for _ in range(n_copies):
                b.to_device(n_bytes, 1_000, pinned=pinned)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            b.synchronize()
    return b


def test_it_costs_the_time_of_all_copies_but_one(found: Found) -> None:
    (finding,) = found(training(), RULE)
    assert finding.cost.per_step_ns == 59 * 4_000
    assert finding.cost.basis == "estimate"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 180)
    assert finding.evidence["bytes"] == 180 * 2048
    assert finding.evidence["host_ns"] == 180 * 4_000
    (where,) = finding.locations
    assert (where.file, where.line) == ("train.py", 8)
    assert finding.message == (
        "Small tensors are copied to the GPU in to_gpu (train.py:8) 60 times per step, 2.00 KiB "
        "each on average. The host takes 240 µs per step for that."
    )
    assert "`split()`" in finding.fix


def test_one_copy_of_all_is_not_reported(found: Found) -> None:
    assert found(training(1, n_bytes=60 * 2048), RULE) == ()


def test_a_few_dozen_are_not_reported(found: Found) -> None:
    assert found(training(50), RULE) == ()


def test_large_copies_are_not_reported(found: Found) -> None:
    assert found(training(n_bytes=65536), RULE) == ()


def test_copies_that_block_the_host_are_reported_by_another_rule(found: Found) -> None:
    b = training(pinned=False)
    assert found(b, RULE) == ()
    assert len(found(b, "pageable-copy-to-device")) == 1


def test_copies_to_the_host_and_within_a_device_are_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(60):
                b.to_host(64, 1_000, pinned=True)
                with b.op("aten::copy_"):
                    b.copy("DtoD (Device -> Device)", 64, 1_000, blocking=False)
    assert found(b, RULE) == ()


def test_copies_before_the_loop_are_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(600):
        b.to_device(64, 1_000, pinned=True)
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
    assert found(b, RULE) == ()


def test_where_the_device_is_late_they_cost_nothing(found: Found) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=9_000_000)
    for _ in range(3):
        with b.step():
            for _ in range(60):
                b.to_device(64, 1_000, pinned=True)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000_000)
    assert found(b, RULE) == ()


def test_without_steps_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    for _ in range(60):
        b.to_device(64, 1_000, pinned=True)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "DAT004"
