"""algorithm-search finds convolutions that measure algorithms, and what that takes."""

from collections.abc import Callable, Sequence

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "algorithm-search"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    searching: Sequence[int],
    *,
    op: str = "aten::cudnn_convolution",
    n_trials: int = 3,
    trial_ns: int = 100_000,
) -> TraceBuilder:
    """Six steps of a convolution of 50 µs; some measure algorithms of 100 µs first."""
    b = TraceBuilder(stacks=True)
    for number in range(6):
        with b.step(), b.frame("model.py", 12, "forward"), b.op(op, self_ns=5_000):
            for _ in range(n_trials if number in searching else 0):
                ident = b.call("LaunchKernel", 4_000)
                b.kernel("algorithm", trial_ns, correlation=ident)
                b.synchronize("EventSynchronize")
            ident = b.call("LaunchKernel", 4_000)
            b.kernel("conv", 50_000, correlation=ident)
            b.synchronize()
    return b


def test_a_search_in_the_first_step_costs_its_kernels_and_waits(found: Found) -> None:
    (finding,) = found(training([0]), RULE)
    assert finding.cost.ns == 3 * (4_000 + 100_000)
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.confidence, finding.n) == ("note", "high", 1)
    assert finding.evidence["n_algorithms"] == 3
    assert finding.evidence["waits_ns"] == 3 * 100_000
    (where,) = finding.locations
    assert (where.file, where.line) == ("model.py", 12)
    assert finding.message == (
        "1 convolution in forward (model.py:12) measured 3 algorithms in 1 step of 6, which took "
        "312 µs (47%)."
    )
    assert "Record later steps" in finding.fix


def test_a_search_in_many_steps_is_a_warning(found: Found) -> None:
    (finding,) = found(training(range(6)), RULE)
    assert finding.severity == "warning"
    assert finding.cost.per_step_ns == 312_000
    assert "Pad the inputs" in finding.fix


def test_the_smaller_last_batch_is_not_a_warning(found: Found) -> None:
    (finding,) = found(training([0, 5]), RULE)
    assert finding.severity == "note"


def test_without_search_it_is_silent(found: Found) -> None:
    assert found(training([]), RULE) == ()


def test_a_single_wait_is_not_a_search(found: Found) -> None:
    assert found(training(range(6), n_trials=1), RULE) == ()


@pytest.mark.parametrize("op", ["aten::mm", "mylib::timed", "aten::item"])
def test_waits_in_other_operators_are_not_a_search(found: Found, op: str) -> None:
    assert found(training(range(6), op=op), RULE) == ()


def test_events_that_the_program_waits_for_are_not_a_search(found: Found) -> None:
    b = training([])
    for _ in range(3):
        with b.step():
            b.launch("aten::cudnn_convolution", kernel="conv", host_ns=9_000, device_ns=90_000)
            for _ in range(3):
                b.synchronize("EventSynchronize")
    assert found(b, RULE) == ()


def test_a_short_search_is_not_reported(found: Found) -> None:
    assert found(training([0], trial_ns=100, n_trials=2), RULE, min_saved_share=0.05) == ()


def test_a_search_before_the_steps_does_not_count(found: Found) -> None:
    b = TraceBuilder()
    with b.op("aten::cudnn_convolution"):
        for _ in range(5):
            ident = b.call("LaunchKernel", 4_000)
            b.kernel("algorithm", 900_000, correlation=ident)
            b.synchronize("EventSynchronize")
    for _ in range(3):
        with b.step():
            b.launch("aten::cudnn_convolution", kernel="conv", host_ns=9_000, device_ns=90_000)
    assert found(b, RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "CFG001"
