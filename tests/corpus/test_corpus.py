"""Real traces of other people: every figure as a slow, independent program worked it out."""

from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze
from profkit.errors import NotATraceError
from profkit.model.report import Report
from tests.corpus.recordings import CORPUS, TRACES, expected_figures, needs_corpus, report_on

WITHOUT_ADDRESSES = ("v100-resnet50-loader-0-workers", "v100-resnet50-loader-4-workers")
"""Allocations without addresses: which of them a free belongs to cannot be known."""
WITHOUT_CATEGORIES = ("legacy-autograd-array",)
"""Operators without a category: profkit knows them by their process, the reference does not."""
CUT_OFF = ("cpu-vae-one-step",)
"""The only step is the remnant after the loop, in which nothing runs."""
OTHER_PRODUCERS = ("bracketed-copies",)
"""Events without a category: profkit knows them by names and arguments, the reference does not.
``test_judged.py`` tests what is true of them."""
MTIA = ("mtia-inference",)
"""The reference does not know that MTIA's own events are work of a device."""

EXPECTED = [
    entry for entry in expected_figures("trace") if not entry["file"].startswith(OTHER_PRODUCERS)
]
IDS = [entry["file"].removesuffix(".json.gz") for entry in EXPECTED]
each_trace = pytest.mark.parametrize("expected", EXPECTED, ids=IDS)


def report_of(file: str) -> Report:
    return report_on(TRACES / file)


@needs_corpus
def test_every_listed_trace_is_in_the_folder() -> None:
    listed = {entry["file"] for entry in expected_figures("trace")}
    assert listed
    assert listed <= {path.name for path in TRACES.iterdir()}


@needs_corpus
@each_trace
def test_device_figures_agree_to_the_nanosecond(expected: dict[str, Any]) -> None:
    if expected["file"].startswith(MTIA):
        return
    report = report_of(expected["file"])
    device_of = {device.device.partition(":")[2]: device for device in report.summary.devices}
    assert set(device_of) == set(expected["devices"])
    for ordinal, figures in expected["devices"].items():
        renamed = {("communication_ns" if k == "comm_ns" else k): v for k, v in figures.items()}
        device_figures = {key: getattr(device_of[ordinal], key) for key in renamed}
        # The reference counts the time of unrecorded work as idle.
        device_figures["idle_ns"] += device_of[ordinal].unrecorded_ns
        assert device_figures == renamed


@needs_corpus
@each_trace
def test_idle_causes_add_up_to_the_idle_time(expected: dict[str, Any]) -> None:
    for device in report_of(expected["file"]).summary.devices:
        assert sum(cause.ns for cause in device.idle_causes) == device.idle_ns


@needs_corpus
@each_trace
def test_kernels_operators_and_calls_agree(expected: dict[str, Any]) -> None:
    report = report_of(expected["file"])
    summary = report.summary
    assert report.source.n_events == expected["n_events"]

    if not expected["file"].startswith(MTIA):
        kernels = [(k["name"], k["count"], k["total_ns"]) for k in expected["top_kernels"]]
        assert [(k.name, k.n_calls, k.total_ns) for k in summary.top_kernels[:10]] == kernels
        assert {copy.kind: copy.n_calls for copy in summary.copies} == expected["memcpy_kinds"]
        assert summary.n_gpu_events_without_launch == expected["n_gpu_events_without_launch"]
    if not expected["file"].startswith(WITHOUT_CATEGORIES):
        ops = [(op["name"], op["count"], op["total_ns"]) for op in expected["top_cpu_ops_by_total"]]
        assert [(op.name, op.n_calls, op.total_ns) for op in summary.top_ops[:10]] == ops
    calls = {s.call: {"count": s.n_calls, "total_ns": s.total_ns} for s in summary.syncs}
    assert calls == expected["sync_calls"]

    steps = [(step["name"], step["dur_ns"]) for step in expected["steps"]]
    if report.source.step_origin in {None, "profiler"}:
        assert summary.n_incomplete_steps == len(steps) - len(summary.steps)
        assert {(step.name, step.dur_ns) for step in summary.steps} <= set(steps)
        assert len(summary.steps) == len(steps) - expected["file"].startswith(CUT_OFF)
    else:
        assert not steps
    assert summary.n_graph_launches == expected["n_graph_launches"]


@needs_corpus
@each_trace
def test_allocations_agree(expected: dict[str, Any]) -> None:
    memory, figures = report_of(expected["file"]).summary.memory, expected["memory"]
    if memory is None:
        assert figures["n_events"] == 0
        return
    assert memory.n_events == figures["n_events"]
    if expected["file"].startswith(WITHOUT_ADDRESSES):
        assert memory.n_unfreed is None
        assert memory.unfreed_bytes is None
        return
    for key in ("n_unfreed", "unfreed_bytes", "n_frees_of_earlier"):
        assert getattr(memory, key) == figures[key]
    peaks = sorted(peak.bytes for peak in memory.peak)
    assert peaks == sorted(figures["peak_total_allocated"].values())


@needs_corpus
@each_trace
def test_the_parts_of_the_steps_add_up(expected: dict[str, Any]) -> None:
    breakdown = report_of(expected["file"]).summary.breakdown
    assert breakdown is not None
    assert sum(part.ns for part in breakdown.parts) == breakdown.total_ns


@needs_corpus
def test_the_operators_of_an_array_without_categories_are_known_by_their_process() -> None:
    ops = report_of("legacy-autograd-array.json.gz").summary.top_ops
    assert [(op.name, op.n_calls) for op in ops[:2]] == [
        ("Shared MLP", 5),
        ("aten::convolution", 25),
    ]


@needs_corpus
def test_a_loader_in_the_main_process_is_found_and_its_fix_is_not() -> None:
    slow = report_of("v100-resnet50-loader-0-workers.json.gz")
    cured = report_of("v100-resnet50-loader-4-workers.json.gz")
    (starved,) = [f for f in slow.findings if f.name == "starved-by-loader"]
    waits = [step.data_wait_ns for step in slow.summary.steps]
    assert 62_500_000 <= min(waits) <= max(waits) <= 73_500_000
    # The GPU works for up to 11 ms of each wait.
    assert starved.cost.per_step_ns is not None
    assert min(waits) - 11_000_000 <= starved.cost.per_step_ns <= max(waits)
    assert not [f for f in cured.findings if f.name == "starved-by-loader"]


@needs_corpus
@pytest.mark.parametrize(
    "path",
    sorted((CORPUS / "negatives").glob("*")) if CORPUS.is_dir() else [],
    ids=lambda p: p.name,
)
def test_invalid_traces_exit_with_code_3_and_a_sentence(path: Path) -> None:
    with pytest.raises(NotATraceError) as refused:
        analyze(path)
    assert refused.value.exit_code == 3
    assert path.name in refused.value.message
    assert refused.value.hint
