"""allocator-off finds recordings in which the driver allocates every tensor, and its cost."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "allocator-off"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def layer(b: TraceBuilder, *, allocates: bool = True, frees: bool = True) -> None:
    """Add a kernel of 3 µs after its result's allocation, and free an earlier result."""
    with b.op("aten::relu"):
        with b.op("aten::empty"):
            if allocates:
                b.call("Malloc", 30_000)
        ident = b.call("LaunchKernel", 4_000)
        b.kernel("relu", 3_000, correlation=ident)
    if frees:
        b.call("Free", 20_000)


def training(
    n_layers: int = 20, n_steps: int = 4, *, steps: bool = True, runtime: str = "cuda"
) -> TraceBuilder:
    b = TraceBuilder(stacks=True, runtime=runtime)
    for _ in range(n_steps):
        with b.step() if steps else b.annotation("turn"), b.frame("train.py", 12, "main"):
            for _ in range(n_layers):
                layer(b)
    return b


def test_it_costs_the_time_in_the_driver(found: Found) -> None:
    (finding,) = found(training(), RULE)
    # Kernels run while the driver works; the last one of all then ends 3 µs after the host.
    assert finding.cost.ns == 4 * 20 * 50_000 - 3_000
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 160)
    assert (finding.evidence["n_allocations"], finding.evidence["n_frees"]) == (80, 80)
    assert finding.locations[0].file == "train.py"
    assert finding.message.startswith(
        "Nothing caches the GPU's memory: for 20 kernels the program calls `cudaMalloc` or "
        "`cudaFree` 40 times per step, which blocks the host for 1.00 ms per step"
    )
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in finding.fix


def test_it_is_found_without_steps_and_with_hip(found: Found) -> None:
    assert len(found(training(steps=False), RULE)) == 1
    assert len(found(training(runtime="hip"), RULE)) == 1


def test_allocator_churn_leaves_it_to_this_rule(found: Found) -> None:
    assert found(training(), "allocator-churn") == ()


def test_a_cache_that_fills_is_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for number in range(4):
        with b.step():
            for _ in range(100):
                layer(b, allocates=number == 0, frees=False)
    assert found(b, RULE) == ()


@pytest.mark.parametrize("per_step", [1, 60])
def test_a_cache_that_is_emptied_in_every_step_is_allocator_churn(
    found: Found, per_step: int
) -> None:
    b = TraceBuilder()
    for _ in range(4):
        with b.step():
            for number in range(100):
                layer(b, allocates=number < per_step, frees=False)
            for _ in range(per_step):
                b.call("Free", 20_000)
    assert found(b, RULE) == ()
    assert len(found(b, "allocator-churn")) == 1


def test_a_few_large_tensors_that_are_not_cached_are_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(4):
        with b.step():
            for number in range(100):
                layer(b, allocates=number < 30, frees=number < 30)
    assert found(b, RULE) == ()


def test_a_short_recording_cannot_tell(found: Found) -> None:
    assert found(training(n_layers=10), RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "MEM018"
