"""pageable-copy-to-host finds copies that the host waits for."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "pageable-copy-to-host"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MIB = 1 << 20


def evaluating(*, pinned: bool = False) -> TraceBuilder:
    """200 µs of kernel behind 10 µs of host; a copy of 20 µs; 30 µs of Python."""
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("evaluate.py", 7, "predict"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            with b.builtin("method cpu of Tensor object at 0x7f00"):
                b.to_host(MIB, 20_000, pinned=pinned)
            b.advance(30_000)
    return b


def test_it_costs_the_idle_time_that_the_wait_leaves(found: Found) -> None:
    # The kernel ends at 210 µs and the copy at 230. The host waits from 10 to 230 µs and 4 more in
    # the synchronization. The device is idle for the first 10 µs and the last 34.
    (finding,) = found(evaluating(), RULE)
    assert finding.evidence["blocked_ns"] == 3 * 224_000
    assert finding.evidence["bytes"] == 3 * MIB
    # Three steps of 264 µs. Without the wait the device is never idle again: 10 + 3 x 220.
    assert finding.cost.ns == 792_000 - 670_000
    assert finding.n == 3
    assert finding.message == (
        "`.cpu()` in predict (evaluate.py:7) copies 1.00 MiB to the host once per step and blocks "
        "the host for 224 µs per step (85%). The GPU works during 98% of it."
    )


def test_the_copy_of_a_library_is_named_as_such(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("serve.py", 7, "predict"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            with (
                b.frame("transformers/pipelines/base.py", 1200, "_ensure_tensor_on_device"),
                b.builtin("method to of Tensor object at 0x7f00"),
            ):
                b.to_host(MIB, 20_000)
            b.advance(30_000)

    (finding,) = found(b, RULE)
    assert finding.message.startswith(
        "`.to()` in `_ensure_tensor_on_device()` of transformers, called in predict (serve.py:7), "
        "copies 1.00 MiB to the host once per step"
    )
    assert finding.fix.startswith("The library makes this copy")


def test_a_method_of_torch_that_copies_is_the_programs_call(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("serve.py", 7, "predict"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            with b.frame("torch/nn/modules/module.py", 1300, "convert"):
                b.to_host(MIB, 20_000)
            b.advance(30_000)
    (finding,) = found(b, RULE)
    assert finding.message.startswith("`.cpu()` in predict (serve.py:7) copies")
    assert finding.fix.startswith("Copy less often")


def test_a_copy_into_a_tensor_of_the_program_needs_that_pinned(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("serve.py", 7, "predict"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            with b.builtin("method copy_ of Tensor object at 0x7f00"):
                b.to_host(MIB, 20_000)
            b.advance(30_000)
    (finding,) = found(b, RULE)
    assert "make the tensor with `pin_memory=True`" in finding.fix


def test_a_copy_into_pinned_memory_that_nobody_waits_for_is_fine(found: Found) -> None:
    assert found(evaluating(pinned=True), RULE) == ()


def test_reads_of_a_single_value_are_left_to_item_sync(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            with b.op("aten::item"):
                b.copy("DtoH (Device -> Pageable)", 4, 1_000, blocking=True)
    assert found(b, RULE) == ()


def test_two_lines_are_two_findings(found: Found) -> None:
    b = evaluating()
    for _ in range(3):
        with b.step(), b.frame("evaluate.py", 30, "score"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=200_000)
            b.to_host(64, 2_000)
    assert {finding.locations[0].line for finding in found(b, RULE)} == {7, 30}


def test_copies_outside_the_steps_do_not_count(found: Found) -> None:
    b = evaluating(pinned=True)
    for _ in range(4):
        b.to_host(4_096, 900_000)
    assert found(b, RULE) == ()


def test_pinned_memory_is_not_pageable_even_where_the_host_waits(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::copy_"):
            b.copy("DtoH (Device -> Pinned)", 4_096, 90_000, blocking=False)
            b.synchronize("StreamSynchronize")
    assert found(b, RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "SYN003"
