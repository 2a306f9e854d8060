"""The trace for Perfetto and Chrome: the recording unchanged, and the added events."""

import gzip
import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from profkit.api import AnalysisResult, analyze, render, study
from profkit.errors import LoadError
from profkit.model.report import Report
from profkit.present.critical_path import path_label
from profkit.present.finding_events import event_positions
from profkit.present.labels import part_label
from profkit.present.renderer import pieces, renderer
from profkit.testing import Format, LiveBuilder, SnapshotBuilder, TraceBuilder
from profkit.testing.trace_format import BASE_NS
from tests.renderers import reports
from tests.renderers.trace_viewer import Event, check, events_of, ours


def gpu_program(*, absolute: bool = False) -> TraceBuilder:
    """Three steps in which the host waits, with memory, on two streams."""
    b = TraceBuilder(absolute=absolute, memory=True)
    for _ in range(3):
        with b.step():
            b.load(70_000)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_333)
            b.alloc(4096)
            b.item()
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_001, stream=9)
            b.compute("aten::add", 400_111)
            b.synchronize()
    return b


def exported(path: Path) -> tuple[AnalysisResult, bytes]:
    studied = study(path)
    return studied, render(studied.report, "chrome", recording=studied.recording)


def of_any_place(report: Report) -> Report:
    return replace(report, source=replace(report.source, path=""))


