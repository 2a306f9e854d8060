"""TraceBuilder writes the same events as the profiler."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from profkit.model.capture_info import CaptureInfo
from profkit.testing import TraceBuilder
from profkit.testing.event_recorder import DEFAULT_STREAM
from profkit.testing.trace_builder import CALL_NS


def rows(b: TraceBuilder, name: str) -> list[dict[str, Any]]:
    return [event for event in b.to_dict()["traceEvents"] if event["name"] == name]


def test_a_kernel_starts_when_its_launch_has_ended_and_the_stream_is_free() -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="first", host_ns=10_000, device_ns=50_000)
    b.launch("aten::mm", kernel="second", host_ns=10_000, device_ns=5_000)
    assert rows(b, "first")[0]["ts"] == 10
    assert rows(b, "second")[0]["ts"] == 60
    assert b.now_ns == 20_000
    assert b.free_at_ns() == 65_000


def test_streams_do_not_wait_for_each_other() -> None:
    b = TraceBuilder(latency_ns=2_000)
    b.launch("aten::mm", kernel="first", host_ns=10_000, device_ns=50_000)
    b.launch("aten::mm", kernel="other", host_ns=10_000, device_ns=5_000, stream=13)
    assert rows(b, "first")[0]["ts"] == 12
    assert rows(b, "other")[0]["ts"] == 22
    assert b.free_at_ns(stream=13) == 27_000
    assert b.free_at_ns(stream=DEFAULT_STREAM) == 62_000


def test_item_blocks_the_host_until_the_device_is_done() -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=500_000)
    b.item(copy_ns=1_000)
    assert b.now_ns == 511_000
    (copy,), (wait,) = rows(b, "cudaMemcpyAsync"), rows(b, "cudaStreamSynchronize")
    assert (copy["ts"], copy["dur"]) == (11, CALL_NS / 1000)
    assert (wait["ts"], wait["dur"]) == (15, 496)
    assert rows(b, "aten::_local_scalar_dense")[0]["dur"] == 501


def test_a_copy_to_pageable_memory_blocks_until_it_is_done() -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=500_000)
    b.to_host(4096, 2_000)
    (copy,) = rows(b, "cudaMemcpyAsync")
    assert (copy["ts"], copy["dur"]) == (10, 502)
    assert b.now_ns == 512_000 + CALL_NS


def test_a_copy_from_pinned_memory_does_not_wait() -> None:
    b = TraceBuilder()
    b.to_device(1 << 20, 900_000, pinned=True)
    assert b.now_ns == CALL_NS
    assert not rows(b, "cudaStreamSynchronize")


def test_device_work_has_the_ids_of_its_call_and_its_innermost_operator() -> None:
    b = TraceBuilder()
    with b.op("aten::linear"):
        b.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=1_000)
    (op,), (kernel,), (call,) = (rows(b, n) for n in ("aten::mm", "gemm", "cudaLaunchKernel"))
    assert kernel["args"]["correlation"] == call["args"]["correlation"]
    assert (
        kernel["args"]["External id"]
        == call["args"]["External id"]
        == op["args"]["External id"]
        != rows(b, "aten::linear")[0]["args"]["External id"]
    )


def test_all_kernels_of_a_graph_share_one_correlation() -> None:
    b = TraceBuilder()
    ident = b.graph_launch([("a", 1_000), ("b", 2_000)])
    kernels = rows(b, "a") + rows(b, "b")
    assert [k["args"]["correlation"] for k in kernels] == [ident, ident]
    assert [k["args"]["graph node id"] for k in kernels] == [0, 1]


def test_a_kernel_without_a_launch_is_work_from_before_recording() -> None:
    b = TraceBuilder()
    kernel = b.kernel("gemm", 1_000)
    calls = [e for e in b.to_dict()["traceEvents"] if e.get("cat") == "cuda_runtime"]
    assert kernel.args is not None
    assert kernel.args["correlation"]
    assert "External id" not in kernel.args
    assert not calls


def test_python_calls_have_the_ids_of_their_callers_on_the_same_thread() -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 3, "main"), b.module("Linear"):
        with b.builtin("function linear"):
            b.compute("aten::linear", 10)
        with b.thread(2000), b.frame("worker.py", 1, "run"):
            pass
    main, module, builtin, worker = (
        rows(b, name)[0]
        for name in (
            "train.py(3): main",
            "nn.Module: Linear_0",
            "<built-in function linear>",
            "worker.py(1): run",
        )
    )

    assert main["args"]["Python parent id"] is None
    assert module["args"]["Python parent id"] == main["args"]["Python id"]
    assert builtin["args"]["Python parent id"] == module["args"]["Python id"]
    assert worker["args"]["Python parent id"] is None
    assert worker["tid"] == 2000


def test_steps_are_numbered_and_contain_the_wait_for_data() -> None:
    b = TraceBuilder(first_step=4)
    for _ in range(2):
        with b.step():
            b.load(7_000)
    steps = rows(b, "ProfilerStep#4") + rows(b, "ProfilerStep#5")
    assert [step["dur"] for step in steps] == [7, 7]
    assert len(rows(b, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")) == 2


def test_a_free_has_the_address_and_size_of_its_allocation() -> None:
    b = TraceBuilder(memory=True)
    first = b.alloc(300)
    b.alloc(50, device=None)
    b.free(first)
    events = [event["args"] for event in rows(b, "[memory]")]
    assert [(e["Bytes"], e["Device Type"], e["Total Allocated"]) for e in events] == [
        (300, 1, 300),
        (50, 0, 50),
        (-300, 1, 0),
    ]
    assert events[0]["Addr"] == events[2]["Addr"] == first


@pytest.mark.parametrize("absolute", [False, True])
def test_the_bytes_are_exact_to_the_nanosecond(absolute: bool) -> None:  # noqa: FBT001
    b = TraceBuilder(absolute=absolute, now_ns=123_456_789)
    b.compute("aten::relu", 1_001)
    text = b.to_bytes().decode()
    whole = "1790857026123456.789" if absolute else "123456.789"
    assert f'"ts":{whole},"dur":1.001' in text
    assert ("baseTimeNanoseconds" in text) is not absolute


def test_options_and_metadata_are_top_level_keys() -> None:
    b = TraceBuilder(
        stacks=True,
        memory=True,
        capture=CaptureInfo(version="1", name="step"),
        head={"distributedInfo": {"rank": 3, "world_size": 8}, "WARNING": ["lost"]},
    )
    top = b.to_dict()
    assert top["with_stack"] == top["profile_memory"] == 1
    assert "record_shapes" not in top
    assert top["profkit"]["name"] == "step"
    assert top["distributedInfo"]["rank"] == 3
    assert top["deviceProperties"] == [{"id": 0, "name": "NVIDIA H200"}]


@pytest.mark.parametrize("name", ["t.json", "t.pt.trace.json.gz"])
def test_a_file_has_the_same_content_as_the_bytes(tmp_path: Path, name: str) -> None:
    b = TraceBuilder(runtime="hip")
    b.synchronize()
    path = b.write(tmp_path / name)
    data = path.read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert text == b.to_bytes()
    assert json.loads(text) == b.to_dict()
    assert b"hipDeviceSynchronize" in text


def test_a_stream_waits_for_an_event_and_the_host_for_a_stream() -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="first", host_ns=10_000, device_ns=500_000)
    event_ns = b.record_event()
    assert event_ns == 510_000
    b.wait_for_event(event_ns, stream=13)
    b.graph_launch([("one", 1_000), ("two", 2_000)], stream=13)
    assert rows(b, "one")[0]["ts"] == 510
    assert rows(b, "two")[0]["ts"] == 511
    assert [event["tid"] for event in rows(b, "two")] == [13]
    assert b.synchronize("EventSynchronize", event_ns=event_ns) == 510_000 - 22_000
    assert b.synchronize("StreamSynchronize", stream=13) == CALL_NS
    assert b.synchronize("StreamSynchronize", stream=99) == CALL_NS
