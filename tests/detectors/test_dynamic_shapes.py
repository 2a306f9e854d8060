"""dynamic-shapes finds lines with ever new shapes where these allocate memory."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "dynamic-shapes"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    length: Callable[[int], int],
    *,
    allocates: Callable[[int], bool] = lambda _: True,
    n_steps: int = 12,
    shapes: bool = True,
    frees: bool = False,
) -> TraceBuilder:
    """Steps of an embedding at line 20 of sequences of some length; an allocation takes 300 µs."""
    b = TraceBuilder(stacks=True, shapes=shapes)
    for number in range(n_steps):
        with b.step(), b.frame("model.py", 20, "forward"):
            dims = [[32, length(number)], [64, 64]] if shapes else None
            with b.op("aten::embedding", self_ns=5_000, dims=dims):
                if allocates(number):
                    b.call("Malloc", 300_000)
                ident = b.call("LaunchKernel", 4_000)
                b.kernel("gather", 50_000, correlation=ident)
            b.synchronize()
            if frees:
                b.call("Free", 300_000)
    return b


def test_new_lengths_cost_the_time_of_their_allocations(found: Found) -> None:
    (finding,) = found(training(lambda step: 100 + step), RULE)
    assert finding.cost.ns == 11 * 300_000
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 11)
    assert (finding.evidence["n_shapes"], finding.evidence["n_steps"]) == (11, 11)
    (where,) = finding.locations
    assert (where.file, where.line) == ("model.py", 20)
    assert finding.message.startswith(
        "`aten::embedding` in forward (model.py:20) gets 11 new shapes in 11 steps after the "
        "first, such as 32 x 111. Allocating GPU memory for them (11 calls) blocks the host for "
    )
    assert "Pad inputs" in finding.fix


def test_allocator_churn_leaves_it_to_this_rule(found: Found) -> None:
    assert found(training(lambda step: 100 + step), "allocator-churn") == ()
    assert len(found(training(lambda step: 100 + step, shapes=False), "allocator-churn")) == 1


def test_padded_to_a_few_lengths_it_is_silent(found: Found) -> None:
    assert found(training(lambda step: 128 * (1 + step % 3)), RULE) == ()


def test_new_lengths_that_cost_nothing_are_not_reported(found: Found) -> None:
    assert found(training(lambda step: 100 + step, allocates=lambda step: step < 2), RULE) == ()


def test_allocations_without_new_shapes_are_allocator_churn(found: Found) -> None:
    assert found(training(lambda _: 100), RULE) == ()
    assert len(found(training(lambda _: 100), "allocator-churn")) == 1


def test_a_cache_that_is_emptied_is_allocator_churn(found: Found) -> None:
    b = training(lambda step: 100 + step, frees=True)
    assert found(b, RULE) == ()
    assert len(found(b, "allocator-churn")) == 1


def test_layers_of_different_sizes_are_not_new_shapes(found: Found) -> None:
    b = TraceBuilder(shapes=True)
    for _ in range(12):
        with b.step():
            b.call("Malloc", 300_000)
            for width in range(20):
                b.launch(
                    "aten::linear",
                    kernel="gemm",
                    host_ns=8_000,
                    device_ns=5_000,
                    dims=[[32, 64 + width], [64, 64 + width]],
                )
    assert found(b, RULE) == ()


@pytest.mark.parametrize("n_steps", [3, 8])
def test_a_few_new_shapes_are_not_reported(found: Found, n_steps: int) -> None:
    assert found(training(lambda step: 100 + step, n_steps=n_steps), RULE) == ()


def test_without_shapes_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(training(lambda _: 1, shapes=False), RULE).unchecked
    assert (unchecked.rule, unchecked.reason) == (
        "CMP003",
        "The shapes of operators' inputs were not recorded.",
    )
