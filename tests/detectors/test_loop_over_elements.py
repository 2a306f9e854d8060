"""loop-over-elements finds loops that run short operators for one element at a time."""

from collections.abc import Callable
from itertools import combinations
from typing import Final

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.sampled_steps import function, recording

RULE = "loop-over-elements"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
Dims = list[list[int]]
MS, US = 1_000_000, 1_000
N_STEPS, N_SAMPLES, WIDTH = 2, 32, 64
OP_NS = 5 * US
KEPT: Final = 0.05
LINEAR: Dims = [[WIDTH], [WIDTH, WIDTH], [WIDTH]]


def select(b: TraceBuilder, shape: list[int], index: int, dim: int = 0) -> None:
    b.compute("aten::select", OP_NS, dims=[shape, [], []], values=["", str(dim), str(index)])


def called_per_sample(
    *, n_samples: int = N_SAMPLES, op_ns: int = OP_NS, linear: Dims = LINEAR, other_ns: int = US
) -> TraceBuilder:
    """Steps whose loop iterates over a batch, and calls a model with each sample.

    Args:
        op_ns: The time of each operator.
        linear: The shapes of the layer's inputs.
        other_ns: Time of what follows.
    """
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(N_STEPS):
        with b.step(), b.frame("train.py", 20, "forward"):
            b.compute("aten::unbind", US, dims=[[n_samples, WIDTH], []], values=["", "0"])
            for _ in range(n_samples):
                with b.op("aten::linear", self_ns=0, dims=linear):
                    b.compute("aten::addmm", op_ns)
                b.compute("aten::relu", op_ns, dims=[[WIDTH]])
            b.compute("aten::stack", other_ns)

    return b


def compared_by_pairs(b: TraceBuilder) -> None:
    """Run a loop whose operators depend on the values, so that none follow each other twice."""
    for one, other in combinations(range(N_SAMPLES), 2):
        select(b, [N_SAMPLES, WIDTH], one)
        select(b, [N_SAMPLES, WIDTH], other)
        b.compute("aten::sub", OP_NS)
        if (one + other) % 3:
            b.compute("aten::clamp", OP_NS)


def test_a_model_that_is_called_per_sample_keeps_what_it_computes(found: Found) -> None:
    (finding,) = found(called_per_sample(), RULE)
    assert finding.message == (
        "The loop in forward (train.py:20) calls a model for one sample after the other: 64 "
        "operators for 32 elements per step. They take 320 µs per step (99%)."
    )
    assert finding.fix.startswith("Pass the whole batch in one call")

    loop_ns = 2 * N_SAMPLES * OP_NS
    assert finding.cost.per_step_ns == pytest.approx((1 - KEPT) * loop_ns, rel=0.01)
    assert (finding.cost.basis, finding.severity) == ("estimate", "warning")


def test_what_products_compute_is_not_saved(found: Found) -> None:
    # Of 10 µs each, 4 are beyond a call: half of the operators are products.
    (finding,) = found(called_per_sample(op_ns=10 * US), RULE)
    computing_ns, loop_ns = N_SAMPLES * 4 * US, 2 * N_SAMPLES * 10 * US
    saved_ns = (1 - KEPT) * (loop_ns - computing_ns)
    assert finding.cost.per_step_ns == pytest.approx(saved_ns, rel=0.01)


