"""What made the host wait is known from the call, its operator and its copy."""

from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.index.device.syncs import SyncKind, Syncs, find_syncs, is_pageable, reads
from profkit.index.host.nesting import build_call_tree
from profkit.index.launches import join_launches
from profkit.model.events import Category, EventTable
from profkit.testing import Format, TraceBuilder
from profkit.testing.event_recorder import Event
from tests.traces import load_trace as load


@pytest.fixture
def b() -> TraceBuilder:
    builder = TraceBuilder()
    builder.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=500_000)
    return builder


def waits_in(
    b: TraceBuilder, tmp_path: Path, form: Format | None = None
) -> tuple[EventTable, Syncs]:
    events = load(b.write(tmp_path / "t.json", form)).events
    tree = build_call_tree(events)
    launches = join_launches(events, tree.nearest(events.category == Category.OP))
    return events, find_syncs(events, tree, launches)


def described(
    b: TraceBuilder, tmp_path: Path, form: Format | None = None
) -> list[tuple[str, str, str]]:
    events, waits = waits_in(b, tmp_path, form)
    columns = (waits.rows.tolist(), waits.kind.tolist(), waits.owner.tolist())
    return [
        (SyncKind(kind).name, events.name_of(row), events.name_of(owner))
        for row, kind, owner in zip(*columns, strict=True)
    ]


def test_reading_a_value_syncs_after_its_pinned_copy(b: TraceBuilder, tmp_path: Path) -> None:
    b.item()
    assert described(b, tmp_path) == [("READ", "cudaStreamSynchronize", "aten::item")]


def test_a_condition_belongs_to_the_outermost_reading_operator(
    b: TraceBuilder, tmp_path: Path
) -> None:
    with b.op("aten::is_nonzero"):
        b.item()
    assert described(b, tmp_path) == [("READ", "cudaStreamSynchronize", "aten::is_nonzero")]


def test_indexing_syncs_only_with_a_mask(b: TraceBuilder, tmp_path: Path) -> None:
    with b.op("aten::index"), b.op("aten::nonzero"):
        b.synchronize("StreamSynchronize")
    b.launch("aten::index", kernel="gather", host_ns=5_000, device_ns=1_000)
    events, waits = waits_in(b, tmp_path)
    assert [events.name_of(row) for row in waits.owner.tolist()] == ["aten::index"]
    marked = reads(events, build_call_tree(events))
    assert [events.name_of(row) for row in marked.nonzero()[0].tolist()] == [
        "aten::index",
        "aten::nonzero",
    ]


def test_a_copy_to_pageable_memory_syncs_in_both_calls(b: TraceBuilder, tmp_path: Path) -> None:
    b.to_host(4096, 2_000)
    events, waits = waits_in(b, tmp_path)
    assert described(b, tmp_path) == [
        ("TO_HOST", "cudaMemcpyAsync", "aten::to"),
        ("TO_HOST", "cudaStreamSynchronize", "aten::to"),
    ]
    assert {events.name_of(row) for row in waits.copy} == {"Memcpy DtoH (Device -> Pageable)"}
    assert is_pageable(events, waits.copy).all()


