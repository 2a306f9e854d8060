"""Times per step of kernels, operators, modules and lines, against sums over a trace's own JSON."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze, compare, render
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.corpus.recordings import CORPUS, needs_corpus
from tests.job_traces import LATE_NS, REDUCE_NS, write_job

Event = dict[str, Any]


def events_of(path: Path) -> list[Event]:
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document if isinstance(document, list) else document["traceEvents"]


def sums_in_steps(events: list[Event], counts: Callable[[Event], bool]) -> dict[str, float]:
    """Microseconds per step by name, of the events that begin in a ``ProfilerStep#N``."""
    steps = [
        event
        for event in events
        if event.get("cat") in {"user_annotation", "cpu_op"}
        and event["name"].startswith("ProfilerStep#")
    ]
    sums: Counter[str] = Counter()
    for candidate in filter(counts, events):
        if any(s["ts"] <= candidate["ts"] < s["ts"] + s["dur"] for s in steps):
            sums[candidate["name"]] += candidate["dur"]
    return {name: us / len(steps) for name, us in sums.items()}


def build_program(n_kernels: int = 1, warm_ups: int = 1) -> TraceBuilder:
    """Two steps of a module's call, with the same work before, between and after them."""
    b = TraceBuilder(stacks=True)

    def work(n: int) -> None:
        for _ in range(n):
            with b.frame("train.py", 7, "work"), b.module("Linear", 0):
                b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=4_000)
                b.compute("aten::relu", 2_000)
        b.to_device(1 << 20, 5_000)
        b.synchronize()

    work(warm_ups)
    for _ in range(2):
        with b.step():
            work(n_kernels)
        work(1)
    return b


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return analyze(build_program().write(tmp_path / "trace.json"))


def test_what_runs_outside_of_steps_is_in_totals_alone(report: Report, tmp_path: Path) -> None:
    summary = report.summary
    (kernel,) = summary.top_kernels
    assert (kernel.n_calls, kernel.total_ns, kernel.per_step_ns) == (5, 20_000, 4_000)

    events = events_of(tmp_path / "trace.json")
    expected = sums_in_steps(events, lambda event: event.get("cat") == "cpu_op")
    for op in summary.top_ops:
        assert op.per_step_ns == pytest.approx(expected[op.name] * 1e3, abs=1)
        assert op.total_ns == pytest.approx(5 * expected[op.name] * 1e3, abs=5)

    by_name = {op.name: op for op in summary.top_ops}
    assert by_name["aten::mm"].device_per_step_ns == 4_000
    assert by_name["aten::relu"].self_per_step_ns == 2_000

    (module,) = summary.modules
    assert module.device_ns == 20_000
    assert (module.device_per_step_ns, module.self_device_per_step_ns) == (4_000, 4_000)
    assert module.host_per_step_ns == module.self_host_per_step_ns == module.host_ns / 5

    (line,) = summary.lines
    assert (line.device_ns, line.device_per_step_ns) == (20_000, 4_000)
    assert line.host_per_step_ns == line.host_ns / 5
    assert [(copy.total_ns, copy.per_step_ns) for copy in summary.copies] == [(25_000, 5_000)]

    expected = sums_in_steps(events, lambda event: event.get("cat") == "cuda_runtime")
    for sync in summary.syncs:
        assert sync.per_step_ns == pytest.approx(expected[sync.call] * 1e3, abs=1)
        assert expected[sync.call] * 1e3 < sync.total_ns / 2


def test_every_format_shows_times_per_step_before_totals(report: Report) -> None:
    text = render(report, "text", verbose=True).decode()
    kernels = next(line for line in text.splitlines() if line.startswith("gemm"))
    assert kernels.split()[1:7] == ["4.00", "µs", "20.0", "µs", "100%", "5"]
    for name in ("md", "fragment", "html"):
        shown = render(report, name).decode()
        assert "in total</h" not in shown
        assert 0 < shown.index("4.00 µs") < shown.index("20.0 µs")
    table = render(report, "csv", table="kernels").decode().splitlines()
    assert "total_ns,per_step_ns" in table[0]
    assert ",20000,4000," in table[1]


def test_without_steps_totals_are_labelled_so(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=4_000)
    report = analyze(b.write(tmp_path / "trace.json"))
    assert report.summary.top_kernels[0].per_step_ns is None
    assert report.summary.top_ops[0].device_per_step_ns is None
    for name in ("text", "md", "fragment", "html"):
        shown = render(report, name).decode()
        assert "Kernels in total" in shown
        assert "per step" not in shown.partition("Kernels in total")[2].lower()[:2_000]


def test_a_comparison_leaves_out_what_runs_outside_of_steps(tmp_path: Path) -> None:
    before = build_program().write(tmp_path / "before.json")
    warm = build_program(warm_ups=9).write(tmp_path / "warm.json")
    more = build_program(n_kernels=2).write(tmp_path / "more.json")
    difference = compare(before, warm)
    assert [change for change in difference.changes if change.kind == "kernel"] == []
    (change,) = (change for change in compare(before, more).changes if change.kind == "kernel")
    assert (change.before, change.after, change.per_step) == (4_000, 8_000, True)


@needs_corpus
def test_a_real_trace_has_the_sums_of_its_own_events() -> None:
    path = CORPUS / "traces" / "cpu-vae-windows-3-steps.json.gz"
    expected = sums_in_steps(events_of(path), lambda event: event.get("cat") == "cpu_op")
    report = analyze(path)
    assert len(report.summary.steps) == 3
    for op in report.summary.top_ops:
        assert op.per_step_ns == pytest.approx(expected.get(op.name, 0) * 1e3, abs=2)


def test_devices_have_their_activity_in_the_time_of_the_steps(
    report: Report, tmp_path: Path
) -> None:
    steps = [(step.time_start_ns, step.time_ns) for step in report.summary.steps]
    (device,) = report.summary.devices

    in_steps = device.in_steps
    assert in_steps is not None
    assert (in_steps.n_kernels, in_steps.n_memcpy, in_steps.compute_ns, in_steps.memcpy_ns) == (
        2,
        2,
        8_000,
        10_000,
    )
    assert (in_steps.busy_ns, in_steps.communication_ns) == (18_000, 0)
    assert in_steps.busy_ns + in_steps.idle_ns == sum(length for _, length in steps)
    assert device.n_kernels == 5

    path = tmp_path / "trace.json"
    difference = compare(path, build_program(warm_ups=9).write(tmp_path / "warm.json"))
    figures = {figure.name: (figure.before, figure.after) for figure in difference.figures}
    assert figures["n_kernels_per_step"] == (1, 1)
    assert figures["busy_ns_per_step"] == (9_000, 9_000)

    # One device does what all do together.
    text = render(difference, "text").decode()
    assert "GPU busy per step" in text
    assert "cuda:0 compute per step" in text
    assert "cuda:0 busy" not in text


def test_collectives_before_the_steps_are_in_no_time_per_step_of_a_rank(tmp_path: Path) -> None:
    first, last = analyze(write_job(tmp_path / "job", n_warm_ups=3)).ranks
    assert (first.collective_wait_ns, first.transfer_ns) == (LATE_NS, REDUCE_NS - LATE_NS)
    assert (last.collective_wait_ns, last.transfer_ns) == (0, REDUCE_NS - LATE_NS)
    assert first.collective_wait_ns == sum(first.steps_wait_ns) / len(first.steps_ns)
