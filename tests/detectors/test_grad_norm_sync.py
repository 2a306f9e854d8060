"""grad-norm-sync finds the test of clipped gradients, and no other condition."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "grad-norm-sync"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
TESTS = ("aten::linalg_vector_norm", "aten::isnan", "aten::isinf", "aten::logical_or")


def training(
    operators: tuple[str, ...] = TESTS, *, reads: str = "aten::is_nonzero"
) -> TraceBuilder:
    """Build a backward pass of 500 µs, some operators of 1 µs, a read, and 100 µs of Python."""
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=500_000)
            for name in operators:
                b.launch(name, kernel="small", host_ns=10_000, device_ns=1_000)
            if reads:
                with b.op(reads):
                    b.item()
            b.launch("aten::_foreach_mul_", kernel="clip", host_ns=10_000, device_ns=20_000)
            b.advance(100_000)
    return b


def test_it_costs_the_idle_time_that_follows_the_wait(found: Found) -> None:
    (finding,) = found(training(), RULE)
    # A step takes 625 µs: the kernels run from 10 to 514 µs and the copy to 515 µs, then the host
    # launches the clipping and goes on for 100 µs. Without the wait the device is never idle again.
    assert finding.cost.ns == 4 * 625_000 - (10_000 + 4 * 525_000)
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.n) == ("warning", 4)
    assert finding.message.startswith(
        "The test for a finite norm of the gradients in train_step (train.py:10) runs once per step"
    )
    assert found(training(), "item-sync") == ()


def test_the_default_does_not_wait(found: Found) -> None:
    assert found(training(TESTS[:1], reads=""), RULE) == ()


@pytest.mark.parametrize(
    ("operators", "reads"),
    [
        (TESTS[:1], "aten::is_nonzero"),
        (TESTS[1:], "aten::is_nonzero"),
        ((*TESTS, "aten::add"), "aten::is_nonzero"),
        (TESTS, "aten::item"),
        (TESTS[:1], "aten::item"),
    ],
)
def test_other_reads_are_the_programs(found: Found, operators: tuple[str, ...], reads: str) -> None:
    b = training(operators, reads=reads)
    assert found(b, RULE) == ()
    assert len(found(b, "item-sync")) == 1


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "SYN006"
