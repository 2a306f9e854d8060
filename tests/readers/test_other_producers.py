"""Device work in the words of producers other than Kineto."""

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze
from profkit.engine.context import Context
from profkit.errors import NotATraceError
from profkit.model.events import Category, EventTable
from profkit.present.diagnosis import headline
from tests.traces import load_trace

Entry = dict[str, Any]


def event(name: str, ts: float, dur: float = 5, **more: Any) -> Entry:  # noqa: ANN401
    return {"name": name, "ph": "X", "ts": ts, "dur": dur, "pid": 1, "tid": 7, **more}


def cupti(number: int) -> Entry:
    """Return the arguments of a record of CUPTI, with CUPTI's own names."""
    return {"args": {"correlationId": number, "externalId": 2 * number}}


RECORDS = [
    event("[MEMCPY] HtoD", 10, **cupti(1)),
    event("void scale<float>(float*)", 20, **cupti(2)),
    event("[MEMSET] Device", 30, **cupti(3)),
    event("[KERNEL] gemm", 40, **cupti(4)),
    event("[MEMCPY] DtoH", 50, **cupti(5)),
]
KINDS = [Category.MEMCPY, Category.KERNEL, Category.MEMSET, Category.KERNEL, Category.MEMCPY]


def written(tmp_path: Path, *events: Entry) -> Path:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events))
    return path


def read(tmp_path: Path, *events: Entry) -> EventTable:
    return load_trace(written(tmp_path, *events)).events


def test_records_of_cupti_are_device_work(tmp_path: Path) -> None:
    events = read(tmp_path, *RECORDS)
    assert events.category.tolist() == KINDS
    assert events.correlation.values.tolist() == [1, 2, 3, 4, 5]
    (device,) = Context(load_trace(tmp_path / "t.json")).devices
    # The process is no device: the producer does not say which one it was.
    assert (device.device, device.n_kernels, device.n_memcpy, device.n_memset) == (0, 2, 2, 1)


@pytest.mark.parametrize("cat", ["gpu_trace", "[MEMCPY]", "Other"])
def test_the_kind_before_a_name_counts_in_unknown_categories(tmp_path: Path, cat: str) -> None:
    events = read(tmp_path, *({**event, "cat": cat} for event in RECORDS))
    marked = [
        kind if "[" in event["name"] else Category.OTHER
        for event, kind in zip(RECORDS, KINDS, strict=True)
    ]
    assert events.category.tolist() == marked


def test_the_kind_before_a_name_changes_no_known_category(tmp_path: Path) -> None:
    events = read(tmp_path, event("[MEMCPY] HtoD", 10, cat="user_annotation"))
    assert events.category.tolist() == [Category.ANNOTATION]


def test_begin_and_end_events_have_these_kinds_too(tmp_path: Path) -> None:
    halves = [
        {**event, "ph": ph, "ts": event["ts"] + later}
        for event in RECORDS
        for ph, later in (("B", 0), ("E", event["dur"]))
    ]
    assert read(tmp_path, *halves).category.tolist() == KINDS


def test_the_report_says_what_the_device_did(tmp_path: Path) -> None:
    report = analyze(written(tmp_path, *RECORDS))
    assert headline(report).startswith("The GPU is busy 56% of the 45.0 µs from first")
    copies = {copy.kind: copy.n_calls for copy in report.summary.copies}
    assert copies == {"[MEMCPY] DtoH": 1, "[MEMCPY] HtoD": 1}
    assert report.summary.devices[0].memcpy_ns == 10_000


def test_kernels_and_ranges_of_nsight_systems_are_read(tmp_path: Path) -> None:
    place = {"pid": "Device 1", "tid": "Stream 7"}
    kernels = [{**event("gemm", at, cat="cuda"), **place} for at in (20, 30)]
    span = {**event("train", 10, 50, cat="nvtx"), "pid": "Device 1", "tid": "NVTX Thread 5"}
    events = read(tmp_path, span, *kernels)
    assert events.category.tolist() == [Category.ANNOTATION, Category.KERNEL, Category.KERNEL]
    (device,) = Context(load_trace(tmp_path / "t.json")).devices
    assert device.device == 1


@pytest.mark.parametrize(
    ("events", "kinds"),
    [
        ([event("f (train.py:3)", 1, cat="FEE"), event("g", 2, cat="FEE")], "`FEE`"),
        ([event("loop_fusion", 1), event("PjitFunction(f)", 2)], "they have no category"),
    ],
)
def test_a_trace_of_another_program_is_refused(
    tmp_path: Path, events: list[Entry], kinds: str
) -> None:
    with pytest.raises(NotATraceError) as raised:
        load_trace(written(tmp_path, *events))
    assert "a trace, but not of torch.profiler: none of its 2 events" in raised.value.message
    assert kinds in raised.value.message
    assert "ui.perfetto.dev" in raised.value.hint