@pytest.fixture(scope="module")
def gpu(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[AnalysisResult, list[Event], list[Event]]:
    """Return the study, the events of the recording, and the exported events."""
    path = gpu_program().write(tmp_path_factory.mktemp("gpu") / "gpu.json")
    studied, product = exported(path)
    return studied, events_of(path.read_bytes()), events_of(product)


def test_the_events_are_unchanged_and_the_added_ones_follow(
    gpu: tuple[AnalysisResult, list[Event], list[Event]],
) -> None:
    _, before, after = gpu
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert after[len(before) :] == ours(after)


def test_the_text_of_the_events_is_copied_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "odd layout.json"
    events = '{"ph" : "X","cat":"cpu_op","name":"a\\u0062", "ts":1.500, "dur":2e0,"pid":1,"tid":1 }'
    path.write_text(f'{{"one": [1],"traceEvents":[ {events},\n  {events}\n], "two" : 2}}')
    _, product = exported(path)
    assert product.startswith(f'{{"one": [1],"traceEvents":[{events},\n  {events}'.encode())
    assert product.endswith(b'], "two" : 2}')


@pytest.mark.parametrize("absolute", [False, True])
def test_viewers_can_draw_the_added_events(absolute: bool, tmp_path: Path) -> None:  # noqa: FBT001  (a parameter of the test)
    path = gpu_program(absolute=absolute).write(tmp_path / "trace.json")
    check(events_of(exported(path)[1]))


@pytest.mark.parametrize("absolute", [False, True])
def test_the_product_has_the_same_report_and_can_be_exported_again(
    absolute: bool,  # noqa: FBT001  (a parameter of the test)
    tmp_path: Path,
) -> None:
    path = gpu_program(absolute=absolute).write(tmp_path / "trace.json")
    studied, product = exported(path)
    assert studied.report.findings
    (tmp_path / "exported.json").write_bytes(product)
    assert of_any_place(analyze(tmp_path / "exported.json")) == of_any_place(studied.report)
    again = exported(tmp_path / "exported.json")[1]
    assert json.loads(again) == json.loads(product)


def test_every_finding_is_a_slice_with_its_message_and_fix(
    gpu: tuple[AnalysisResult, list[Event], list[Event]],
) -> None:
    studied, _, after = gpu
    slices = {e["args"]["finding"]: e for e in ours(after) if "message" in e.get("args", {})}
    every = (*studied.report.findings, *studied.report.health)
    assert [slices[number]["args"]["message"] for number in sorted(slices)] == [
        finding.message for finding in every
    ]
    for number, finding in enumerate(every, start=1):
        assert slices[number]["name"].startswith(f"{finding.rule} {finding.name}")
        assert slices[number]["args"].get("fix", "") == finding.fix


def test_a_findings_slices_are_the_intervals_of_its_cost(
    gpu: tuple[AnalysisResult, list[Event], list[Event]],
) -> None:
    studied, before, after = gpu
    first_us = min(Decimal(e["ts"]) for e in before if "ts" in e)
    (number, finding) = next(
        (i, f) for i, f in enumerate(studied.report.findings, start=1) if len(f.spans) > 1
    )
    drawn = [
        (int((Decimal(e["ts"]) - first_us) * 1000), int(Decimal(e["dur"]) * 1000))
        for e in ours(after)
        if e["ph"] == "X" and e["args"] == {"finding": number}
    ]
    assert drawn == [(start, end - start) for start, end in finding.spans]


def test_the_events_that_a_finding_refers_to_have_a_marker_and_an_arrow(
    gpu: tuple[AnalysisResult, list[Event], list[Event]],
) -> None:
    studied, before, after = gpu
    named = Counter(
        (f"{f.rule} {f.name}", before[n]["pid"], before[n]["tid"], before[n]["ts"])
        for f in studied.report.findings
        for n in event_positions(f)
    )

    markers = Counter(
        (e["name"], e["pid"], e["tid"], e["ts"]) for e in ours(after) if e["ph"] == "i"
    )
    assert markers == named

    arrows: dict[int, list[Event]] = {}
    for event in ours(after):
        if event["ph"] in {"s", "f"}:
            arrows.setdefault(event["id"], []).append(event)
    assert arrows

    events = {key[1:] for key in named}
    for start, end in arrows.values():
        assert (start["ph"], end["ph"]) == ("s", "f")
        assert start["ts"] <= end["ts"]
        assert sum((e["pid"], e["tid"], e["ts"]) in events for e in (start, end)) == 1


def test_the_idle_gaps_add_up_to_the_idle_time_of_the_report_by_cause(
    gpu: tuple[AnalysisResult, list[Event], list[Event]],
) -> None:
    studied, _, after = gpu
    by_cause: Counter[str] = Counter()
    for event in ours(after):
        if event.get("args", {}).keys() == {"device"}:
            by_cause[event["name"]] += int(Decimal(event["dur"]) * 1000)
    (device,) = studied.report.summary.devices
    assert by_cause == {
        part_label(f"idle-{idle_cause.cause}"): idle_cause.ns for idle_cause in device.idle_causes
    }
    assert sum(by_cause.values()) == device.idle_ns > 0


def counter(events: list[Event], name: str) -> list[tuple[Decimal, Any]]:
    return [
        (Decimal(e["ts"]), next(iter(e["args"].values())))
        for e in ours(events)
        if e["ph"] == "C" and e["name"] == name
    ]


def test_the_area_of_the_busy_counter_is_the_busy_time(
    gpu: tuple[AnalysisResult, list[Event], list[Event]],
) -> None:
    studied, _, after = gpu
    (device,) = studied.report.summary.devices
    points = counter(after, "cuda:0 busy")
    area = sum((later - at) * 1000 * value for (at, value), (later, _) in pairwise(points))
    assert abs(float(area) / 100 - device.busy_ns) < device.span_ns * 1e-4
    assert points[-1][1] == 0


def test_the_queue_is_empty_at_the_end_and_memory_agrees_with_the_allocator(
    gpu: tuple[AnalysisResult, list[Event], list[Event]],
) -> None:
    _, before, after = gpu
    assert counter(after, "cuda:0 queued launches")[-1][1] == 0
    recorded = [
        (Decimal(e["ts"]), e["args"]["Total Allocated"]) for e in before if e["name"] == "[memory]"
    ]
    drawn = counter(after, "cuda:0 allocated")
    assert drawn == recorded
    assert max(value for _, value in drawn) == 3 * 4096


def test_a_truncated_trace_is_completed(tmp_path: Path) -> None:
    whole = gpu_program().to_bytes()
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    studied, product = exported(path)
    assert [finding.rule for finding in studied.report.health] == ["PRF006", "PRF003"]
    check(events_of(product))
    (tmp_path / "closed.json").write_bytes(product)
    closed = analyze(tmp_path / "closed.json")
    assert closed.summary == studied.report.summary
    assert closed.findings == studied.report.findings
    assert closed.health == studied.report.health[1:]


@pytest.mark.parametrize(
    "form",
    [
        Format(layout="kineto"),
        Format(layout="lines", events_first=True),
        Format(array=True, text_ids=True),
        Format(begin_end=True, extras=True),
        Format(times="string", absolute=True, instants="X"),
        Format(old=True, absolute=True),
        Format(vendor="rocm", extras=True),
        Format(vendor="xpu"),
    ],
    ids=str,
)
def test_traces_of_every_vendor_and_version_have_the_same_figures_after_export(
    form: Format, tmp_path: Path
) -> None:
    path = gpu_program().write(tmp_path / "trace.json.gz", form)
    studied, product = exported(path)
    check(events_of(product))
    (tmp_path / "exported.json").write_bytes(product)
    assert of_any_place(analyze(tmp_path / "exported.json")) == of_any_place(studied.report)


def test_damaged_traces_become_valid_json_with_the_same_figures(tmp_path: Path) -> None:
    whole = gpu_program().to_bytes()
    path, again = tmp_path / "damaged.json", tmp_path / "exported.json"
    n_read = 0
    for place in range(100, len(whole), 1013):
        for damaged in (
            whole[:place],
            whole[:place] + b"\0" + whole[place + 1 :],
            whole[:place] + b'"' + whole[place + 1 :],
            whole[:place] + b'}]garbage{"' + whole[place:],
        ):
            path.write_bytes(damaged)
            try:
                studied, product = exported(path)
            except LoadError:
                continue
            n_read += 1
            check(events_of(product))
            again.write_bytes(product)
            read = analyze(again)
            assert read.summary == studied.report.summary, place
            assert read.findings == studied.report.findings, place

    assert n_read > 10


def test_a_large_trace_is_exported_in_pieces(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(45_000):
        b.compute("aten::add", 500)
    path = b.write(tmp_path / "long.json.gz")
    studied = study(path)
    options = {"recording": studied.recording}
    parts = [len(part) for part in pieces(renderer("chrome"), studied.report, options)]
    assert sum(parts) > 4 << 20
    assert max(parts) <= 3 << 20
    product = b"".join(pieces(renderer("chrome"), studied.report, options))
    before = events_of(gzip.decompress(path.read_bytes()))
    assert events_of(product)[: len(before)] == before


def test_a_report_alone_shows_its_steps_and_findings() -> None:
    events = events_of(render(reports.build_gpu_report(), "chrome"))
    check(events)
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert "DAT001 starved-by-loader at train.py:31" in names
    assert names.count("ProfilerStep#0") == 1


def test_overlapping_findings_have_separate_rows() -> None:
    report = reports.build_gpu_report()
    report = replace(report, findings=tuple(reports.build_starved() for _ in range(5)))
    events = events_of(render(report, "chrome"))
    check(events)
    rows = {e["tid"] for e in events if e["ph"] == "X" and "message" in e["args"]}
    assert len(rows) == 6


def test_of_ten_thousand_findings_the_costliest_are_drawn() -> None:
    events = events_of(render(reports.many_findings(), "chrome"))
    check(events)
    assert len([e for e in events if "message" in e.get("args", {})]) == 200
    titles = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert "findings (and 9,800 more in the report)" in titles


def test_a_snapshots_history_becomes_counters(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 7, "train"):
        kept = b.alloc(4 << 20)
        b.free(b.alloc(8 << 20))
    b.free(kept)
    studied = study(b.write(tmp_path / "memory.snapshot.pickle"))
    events = events_of(render(studied.report, "chrome", recording=studied.recording))
    check(events)
    active = [value for _, value in counter(events, "cuda:0 active (snapshot)")]
    assert max(active) == 12 << 20


def test_memory_samples_become_counters(tmp_path: Path) -> None:
    studied = study(LiveBuilder().write(tmp_path / "run.memory.json.gz"))
    events = events_of(render(studied.report, "chrome", recording=studied.recording))
    check(events)
    live = studied.recording.context.live
    assert live is not None
    seen = [
        (sample.ts_ns, sample.host_rss_bytes)
        for sample in live.samples
        if sample.host_rss_bytes is not None
    ]
    drawn = counter(events, "host memory")
    assert [(int(at * 1000), value) for at, value in drawn] == seen
    assert seen


def test_a_trace_and_a_snapshots_history_have_the_same_clock(tmp_path: Path) -> None:
    b = gpu_program()
    snapshot = SnapshotBuilder()
    snapshot._now_us = BASE_NS // 1000 + 100  # a tenth of a millisecond into the trace
    with snapshot.frame("train.py", 7, "train"):
        snapshot.alloc(4 << 20)
        snapshot.alloc(8 << 20)
    paths = [
        b.write(tmp_path / "trace.json"),
        snapshot.write(tmp_path / "memory.snapshot.pickle"),
    ]
    studied = study(paths)
    history = studied.recording.context.snapshot
    assert history is not None
    events = events_of(render(studied.report, "chrome", recording=studied.recording))
    check(events)
    drawn = counter(events, "cuda:0 active (snapshot)")

    first_us = int(history.history.time_us[0]) - BASE_NS // 1000
    assert drawn[0][0] == first_us >= 100
    assert drawn[-1][1] == 12 << 20


def test_the_critical_path_is_a_row_of_its_segments_with_exact_times(
    gpu: tuple[AnalysisResult, list[Event], list[Event]],
) -> None:
    studied, _, after = gpu
    ctx = studied.recording.context
    (row,) = [
        event["tid"]
        for event in ours(after)
        if event["name"] == "thread_name" and event["args"]["name"] == "critical path"
    ]
    shown = [event for event in ours(after) if event["ph"] == "X" and event["tid"] == row]

    lengths = [int(Decimal(str(event["dur"])) * 1000) for event in shown]
    assert lengths == ctx.critical_path.lengths_ns.tolist()

    starts = [Decimal(str(event["ts"])) * 1000 for event in shown]
    assert [start - starts[0] for start in starts] == (
        ctx.critical_path.starts_ns - ctx.critical_path.starts_ns[0]
    ).tolist()

    by_kind: Counter[str] = Counter()
    for event, length in zip(shown, lengths, strict=True):
        by_kind[event["args"]["kind"]] += length
    path = studied.report.summary.critical_path
    assert path is not None
    assert by_kind == {path_label(part.kind): part.ns for part in path.parts}
    assert {event["name"] for event in shown} >= {"gemm", "cudaLaunchKernel", "aten::mm"}