def test_elements_that_are_selected_by_their_index(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(N_STEPS):
        with b.step(), b.frame("loss.py", 7, "contrastive"):
            compared_by_pairs(b)
    (finding,) = found(b, RULE)
    n_pairs = N_SAMPLES * (N_SAMPLES - 1) // 2
    assert "in contrastive (loss.py:7) runs operators on one element after the" in finding.message
    assert finding.evidence["elements"] == N_STEPS * 2 * n_pairs
    assert finding.fix.startswith("Compute all elements at once")


def test_its_backward_pass_is_saved_too(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for step in range(N_STEPS):
        numbers = range(step * N_SAMPLES, (step + 1) * N_SAMPLES)
        with b.step(), b.frame("train.py", 20, "forward"):
            for number in numbers:
                select(b, [N_SAMPLES, WIDTH], number - numbers[0])
                b.compute("aten::exp", OP_NS, sequence=number)
            for number in reversed(numbers):
                with b.op("ExpBackward0", sequence=number, self_ns=2 * OP_NS) as node:
                    node.args |= {"Fwd thread id": 1}  # type: ignore[operator]

    (finding,) = found(b, RULE)
    # The loop ends where the last element is taken, and its backward pass begins before that.
    n_forward, n_backward = 2 * N_SAMPLES - 1, 2 * (N_SAMPLES - 1)
    loop_ns = (n_forward + n_backward) * OP_NS
    assert "With their backward pass they take" in finding.message
    assert finding.cost.per_step_ns == pytest.approx((1 - KEPT) * loop_ns, rel=0.01)


def in_step(fill: Callable[[TraceBuilder], None]) -> TraceBuilder:
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(N_STEPS):
        with b.step(), b.frame("train.py", 20, "forward"):
            fill(b)
    return b


def time_steps(b: TraceBuilder) -> None:
    for time in range(N_SAMPLES):
        select(b, [N_SAMPLES, 8, WIDTH], time)
        b.compute("aten::linear", OP_NS, dims=[[8, WIDTH], [WIDTH, WIDTH], [WIDTH]])
        b.compute("aten::relu", OP_NS)


def time_steps_of_one_sequence(b: TraceBuilder) -> None:
    for time in range(N_SAMPLES):
        select(b, [N_SAMPLES, 1, WIDTH], time)
        b.compute("aten::linear", OP_NS, dims=[[1, WIDTH], [WIDTH, WIDTH], [WIDTH]])


def second_dimension(b: TraceBuilder) -> None:
    for time in range(N_SAMPLES):
        select(b, [N_SAMPLES, N_SAMPLES, WIDTH], time, dim=1)
        b.compute("aten::exp", OP_NS)


def layers_of_a_network(b: TraceBuilder) -> None:
    for _ in range(N_SAMPLES):
        for projection in range(3):
            select(b, [3, 8, WIDTH], projection)
        b.compute("aten::linear", OP_NS, dims=LINEAR)


def recurrent_cell(b: TraceBuilder) -> None:
    for time in range(N_SAMPLES):
        select(b, [N_SAMPLES, WIDTH], time)
        for name in ("linear", "linear", "add", "tanh"):
            b.compute(f"aten::{name}", OP_NS)


def joined_pieces(b: TraceBuilder) -> None:
    for sample in range(N_SAMPLES):
        select(b, [N_SAMPLES, WIDTH], sample)
        b.compute("aten::unsqueeze", OP_NS)


def few_elements(b: TraceBuilder) -> None:
    for sample in range(8):
        select(b, [8, WIDTH], sample)
        b.compute("aten::exp", OP_NS)


def long_operators(b: TraceBuilder) -> None:
    for sample in range(N_SAMPLES):
        select(b, [N_SAMPLES, WIDTH], sample)
        b.compute("aten::exp", MS)


@pytest.mark.parametrize(
    "fill",
    [
        time_steps,
        time_steps_of_one_sequence,
        second_dimension,
        layers_of_a_network,
        recurrent_cell,
        joined_pieces,
        few_elements,
        long_operators,
    ],
)
def test_other_loops_are_not_reported(found: Found, fill: Callable[[TraceBuilder], None]) -> None:
    assert found(in_step(fill), RULE) == ()


def test_batches_of_a_loader_are_not_reported(found: Found) -> None:
    def load(b: TraceBuilder) -> None:
        with b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            compared_by_pairs(b)
        b.compute("aten::exp", OP_NS)

    assert found(in_step(load), RULE) == ()


def test_little_time_is_not_reported(found: Found) -> None:
    assert found(called_per_sample(other_ns=500 * MS), RULE) == ()


def test_on_a_gpu_it_saves_launches(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(N_STEPS):
        with b.step():
            for sample in range(N_SAMPLES):
                select(b, [N_SAMPLES, WIDTH], sample)
                b.launch("aten::exp", kernel="exp", host_ns=10 * US, device_ns=2 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.cost.ns is not None
    assert finding.cost.ns > 0


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    assert "KER023" in {check.rule for check in analyzed(device_alone, RULE).unchecked}


def count_per_class(
    *,
    middle: str = "aten::__and__",
    n_classes: int = 10,
    shapes: tuple[list[int], ...] = ([128],),
    has_gpu: bool = False,
) -> TraceBuilder:
    """Steps of a metric that compares and counts for one class after the other."""
    b = TraceBuilder(stacks=True, device_names=("NVIDIA H200",) if has_gpu else ())
    for _ in range(N_STEPS):
        with b.step(), b.frame("metrics.py", 9, "macro_f1"):
            for number in range(n_classes):
                shape = shapes[number % len(shapes)]
                for name in ("aten::eq", middle, "aten::sum"):
                    b.compute(name, OP_NS, dims=[shape, []])
                b.compute("aten::item", US, dims=[[]])
            if has_gpu:
                b.launch("aten::mm", kernel="gemm", host_ns=US, device_ns=US)

    return b


def test_a_metric_that_counts_for_each_class_counts_all_at_once(found: Found) -> None:
    (finding,) = found(count_per_class(), RULE)
    assert finding.message == (
        "The loop in macro_f1 (metrics.py:9) compares the same tensors again and again, and reads "
        "a count each time: 40 operators for 10 counts per step. They take 160 µs per step (100%)."
    )
    assert "`torch.bincount(target * n + predicted, minlength=n * n)`" in finding.fix
    assert finding.cost.per_step_ns == pytest.approx((1 - KEPT) * 160 * US, rel=0.01)


@pytest.mark.parametrize(
    "b",
    [
        count_per_class(n_classes=4),
        count_per_class(middle="aten::mul"),  # may be what the next round reads
        count_per_class(shapes=([128], [64])),  # layers
        count_per_class(has_gpu=True),  # each read waits
    ],
)
def test_loops_that_may_need_each_count_are_silent(found: Found, b: TraceBuilder) -> None:
    assert found(b, RULE) == ()


@pytest.mark.parametrize(
    ("callee", "fix"),
    [
        ("net", "Pass the whole batch to `net` in one call"),
        ("nn.functional.linear", "Pass the whole batch in one call"),
        ("", "Pass the whole batch in one call"),
    ],
)
def test_the_fix_names_the_model_as_the_program_calls_it(
    found: Found, callee: str, fix: str
) -> None:
    def step(b: TraceBuilder) -> None:
        b.compute("aten::unbind", US, dims=[[N_SAMPLES, WIDTH], []], values=["", "0"])
        for _ in range(N_SAMPLES):
            with b.op("aten::linear", self_ns=0, dims=LINEAR):
                b.compute("aten::addmm", OP_NS)
            b.compute("aten::relu", OP_NS, dims=[[WIDTH]])
        b.compute("aten::stack", US)

    functions = [function("main", 22, 40, library="torch", callee=callee)]
    (finding,) = found(recording(functions, step), RULE)
    assert finding.fix.startswith(fix)
