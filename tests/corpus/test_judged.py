"""Real traces that an expert judged: what is true of them, computed from their JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from isal import igzip

from profkit.api import analyze, render
from profkit.engine.context import Context
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.headline import headline
from tests.corpus.test_corpus import CORPUS, needs_corpus
from tests.traces import load_trace

pytestmark = needs_corpus

Entry = dict[str, Any]
_reports: dict[str, Report] = {}


def path_of(name: str) -> Path:
    return CORPUS / "traces" / f"{name}.json.gz"


def report_of(name: str) -> Report:
    if name not in _reports:
        _reports[name] = analyze(path_of(name), strict=True)
    return _reports[name]


def findings_of(name: str, rule: str) -> list[Finding]:
    report = report_of(name)
    return [each for each in (*report.findings, *report.health) if each.rule == rule]


def raw_events(name: str) -> list[Entry]:
    content = json.loads(igzip.decompress(path_of(name).read_bytes()), strict=False)
    return content if isinstance(content, list) else content["traceEvents"]


def test_launches_without_correlation_are_joined_by_their_flows() -> None:
    name = "rocm-gemm-no-correlation"
    events = raw_events(name)
    calls = {e["args"]["External id"]: e["ts"] for e in events if e.get("cat") == "cuda_runtime"}
    kernels = [e for e in events if e.get("cat") == "kernel"]
    expected = {e["ts"]: calls[e["args"]["External id"]] for e in kernels}
    trace = load_trace(path_of(name))
    ctx = Context(trace)
    pairs = zip(ctx.launches.work.tolist(), ctx.launches.launch.tolist(), strict=True)
    start_us = min(e["ts"] for e in events if e["ph"] == "X")
    found = {
        trace.events.ts_ns[work] / 1000 + start_us: trace.events.ts_ns[launch] / 1000 + start_us
        for work, launch in pairs
    }
    assert found == expected
    assert {trace.events.name_of(op) for op in ctx.launches.op} == {"aten::mm"}


def test_no_device_event_of_a_trace_without_correlation_is_lost() -> None:
    assert findings_of("rocm-gemm-no-correlation", "PRF004") == []


def test_the_end_of_a_benchmark_harness_may_synchronize() -> None:
    assert findings_of("rocm-gemm-no-correlation", "SYN002") == []


def test_a_launch_that_loads_code_is_no_queued_work() -> None:
    name = "v100-resnet50-no-profiler-steps"
    events = [e for e in raw_events(name) if e.get("ph") == "X"]
    work = sorted(
        (e["ts"], e["ts"] + e["dur"], e["args"]["correlation"])
        for e in events if e.get("cat") in ("Kernel", "Memcpy", "Memset")
    )  # fmt: skip
    ended = {
        e["args"]["correlation"]: e["ts"] + e["dur"]
        for e in events if e.get("cat") == "Runtime" and "correlation" in e["args"]
    }  # fmt: skip
    queued_us, busy_until = 0.0, work[0][1]
    for start, end, ident in work:
        if start > busy_until and ended[ident] <= busy_until:
            queued_us += start - busy_until
        busy_until = max(busy_until, end)
    (device,) = report_of(name).summary.devices
    found = {cause.cause: cause.ns for cause in device.idle_causes}
    # Copies whose call waits for a kernel are queued too: a thousandth of the idle time.
    assert queued_us * 1000 <= found["device"] <= queued_us * 1000 + device.idle_ns / 1000
    assert found["device"] < 0.01 * device.idle_ns


def test_a_copy_takes_no_longer_than_its_call() -> None:
    name = "v100-resnet50-no-profiler-steps"
    assert not [f for f in findings_of(name, "DAT002") if "112 B" in f.message]
    ctx = Context(load_trace(path_of(name)))
    rows = ctx.syncs.rows[ctx.events.n_bytes.at(ctx.syncs.copy) == 112]
    assert len(rows)
    assert {ctx.events.name_of(row) for row in rows} == {"cudaMemcpy"}
    assert ctx.events.dur_ns[rows].max() <= 25_000


def test_copies_and_kernels_of_another_producer_are_device_work() -> None:
    name = "bracketed-copies"
    events = raw_events(name)
    report = report_of(name)
    (device,) = report.summary.devices
    assert (device.n_kernels, device.n_memcpy, device.device) == (100, 200, "cuda:0")
    to_host = [e for e in events if e["name"].endswith("DtoH")]
    kinds = {copy.kind: (copy.n_calls, copy.total_ns) for copy in report.summary.copies}
    assert kinds["[MEMCPY] DtoH"] == (100, round(1000 * sum(e["dur"] for e in to_host)))
    assert kinds["[MEMCPY] HtoD"][0] == 100
    assert "CPU" not in headline(report)
    assert "the GPU is busy 29%" in headline(report)


def test_steps_of_a_loader_and_an_optimizer_are_found_without_profiler_steps() -> None:
    for name, n in (("loader-waits-without-steps", 30), ("v100-resnet50-no-profiler-steps", 6)):
        events = [e for e in raw_events(name) if e.get("ph") == "X" and "dur" in e]
        waits = sorted(e["ts"] for e in events if e["name"].startswith("enumerate(DataLoader)"))
        ends = [e["ts"] + e["dur"] for e in events if e["name"].startswith("Optimizer.step#")]
        report = report_of(name)
        steps = report.summary.steps
        assert report.source.step_origin == "loader"
        assert len(steps) == len(waits) == len(ends) == n
        assert report.summary.n_incomplete_steps == 0
        lengths = [b - a for a, b in zip(waits, [*waits[1:], max(ends)], strict=True)]
        found = [step.dur_ns / 1000 for step in steps]
        assert found == pytest.approx(lengths, abs=1)


def test_all_waits_of_a_loader_without_profiler_steps_are_named() -> None:
    name = "loader-waits-without-steps"
    waits = [
        e["dur"] for e in raw_events(name)
        if e.get("ph") == "X" and e["name"].startswith("enumerate(DataLoader)")
    ]  # fmt: skip
    (finding,) = findings_of(name, "DAT001")
    assert finding.n == len(waits) == 30
    steps = report_of(name).summary.steps
    waited_us = sum(step.data_wait_ns for step in steps) / 1000
    assert waited_us == pytest.approx(sum(waits), abs=30)
    assert waited_us == pytest.approx(8.2e6, rel=0.01)


def test_a_remnant_of_a_step_is_in_no_figure() -> None:
    report = report_of("cpu-vae-one-step")
    assert not report.summary.steps
    assert report.summary.n_incomplete_steps == 1
    assert report.summary.breakdown is not None
    assert report.summary.breakdown.per_step_ns is None
    assert "no complete step" in headline(report)
    assert b"1 incomplete step excluded" in render(report, "text")


def test_recordings_without_a_loop_have_no_steps() -> None:
    for name in (
        "b200-eager-inference", "bracketed-copies", "cupti-ranges-no-kernels",
        "inference-with-autograd-on", "legacy-autograd-array", "mtia-inference",
        "randn-on-host-then-moved", "rocm-gemm-no-correlation", "sglang-decode",
        "switch-transformer-inference",
    ):  # fmt: skip
        report = report_of(name)
        assert not report.summary.steps
        assert not report.source.step_definition


def test_where_the_host_runs_ahead_the_step_time_is_that_of_the_gpu() -> None:
    name = "mi300-resnet-ddp"
    events = [e for e in raw_events(name) if e.get("ph") == "X" and "dur" in e]
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events
        if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"
    )  # fmt: skip
    called = {
        e["args"]["correlation"]: e["ts"] for e in events
        if e["cat"] == "cuda_runtime" and "correlation" in e.get("args", {})
    }  # fmt: skip
    completed = [
        max(
            e["ts"] + e["dur"] for e in events
            if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
            and start <= called.get(e["args"].get("correlation"), -1) < end
        )
        for start, end in steps
    ]  # fmt: skip
    report = report_of(name)
    found = [step.device_dur_ns for step in report.summary.steps]
    assert [ns / 1000 for ns in found[1:] if ns is not None] == pytest.approx(
        [completed[1] - completed[0], completed[2] - completed[1]], abs=1
    )
    breakdown = report.summary.breakdown
    assert breakdown is not None
    assert breakdown.host_per_step_ns is not None
    assert breakdown.host_per_step_ns / 1000 == pytest.approx(
        sum(end - start for start, end in steps) / 3, abs=1
    )
    assert breakdown.per_step_ns == round(sum(ns or 0 for ns in found) / 3)
    assert "18.8 ms on the GPU" in headline(report)
    assert "16.2 ms on the host, which runs ahead" in headline(report)


def test_where_the_device_keeps_up_the_step_time_is_that_of_the_host() -> None:
    for name in ("v100-resnet50-loader-0-workers", "graph-kernels-missing", "h100-qwen-inference"):
        report = report_of(name)
        assert all(step.device_dur_ns is None for step in report.summary.steps)
        assert "runs ahead" not in headline(report)


def test_a_trace_in_which_nothing_was_recorded_says_so() -> None:
    name = "nothing-recorded"
    kinds = {e.get("cat") for e in raw_events(name) if e["ph"] == "X"}
    assert kinds == {"cuda_runtime", "overhead", "Trace"}
    (fault,) = findings_of(name, "PRF008")
    assert fault.severity == "warning"
    assert headline(report_of(name)).startswith("The recording of 77.9 s has no operator")
    others = {path.name for path in (CORPUS / "traces").iterdir()} - {path_of(name).name}
    for other in others:
        report = analyze(CORPUS / "traces" / other, select=["PRF008"], strict=True)
        assert report.health == (), other


def test_a_few_kernels_and_a_mostly_idle_device_are_launch_bound() -> None:
    name = "transformer-few-kernels-idle"
    kernels = [e for e in raw_events(name) if e.get("cat") == "kernel"]
    (finding,) = findings_of(name, "KER001")
    assert finding.evidence["n_kernels_per_step"] == round(len(kernels) / 3) == 16
    assert finding.confidence == "low"


@pytest.mark.parametrize(
    "name", ["a100-ddp-rank0-of-2", "b200-eager-inference", "v100-ddp-404-allreduces"]
)
def test_what_was_rightly_launch_bound_still_is(name: str) -> None:
    (finding,) = findings_of(name, "KER001")
    assert finding.severity == "warning"


def test_a_frame_that_was_open_when_recording_began_has_no_line() -> None:
    report = report_of("cpu-vae-module-level-frame")
    found = {each.rule: each for each in report.findings}
    for rule in ("MEM014", "SYN001"):
        (location, *_) = found[rule].locations
        assert (location.line, location.function) == (None, "<module>")
        assert location.place == "vae_mnist_working.py"
        assert "141" not in found[rule].message


@pytest.mark.parametrize(
    "name", ["v100-resnet50-loader-0-workers", "v100-resnet50-loader-4-workers"]
)
def test_batches_that_are_moved_are_told_to_be_pinned(name: str) -> None:
    (finding,) = findings_of(name, "DAT002")
    assert "pin_memory=True" in finding.fix
