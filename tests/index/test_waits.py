"""What made the host wait is known from the call, its operator and its copy."""

from pathlib import Path

import pytest

from profkit.index.launches import join_launches
from profkit.index.nesting import call_tree
from profkit.index.waits import WaitKind, Waits, find_waits, is_pageable, reads
from profkit.load.open import load_trace as load
from profkit.model.events import Category, EventTable
from profkit.testing import TraceBuilder


@pytest.fixture
def b() -> TraceBuilder:
    builder = TraceBuilder()
    builder.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=500_000)
    return builder


def waits_in(b: TraceBuilder, tmp_path: Path) -> tuple[EventTable, Waits]:
    events = load(b.write(tmp_path / "t.json")).events
    tree = call_tree(events)
    launches = join_launches(events, tree.nearest(events.category == Category.OP))
    return events, find_waits(events, tree, launches)


def described(b: TraceBuilder, tmp_path: Path) -> list[tuple[str, str, str]]:
    events, waits = waits_in(b, tmp_path)
    columns = (waits.rows.tolist(), waits.kind.tolist(), waits.owner.tolist())
    return [
        (WaitKind(kind).name, events.name_of(row), events.name_of(owner))
        for row, kind, owner in zip(*columns, strict=True)
    ]


def test_reading_a_number_waits_in_the_synchronization_after_its_pinned_copy(
    b: TraceBuilder, tmp_path: Path
) -> None:
    b.item()
    assert described(b, tmp_path) == [("READ", "cudaStreamSynchronize", "aten::item")]


def test_a_condition_belongs_to_the_outermost_reading_operator(
    b: TraceBuilder, tmp_path: Path
) -> None:
    with b.op("aten::is_nonzero"):
        b.item()
    assert described(b, tmp_path) == [("READ", "cudaStreamSynchronize", "aten::is_nonzero")]


def test_an_index_reads_only_where_a_mask_makes_it_look_for_nonzeros(
    b: TraceBuilder, tmp_path: Path
) -> None:
    with b.op("aten::index"), b.op("aten::nonzero"):
        b.synchronize("StreamSynchronize")
    b.launch("aten::index", kernel="gather", host_ns=5_000, device_ns=1_000)
    events, waits = waits_in(b, tmp_path)
    assert [events.name_of(row) for row in waits.owner.tolist()] == ["aten::index"]
    marked = reads(events, call_tree(events))
    assert [events.name_of(row) for row in marked.nonzero()[0].tolist()] == [
        "aten::index",
        "aten::nonzero",
    ]


def test_a_copy_to_pageable_memory_waits_in_both_of_its_calls(
    b: TraceBuilder, tmp_path: Path
) -> None:
    b.to_host(4096, 2_000)
    events, waits = waits_in(b, tmp_path)
    assert described(b, tmp_path) == [
        ("TO_HOST", "cudaMemcpyAsync", "aten::to"),
        ("TO_HOST", "cudaStreamSynchronize", "aten::to"),
    ]
    assert {events.name_of(row) for row in waits.copy} == {"Memcpy DtoH (Device -> Pageable)"}
    assert is_pageable(events, waits.copy).all()


def test_a_copy_from_pageable_memory_waits_and_one_from_pinned_memory_does_not(
    b: TraceBuilder, tmp_path: Path
) -> None:
    b.to_device(1 << 20, 90_000, pinned=True)
    b.to_device(1 << 20, 90_000)
    assert [kind for kind, _, _ in described(b, tmp_path)] == ["TO_DEVICE", "TO_DEVICE"]


@pytest.mark.parametrize("call", ["DeviceSynchronize", "StreamSynchronize", "EventSynchronize"])
def test_a_synchronizing_call_outside_operators_is_explicit(
    b: TraceBuilder, tmp_path: Path, call: str
) -> None:
    b.synchronize(call)
    assert described(b, tmp_path) == [("EXPLICIT", f"cuda{call}", f"cuda{call}")]


def test_a_synchronization_within_another_operator_is_none_of_these(
    b: TraceBuilder, tmp_path: Path
) -> None:
    with b.op("mylib::solve"):
        b.synchronize("StreamSynchronize")
    assert [kind for kind, _, _ in described(b, tmp_path)] == ["OTHER"]


def test_a_copy_that_blocks_by_its_name_waits_whatever_the_memory(tmp_path: Path) -> None:
    b = TraceBuilder(runtime="hip")
    with b.op("aten::item"):
        ident = b.call("MemcpyWithStream", 30_000)
        b.work("gpu_memcpy", "Memcpy DtoH (Device -> Host)", 1_000, correlation=ident, bytes=4)
    events, waits = waits_in(b, tmp_path)
    assert described(b, tmp_path) == [("READ", "hipMemcpyWithStream", "aten::item")]
    assert is_pageable(events, waits.copy).all()


def test_launches_and_pinned_copies_do_not_wait(b: TraceBuilder, tmp_path: Path) -> None:
    b.to_host(64, 1_000, pinned=True)
    assert described(b, tmp_path) == []
