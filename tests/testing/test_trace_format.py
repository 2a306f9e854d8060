"""Formats are written as the exporters that they imitate write them."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from profkit.testing import Format, TraceBuilder
from profkit.testing.trace_vendors import Vendor


@pytest.fixture
def b() -> TraceBuilder:
    builder = TraceBuilder(memory=True)
    with builder.step(), builder.op("aten::to"):
        builder.copy("DtoH (Device -> Pageable)", 64, 2_000, blocking=False)
        builder.call("cuLaunchKernel", 1_000, cat="cuda_driver")
        builder.kernel("gemm", 5_000, correlation=builder.call("LaunchKernel", 1_000))
        builder.alloc(512)
        builder.synchronize("StreamSynchronize")
    return builder


def events(b: TraceBuilder, form: Format) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(b.to_bytes(form))["traceEvents"]
    return events


def named(b: TraceBuilder, vendor: Vendor, name: str) -> dict[str, Any]:
    (event,) = (e for e in events(b, Format(vendor=vendor)) if e["name"] == name)
    return event


@pytest.mark.parametrize(
    ("vendor", "calls"),
    [
        ("cuda", {"cudaLaunchKernel": "cuda_runtime", "cuLaunchKernel": "cuda_driver"}),
        ("rocm", {"hipLaunchKernel": "cuda_runtime", "hipStreamSynchronize": "cuda_runtime"}),
        ("xpu", {"urEnqueueKernelLaunch": "xpu_runtime", "urEnqueueUSMMemcpy": "xpu_runtime",
                 "zeCommandListHostSynchronize": "xpu_sync"}),
        ("privateuse1", {"orMemcpyAsync": "privateuse1_runtime",
                         "orStreamSynchronize": "privateuse1_runtime"}),
        ("mtia", {"runFunction - job_prep_and_submit_for_execution": "mtia_runtime",
                  "synchronizeStream": "mtia_runtime"}),
        ("hpu", {"synMemCopyAsync": "hpu_op", "synStreamSynchronize": "hpu_op"}),
    ],
)  # fmt: skip
def test_calls_have_the_names_and_categories_of_their_vendor(
    vendor: Vendor, calls: dict[str, str], b: TraceBuilder
) -> None:
    category_of = {e["name"]: e.get("cat") for e in events(b, Format(vendor=vendor))}
    assert {name: category_of.get(name) for name in calls} == calls
    if vendor != "cuda":
        assert not [name for name in category_of if name.startswith("cuda")]


def test_an_xpu_sync_has_process_minus_one_and_its_type(
    b: TraceBuilder,
) -> None:
    wait = named(b, "xpu", "zeCommandListHostSynchronize")
    assert (wait["pid"], wait["tid"], wait["ph"]) == (-1, b.tid, "X")
    assert wait["args"]["Type"] == "HOST_COMMAND_LIST"
    assert wait["args"].keys() >= {"correlation", "Queue_handle", "Number_wait_events"}


def test_device_work_has_the_fields_of_its_vendor(b: TraceBuilder) -> None:
    copy = named(b, "xpu", "Memcpy D2M (DEVICE -> MEMORY(Unknown))")
    assert (copy["args"]["sycl queue"], copy["args"]["bytes"]) == (7, 64)
    assert "stream" not in copy["args"]
    assert named(b, "rocm", "Memcpy DtoH (Device -> Host)")["args"]["bytes"] == "64"
    assert named(b, "rocm-7.1", "__amd_rocclr_copyBuffer")["cat"] == "kernel"
    assert named(b, "mtia", "gemm")["cat"] == "mtia_ccp_events"
    assert named(b, "hpu", "gemm")["args"] == {"device": 0}
    assert named(b, "hpu", "Memcpy DtoH (Device -> Pageable)")["cat"] == "hpu_op"


@pytest.mark.parametrize(
    ("vendor", "number"),
    [("cuda", 1), ("rocm", 1), ("xpu", 12), ("hpu", 15), ("mtia", 19), ("privateuse1", 20)],
)
def test_allocations_have_pytorch_s_number_of_the_device(
    vendor: Vendor, number: int, b: TraceBuilder
) -> None:
    b.alloc(64, device=None)
    marks = [e for e in events(b, Format(vendor=vendor)) if e["name"] == "[memory]"]
    assert [mark["args"]["Device Type"] for mark in marks] == [number, 0]


def test_extras_have_every_other_phase_and_the_vendor_s_own_categories(
    b: TraceBuilder,
) -> None:
    event_list = events(b, Format(vendor="mtia", extras=True))
    assert {e["ph"] for e in event_list} >= set("XistfbneCMI")
    assert {e.get("cat") for e in event_list} >= {"mtia_insight", "mtia_workloadd", "mtia_counters"}
    types = [
        e["args"]["Type"]
        for e in events(b, Format(vendor="xpu", extras=True))
        if e.get("cat") == "xpu_sync"
    ]
    assert sorted(set(types)) == ["GPU_BARRIER_EXECUTION", "HOST_COMMAND_LIST"]


# -------------------------------------------------------------------------- begin and end events


def test_begin_and_end_events_nest_on_each_thread_and_are_ordered_by_time(b: TraceBuilder) -> None:
    event_list = events(b, Format(begin_end=True))
    assert not [e for e in event_list if e["ph"] == "X"]
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in event_list:
        if event["ph"] in "BE":
            lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    assert len(lanes) == 2

    for listed in lanes.values():
        assert [e["ts"] for e in listed] == sorted(e["ts"] for e in listed)
        begun: list[str] = []
        for event in listed:
            if event["ph"] == "B":
                begun.append(event["name"])
            else:
                assert begun.pop() == event["name"]
        assert not begun


def test_begin_and_end_share_the_arguments_of_their_event(
    b: TraceBuilder,
) -> None:
    (whole,) = (e for e in events(b, Format()) if e["name"] == "gemm")
    begin, end = (e for e in events(b, Format(begin_end=True)) if e["name"] == "gemm")
    assert begin["args"].keys() & end["args"].keys() == set()
    assert begin["args"] | end["args"] == whole["args"]
    assert (begin["ts"], end["ts"]) == (whole["ts"], whole["ts"] + whole["dur"])


def test_overlapping_events_cannot_be_written_as_begin_and_end() -> None:
    b = TraceBuilder()
    b.call("LaunchKernel", 5_000, at_ns=0)
    b.call("LaunchKernel", 5_000, at_ns=3_000)
    with pytest.raises(ValueError, match="ends after it"):
        b.to_bytes(Format(begin_end=True))


# ----------------------------------------------------------------------------------- the file


@pytest.mark.parametrize("phase", ["i", "I", "X"])
def test_an_allocation_has_the_chosen_phase(phase: Any, b: TraceBuilder) -> None:  # noqa: ANN401
    (mark,) = (e for e in events(b, Format(instants=phase)) if e["name"] == "[memory]")
    assert mark["ph"] == phase
    assert ("dur" in mark) is (phase == "X")


def test_text_ids_and_the_displayed_unit_are_written(b: TraceBuilder) -> None:
    document = json.loads(b.to_bytes(Format(text_ids=True, unit="ns", extras=True)))
    assert document["displayTimeUnit"] == "ns"
    ids = [e[key] for e in document["traceEvents"] for key in ("pid", "tid")]
    assert all(isinstance(ident, str) for ident in ids)


def test_a_file_is_compressed_according_to_its_name(b: TraceBuilder, tmp_path: Path) -> None:
    text = b.to_bytes()
    assert gzip.decompress(b.write(tmp_path / "t.json.gz").read_bytes()) == text
    with zipfile.ZipFile(b.write(tmp_path / "t.zip")) as archive:
        assert archive.read("trace.json") == text
    with tarfile.open(b.write(tmp_path / "t.json.gz.tar")) as tar:
        (member,) = tar.getmembers()
        packed = tar.extractfile(member)
        assert member.name == "trace.json.gz"
        assert packed is not None
        assert gzip.decompress(packed.read()) == text
    inner = gzip.decompress(b.write(tmp_path / "t.tar.gz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(inner)) as tar:
        assert tar.getnames() == ["trace.json"]


def test_a_zstandard_file_can_be_decompressed(b: TraceBuilder, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = b.write(tmp_path / "t.json.zst").read_bytes()
    assert zstandard.decompress(packed) == b.to_bytes()


def test_a_gzip_stream_has_the_given_number_of_members(b: TraceBuilder, tmp_path: Path) -> None:
    data = b.write(tmp_path / "t.json.gz", n_members=5).read_bytes()
    assert gzip.decompress(data) == b.to_bytes()
    assert data.count(b"\x1f\x8b\x08") >= 5
