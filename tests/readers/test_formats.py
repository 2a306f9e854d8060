"""The same program gives the same figures in every format of a trace."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profkit.api import analyze
from profkit.errors import LoadError
from profkit.model.events import MISSING, EventTable
from profkit.model.report import Report
from profkit.testing import Format, TraceBuilder
from profkit.testing.event_recorder import Event
from profkit.testing.trace_vendors import Vendor
from tests.traces import load_trace as load


def program(b: TraceBuilder, n_steps: int = 3) -> TraceBuilder:
    """Use whole microseconds only, which every format represents exactly."""
    for _ in range(n_steps):
        with b.step():
            b.alloc(512)
            b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=70_000)
            b.launch("aten::add", kernel="add", host_ns=9_000, device_ns=3_000, stream=13)
            b.to_device(4_096, 3_000)
            b.fill(4_096, 2_000)
            b.synchronize()
    return b


XPU_SYNCS = {
    "zeDeviceSynchronize": "DeviceSynchronize",
    "zeCommandListHostSynchronize": "StreamSynchronize",
    "zeEventHostSynchronize": "EventSynchronize",
}


def plain_call(name: str) -> str:
    """Return the name of the equivalent CUDA call without its prefix."""
    for prefix in ("cuda", "hip", "or", "syn"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return XPU_SYNCS[name]


def extract_figures(report: Report) -> dict[str, Any]:
    summary = report.summary

    return {
        "devices": [
            (
                d.device.partition(":")[2],
                d.n_kernels,
                d.n_memcpy,
                d.n_memset,
                d.span_ns,
                d.busy_ns,
                d.idle_ns,
                d.compute_ns,
                d.memcpy_ns,
            )
            for d in summary.devices
        ],
        "steps": [(step.name, step.dur_ns) for step in summary.steps],
        "kernels": [(k.name, k.n_calls, k.total_ns) for k in summary.top_kernels],
        "syncs": sorted((plain_call(s.call), s.n_calls, s.total_ns) for s in summary.syncs),
        "ops": [(op.name, op.n_calls, op.total_ns) for op in summary.top_ops],
        "without launch": summary.n_gpu_events_without_launch,
    }


def recorded_by(vendor: str, b: TraceBuilder) -> TraceBuilder:
    """Build the events of a program that a vendor's profiler records.

    HPU's records kernels without their launches, and copies as host calls. MTIA's records copies
    and fills in the same way; which of its calls wait without need is not known.
    """
    if vendor == "hpu":
        recorded = [event for event in b.events if event.cat not in {"gpu_memcpy", "gpu_memset"}]
        return replace(b, events=[_without_launch(e) if e.cat == "kernel" else e for e in recorded])
    if vendor == "mtia":
        recorded = [event for event in b.events if not event.name.endswith("Synchronize")]
        return replace(b, events=[_as_transfer(event) for event in recorded])
    return b


def _as_transfer(event: Event) -> Event:
    is_transfer = event.cat in {"gpu_memcpy", "gpu_memset"}
    return replace(event, cat="gpu_memcpy", name="dma_request") if is_transfer else event


def _without_launch(kernel: Event) -> Event:
    args = {k: v for k, v in (kernel.args or {}).items() if k == "device"}
    return replace(kernel, args=args)


FORMATS = {
    "kineto's lines": Format(layout="kineto"),
    "one event per line": Format(layout="lines"),
    "keys after the events": Format(events_first=True),
    "a bare array": Format(array=True),
    "begin and end events": Format(begin_end=True),
    "begin and end events, since 1970": Format(begin_end=True, absolute=True),
    "older phase of instants": Format(instants="I"),
    "allocations as complete events": Format(instants="X"),
    "processes and threads as strings": Format(text_ids=True),
    "displayed in nanoseconds": Format(unit="ns"),
    "flows, spans, counters, names and marks": Format(extras=True),
    "times as strings": Format(times="string"),
    "times as integers": Format(times="integer"),
    "absolute times": Format(absolute=True),
    "absolute integers": Format(absolute=True, times="integer"),
    "absolute strings": Format(absolute=True, times="string"),
    "torch before 1.11": Format(old=True, absolute=True, times="integer", extras=True),
    "ROCm": Format(vendor="rocm"),
    "ROCm 7.1": Format(vendor="rocm-7.1"),
    "XPU": Format(vendor="xpu"),
    "XPU with barriers and counters": Format(vendor="xpu", extras=True),
    "another vendor's device": Format(vendor="privateuse1"),
    "MTIA": Format(vendor="mtia"),
    "MTIA with insights and counters": Format(vendor="mtia", extras=True),
    "HPU": Format(vendor="hpu"),
}
PACKED = ("t.json.gz", "t.json.zst", "t.json.zip", "t.json.tar", "t.tar.gz", "t.json.gz.zip")


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_program_has_the_same_figures_in_every_format(form: Format, tmp_path: Path) -> None:
    b = program(TraceBuilder(memory=True))
    recorded = recorded_by(form.vendor, b)
    today = extract_figures(analyze(recorded.write(tmp_path / "today.json"), strict=True))
    other_path = b.write(tmp_path / "other.json", form)
    if form.vendor not in ("mtia", "hpu"):
        assert today["devices"][0][1:4] == (6, 3, 3)
        assert [name for name, _, _ in today["syncs"]] == ["DeviceSynchronize", "StreamSynchronize"]
    assert extract_figures(analyze(other_path, strict=True)) == today
    memory = load(other_path).memory
    assert memory.n_bytes.tolist() == [512] * 3
    assert memory.ts_ns.tolist() == load(tmp_path / "today.json").memory.ts_ns.tolist()


@pytest.mark.parametrize("begin_end", [False, True])
@pytest.mark.parametrize("vendor", ["rocm", "rocm-7.1", "xpu", "privateuse1"])
def test_rules_report_the_syncs_of_every_vendor_as_they_do_for_cuda(
    vendor: Vendor,
    begin_end: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    b = TraceBuilder()
    for _ in range(6):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=400_000)
            b.item()
            b.advance(300_000)
            b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=400_000)
            b.synchronize()
            b.advance(200_000)
    form = Format(vendor=vendor, begin_end=begin_end)
    cuda, other_report = (
        analyze(b.write(tmp_path / "t.json", form_of_vendor), strict=True)
        for form_of_vendor in (Format(), form)
    )

    findings = [(f.name, f.n, f.cost.ns, f.confidence) for f in cuda.findings]
    assert {name for name, _, _, _ in findings} == {"item-sync", "explicit-synchronize"}
    assert [(f.name, f.n, f.cost.ns, f.confidence) for f in other_report.findings] == findings


@pytest.mark.parametrize(
    ("vendor", "label"),
    [("cuda", "cuda:0"), ("rocm", "cuda:0"), ("xpu", "xpu:0"), ("hpu", "hpu:0"),
     ("privateuse1", "privateuseone:0"), ("mtia", "mtia:0")],
)  # fmt: skip
def test_devices_have_pytorch_s_names(vendor: Vendor, label: str, tmp_path: Path) -> None:
    b = program(TraceBuilder(memory=True))
    summary = analyze(b.write(tmp_path / "t.json", Format(vendor=vendor)), strict=True).summary
    assert [device.device for device in summary.devices] == [label]
    assert summary.memory is not None
    assert [peak.device for peak in summary.memory.peak] == [label]


def test_hpu_traces_have_kernels_without_launches(tmp_path: Path) -> None:
    b = program(TraceBuilder())
    hpu = analyze(b.write(tmp_path / "hpu.json", Format(vendor="hpu")), strict=True).summary
    assert [(d.n_kernels, d.n_memcpy) for d in hpu.devices] == [(6, 0)]
    assert (hpu.n_gpu_events_without_launch, len(hpu.syncs)) == (6, 2)


@pytest.mark.parametrize("n_members", [1, 7])
@pytest.mark.parametrize("name", PACKED)
def test_a_program_has_the_same_columns_with_every_compression(
    name: str, n_members: int, tmp_path: Path
) -> None:
    if ".zst" in name:
        pytest.importorskip("zstandard")
    b = program(TraceBuilder())
    packed = b.write(tmp_path / name, n_members=n_members)
    assert not packed.read_bytes().startswith(b"{")
    assert read_back(load(packed).events) == written(b)


def test_xpu_queues_are_read_as_streams(tmp_path: Path) -> None:
    path = program(TraceBuilder()).write(tmp_path / "t.json", Format(vendor="xpu"))
    events = load(path).events
    assert set(events.stream.values.tolist()) == {7, 13}


def test_integer_times_reject_fractions_of_a_microsecond() -> None:
    b = TraceBuilder()
    b.compute("aten::zeros", 1_500)
    with pytest.raises(ValueError, match="1500 ns"):
        b.to_bytes(Format(times="integer"))


ACTIONS: tuple[Callable[[TraceBuilder], object], ...] = (
    lambda b: b.launch("aten::add", kernel="add", host_ns=9_000, device_ns=3_000),
    lambda b: b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=700_000, stream=13),
    lambda b: b.to_device(1 << 12, 9_000),
    lambda b: b.fill(64, 1_000),
    lambda b: b.item(),
    lambda b: b.synchronize(),
    lambda b: b.synchronize("EventSynchronize"),
    lambda b: b.alloc(256),
    lambda b: b.advance(250_000),
)
bodies = st.lists(st.integers(0, len(ACTIONS) - 1), min_size=1, max_size=12)
layouts = st.builds(
    Format,
    old=st.booleans(),
    layout=st.sampled_from(["kineto", "compact", "lines"]),
    array=st.booleans(),
    events_first=st.booleans(),
    begin_end=st.booleans(),
    extras=st.booleans(),
    times=st.sampled_from(["decimal", "string", "integer"]),
    absolute=st.booleans(),
    instants=st.sampled_from(["i", "I", "X"]),
    text_ids=st.booleans(),
    unit=st.sampled_from(["ms", "ns"]),
)
vendors = st.sampled_from(["cuda", "rocm", "rocm-7.1", "xpu", "privateuse1", "mtia", "hpu"])
formats = st.builds(replace, layouts, vendor=vendors)
quick = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def built(body: list[int], idle_ns: int = 0) -> TraceBuilder:
    b = TraceBuilder(now_ns=idle_ns)
    with b.step():
        for number in body:
            b.advance(idle_ns)
            ACTIONS[number](b)
    return b


KEYS = {
    "correlation": "correlation",
    "external_id": "External id",
    "device": "device",
    "stream": "stream",
    "n_bytes": "bytes",
}
Row = tuple[str, str, str, int, int, tuple[int, ...]]


def written(b: TraceBuilder) -> list[Row]:
    """Name, process, thread, start, duration and ids of each event that was built."""
    start_ns = min(event.ts_ns for event in b.events)
    return sorted(
        (
            e.name,
            str(e.pid),
            str(e.tid),
            e.ts_ns - start_ns,
            e.dur_ns,
            tuple((e.args or {}).get(key, MISSING) for key in KEYS.values()),
        )
        for e in b.events
        if e.dur_ns is not None
    )


def read_back(events: EventTable) -> list[Row]:
    """Return name, thread and time of the events that were read."""
    rows = np.arange(len(events))
    lanes = [events.lanes[number] for number in events.lane.tolist()]
    ids = zip(*(getattr(events, key).at(rows).tolist() for key in KEYS), strict=True)
    return sorted(
        (
            events.name_of(row),
            lane.pid,
            lane.tid,
            int(events.ts_ns[row]),
            int(events.dur_ns[row]),
            launch,
        )
        for row, lane, launch in zip(range(len(events)), lanes, ids, strict=True)
    )


@quick
@given(
    body=bodies,
    layout=layouts,
    packing=st.sampled_from([".json", *PACKED]),
    idle_ns=st.integers(0, 2000),
)
def test_any_program_is_read_back_as_written(
    body: list[int], layout: Format, packing: str, idle_ns: int, tmp_path: Path
) -> None:
    b = built(body, 0 if layout.times == "integer" else idle_ns)
    form = replace(layout, old=False, extras=False)
    trace = load(b.write(tmp_path / f"t{packing}", form, n_members=3))
    assert read_back(trace.events) == written(b)
    allocations = [event for event in b.events if event.name == "[memory]"]
    assert trace.memory.address.tolist() == [(e.args or {})["Addr"] for e in allocations]
    assert trace.memory.ts_ns.tolist() == [e.ts_ns - b.events[0].ts_ns for e in allocations]
    assert (trace.notes.n_invalid, trace.notes.n_skipped, trace.notes.n_unpaired) == (0, 0, 0)


@quick
@given(body=bodies, form=formats, seed=st.integers(0, 1000), packing=st.sampled_from(PACKED))
def test_any_program_has_the_same_figures_in_any_format_and_compression(
    body: list[int], form: Format, seed: int, packing: str, tmp_path: Path
) -> None:
    b = built(body)
    recorded = recorded_by(form.vendor, b)
    today = extract_figures(analyze(recorded.write(tmp_path / "today.json"), strict=True))
    assert extract_figures(analyze(b.write(tmp_path / packing, form), strict=True)) == today
    random.Random(seed).shuffle(b.events)  # noqa: S311  (no secret)
    shuffled = extract_figures(analyze(b.write(tmp_path / "shuffled.json", form), strict=True))
    assert {k: sorted(v) if isinstance(v, list) else v for k, v in shuffled.items()} == {
        k: sorted(v) if isinstance(v, list) else v for k, v in today.items()
    }


@quick
@given(form=formats, cuts=st.lists(st.tuples(st.integers(0, 9000), st.binary(max_size=4))))
def test_any_damage_in_any_format_gives_a_report_or_a_load_error(
    form: Format, cuts: list[tuple[int, bytes]], tmp_path: Path
) -> None:
    data = bytearray(program(TraceBuilder(), n_steps=1).to_bytes(form))
    for at, put in cuts:
        data[at % len(data) : at % len(data) + len(put)] = put
    (tmp_path / "t.json").write_bytes(data)
    try:
        report = analyze(tmp_path / "t.json", strict=True)
    except LoadError:
        return
    assert report.summary.window_ns >= 0