def test_a_copy_from_pageable_memory_syncs_and_from_pinned_memory_does_not(
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


def test_a_sync_within_another_operator_has_the_kind_other(b: TraceBuilder, tmp_path: Path) -> None:
    with b.op("mylib::solve"):
        b.synchronize("StreamSynchronize")
    assert [kind for kind, _, _ in described(b, tmp_path)] == ["OTHER"]


def test_a_synchronous_copy_syncs_for_any_memory(tmp_path: Path) -> None:
    b = TraceBuilder(runtime="hip")
    with b.op("aten::item"):
        ident = b.call("MemcpyWithStream", 30_000)
        b.work("gpu_memcpy", "Memcpy DtoH (Device -> Host)", 1_000, correlation=ident, bytes=4)
    events, waits = waits_in(b, tmp_path)
    assert described(b, tmp_path) == [("READ", "hipMemcpyWithStream", "aten::item")]
    assert is_pageable(events, waits.copy).all()


def test_launches_and_pinned_copies_are_not_syncs(b: TraceBuilder, tmp_path: Path) -> None:
    b.to_host(64, 1_000, pinned=True)
    assert described(b, tmp_path) == []


# ----------------------------------------------------------------------------- of other vendors


@pytest.mark.parametrize(
    ("form", "call"),
    [
        (Format(vendor="rocm"), "hipStreamSynchronize"),
        (Format(vendor="privateuse1"), "orStreamSynchronize"),
        (Format(vendor="xpu"), "zeCommandListHostSynchronize"),
        (Format(vendor="xpu", begin_end=True), "zeCommandListHostSynchronize"),
    ],
)
def test_syncs_of_other_vendors_have_their_kind(
    form: Format, call: str, b: TraceBuilder, tmp_path: Path
) -> None:
    b.item()
    b.synchronize("StreamSynchronize")
    assert described(b, tmp_path, form) == [
        ("READ", call, "aten::item"),
        ("EXPLICIT", call, call),
    ]


@pytest.mark.parametrize(
    ("copy", "kind", "pageable"),
    [
        ("DtoH (Device -> Pageable)", SyncKind.TO_HOST, True),
        ("DtoH (Device -> Pinned)", SyncKind.TO_HOST, False),
        ("HtoD (Pageable -> Device)", SyncKind.TO_DEVICE, True),
        ("HtoD (Pinned -> Device)", SyncKind.TO_DEVICE, False),
    ],
)
def test_copies_of_an_xpu_show_their_memory_kind(
    copy: str,
    kind: SyncKind,
    pageable: bool,  # noqa: FBT001
    b: TraceBuilder,
    tmp_path: Path,
) -> None:
    with b.op("aten::copy_"):
        b.copy(copy, 64, 1_000, blocking=False)
        b.synchronize("StreamSynchronize")
    events, waits = waits_in(b, tmp_path, Format(vendor="xpu"))
    assert waits.kind.tolist() == [kind]
    assert is_pageable(events, waits.copy).tolist() == [pageable]


def test_a_barrier_on_an_xpu_is_not_a_sync(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=500_000)
    form = Format(vendor="xpu", extras=True)
    assert b"GPU_BARRIER_EXECUTION" in b.to_bytes(form)
    assert described(b, tmp_path, form) == []


def xpu_wait(b: TraceBuilder, *, first: bool) -> TraceBuilder:
    """Add a wait as SYCL's runtime, the driver and the synchronization all recorded it."""
    with b.op("aten::item"):
        start = b.now_ns
        ident = b.call("urQueueFinish", 30_000, cat="xpu_runtime")
    args = {"correlation": ident, "Type": "HOST_COMMAND_LIST"}
    name = "zeCommandListHostSynchronize"
    ways = [
        Event("X", name, "xpu_driver", b.pid, b.tid, start + 1_000, 28_000, {"correlation": ident}),
        Event("X", name, "xpu_sync", -1, b.tid, start + 1_000, 28_000, args),
    ]
    b.events[0 if first else len(b.events) : 0 if first else len(b.events)] = ways
    return b


@pytest.mark.parametrize("first", [True, False])
def test_nested_records_of_a_sync_count_once(
    first: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    b = xpu_wait(TraceBuilder(), first=first)
    assert described(b, tmp_path) == [("READ", "urQueueFinish", "aten::item")]
    (sync,) = analyze(tmp_path / "t.json", strict=True).summary.syncs
    assert (sync.call, sync.n_calls, sync.total_ns) == ("urQueueFinish", 1, 30_000)


@pytest.mark.parametrize("reverse", [True, False])
def test_work_belongs_to_the_outermost_launching_call_of_its_correlation(
    reverse: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    b = TraceBuilder()
    with b.op("aten::copy_"):
        start = b.now_ns
        ident = b.call("urEnqueueUSMMemcpy", 30_000, cat="xpu_runtime")
        driver = "zeCommandListAppendMemoryCopy"
        b.call(driver, 5_000, at_ns=start + 1_000, correlation=ident, cat="xpu_driver")
    wait = {"correlation": ident, "Type": "HOST_EVENT"}
    b.events.append(
        Event("X", "zeEventHostSynchronize", "xpu_sync", -1, b.tid, start, 30_000, wait)
    )
    b.work("gpu_memcpy", "Memcpy D2M (DEVICE -> MEMORY(Unknown))", 9_000, correlation=ident)
    if reverse:
        b.events.reverse()
    events = load(b.write(tmp_path / "t.json")).events

    launches = join_launches(
        events, build_call_tree(events).nearest(events.category == Category.OP)
    )
    assert [events.name_of(row) for row in launches.launch.tolist()] == ["urEnqueueUSMMemcpy"]
    assert [events.name_of(row) for row in launches.op.tolist()] == ["aten::copy_"]


def test_a_sync_after_another_launch_of_the_operator_does_not_wait_for_its_copy(
    tmp_path: Path,
) -> None:
    # cuDNN copies its parameters, then measures algorithms: a kernel and a wait for an event each.
    b = TraceBuilder()
    with b.op("aten::cudnn_convolution"):
        b.copy("HtoD (Pageable -> Device)", 112, 2_000, blocking=True)
        for _ in range(3):
            ident = b.call("LaunchKernel", 4_000)
            b.kernel("implicit_gemm", 900_000, correlation=ident)
            b.call("EventSynchronize", 900_000)
    events, syncs = waits_in(b, tmp_path)
    copies = syncs.of_kind(SyncKind.TO_DEVICE)
    assert [events.name_of(row) for row in copies.rows] == ["cudaMemcpyAsync"]
    assert int(events.dur_ns[copies.rows].sum()) == 6_000
    assert syncs.kind.tolist() == [SyncKind.TO_DEVICE, *3 * [SyncKind.OTHER]]
    assert syncs.copy.tolist()[1:] == 3 * [-1]


def test_a_sync_waits_for_the_copy_of_its_own_thread(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.op("aten::copy_"):
        b.copy("DtoH (Device -> Pinned)", 8, 2_000, blocking=False)
        thread = b.tid
        b.tid = thread + 1
        with b.op("aten::mm"):
            b.kernel("gemm", 1_000, correlation=b.call("LaunchKernel", 1_000))
        b.tid = thread
        b.call("StreamSynchronize", 4_000)
    assert ("TO_HOST", "cudaStreamSynchronize", "aten::copy_") in described(b, tmp_path)
