"""boolean-indexing-sync finds results whose size the host waits for, and what the waits cost."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "boolean-indexing-sync"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    operators: tuple[str, ...], *, on_gpu: bool = True, waits: bool = True
) -> TraceBuilder:
    """Build a kernel of 300 µs, then an operator that waits for it, then 50 µs of Python."""
    b = TraceBuilder(stacks=True, device_names=("NVIDIA H200",) if on_gpu else ())
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "loss_of"):
            if on_gpu:
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            with b.op(operators[0]), b.op(operators[-1], self_ns=1_000):
                if on_gpu and waits:
                    b.synchronize("StreamSynchronize")
            b.advance(50_000)
    return b


def test_it_costs_the_idle_time_that_follows_the_wait(found: Found) -> None:
    (finding,) = found(training(("aten::index", "aten::nonzero")), RULE)
    # Steps take 310 + 50 µs. Without the wait the kernels follow each other, 1 µs apart: from 10 µs
    # on four of them take 1,203 µs.
    assert finding.cost.ns == 4 * 360_000 - (10_000 + 4 * 300_000 + 3 * 1_000)
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 4)
    assert finding.evidence["blocked_ns"] == 4 * 299_000
    (where,) = finding.locations
    assert (where.file, where.line) == ("train.py", 10)
    assert finding.message == (
        "Indexing with a mask in loss_of (train.py:10) runs once per step and blocks the host for "
        "299 µs per step (83%). The GPU works during 100% of it."
    )


@pytest.mark.parametrize(
    ("operator", "said", "advice"),
    [
        ("aten::index_put_", "Indexing with a mask", "Keep the shape"),
        ("aten::masked_select", "`masked_select()`", "Keep the shape"),
        ("aten::nonzero", "`nonzero()`", "`torch.nonzero_static(mask, size=n)`"),
        ("aten::repeat_interleave", "`repeat_interleave()`", "`output_size=`"),
        ("aten::one_hot", "`one_hot()`", "`num_classes=`"),
        ("aten::_unique2", "`unique()`", "Keep the full shape"),
        ("aten::bincount", "`bincount()`", "Keep the full shape"),
    ],
)
def test_each_operator_has_the_fix_that_fits(
    found: Found, operator: str, said: str, advice: str
) -> None:
    inner = "aten::nonzero" if "index" in operator else operator
    (finding,) = found(training((operator, inner)), RULE)
    assert finding.message.startswith(said)
    assert advice in finding.fix


@pytest.mark.parametrize(
    "operators",
    [("aten::where",), ("aten::mul",), ("aten::index",), ("aten::nonzero_static",)],
)
def test_operators_that_keep_the_shape_are_the_fix(
    found: Found, operators: tuple[str, ...]
) -> None:
    assert found(training(operators, waits=False), RULE) == ()


@pytest.mark.parametrize("operator", ["aten::repeat_interleave", "aten::one_hot"])
def test_with_the_size_they_do_not_wait(found: Found, operator: str) -> None:
    assert found(training((operator,), waits=False), RULE) == ()


@pytest.mark.parametrize("operator", ["aten::item", "aten::is_nonzero", "aten::equal"])
def test_reads_of_values_have_a_rule_of_their_own(found: Found, operator: str) -> None:
    assert found(training((operator,)), RULE) == ()
    assert len(found(training((operator,)), "item-sync")) == 1


def test_it_is_not_a_finding_of_that_rule(found: Found) -> None:
    assert found(training(("aten::index", "aten::nonzero")), "item-sync") == ()


def test_on_a_cpu_it_waits_for_nothing(found: Found) -> None:
    assert found(training(("aten::masked_select",), on_gpu=False), RULE) == ()


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "SYN004"
