"""repeated-copies finds copies into another layout, and what the steps take without them."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "repeated-copies"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
CONTIGUOUS = ("aten::contiguous", "aten::clone", "aten::copy_")


def attention(
    operators: tuple[str, ...] = CONTIGUOUS,
    *,
    copy_ns: int = 50_000,
    gemm_ns: int = 300_000,
    n_steps: int = 3,
) -> TraceBuilder:
    """Steps of a matmul and two copies of 50 µs, each within some operators."""
    b = TraceBuilder(stacks=True)
    for _ in range(n_steps):
        with b.step(), b.frame("model.py", 50, "forward"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=gemm_ns)
            for _ in range(2):
                nested(b, operators, copy_ns)
            b.synchronize()
    return b


def nested(b: TraceBuilder, operators: tuple[str, ...], copy_ns: int) -> None:
    if len(operators) == 1:
        b.launch(operators[0], kernel="elementwise_kernel", host_ns=5_000, device_ns=copy_ns)
        return
    with b.op(operators[0]):
        nested(b, operators[1:], copy_ns)


def test_it_costs_the_time_of_the_copies(found: Found) -> None:
    (finding,) = found(attention(), RULE)
    assert finding.cost.per_step_ns == 100_000
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "medium", 6)
    (where,) = finding.locations
    assert (where.file, where.line) == ("model.py", 50)
    assert finding.message == (
        "`.contiguous()` in forward (model.py:50) copies tensors into another layout, twice per "
        "step: 100 µs per step (25% of the GPU's busy time)."
    )


def test_the_copies_of_a_library_are_not_the_programs_to_leave_out(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("serve.py", 5, "main"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            with b.frame("transformers/integrations/sdpa_attention.py", 18, "sdpa_forward"):
                nested(b, CONTIGUOUS, 50_000)
                nested(b, CONTIGUOUS, 50_000)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.message.startswith(
        "`.contiguous()` in `sdpa_forward()` of transformers, called in main (serve.py:5), copies "
    )
    assert "Leave out" not in finding.fix
    assert "newer version" in finding.fix


@pytest.mark.parametrize("name", ["reshape", "flatten"])
def test_a_reshape_that_copies_is_found(found: Found, name: str) -> None:
    (finding,) = found(attention((f"aten::{name}", "aten::clone", "aten::copy_")), RULE)
    assert finding.message.startswith(f"`.{name}()`")


@pytest.mark.parametrize(
    "operators",
    [
        ("aten::clone", "aten::copy_"),
        ("aten::copy_",),
        ("aten::to", "aten::_to_copy", "aten::copy_"),
        ("aten::contiguous", "aten::_to_copy", "aten::copy_"),
        ("aten::matmul", "aten::reshape", "aten::clone", "aten::copy_"),
        ("aten::reshape", "aten::mul"),
        ("aten::view", "aten::add"),
    ],
)
def test_copies_that_the_program_wants_are_not_reported(
    found: Found, operators: tuple[str, ...]
) -> None:
    assert found(attention(operators), RULE) == ()


def test_a_reshape_that_is_a_view_is_not_reported(found: Found) -> None:
    b = attention(("aten::mul",))
    with b.step(), b.op("aten::reshape"):
        b.compute("aten::view", 1_000)
    assert found(b, RULE) == ()


def test_copies_that_take_little_are_not_reported(found: Found) -> None:
    assert found(attention(gemm_ns=4_000_000), RULE) == ()


def test_copies_of_one_step_are_set_up(found: Found) -> None:
    b = attention(("aten::mul",))
    with b.step(), b.frame("model.py", 50, "forward"):
        nested(b, CONTIGUOUS, 900_000)
    assert found(b, RULE) == ()


def test_where_the_host_is_late_it_is_a_note(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            nested(b, CONTIGUOUS, 50_000)
            b.launch("aten::mm", kernel="gemm", host_ns=900_000, device_ns=300_000)
    (finding,) = found(b, RULE)
    assert finding.severity == "note"
    assert finding.cost.ns == 0


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "KER008"