def test_an_unknown_kind_in_a_file_of_torchs_profiler_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event("x", 1, cat="npu")]}))
    assert load_trace(path).events.category.tolist() == [Category.OTHER]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_text_that_powershell_redirected_is_called_by_its_encoding(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(json.dumps({"traceEvents": [event("x", 1)]}).encode(encoding))
    with pytest.raises(NotATraceError, match="UTF-16") as raised:
        load_trace(path)
    assert "UTF-8" in raised.value.hint


def test_a_list_of_nodes_alone_is_not_an_execution_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for node, is_one in (({"callFrame": {}}, False), ({"op_schema": "aten::mm"}, True)):
        path.write_text(json.dumps({"nodes": [node]}))
        with pytest.raises(NotATraceError) as raised:
            load_trace(path)
        assert ("execution trace" in raised.value.hint) == is_one


@pytest.mark.parametrize(
    ("call", "where"),
    [("cudaLaunchKernel", "no device work"), ("aten::t", " on the CPU, which")],
)
def test_a_list_of_events_with_launches_is_not_said_to_run_on_the_cpu_alone(
    tmp_path: Path, call: str, where: str
) -> None:
    # EventList.export_chrome_trace writes what a GPU ran among the "CPU functions" as well.
    names = ("aten::mm", call, "ampere_sgemm_128x64_tn")
    events = [{**event(name, 10.0 * at), "pid": "CPU functions"} for at, name in enumerate(names)]
    assert where in headline(analyze(written(tmp_path, *events), strict=True))


def build_ascend_step(number: int) -> list[Entry]:
    """Build a step as torch_npu writes it: operators, calls of CANN, and tasks of the device."""
    begin = 1000 * number
    task = {"pid": 31303, "tid": 2}
    stream = {"Stream Id": 2}

    return [
        event(f"ProfilerStep#{number}", begin, 900, cat="cpu_op"),
        event("aten::mm", begin + 10, 100, cat="cpu_op"),
        event("AscendCL@aclnnMatmul", begin + 20, 10, pid=2),
        event(
            "aclnnMatmul_MatMulV2", begin + 50, 300, args={"Task Type": "AI_CORE", **stream}, **task
        ),
        event(
            "MEMCPY_ASYNC", begin + 400, 50, args={"Task Type": "MEMCPY_ASYNC", **stream}, **task
        ),
        event("EVENT_WAIT", begin + 500, 200, args={"Task Type": "EVENT_WAIT", **stream}, **task),
    ]


def test_tasks_of_an_ascend_device_are_its_work(tmp_path: Path) -> None:
    name = {"name": "process_name", "ph": "M", "pid": 31303, "args": {"name": "Ascend Hardware"}}
    steps = [*build_ascend_step(1), *build_ascend_step(2), *build_ascend_step(3)]
    report = analyze(written(tmp_path, name, *steps))
    (device,) = report.summary.devices
    assert (device.device, device.busy_ns) == ("npu:0", 3 * (300 + 50) * 1000)
    assert [step.name for step in report.summary.steps] == [f"ProfilerStep#{i}" for i in (1, 2, 3)]
    assert headline(report).startswith("The device is idle 61% of each 900 µs step")


def test_an_ascend_recording_lacks_nothing(tmp_path: Path) -> None:
    name = {"name": "process_name", "ph": "M", "pid": 31303, "args": {"name": "Ascend Hardware"}}
    steps = [entry for number in range(1, 40) for entry in build_ascend_step(number)]
    waits = [event("AscendCL@aclrtSynchronizeStream", 1000 * n + 460, 200, pid=2) for n in range(9)]
    report = analyze(written(tmp_path, name, *steps, *waits))
    # No launches are written, so that none is lost, and the calls of CANN are known.
    assert {fault.rule for fault in report.health} & {"PRF004", "PRF006"} == set()
    assert [call.call for call in report.summary.syncs] == ["AscendCL@aclrtSynchronizeStream"]


def mtia_event(name: str, ts: float, dur: float, stream: int) -> Entry:
    """Return an event of an MTIA device, on a stream's lane in the device's process."""
    lane = {"pid": 17, "tid": 3000 + stream, "args": {"stream": stream}}
    return event(name, ts, dur, cat="mtia_ccp_events", **lane)


def test_jobs_and_transfers_of_an_mtia_device_are_its_work(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        event("aten::linear", 0, 400, cat="cpu_op"),
        mtia_event("dma_request", 10, 20, 101),
        mtia_event("event_record", 30, 1, 101),
        mtia_event("event_wait", 10, 90, 102),
        mtia_event("pe_exe", 100, 200, 102),
    )
    context = Context(load_trace(path))
    (device,) = context.devices
    assert (device.device, device.n_kernels, device.n_memcpy) == (17, 1, 1)
    assert headline(analyze(path)).startswith("The device is busy 76% of the 290 µs")
