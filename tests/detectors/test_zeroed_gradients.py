"""zeroed-gradients finds gradients that are filled with zeros, and states what the fills take."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "zeroed-gradients"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MARK = "Optimizer.zero_grad#SGD.zero_grad"


def on_device(*, fill_ns: int = 30_000, n_gradients: int = 2, mark: str = MARK) -> TraceBuilder:
    """Steps of a millisecond that fill some gradients first, each by a fill of its own."""
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            with b.annotation(mark):
                for _ in range(n_gradients):
                    with b.op("aten::zero_"):
                        b.fill(1 << 20, fill_ns)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=900_000)
            b.synchronize()
    return b


def on_host(fill_ns: int) -> TraceBuilder:
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            with b.annotation(MARK), b.op("aten::zero_"), b.op("aten::fill_"):
                b.advance(fill_ns)
            b.compute("aten::mm", 900_000)
    return b


def test_it_costs_the_time_of_the_fills_on_the_device(found: Found) -> None:
    (finding,) = found(on_device(), RULE)
    # The product runs from 4 + 60 to 964 µs; without the fills from 10 to 910.
    assert finding.cost.per_step_ns == 54_000
    assert finding.cost.basis == "replay"
    assert sum(end - start for start, end in finding.spans) == 8 * 30_000
    assert finding.n == 8
    assert finding.severity == "warning"
    (where,) = finding.locations
    assert (where.file, where.line) == ("train.py", 10)
    assert finding.message == (
        "Gradients are filled with zeros in train_step (train.py:10), twice per step, which takes "
        "8.00 µs per step on the host and 60.0 µs per step on the GPU."
    )


def test_one_kernel_for_all_gradients_is_found_too(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            with b.annotation(MARK):
                b.launch(
                    "aten::_foreach_zero_", kernel="multi_tensor", host_ns=9_000, device_ns=40_000
                )
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=900_000)
            b.synchronize()
    (finding,) = found(b, RULE)
    # The product runs from 9 + 40 to 949 µs; without the fills from 10 to 910.
    assert (finding.n, finding.cost.per_step_ns) == (3, 39_000)


def test_a_fill_made_of_fills_counts_once(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            with b.annotation(MARK), b.op("aten::_foreach_zero_"):
                b.compute("aten::zero_", 50_000)
                b.compute("aten::zero_", 50_000)
            b.compute("aten::mm", 400_000)
    (finding,) = found(b, RULE)
    assert (finding.n, finding.cost.per_step_ns) == (3, 100_000)


def test_setting_gradients_to_none_is_the_fix(found: Found) -> None:
    assert found(on_device(n_gradients=0), RULE) == ()


@pytest.mark.parametrize("mark", ["Optimizer.step#SGD.step", "zero_grad", "my zero_ region"])
def test_zeros_filled_elsewhere_are_not_gradients(found: Found, mark: str) -> None:
    assert found(on_device(mark=mark), RULE) == ()


def test_on_the_host_it_costs_the_operators_time(found: Found) -> None:
    (finding,) = found(on_host(100_000), RULE)
    assert finding.cost.per_step_ns == 100_000
    assert finding.cost.basis == "estimate"
    assert "on the host" in finding.message


def test_little_time_is_a_note_and_next_to_none_is_not_reported(found: Found) -> None:
    (finding,) = found(on_host(5_000), RULE)
    assert finding.severity == "note"
    assert found(on_host(500), RULE) == ()


def test_fills_outside_the_steps_do_not_count(found: Found) -> None:
    b = on_device(n_gradients=0)
    for _ in range(3):
        with b.annotation(MARK), b.op("aten::zero_"):
            b.fill(1 << 20, 900_000)
    assert found(b, RULE) == ()


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "MEM014"


def accumulating(n_passes: int) -> TraceBuilder:
    """Steps that fill two gradients, and add to each of them in every backward pass."""
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            with b.annotation(MARK):
                b.compute("aten::zero_", 30_000)
                b.compute("aten::zero_", 30_000)
            for _ in range(n_passes):
                b.compute("aten::mm", 500_000)
                for _ in range(2):
                    with b.op("torch::autograd::AccumulateGrad"):
                        b.compute("aten::add_", 40_000)
            b.compute("aten::add_", 70_000)  # of the optimizer
    return b


@pytest.mark.parametrize("n_passes", [1, 2])
def test_additions_to_zeros_are_part_of_the_cost(found: Found, n_passes: int) -> None:
    (finding,) = found(accumulating(n_passes), RULE)
    assert finding.cost.per_step_ns == 2 * 30_000 + 2 * 40_000
    assert finding.evidence["n_adds"] == 3 * 2
    assert finding.message == (
        "Gradients are filled with zeros, twice per step; the backward pass adds to the zeros. "
        "Both take 140 µs per step on the host."
    )


def test_fills_cost_the_host_time_of_their_launches_where_the_host_is_late(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            with b.annotation(MARK):
                b.launch("aten::zero_", kernel="fill", host_ns=30_000, device_ns=100)
            b.launch("aten::mm", kernel="gemm", host_ns=900_000, device_ns=500_000)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.severity == "warning"
    assert finding.cost.per_step_ns == 30_000
    assert "takes 30.0 µs per step on the host and 100 ns per step on the GPU." in finding.message


def build_training(*, is_cured: bool, host_ns: int, device_ns: int) -> TraceBuilder:
    """Build steps of two passes that fill three gradients with zeros, or let go of them."""
    b = TraceBuilder()

    for _ in range(4):
        with b.step():
            with b.annotation(MARK):
                for _ in range(0 if is_cured else 3):
                    b.launch("aten::zero_", kernel="fill", host_ns=host_ns, device_ns=device_ns)

            for is_first in (True, False):
                for _ in range(3):
                    b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=100_000)
                    with b.op("torch::autograd::AccumulateGrad"):
                        # Without zeros the first pass writes its gradients, and the second adds.
                        if not (is_cured and is_first):
                            b.launch(
                                "aten::add_", kernel="add", host_ns=host_ns, device_ns=device_ns
                            )
            b.synchronize()
    return b


@pytest.mark.parametrize(("host_ns", "device_ns"), [(9_000, 30_000), (250_000, 2_000)])
def test_it_costs_the_difference_to_the_cured_program(
    found: Found, analyzed: Analyzed, host_ns: int, device_ns: int
) -> None:
    """Built twice, so that the difference owes nothing to a replay."""
    problem, cured = (
        build_training(is_cured=is_cured, host_ns=host_ns, device_ns=device_ns)
        for is_cured in (False, True)
    )
    before_ns, after_ns = (
        sum(step.dur_ns for step in analyzed(b, RULE).summary.steps) for b in (problem, cured)
    )
    (finding,) = found(problem, RULE)
    assert found(cured, RULE) == ()
    # A microsecond lies between two kernels, or between two operators of the host.
    assert finding.cost.ns == pytest.approx(before_ns - after_ns, abs=4 * 6 * 1_000 + 8_000)
